"""CPU-heavy jobs whose results are waited for: the primes below five million, counted in twenty ranges.

In this folder, with batchq installed:

    batchq start -n 2 cpu_heavy:app       # terminal 1: two workers; Ctrl-C ends them
    python cpu_heavy.py                   # terminal 2: enqueues the ranges and waits for their sum

The jobs stand in ./var/cpu_heavy. With BATCHQ_URL=redis://127.0.0.1:6379/0 both commands use Redis instead.
"""

from __future__ import annotations

from math import isqrt

from batchq import App

app = App(spool="./var/cpu_heavy")


# A worker claims several short jobs at a time. These are long: with batch_claim=False each waits for whoever is free
# first, never behind another one. result=600 keeps what is returned for ten minutes.
@app.job(queue="primes", timeout=120, result=600, batch_claim=False)
def count_primes(low: int, high: int) -> int:
    """How many primes there are from low up to, not including, high."""
    is_prime = bytearray([1]) * (high - low)
    for n in range(2, isqrt(high) + 1):
        for multiple in range(max(n * n, -(-low // n) * n), high, n):
            is_prime[multiple - low] = 0
    return sum(is_prime) - sum(is_prime[: max(0, 2 - low)])


def main(below: int = 5_000_000, ranges: int = 20) -> None:
    step = below // ranges
    refs = [count_primes.enqueue(low, low + step) for low in range(0, below, step)]
    print(f"{len(refs)} ranges enqueued")
    # result() raises JobDead with the error of a job that failed for good, TimeoutError where nobody works.
    total = sum(ref.result(timeout=300) for ref in refs)
    print(f"{total} primes below {below}")


if __name__ == "__main__":
    main()
