"""How many jobs a second do N workers work off, and how near is that to a bare loop on the same store?

The queue is filled while it is paused and all workers wait; the clock runs from its resume to the last completion. The
bare loop (bare.py) does the same with as many processes: claims, tokens and nothing else.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import bare
import rig
import work


def ours(url: str, handler: str, jobs: int, workers: int) -> float:
    """Jobs a second of one drain."""
    return jobs / rig.drained(url, work.app, work.app.call(handler), jobs, workers).seconds


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    for workers in args.workers:
        runs = [ours(new_url(), "noop", args.jobs, workers) for _ in range(args.repeat)]
        floor = [args.jobs / bare.race(store, new_url(), args.jobs, workers) for _ in range(args.repeat)]
        case = f"no-op jobs, {workers} worker{'s' * (workers > 1)}"
        rig.row(store, case, rig.rate(runs), f"bare {rig.rate(floor).strip()}", rig.ratio(runs, floor))
    workers = max(args.workers)
    dozing = max(100, args.jobs // 5)
    runs = [ours(new_url(), "doze", dozing, workers) for _ in range(args.repeat)]
    rig.row(store, f"jobs that wait 1 ms, {workers} workers", rig.rate(runs), f"at most {workers * 1000:,}/s")


if __name__ == "__main__":
    rig.main(
        __doc__,
        measure,
        jobs=rig.Option(100_000, 500, "N", "jobs of a run"),
        workers=rig.Option([1, 2, 8], [2], "N", "numbers of workers"),
    )
