"""When a million delayed jobs become due at once, how long does the store stand still, and do workers go hungry?

All have the same fire-time; a pool of two waits for it. The longest step of Redis is taken from its SLOWLOG, the
longest answer from a PING each millisecond, beside that of a second before; on the spool a look at the counts is timed.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable

import rig
import work

WORKERS, DEADLINE_S = 2, 600.0


def longest_answer(ask: Callable[[], object], until: Callable[[], bool]) -> float:
    """The slowest of many calls in ms, 1 ms apart. Raises TimeoutError."""
    worst, deadline = 0.0, time.monotonic() + DEADLINE_S
    while not until():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all jobs were worked off within {DEADLINE_S:.0f} s")
        for _ in range(20):
            began = time.perf_counter()
            ask()
            worst = max(worst, time.perf_counter() - began)
            time.sleep(0.001)
    return 1000 * worst


def after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def slowest_step_ms(url: str) -> float:
    entries = rig.client(url).slowlog_get(128)
    return max((entry["duration"] / 1000 for entry in entries), default=0.0)


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    url = new_url()
    work.app.configure({"url": url})
    kept = work.app.store
    is_redis = store == "redis"
    ask = rig.client(url).ping if is_redis else lambda: kept.stats("default").counts
    due_ms = kept.now_ms() + int(1000 * args.lead)
    started = time.monotonic()
    for start in range(0, args.jobs, 10_000):
        call = work.app.call("noop").options(delay=max(0.001, (due_ms - kept.now_ms()) / 1000))
        call.enqueue_many((n, rig.PAD) for n in range(start, min(args.jobs, start + 10_000)))
    if kept.stats("default").counts["delayed"] < args.jobs:
        raise RuntimeError(f"filling took {time.monotonic() - started:.0f} s: give a longer --lead")
    with rig.workers(url, WORKERS, work.app):
        calm = longest_answer(ask, after(0.2 if args.smoke else 1.0))
        if is_redis:
            rig.client(url).config_set("slowlog-log-slower-than", 500)
            rig.client(url).slowlog_reset()
        rig.wait_until(lambda: kept.now_ms() >= due_ms - 50, "they are nearly due")
        marks: list[tuple[float, int]] = []

        def done() -> bool:
            totals = kept.stats("default").totals
            marks.append((time.monotonic(), totals["completed"]))
            return totals["promoted"] >= args.jobs and totals["completed"] >= args.jobs

        worst = longest_answer(ask, done)
        slowest = slowest_step_ms(url) if is_redis else 0.0
    work.app.close()
    moving = [mark for mark in marks if mark[1] > 0]
    idle = max((b[0] - a[0] for a, b in itertools.pairwise(moving) if a[1] == b[1] < args.jobs), default=0.0)
    seconds = moving[-1][0] - moving[0][0]
    rig.row(
        store, f"{args.jobs:,} due at once", f"worked off in {seconds:.1f} s", f"longest pause {1000 * idle:.0f} ms"
    )
    rig.row(store, "longest answer", f"{worst:.1f} ms", f"while idle {calm:.1f} ms")
    if is_redis:
        rig.row(store, "longest step by SLOWLOG", f"{slowest:.1f} ms" if slowest else "under 0.5 ms")


if __name__ == "__main__":
    rig.main(
        __doc__,
        measure,
        jobs=rig.Option(1_000_000, 2_000, "N", "jobs"),
        lead=rig.Option(60.0, 4.0, "S", "how long filling may take"),
    )
