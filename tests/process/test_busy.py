"""A handler that holds the interpreter does not look dead, is waited for by a stop, and ends with its master."""

from __future__ import annotations

import os
import signal

import pytest

from tests.process.rig import Rig, is_running

APP = """
@app.job(max_attempts=3, backoff=fixed(0.1))
def burns(seconds):
    note("S")
    # One call of C code that never lets go of the interpreter, as long as asked for.
    began = time.monotonic()
    sum(range(2_000_000))
    each = (time.monotonic() - began) / 2_000_000
    sum(range(int(seconds / each)))
    note("E")
"""

LENGTHS = [
    pytest.param("500ms", 1.5, id="short"),
    pytest.param("5s", 30.0, id="full", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
]


@pytest.mark.parametrize(("lease", "seconds"), LENGTHS)
def test_busy_handler_keeps_its_job_past_its_lease(rig: Rig, lease: str, seconds: float) -> None:
    """The master renews, never the handler: one start, one end, nothing lost or fenced."""
    rig.app(APP)
    rig.start("--lease", lease, n=1)
    job = rig.enqueue("burns", seconds)
    rig.until(lambda: rig.ledger.ends(job), "the handler ends", within=seconds * 4 + 10)
    stats = rig.until_counts(done=1, active=0)
    assert len(rig.ledger.starts(job)) == 1
    assert (stats.totals["lost"], stats.totals["fenced"], stats.totals["reaped"]) == (0, 0, 0)
    took = (rig.ledger.ends(job)[0].at_ns - rig.ledger.starts(job)[0].at_ns) / 1e9
    assert took > seconds / 3, "it was not busy for long enough to prove anything"


@pytest.mark.parametrize(("lease", "seconds"), LENGTHS)
def test_busy_handler_is_waited_for_by_a_stop(rig: Rig, lease: str, seconds: float) -> None:
    """TERM: the job completes, the pool ends with 0."""
    rig.app(APP)
    pool = rig.start("--lease", lease, "--shutdown-timeout", f"{seconds * 4 + 10:.0f}s", n=1)
    job = rig.enqueue("burns", seconds)
    rig.until_started(job)
    assert pool.stop(within=seconds * 4 + 15) == 0
    assert len(rig.ledger.ends(job)) == 1
    assert rig.stats().totals["completed"] == 1


@pytest.mark.parametrize(("lease", "seconds"), LENGTHS)
def test_busy_handler_ends_with_its_master(rig: Rig, lease: str, seconds: float) -> None:
    """SIGKILL of the master: its worker is gone at once, and another pool runs the job; no attempt is spent."""
    rig.app(APP)
    pool = rig.start("--lease", lease, n=1)
    job = rig.enqueue("burns", seconds)
    rig.until_started(job)
    [worker] = pool.workers()
    os.kill(pool.pid, signal.SIGKILL)
    rig.until(lambda: not is_running(worker), "the worker is gone", within=2.0)
    assert not rig.ledger.ends(job)
    rig.start("--lease", lease, n=1)
    rig.until(lambda: rig.ledger.ends(job), "the job runs again", within=seconds * 4 + 30)
    assert [entry.attempt for entry in rig.ledger.starts(job)] == [1, 1]
    assert rig.until_counts(done=1, active=0).totals["lost"] == 1
