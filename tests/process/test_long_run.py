"""Over many jobs memory stays as it was, and a worker that died is replaced without importing the app again."""

from __future__ import annotations

import gc
import os
import signal
import time

import psutil
import pytest

from tests.process.rig import Pool, Rig

APP = """
@app.job
def small(number, text):
    return number


@app.job(max_attempts=1)
def fails(number):
    raise ValueError(f"number {number}")


@app.job
def short():
    note("S")
"""


def memory(pool: Pool) -> int:
    """What the pool would give back if it ended, in bytes: pages that only its processes have."""
    gc.collect()
    processes = [psutil.Process(pid) for pid in (pool.pid, *pool.workers())]
    return sum(int(process.memory_full_info().uss) for process in processes)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_thousand_jobs_leave_memory_flat(rig: Rig) -> None:
    """Master and workers, after a tenth of the jobs and after all of them; some fail, for their own way."""
    total, chunk = 200_000, 400
    rig.app(APP)
    pool = rig.start("--dead-limit", "100", n=2)
    first = descriptors = 0
    began = time.monotonic()
    for done in range(0, total, chunk):
        rig.enqueue_many("small", [(number, "x" * 100) for number in range(chunk - 4)])
        rig.enqueue_many("fails", [(number,) for number in range(4)])
        rig.until(lambda: rig.stats().counts["pending"] < 5_000, "the pool keeps up", within=60)
        if done == total // 10:
            first, descriptors = memory(pool), psutil.Process(pool.pid).num_fds()
    rig.until(lambda: not any(rig.stats().counts[s] for s in ("pending", "active")), "all are done", within=60)
    took = time.monotonic() - began
    last = memory(pool)
    print(f"{rig.kind}: {total} jobs in {took:.0f} s; {first >> 20} MiB after a tenth, {last >> 20} MiB at the end")
    assert last < first * 1.1 + (4 << 20)
    assert psutil.Process(pool.pid).num_fds() <= descriptors + 8  # A store opens some lazily
    stats = rig.stats()
    assert stats.totals["completed"] == total - total // 100
    assert pool.stop() == 0


def test_worker_is_replaced_in_the_time_of_a_fork(redis_rig: Rig) -> None:
    """The app takes 0.3 s to import; from the kill of a worker to the next job's start it is far less."""
    redis_rig.app(APP + "\ntime.sleep(0.3)\n")
    pool = redis_rig.start()
    times = []
    for _ in range(7):
        [worker] = pool.workers()
        killed = time.monotonic_ns()
        os.kill(worker, signal.SIGKILL)
        job = redis_rig.enqueue("short")
        redis_rig.until_started(job)
        [start] = redis_rig.ledger.starts(job)
        assert start.pid != worker
        times.append((start.at_ns - killed) / 1e6)
        redis_rig.until(lambda: redis_rig.stats().counts["active"] == 0, "it has ended")
        pool.wait_ready(1)
    median = sorted(times)[len(times) // 2]
    print(f"from the kill of a worker to the next job's start: {median:.0f} ms (median of {len(times)})")
    assert median < 250
    assert pool.stop() == 0
