"""How soon does an idle worker begin a job that was just enqueued, and how late does a delayed job begin?

Pickup: from before the call of enqueue to the handler's first line, jobs 20 to 80 ms apart, two idle workers. Beside it
the same through a blocking pop and nothing else. Lateness: from the due time (enqueue_at) to the handler's first line,
fire-times drawn at random within some seconds of each call. Both by the clock of this host. "early" must be 0.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import rig
import work

WORKERS = 2


def read(out: Path) -> list[float]:
    """The notes of `stamp`, in ms."""
    return [int(line) / 1e6 for line in out.read_bytes().splitlines()] if out.exists() else []


def pickup(url: str, jobs: int) -> list[float]:
    def send() -> None:
        rng = random.Random(1)
        for _ in range(jobs):
            time.sleep(rng.uniform(0.02, 0.08))
            work.stamp.enqueue(time.time_ns())

    return _run(url, jobs, send)


def lateness(url: str, jobs: int, over_s: float) -> list[float]:
    def send() -> None:
        rng = random.Random(1)
        for _ in range(jobs):
            # From each call on: what a slow disk enqueues after its time is not begun late.
            due_ms = time.time_ns() // 1_000_000 + int(1000 * rng.uniform(0.5, over_s))
            work.stamp.enqueue_at(datetime.fromtimestamp(due_ms / 1000, UTC), due_ms * 1_000_000)

    return _run(url, jobs, send)


def _run(url: str, jobs: int, send: Callable[[], None]) -> list[float]:
    work.app.configure({"url": url})
    with TemporaryDirectory() as folder:
        out = Path(folder) / "stamps"
        with rig.workers(url, WORKERS, work.app, out):
            time.sleep(0.3)  # Until all of them have looked and wait.
            send()
            rig.wait_until(lambda: len(read(out)) >= jobs, f"{jobs} jobs began", look_s=0.05)
        found = read(out)
    work.app.close()
    return found


def bare_pickup(url: str, jobs: int) -> list[float]:
    """LPUSH and BLPOP between two processes."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "stamps"

        def pop() -> None:
            connection, fd = rig.client(url), os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            for _ in range(jobs):
                _, sent = connection.blpop("bare")
                os.write(fd, b"%d\n" % (time.time_ns() - int(sent)))

        process = get_context("fork").Process(target=pop)
        process.start()
        connection, rng = rig.client(url), random.Random(1)
        connection.ping()
        for _ in range(jobs):
            time.sleep(rng.uniform(0.02, 0.08))
            connection.lpush("bare", str(time.time_ns()))
        process.join(rig.DEADLINE_S)
        return read(out)


def told(values: Sequence[float]) -> str:
    """Median, p95, p99 and the greatest, in ms."""
    shares = "  ".join(f"p{100 * share:.0f} {rig.percentile(values, share):.2f}" for share in (0.95, 0.99))
    return f"median {rig.percentile(values, 0.5):.2f}  {shares}  max {max(values):.2f} ms  n={len(values)}"


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    rig.row(store, "pickup by an idle worker", told(pickup(new_url(), args.jobs)))
    if store == "redis":
        rig.row(store, "pickup by a bare BLPOP", told(bare_pickup(new_url(), args.jobs)))
    late = lateness(new_url(), args.jobs, args.over)
    rig.row(store, "lateness of delayed jobs", told(late), f"early {sum(value < 0 for value in late)}")


if __name__ == "__main__":
    rig.main(
        __doc__,
        measure,
        jobs=rig.Option(300, 10, "N", "jobs of each case"),
        over=rig.Option(10.0, 1.0, "S", "fire-times lie within so many seconds"),
    )
