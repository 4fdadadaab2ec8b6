"""Leases and reaping: who is dead, who only looks dead, and whose settings count."""

from __future__ import annotations

import os
import signal
import time

import pytest

from batchq.lifecycle import State
from tests.cases.helpers import app_on, call, gaps_s, server_of, stays
from tests.faults.proxy import Proxy
from tests.process.rig import Rig, is_running
from tests.process.test_pid_one import NAMESPACE, can_be_pid_one

APP = """
@app.job(result=True, max_attempts=3, backoff=fixed(0.1))
def late(end):
    note("S")
    job = current_job()
    if job.token == 1:
        while not os.path.exists("gate"):
            time.sleep(0.01)
        note("E")
        if end == "fails":
            raise ValueError("from the late one")
        if end == "is buried":
            raise Dead("from the late one")
        if end == "snoozes":
            raise Snooze(60)
        if end == "a large result":
            return "x" * 60_000
    else:
        note("E")
    return job.token


@app.job(backoff=fixed(0.1))
def stands(gate="gate"):
    note("S")
    while not os.path.exists(gate):
        time.sleep(0.01)
    note("E")


@app.job(result=True)
def asks_once():
    note("S")
    if current_job().token == 1:
        raise Snooze(0.1)
    while not os.path.exists("gate"):
        time.sleep(0.01)
    return current_job().token


@app.job(timeout=2, backoff=fixed(0.1))
def fast():
    stands()


@app.job(timeout=3600, backoff=fixed(0.1))
def slow():
    stands()


@app.job(timeout=30, backoff=fixed(0.1))
def limited(seconds):
    note("S")
    time.sleep(seconds)
    note("E")


@app.job(max_attempts=9, backoff=fixed(0.05))
def takes_down():
    note("S")
    if not os.path.exists("mended"):
        os.kill(os.getpid(), signal.SIGKILL)
    note("E")
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("end", ["completes", "fails", "is buried", "snoozes", "a large result"])
def test_whatever_a_late_worker_made_of_a_job_that_another_took_over_is_refused(rig: Rig, end: str, when: str) -> None:
    """It was stopped past its lease: result, attempts and errors are those of the newer claim, in every order."""
    if end not in ("completes", "fails") and (when == "before" or rig.kind == "spool"):
        pytest.skip("what the late one would write is refused by the token alone, as for the other ends")
    rig.app(APP)
    job = rig.enqueue("late", end)
    pool = rig.start("--lease", "400ms", "--remember", "0", n=2)
    worker = rig.until_started(job)
    os.kill(worker, signal.SIGSTOP)
    if when == "before":
        # It goes on as soon as it is reaped, perhaps before anybody else has the job.
        rig.until(lambda: rig.stats().totals["lost"] == 1, "it is reaped")
        (rig.folder / "gate").touch()
        os.kill(worker, signal.SIGCONT)
    stats = rig.until_counts(completed=1, active=0)
    if when == "after":
        (rig.folder / "gate").touch()
        os.kill(worker, signal.SIGCONT)
    stats = rig.until_counts(fenced=1)
    kept = rig.job(job)
    assert (kept.state, kept.result, kept.errors[0]["kind"]) == (State.COMPLETED, 2, "WorkerLost")
    assert len(kept.errors) == 1
    assert (stats.totals["completed"], stats.totals["retried"], stats.totals["snoozed"]) == (1, 0, 0)
    assert not any(stats.counts[state] for state in ("pending", "delayed", "active", "dead"))
    rig.until(lambda: pool.lines("fenced"), "it is said, once")
    assert pool.stop() == 0
    assert len(pool.lines("fenced")) == 1


def test_a_late_copy_of_an_older_outcome_is_refused_while_the_same_worker_runs_it_again(redis_rig: Rig) -> None:
    """The worker is the right one, and only the token tells that the outcome is of the claim before."""
    rig = redis_rig
    rig.app(APP)
    with Proxy(int(rig.url.rsplit(":", 1)[1].split("/")[0])) as proxy:
        pool = rig.start("--socket-timeout", "500ms", BATCHQ_URL=proxy.url)
        job = rig.enqueue("asks_once")
        # Made known to no other call before: this is the outcome of the first claim, on its way.
        held = proxy.hold(lambda frame, n: job.encode() in frame)
        worker = rig.until_started(job, times=2)
        assert held.caught.is_set()
        held.release()
        assert (rig.job(job).state, rig.job(job).attempts) == (State.ACTIVE, 2)
        (rig.folder / "gate").touch()
        stats = rig.until_counts(done=1, active=0)
        assert {entry.pid for entry in rig.ledger.starts(job)} == {worker}
        assert (rig.job(job).result, stats.totals["snoozed"], stats.totals["fenced"]) == (2, 1, 0)
        assert pool.stop() == 0


@pytest.mark.parametrize("handler", ["fast", "slow"])
@pytest.mark.parametrize("kill", ["worker", "all"])
def test_lost_jobs_come_back_after_the_lease_whatever_their_time_limit(rig: Rig, handler: str, kill: str) -> None:
    """A handler may have an hour or two seconds: who ran it is gone, and that is all that counts."""
    rig.app(APP)
    job = rig.enqueue(handler)
    pool = rig.start("--lease", "600ms", n=1)
    worker = rig.until_started(job)
    if kill == "all":
        pool.process.kill()
        pool.wait()
        rig.start("--lease", "600ms", n=1)
    else:
        os.kill(worker, signal.SIGKILL)
    # The lease, two looks a third of it apart, the backoff: a second, not the limit of a handler.
    rig.until_started(job, times=2, within=15)
    (rig.folder / "gate").touch()
    rig.until_counts(done=1)


@pytest.mark.skipif(not can_be_pid_one(), reason="this host allows no PID namespace")
def test_a_pool_with_the_pids_of_a_dead_one_does_not_keep_its_leases(rig: Rig) -> None:
    """Two lives of one container: same host, same pids. The second recovers what the first held."""
    rig.app(APP)
    jobs = rig.enqueue_many("stands", [()] * 2)
    lives = []
    for _ in range(2):
        shell = rig.start("--lease", "600ms", n=2, ready=False, before=NAMESPACE)
        rig.until(lambda: all(rig.job(job).state is State.ACTIVE for job in jobs), "both run")
        rig.until(lambda: len(rig.ledger.starts()) == 2 * (len(lives) + 1), "both began")
        pids_now = {entry.pid for job in jobs for entry in rig.ledger.starts(job)[-1:]}
        lives.append((pids_now, {rig.job(job).worker for job in jobs}))
        if len(lives) == 1:
            shell.process.kill()
            shell.wait()
            rig.until_clean()
    (pids, workers), (new_pids, new_workers) = lives
    assert pids & new_pids, "the second life had other pids: this run proved nothing"
    assert not workers & new_workers
    (rig.folder / "gate").touch()
    stats = rig.until_counts(done=2)
    assert (stats.totals["lost"], stats.totals["fenced"]) == (2, 0)


def test_each_pool_reaps_by_the_leases_that_others_were_given(rig: Rig) -> None:
    """A pool of short leases beside one of long ones: it takes nothing from a worker that hangs within its own."""
    rig.app(APP)
    slow = rig.start("-q", "slow", "--lease", "30s", queue="slow")
    fast = rig.start("-q", "fast", "-q", "slow", "--lease", "300ms", "--strict-order", queue="fast")
    held = rig.enqueue("stands", "slow-gate", queue="fast")
    rig.until_started(held)
    job = rig.enqueue("stands", queue="slow")
    worker = rig.until_started(job)
    assert worker in slow.workers()
    frozen = slow.freeze()
    stays(lambda: len(rig.ledger.starts(job)) == 1 and rig.stats("slow").totals["lost"] == 0, "it keeps its job", 1.5)
    slow.thaw(frozen)
    (rig.folder / "gate").touch()
    (rig.folder / "slow-gate").touch()
    rig.until_counts("slow", done=1)
    assert len(rig.ledger.starts(job)) == 1
    assert fast.stop() == slow.stop() == 0


def test_the_limit_of_one_call_counts_and_neither_the_lease_nor_the_setting(rig: Rig) -> None:
    """Longer than lease and setting, shorter than the handler's own, and none of its own."""
    rig.app(APP)
    long = rig.enqueue("limited", 1.5, timeout_ms=20_000)
    short = rig.enqueue("limited", 30, timeout_ms=300, max_attempts=2)
    unlimited = rig.enqueue("stands")
    pool = rig.start("--lease", "300ms", "--timeout", "20s", n=3)
    rig.until_counts(done=1, dead=1)
    (rig.folder / "gate").touch()
    rig.until_counts(done=2)
    assert rig.job(short).reason == "timed_out"
    assert [len(rig.ledger.starts(job)) for job in (long, short, unlimited)] == [1, 2, 1]
    assert 0.3 <= gaps_s(rig.ledger.starts(short))[0] < 10
    assert pool.stop() == 0


def test_the_dead_of_lost_workers_live_again_without_their_marks(rig: Rig) -> None:
    """Poison after three crashes; mended and requeued they run, and a crash of the new life is the first."""
    rig.app(APP)
    jobs = rig.enqueue_many("takes_down", [()] * 3)
    rig.start(n=2)
    rig.until_counts(dead=3, within=20)
    assert {rig.job(job).reason for job in jobs} == {"poison"}
    call(rig, "requeue", jobs[0]).ended(0)
    rig.until(lambda: rig.job(jobs[0]).state is State.DEAD, "it dies of three crashes again", within=20)
    assert (len(rig.ledger.starts(jobs[0])), rig.job(jobs[0]).crashes) == (6, 3)
    (rig.folder / "mended").touch()
    call(rig, "requeue", "--all", "--yes").ended(0)
    rig.until(lambda: rig.stats().totals["completed"] == 3, "all are done")
    assert [len(rig.ledger.starts(job)) for job in jobs] == [7, 4, 4]


def test_another_master_takes_over_whatever_the_killed_one_was_at(rig: Rig) -> None:
    """Two masters, one killed again and again: expired leases, due jobs and dropped files are seen to all the same."""
    rig.app(APP)
    rig.start("--lease", "500ms", n=1)
    parcel = rig.folder / "parcel"
    inbox = rig.folder / ("spool" if rig.kind == "spool" else "fallback") / "inbox"
    with app_on(rig, fallback_ephemeral=True) as app:
        for turn in range(4):
            other = rig.start("--lease", "500ms", "--fallback-ephemeral", n=1, ready=False)
            held = [rig.enqueue("stands", f"gate-{turn}") for _ in range(2)]
            due = app.call("limited").options(delay=0.3).enqueue(0)
            rig.until(lambda: rig.ledger.starts(held[0]), "one of them runs")  # noqa: B023
            if rig.kind == "spool":
                parcel.write_text('{"job": "limited", "args": [0]}')
                os.rename(parcel, inbox / "new" / f"parcel-{turn}")
            other.process.kill()
            other.wait()
            (rig.folder / f"gate-{turn}").touch()
            want = (turn + 1) * (4 if rig.kind == "spool" else 3)
            rig.until_counts(done=want, active=0, delayed=0, within=20)
            assert rig.ledger.ends(due.id)
    if rig.kind != "spool":
        client = server_of(rig)
        locks = [name for name in client.scan_iter(f"{rig.prefix}*") if b"lock" in name and client.pttl(name) < 0]
        assert not locks
    assert not any(is_running(pool.pid) for pool in rig.pools[1:])


@pytest.mark.slow
def test_registries_hold_the_living(rig: Rig) -> None:
    """Pools killed again and again leave no lease and no entry; a record that was deleted comes back whole."""
    rig.app(APP)
    for _ in range(4):
        pool = rig.start("--lease", "400ms", n=3)
        pool.process.kill()
        pool.wait()
    pool = rig.start("--lease", "400ms", n=2)
    rig.until(lambda: len(rig.store.leases("default").ends) == 2, "only the living hold leases")
    if rig.kind != "spool":
        client = server_of(rig)
        client.delete(*client.keys(f"{rig.prefix}:master*"))
    rig.until(lambda: len(call(rig, "workers", "--json").lines) == 2, "they are shown again", within=12)
    shown = call(rig, "workers", "--json").lines
    assert {one["pid"] for one in shown} == set(pool.workers())
    assert all(one[name] not in (None, "") for one in shown for name in ("id", "host", "pid", "state"))
    assert pool.stop() == 0
    rig.until(lambda: not call(rig, "workers", "--json").lines, "nobody is left")


@pytest.mark.slow
def test_the_default_lease_is_the_bound_after_a_kill_of_everything(rig: Rig) -> None:
    """Nothing is tuned: a lease, two looks at it, the first backoff of a lost job."""
    rig.app(APP)
    job = rig.enqueue("stands")
    pool = rig.start()
    rig.until_started(job)
    pool.process.kill()
    pool.wait()
    killed = time.monotonic()
    rig.start()
    rig.until_started(job, times=2, within=40)
    assert time.monotonic() - killed < 15 + 10 + 3
    (rig.folder / "gate").touch()
    rig.until_counts(done=1)
