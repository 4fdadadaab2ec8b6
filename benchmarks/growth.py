"""Do the moves cost more when a queue holds millions than when it holds a thousand?

Enqueue, claim, complete, promote and stats with few and with many pending and delayed jobs. Median of the calls in us:
on Redis the time inside scripts by the server's own count; on the spool this process's CPU time. `--pending 10000000
--delayed 1000000` takes 3 GB of memory and some minutes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import rig
import work

from batchq.job import Completed, NewJob, new_id, pack_row

CALLS, BATCH = 60, 32


class Meter:
    """CPU us by name of the call."""

    def __init__(self, url: str) -> None:
        self._client = rig.client(url) if url.startswith("redis:") else None
        self.spent: dict[str, list[float]] = {}

    def _us(self) -> float:
        if self._client is None:
            return time.process_time() * 1e6
        return float(self._client.info("commandstats").get("cmdstat_evalsha", {"usec": 0})["usec"])

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        before = self._us()
        yield
        self.spent.setdefault(name, []).append(self._us() - before)


def some(count: int, delay_ms: int = 0) -> list[NewJob]:
    return [NewJob(new_id(), pack_row("noop", [n, rig.PAD]), delay_ms=delay_ms) for n in range(count)]


def fill(pending: int, delayed: int) -> None:
    work.noop.enqueue_many((n, rig.PAD) for n in range(pending))
    work.noop.options(delay=86_400).enqueue_many((n, rig.PAD) for n in range(delayed))


def moves(url: str) -> dict[str, float]:
    """CPU us of a call of each move, on the store as it is."""
    store, meter = work.app.store, Meter(url)
    store.register("default", "bench", 60_000)
    store.enqueue("default", some(1))
    store.complete("default", "bench", [Completed(claim) for claim in store.claim("default", "bench", 1, 0).claims])
    for _ in range(CALLS):
        with meter.of(f"enqueue {BATCH}"):
            store.enqueue("default", some(BATCH))
        store.enqueue("default", some(BATCH, delay_ms=1))
        time.sleep(0.003)
        with meter.of(f"promote {BATCH}"):
            store.promote("default")
        with meter.of(f"claim {BATCH}"):
            claims = store.claim("default", "bench", BATCH, 0).claims
        with meter.of(f"complete {BATCH}"):
            store.complete("default", "bench", [Completed(claim) for claim in claims])
        with meter.of("stats"):
            store.stats("default")
    # The server's count goes on while another process has its core: some calls of a busy machine say nothing.
    return {name: rig.middle(us) for name, us in meter.spent.items()}


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    url = new_url()
    work.app.configure({"url": url})
    fill(1000, 100)
    few = moves(url)
    fill(args.pending - 1000, args.delayed - 100)
    many = moves(url)
    work.app.close()
    for name, us in many.items():
        rig.row(
            store, name, f"{us:.0f} us a call", f"with a thousand {few[name]:.0f} us", f"{us / few[name]:.2f} times"
        )


if __name__ == "__main__":
    rig.main(
        __doc__,
        measure,
        pending=rig.Option(300_000, 2_000, "N", "pending jobs"),
        delayed=rig.Option(30_000, 200, "N", "delayed jobs"),
    )
