"""Batch handlers in real workers: how full batches are, who pays for a death, a limit, a stop."""

from __future__ import annotations

import os
import signal

from batchq.lifecycle import State
from tests.process.rig import Rig

APP = """
_calls = os.open("calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def told(jobs):
    numbers = ",".join(str(job.args[0]) for job in jobs)
    os.write(_calls, f"{os.getpid()} {numbers}\\n".encode())
    return [job.args[0] for job in jobs]


@app.job(batch=300, linger=0.1, backoff=fixed(0.1))
def load(jobs):
    told(jobs)


@app.job(batch=50, linger=0.5, backoff=fixed(0.1))
def poison(jobs):
    if 7 in told(jobs):
        os.kill(os.getpid(), signal.SIGKILL)


@app.job(batch=50, linger=0.2, backoff=fixed(0.1), timeout=0.3, max_attempts=2)
def late(jobs):
    if 1 in told(jobs):
        time.sleep(10)


@app.job(batch=50, linger=0.2)
def waits(jobs):
    told(jobs)
    while not os.path.exists("gate"):
        time.sleep(0.01)


@app.job(batch=8, linger=0.5, bisect=True, max_attempts=4, backoff=fixed(0.1))
def by_halves(jobs):
    numbers = told(jobs)
    if 2 in numbers:
        raise ValueError("not with this one")
    if 7 in numbers:
        os.kill(os.getpid(), signal.SIGKILL)


@app.job
def single(n):
    os.write(_calls, f"{os.getpid()} single{n}\\n".encode())
"""


def calls(rig: Rig) -> list[list[str]]:
    """What the handlers were called with, call by call."""
    path = rig.folder / "calls"
    return [line.split()[1].split(",") for line in path.read_text().splitlines()] if path.exists() else []


def test_batches_are_full_and_every_job_is_done_once(rig: Rig) -> None:
    """More than one claim can carry goes into one call; what other handlers have in the queue is run between."""
    rig.app(APP)
    ids = rig.enqueue_many("load", [(n,) for n in range(2000)])
    rig.enqueue_many("single", [(n,) for n in range(3)])
    rig.run_burst(n=2)
    done = calls(rig)
    numbers = sorted(int(n) for call in done for n in call if n.isdecimal())
    assert numbers == list(range(2000))
    assert sorted(call[0] for call in done if not call[0].isdecimal()) == ["single0", "single1", "single2"]
    sizes = sorted((len(call) for call in done if call[0].isdecimal()), reverse=True)
    assert sizes[0] == 300
    assert len(sizes) <= 12, sizes
    stats = rig.stats()
    assert stats.totals["completed"] == len(ids) + 3
    assert stats.totals["fenced"] == 0


def test_what_comes_while_it_lingers_is_in_the_batch(rig: Rig) -> None:
    """A call waits for more jobs, and no longer than it says."""
    rig.app(APP.replace("batch=300, linger=0.1", "batch=3, linger=20"))
    rig.start(n=1)
    rig.enqueue("load", 0)
    rig.until_counts(active=1)
    rig.enqueue_many("load", [(1,), (2,)])
    rig.until_counts(done=3, within=15)
    assert calls(rig) == [["0", "1", "2"]]


def test_one_that_kills_its_worker_is_found(rig: Rig) -> None:
    """The first death is charged to all that ran; then each runs alone: only the poison dies of it, as poison."""
    rig.app(APP)
    ids = rig.enqueue_many("poison", [(n,) for n in range(20)])
    rig.start(n=1)
    stats = rig.until_counts(done=19, dead=1, within=30)
    job = rig.job(ids[7])
    assert (job.state, job.reason, job.attempts, job.crashes) == (State.DEAD, "poison", 3, 3)
    assert stats.totals["crashed"] == 20 + 2
    first, *rest = calls(rig)
    assert len(first) == 20
    assert {len(call) for call in rest} == {1}


def test_a_time_limit_is_that_of_the_call(rig: Rig) -> None:
    """All that ran have timed out; a batch without the slow one is done in time."""
    rig.app(APP)
    ids = rig.enqueue_many("late", [(n,) for n in range(3)])
    pool = rig.start(n=1)
    rig.until_counts(dead=3, within=20)
    assert {rig.job(id).reason for id in ids} == {"timed_out"}
    assert {rig.job(id).errors[0]["kind"] for id in ids} == {"JobTimeout"}
    assert rig.stats().totals["crashed"] == 0
    assert len(pool.workers()) == 1


def test_a_planned_stop_spends_no_attempt(rig: Rig) -> None:
    """A call that is cut off gives all of its jobs back, in their order."""
    rig.app(APP)
    ids = rig.enqueue_many("waits", [(n,) for n in range(5)])
    pool = rig.start("--shutdown-timeout", "0.3", "--grace", "0.3", n=1)
    rig.until(lambda: calls(rig), "the call has begun")
    assert pool.stop() == 0
    jobs = [rig.job(id) for id in ids]
    assert {(job.state, job.attempt, job.crashes) for job in jobs} == {(State.PENDING, 0, 0)}
    assert [job.id for job in rig.store.jobs("default", State.PENDING).jobs] == ids
    assert rig.stats().totals["retried"] == 0


def test_a_cancelled_one_does_not_stop_the_others(rig: Rig) -> None:
    """It can't be taken out of a call that runs: it ends with its outcome, which was success."""
    rig.app(APP)
    ids = rig.enqueue_many("waits", [(n,) for n in range(3)])
    rig.start(n=1, BATCHQ_LEASE="1s")
    rig.until(lambda: calls(rig), "the call has begun")
    assert rig.store.cancel("default", ids[:1]) == ["marked"]
    other = rig.store.leases("default").ends
    rig.until(lambda: rig.store.leases("default").ends != other, "the leases were renewed, and the marks read")
    (rig.folder / "gate").touch()
    rig.until_counts(done=3)
    assert len(calls(rig)) == 1


def test_a_master_that_is_killed_loses_no_batch(rig: Rig) -> None:
    """Its workers go with it: the next start reads from the scoreboard that all of the batch ran. It is lost and comes
    back; no attempt is spent."""
    rig.app(APP)
    rig.enqueue_many("waits", [(n,) for n in range(4)])
    pool = rig.start("--pid-file", "master.pid", n=1)
    rig.until(lambda: calls(rig), "the call has begun")
    os.kill(pool.pid, signal.SIGKILL)
    pool.process.wait()
    (rig.folder / "gate").touch()
    rig.start("--pid-file", "master.pid", n=1)
    stats = rig.until_counts(done=4, within=20)
    assert stats.totals["lost"] == 4
    assert stats.totals["crashed"] == 0


def test_what_is_done_is_settled_before_the_next_part(rig: Rig) -> None:
    """A batch that is tried by halves: one that kills its worker in a later part costs those nothing that are done."""
    rig.app(APP)
    ids = rig.enqueue_many("by_halves", [(n,) for n in range(8)])
    rig.start(n=1)
    stats = rig.until_counts(done=6, dead=2, within=30)
    assert {rig.job(ids[n]).reason for n in (2, 7)} == {"max_attempts", "poison"}
    by_number = [sum(str(n) in call for call in calls(rig)) for n in range(8)]
    # All, the first half, and its first quarter.
    assert by_number[0] == by_number[1] == 3
    assert stats.totals["fenced"] == 0
