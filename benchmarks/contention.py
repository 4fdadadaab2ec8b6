"""With many processes at one store, what do they get through, how long does a call wait, and is each served alike?

The store by itself, without a pool: some producers enqueue one job a call; some processes settle a batch and claim the
next one in one call, as workers do. `waits`: how long that call takes with as many processes as `--processes` has at
most, each of whose jobs sleeps half a millisecond; beside it how many jobs the least and the most served had.
"""

from __future__ import annotations

import argparse
import os
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import rig

from batchq.config import Settings
from batchq.job import Claim, Completed, NewJob, new_id, pack_row
from batchq.stores import open_store

Q = "default"
STEP = 1000
WORK_S = 0.0005


def some(count: int) -> list[NewJob]:
    return [NewJob(new_id(), pack_row("noop", (n, rig.PAD))) for n in range(count)]


def fill(url: str, jobs: int) -> None:
    store = open_store(url, Settings())
    for start in range(0, jobs, STEP):
        store.enqueue(Q, some(min(STEP, jobs - start)))
    store.close()


def produced(url: str, processes: int, jobs: int) -> float:
    """Jobs a second that so many producers get in, one a call."""

    def produce() -> int:
        store = open_store(url, Settings())
        for job in some(jobs // processes):
            store.enqueue(Q, [job])
        store.close()
        return jobs // processes

    seconds, done = rig.race(processes, produce)
    return done / seconds


def drained(url: str, processes: int, batch: int, jobs: int, work_s: float, notes: Path | None = None) -> float:
    """Jobs a second that so many workers get through. `notes`: a file from each, with the ms of each of its calls."""
    fill(url, jobs)

    def drain() -> int:
        store = open_store(url, Settings())
        worker = f"w{os.getpid()}"
        store.register(Q, worker, 600_000)
        waits = array("d")
        done = 0
        claims: Sequence[Claim] = ()
        while True:
            outcomes = [Completed(claim) for claim in claims]
            began = time.perf_counter()
            claims = store.exchange(Q, worker, outcomes, batch, 0).claimed.claims
            waits.append(1000 * (time.perf_counter() - began))
            if not claims:
                break
            done += len(claims)
            if work_s:
                time.sleep(work_s * len(claims))
        store.close()
        if notes is not None:
            with (notes / f"{os.getpid()}.{done}").open("wb") as file:
                waits.tofile(file)
        return done

    seconds, done = rig.race(processes, drain)
    if done != jobs:
        raise RuntimeError(f"{processes} processes did {done} jobs of {jobs}")
    return done / seconds


def waits(store: str, url: str, processes: int, batch: int, jobs: int) -> None:
    with TemporaryDirectory() as folder:
        drained(url, processes, batch, jobs, WORK_S, Path(folder))
        found: list[float] = []
        shares = []
        for file in Path(folder).iterdir():
            shares.append(int(file.suffix[1:]))
            found += array("d", file.read_bytes())
    rig.row(
        store,
        f"{processes} processes, {batch} a call: waits",
        f"p50 {rig.percentile(found, 0.5):.2f}  p99 {rig.percentile(found, 0.99):.2f}  max {max(found):.1f} ms",
        f"jobs of each {min(shares):,} to {max(shares):,}",
    )


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    for processes in args.producers:
        runs = [produced(new_url(), processes, args.jobs) for _ in range(args.repeat)]
        rig.row(store, f"{processes} producers, one a call", rig.rate(runs))
    for batch in args.batches:
        for processes in args.processes:
            runs = [drained(new_url(), processes, batch, args.jobs, 0.0) for _ in range(args.repeat)]
            rig.row(store, f"{processes} processes, {batch} a call", rig.rate(runs))
    for batch in args.batches:
        waits(store, new_url(), max(args.processes), batch, args.jobs)


if __name__ == "__main__":
    rig.main(
        __doc__,
        measure,
        jobs=rig.Option(20_000, 200, "N", "jobs of a run"),
        producers=rig.Option([1, 4], [2], "N", "how many producers"),
        processes=rig.Option([1, 2, 8], [2], "N", "how many processes claim"),
        batches=rig.Option([1, 16, 64], [1, 16], "N", "how many jobs a call"),
    )
