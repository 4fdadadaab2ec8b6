"""Where do the microseconds of a job go, in the worker and in the store?

CPU us a job, batches of 128 no-op jobs with about 100 bytes of JSON. The parts of the worker are timed one by one, each
the least of many runs, so that other work on the machine hardly shows. On Redis, what the scripts take and the commands
inside them is by the server's own count; what is left is reading calls and writing answers.
"""

from __future__ import annotations

import argparse
import time
import timeit
from collections.abc import Callable, Sequence

import rig
import work

from batchq.job import Claim, Completed, NewJob, new_id, pack_row
from batchq.system.scoreboard import Scoreboard
from batchq.worker.pace import MOST, Runtimes
from batchq.worker.runner import Prepared, Runner


def least_us(act: Callable[[], object], runs: int) -> float:
    """The least CPU us of one call."""
    timer = timeit.Timer(act, timer=time.process_time)
    return 1e6 * min(timer.repeat(repeat=runs, number=200)) / 200


def worker_parts(claim: Claim, runs: int) -> dict[str, float]:
    """What the worker does with a job between two exchanges."""
    runner, slot, runtimes = Runner(work.app.registry, work.app.settings), Scoreboard(1).slot(0), Runtimes()
    ready = runner.prepare(claim)
    if not isinstance(ready, Prepared):
        raise RuntimeError(f"the job can't run: {ready}")

    def mark() -> None:
        slot.begin(claim, "noop", 1, 0)
        slot.end()

    return {
        "read the row, find the handler": least_us(lambda: runner.prepare(claim), runs),
        "write begin and end on the scoreboard": least_us(mark, runs),
        "call the handler, make the outcome": least_us(lambda: runner.call(ready), runs),
        "look at two clocks, learn the run time": least_us(
            lambda: (time.monotonic_ns(), time.monotonic_ns(), runtimes.ran("noop", 0.01)), runs
        ),
    }


def exchanges(batches: int) -> tuple[float, Sequence[Claim]]:
    """CPU us a job of the calls that settle a batch and claim the next, in this process; and a batch."""
    store = work.app.store
    store.register("default", "bench", 600_000)
    for _ in range(batches + 1):
        store.enqueue("default", [NewJob(new_id(), pack_row("noop", [n, rig.PAD])) for n in range(MOST)])
    claims = store.claim("default", "bench", MOST, 0).claims
    least, first = float("inf"), claims
    for _ in range(batches):
        began = time.process_time()
        claims = store.exchange("default", "bench", [Completed(claim) for claim in claims], MOST, 0).claimed.claims
        least = min(least, time.process_time() - began)
    store.complete("default", "bench", [Completed(claim) for claim in claims])
    return 1e6 * least / MOST, first


def one_by_one(calls: int, apart: bool) -> float:
    """Us by the clock of the call that settles one job and claims the next: at once, or after 20 ms of other work."""
    store = work.app.store
    store.register("default", "single", 600_000)
    store.enqueue("default", [NewJob(new_id(), pack_row("noop", [n, rig.PAD])) for n in range(calls)])
    [claim] = store.claim("default", "single", 1, 0).claims
    took = []
    for _ in range(calls - 1):
        if apart:
            work.burn(0, "")
        began = time.perf_counter()
        [claim] = store.exchange("default", "single", [Completed(claim)], 1, 0).claimed.claims
        took.append(1e6 * (time.perf_counter() - began))
    store.complete("default", "single", [Completed(claim)])
    return rig.middle(took)


def redis_parts(url: str, jobs: int) -> dict[str, float]:
    """The server's own count of a drain by one worker."""
    client = rig.client(url)
    client.config_resetstat()
    run = rig.drained(url, work.app, work.noop, jobs, 1)
    stats = client.info("commandstats")
    spent = {name.removeprefix("cmdstat_"): entry["usec"] / jobs for name, entry in stats.items()}
    scripts = spent.pop("evalsha")
    inside = sum(us for name, us in spent.items() if name in INSIDE)
    return {
        "enqueue, claim and complete: scripts": scripts,
        "of it the commands inside": inside,
        "settle and claim: all CPU of the server": run.redis_us,
    }


#: Commands that the scripts of a drain call.
INSIDE = (
    *("hset", "hget", "hmget", "hdel", "hincrby", "hexists", "lpop", "rpush", "llen", "sadd", "srem", "scard"),
    *("smismember", "zscore", "zrangebyscore", "exists", "time", "get", "set", "hlen", "zadd", "zrem"),
)


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    url = new_url()
    work.app.configure({"url": url})
    exchanged, claims = exchanges(args.batches)
    parts = worker_parts(claims[0], args.runs)
    rig.row(store, "worker: settle and claim, by 128", f"{exchanged:.2f} us")
    for name, us in parts.items():
        rig.row(store, f"worker: {name}", f"{us:.2f} us")
    rig.row(store, "worker: sum of these", f"{exchanged + sum(parts.values()):.2f} us")
    hot, cold = one_by_one(args.runs, apart=False), one_by_one(args.runs, apart=True)
    rig.row(
        store,
        "settle one and claim one, by the clock",
        f"{hot:.0f} us",
        f"each after 20 ms of other work {cold:.0f} us",
    )
    work.app.close()
    run = rig.drained(new_url(), work.app, work.noop, args.batches * MOST, 1)
    rig.row(store, "worker: all of it, in a pool", f"{run.workers_us:.2f} us")
    if store == "redis":
        for name, us in redis_parts(new_url(), args.batches * MOST).items():
            rig.row(store, f"redis: {name}", f"{us:.2f} us")


if __name__ == "__main__":
    rig.main(
        __doc__,
        measure,
        batches=rig.Option(200, 4, "N", "batches of 128"),
        runs=rig.Option(200, 3, "N", "runs of each part"),
    )
