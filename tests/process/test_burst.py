"""`--burst`: a pool that ends with 0 when nothing is left."""

from __future__ import annotations

import os
import time

from batchq.lifecycle import State
from tests.process.rig import Rig

APP = """
@app.job
def short():
    note("S")
    note("E")


@app.job(backoff=fixed(0.3))
def third_time():
    note("S")
    if current_job().attempt < 3:
        raise ValueError("not yet")
    note("E")


@app.job(queue="other")
def hand_on(times):
    note("S")
    app.enqueue("hand_back", [times])
    note("E")


@app.job
def hand_back(times):
    note("S")
    if times > 1:
        app.enqueue("hand_on", [times - 1])
    note("E")
"""


def test_burst_runs_all_that_is_there_and_what_it_brings(rig: Rig) -> None:
    """Retries, delayed jobs and jobs that jobs enqueue are done before the pool ends."""
    rig.app(APP)
    rig.enqueue_many("short", [()] * 200)
    failing = rig.enqueue("third_time")
    late = rig.enqueue("short", delay_ms=700)
    rig.enqueue("hand_on", 15, queue="other")
    pool = rig.run_burst(n=2)
    assert [entry.attempt for entry in rig.ledger.starts(failing)] == [1, 2, 3]
    assert rig.ledger.ends(late)
    stats, other = rig.stats(), rig.stats("other")
    assert (stats.totals["completed"], stats.totals["retried"], stats.totals["dead"]) == (200 + 1 + 1 + 15, 2, 0)
    assert other.totals["completed"] == 15
    assert not any(stats.counts[state] for state in ("pending", "delayed", "active"))
    assert pool.lines("stopping") == ["stopping why=burst workers=2"]


def test_burst_ready_does_not_wait_for_delayed_jobs(rig: Rig) -> None:
    """`--burst=ready` ends when nothing is ready; what is delayed stays."""
    rig.app(APP)
    rig.enqueue_many("short", [()] * 20)
    late = rig.enqueue("short", delay_ms=60_000)
    pool = rig.start("--burst=ready", ready=False)
    assert pool.wait() == 0
    assert rig.job(late).state is State.DELAYED
    assert rig.stats().totals["completed"] == 20


def test_burst_does_not_wait_for_a_paused_queue(rig: Rig) -> None:
    """Nobody could work a paused queue off: the pool ends with the rest done."""
    rig.app(APP)
    rig.store.pause("default")
    waiting = rig.enqueue_many("short", [()] * 5)
    rig.enqueue("hand_on", 1, queue="other")
    rig.run_burst(n=2)
    assert rig.stats("other").totals["completed"] == 1
    assert rig.stats().counts["pending"] == len(waiting) + 1
    rig.store.resume("default")
    rig.run_burst()
    assert rig.stats().totals["completed"] == len(waiting) + 1


def test_burst_waits_for_a_job_that_another_pool_runs(rig: Rig) -> None:
    """Active jobs count as left, whoever runs them: they may come back."""
    gate = rig.folder / "gate"
    rig.app(
        APP
        + """
@app.job
def gated():
    note("S")
    while not os.path.exists("gate"):
        time.sleep(0.01)
    note("E")
"""
    )
    job = rig.enqueue("gated")
    holder = rig.start()
    rig.until_started(job)
    pool = rig.start("--burst", ready=True)
    began = time.monotonic()
    rig.until(lambda: time.monotonic() - began > 0.4 or pool.process.poll() is not None, "some time passes")
    assert pool.process.poll() is None
    os.close(os.open(gate, os.O_CREAT))
    assert pool.wait() == 0
    assert holder.stop() == 0
    assert rig.stats().totals["completed"] == 1


def test_empty_burst_ends_at_once(rig: Rig) -> None:
    """Nothing to do is done."""
    rig.app(APP)
    began = time.monotonic()
    rig.run_burst(n=2)
    assert time.monotonic() - began < 3
