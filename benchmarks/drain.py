"""How many jobs a second do N workers work off, and how near is that to a bare loop on the same store?

The queue is filled while it is paused and all workers wait; the clock runs from its resume to the last completion. The
bare loop (bare.py) does the same with as many processes: claims, tokens and nothing else.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import bare
import rig
import work


def ours(url: str, handler: str, jobs: int, workers: int) -> float:
    """Jobs a second of one drain."""
    work.app.configure({"url": url})
    store = work.app.store
    store.pause("default")
    work.app.call(handler).enqueue_many((n, rig.PAD) for n in range(jobs))
    with rig.workers(url, workers, work.app):
        began = time.perf_counter()
        store.resume("default")
        rig.wait_until(lambda: store.stats("default").totals["completed"] >= jobs, f"{jobs} jobs are completed")
        seconds = time.perf_counter() - began
    work.app.close()
    return jobs / seconds


def bare_loop(store: str, url: str, jobs: int, workers: int) -> float:
    """The same of the bare loop."""
    if store == "redis":
        bare.fill_redis(url, jobs)
        seconds, done = rig.race(workers, bare.drain_redis(url))
    else:
        path = Path(url.removeprefix("spool:"))
        path.mkdir()
        bare.fill_sqlite(str(path / "bare.db"), jobs)
        seconds, done = rig.race(workers, bare.drain_sqlite(str(path / "bare.db")))
    if done != jobs:
        raise RuntimeError(f"the bare loop finished {done} jobs of {jobs}")
    return jobs / seconds


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    for workers in args.workers:
        runs = [ours(new_url(), "noop", args.jobs, workers) for _ in range(args.repeat)]
        floor = [bare_loop(store, new_url(), args.jobs, workers) for _ in range(args.repeat)]
        case = f"no-op jobs, {workers} worker{'s' * (workers > 1)}"
        rig.row(store, case, rig.rate(runs), f"bare {rig.rate(floor).strip()}", rig.ratio(runs, floor))
    workers = max(args.workers)
    dozing = max(100, args.jobs // 5)
    runs = [ours(new_url(), "doze", dozing, workers) for _ in range(args.repeat)]
    rig.row(store, f"jobs that wait 1 ms, {workers} workers", rig.rate(runs), f"at most {workers * 1000:,}/s")


def main() -> None:
    parser = rig.parser(__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, metavar="N")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 8], metavar="N")
    args = parser.parse_args()
    if args.smoke:
        args.jobs, args.workers = 500, [2]
    rig.begin(args, __doc__)
    with rig.stores(args) as stores:
        for name, new_url in stores.items():
            measure(args, name, new_url)


if __name__ == "__main__":
    main()
