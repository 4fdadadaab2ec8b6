"""With a million jobs in the store, how long do a first claim, a look, a page, a cancel and a promote take?

The store is filled with pending jobs, then another with delayed ones. A figure is the median of many calls, with the
slowest. `cold`: the store was closed and its file is not in the page cache any more (spool only). At the end all jobs
are taken away, and the spool gives back its room.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import rig

from batchq.config import Settings
from batchq.job import Claim, Completed, NewJob, pack_row
from batchq.lifecycle import State
from batchq.store import Store
from batchq.stores import open_store

Q = "default"
DAY_MS = 86_400_000
#: The middle of a list is reached by pages of this size.
PAGE = 10_000
STEP = 1000


def timed(call: Callable[[], object], times: int) -> list[float]:
    """Milliseconds of each call."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(1000 * (time.perf_counter() - began))
    return found


def tell(store: str, case: str, runs: list[float]) -> None:
    rig.row(store, case, f"{rig.middle(runs):8.2f} ms", f"slowest {max(runs):.2f} ms")


def fill(store: Store, jobs: int, delay_ms: int) -> float:
    """Enqueues so many, a thousand a call; answers jobs a second."""
    row = pack_row("noop", (0, rig.PAD))
    began = time.perf_counter()
    for start in range(0, jobs, STEP):
        store.enqueue(Q, [NewJob(f"j{n:09d}", row, delay_ms=delay_ms) for n in range(start, min(jobs, start + STEP))])
    return jobs / (time.perf_counter() - began)


def bytes_of(url: str) -> int:
    """Disk of a spool, memory of Redis."""
    if url.startswith("spool:"):
        path = Path(url.removeprefix("spool:"))
        return sum(file.stat().st_size for file in path.glob("queue.db*"))
    return int(rig.client(url).info("memory")["used_memory_dataset"])


def cold(url: str, store: Store) -> Store:
    """The same store opened anew, its file out of the page cache."""
    store.close()
    path = Path(url.removeprefix("spool:")) / "queue.db"
    # Nobody has it open: closing this descriptor drops nobody's locks.
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    return open_store(url, Settings())


def middle_of(store: Store, jobs: int) -> str:
    cursor = ""
    for _ in range(jobs // 2 // PAGE):
        cursor = store.jobs(Q, State.PENDING, cursor=cursor, limit=PAGE).cursor
    return cursor


def claims_of(store: Store) -> Iterator[tuple[Claim, ...]]:
    worker = "w1"
    store.register(Q, worker, DAY_MS)
    while claims := store.claim(Q, worker, 480, 0).claims:
        yield claims
        store.complete(Q, worker, [Completed(claim) for claim in claims])


def pending(args: argparse.Namespace, name: str, url: str) -> None:
    store = open_store(url, Settings())
    before = bytes_of(url)
    speed = fill(store, args.jobs, 0)
    if name == "spool":
        store = cold(url, store)
    rig.row(
        name, f"{args.jobs:,} pending", f"filled at {speed:,.0f}/s", f"{(bytes_of(url) - before) / args.jobs:.0f} B/job"
    )
    store.register(Q, "cold", DAY_MS)
    held = 0

    def claim() -> None:
        nonlocal held
        held += len(store.claim(Q, "cold", 1, held).claims)

    tell(name, "first claim" + (", cold" if name == "spool" else ""), timed(claim, 1))
    tell(name, "claim of one", timed(claim, args.times))
    tell(name, "counts and totals", timed(lambda: store.stats(Q), args.times))
    ids = iter([f"j{n:09d}" for n in range(args.jobs // 3, args.jobs, max(1, args.jobs // (3 * args.times)))])
    tell(name, "one job by its id", timed(lambda: store.get(Q, next(ids)), args.times))
    cursor = middle_of(store, args.jobs)
    tell(name, "first page of 100", timed(lambda: store.jobs(Q, State.PENDING, limit=100), args.times))
    tell(name, "page of 100 in the middle", timed(lambda: store.jobs(Q, State.PENDING, cursor=cursor), args.times))
    last = iter(range(args.jobs - 1, 0, -1))
    tell(name, "cancel", timed(lambda: store.cancel(Q, [f"j{next(last):09d}"]), args.times))
    if not args.drain:
        store.close()
        return
    began = time.perf_counter()
    done = sum(len(claims) for claims in claims_of(store))
    rig.row(name, "worked off by one process", f"{done / (time.perf_counter() - began):,.0f}/s")
    store.close()
    if name == "spool":
        give_back(url)


def give_back(url: str) -> None:
    from batchq.clock import SYSTEM
    from batchq.spool.hands import vacuum
    from batchq.spool.ledger import Ledger

    ledger = Ledger(url.removeprefix("spool:"), clock=SYSTEM, durability="power")
    began = time.perf_counter()
    done = vacuum(ledger)
    seconds = time.perf_counter() - began
    ledger.close()
    rig.row("spool", "vacuum", f"{done.before / 1e6:,.1f} MB to {done.after / 1e6:,.1f} MB", f"in {seconds:.2f} s")


def delayed(args: argparse.Namespace, name: str, url: str) -> None:
    store = open_store(url, Settings())
    speed = fill(store, args.jobs, DAY_MS)
    rig.row(name, f"{args.jobs:,} delayed", f"filled at {speed:,.0f}/s")
    tell(name, "promote, nothing due", timed(lambda: store.promote(Q), args.times))
    row: Any = pack_row("noop", (0, rig.PAD))

    def due() -> None:
        store.enqueue(Q, [NewJob(f"due{n}-{os.urandom(6).hex()}", row, delay_ms=1) for n in range(STEP)])
        time.sleep(0.005)

    runs = []
    for _ in range(max(1, args.times // 10)):
        due()
        runs += timed(lambda: store.promote(Q), 1)
    tell(name, f"promote, {STEP} due", runs)
    store.close()


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    pending(args, store, new_url())
    delayed(args, store, new_url())


if __name__ == "__main__":
    rig.main(
        __doc__,
        measure,
        jobs=rig.Option(1_000_000, 3_000, "N", "jobs"),
        drain=rig.Option(1, 1, "0|1", "work them off at the end, and give their room back"),
        times=rig.Option(100, 10, "N", "calls of each kind"),
    )
