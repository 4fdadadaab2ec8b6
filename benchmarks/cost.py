"""What does a job cost: bytes in the store while it waits, and CPU of workers and of Redis while it passes?

About 100 bytes of JSON a job. Bytes: never claimed, due in an hour, and after a failed attempt, with its error and
traceback and with neither, as long as the second is not due and when it is pending. CPU: two workers, no-op jobs, by
the kernel's count and the server's own; beside it the bare loop.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import bare
import rig
import work

WORKERS = 2


def used_bytes(url: str) -> int:
    """What the data takes: memory of Redis, files of a spool."""
    if url.startswith("redis:"):
        return int(rig.client(url).info("memory")["used_memory"])
    files = [path for path in Path(url.removeprefix("spool:")).rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files)


def waiting_bytes(url: str, jobs: int, *, delay_s: float = 0.0) -> float:
    """Bytes of one job that waits."""
    work.app.configure({"url": url})
    call = work.app.call("noop").options(delay=delay_s)
    call.enqueue(0, rig.PAD)
    before = used_bytes(url)
    call.enqueue_many((n, rig.PAD) for n in range(jobs))
    after = used_bytes(url)
    work.app.close()
    return (after - before) / jobs


def failed_bytes(url: str, handler: str, jobs: int, again_s: float) -> tuple[float, float]:
    """Bytes of one job whose first attempt failed: until the second is due, so many seconds later, and then."""
    work.app.configure({"url": url})
    store, call = work.app.store, work.app.call(handler)

    def fail(jobs: int, again_s: float) -> int:
        os.environ["BATCHQ__AGAIN_S"] = str(again_s)  # for work.py in the workers
        failed = store.stats("default").counts["delayed"] + jobs
        call.enqueue_many((n, rig.PAD) for n in range(jobs))
        with rig.workers(url, WORKERS, work.app):
            rig.wait_until(lambda: store.stats("default").counts["delayed"] >= failed, "all have failed", look_s=0.05)
        return used_bytes(url)

    def all_due() -> bool:
        store.promote("default")
        return store.stats("default").counts["pending"] >= jobs

    # What is there once, scripts and the like, comes with the first ones.
    before = fail(100, 3600)
    delayed = fail(jobs, again_s)
    rig.wait_until(all_due, "all are pending again")
    pending = used_bytes(url)
    work.app.close()
    return (delayed - before) / jobs, (pending - before) / jobs


def bare_cpu(url: str, jobs: int) -> tuple[float, float]:
    """CPU us a job of the bare loop: of its two processes, and of Redis."""
    bare.fill_redis(url, jobs)
    used, served = sum(os.times()[2:4]), rig.redis_cpu_s(url)
    rig.race(WORKERS, bare.drain_redis(url))
    return 1e6 * (sum(os.times()[2:4]) - used) / jobs, 1e6 * (rig.redis_cpu_s(url) - served) / jobs


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    rig.row(store, "pending, never claimed", f"{waiting_bytes(new_url(), args.jobs):.0f} bytes")
    rig.row(store, "due in an hour", f"{waiting_bytes(new_url(), args.jobs, delay_s=3600):.0f} bytes")
    for case, handler in (("failed once, error and traceback", "fail"), ("failed by Retry", "come_again")):
        delayed, pending = failed_bytes(new_url(), handler, args.jobs // 2, args.again)
        rig.row(store, case, f"{delayed:.0f} bytes", "", f"pending again {pending:.0f}")
    runs = [rig.drained(new_url(), work.app, work.noop, args.jobs, WORKERS) for _ in range(args.repeat)]
    mine, redis = rig.middle(run.workers_us for run in runs), rig.middle(run.redis_us for run in runs)
    if store != "redis":
        rig.row(store, "CPU of workers", f"{mine:.1f} us a job")
        return
    floor = [bare_cpu(new_url(), args.jobs) for _ in range(args.repeat)]
    bare_mine, bare_redis = (rig.middle(run[place] for run in floor) for place in (0, 1))
    rig.row(store, "CPU of workers", f"{mine:.1f} us a job", f"bare {bare_mine:.1f} us")
    rig.row(
        store, "CPU of Redis", f"{redis:.1f} us a job", f"bare {bare_redis:.1f} us", f"{redis / bare_redis:.2f} times"
    )


if __name__ == "__main__":
    rig.main(
        __doc__,
        measure,
        jobs=rig.Option(100_000, 500, "N", "jobs of a run"),
        again=rig.Option(20, 2, "S", "seconds after which failed jobs are due again: all must have failed by then"),
    )
