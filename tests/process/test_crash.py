"""A worker that is killed: what ran is charged and delayed, what stood behind it is given back."""

from __future__ import annotations

import os
import signal
import time

import redis

from batchq.lifecycle import State
from tests.process.rig import Rig

APP = """
@app.job(backoff=fixed(0.6))
def slow(seconds):
    note("S")
    time.sleep(seconds)
    note("E")


@app.job(backoff=fixed(0.6))
def once(seconds):
    note("S")
    if current_job().attempt == 1:
        time.sleep(seconds)
    note("E")


@app.job
def once_claimed():
    note("S")
    if current_job().token == 1:
        time.sleep(60)
    note("E")


@app.job
def short():
    note("S")
    note("E")


@app.job
def linger(ms):
    note("S")
    time.sleep(ms / 1000)
    note("E")
"""


def test_killed_worker_costs_the_running_job_an_attempt_and_no_other(rig: Rig) -> None:
    """SIGKILL in a long job: within half a second it is delayed, and runs again as attempt 2; the others as 1."""
    rig.app(APP)
    # Warm: the pool knows the short handler, so that its jobs are claimed in batches behind the long one.
    warm = rig.enqueue_many("short", [()] * 40)
    pool = rig.start(n=1)
    rig.until_counts(done=40)
    rig.store.pause("default")
    before = rig.enqueue_many("short", [()] * 3)
    job = rig.enqueue("once", 5)
    behind = rig.enqueue_many("short", [()] * 5)
    rig.store.resume("default")
    worker = rig.until_started(job)
    killed_ms = rig.store.now_ms()
    os.kill(worker, signal.SIGKILL)
    killed = time.monotonic()

    rig.until(lambda: rig.job(job).state is State.DELAYED, "the job is delayed", within=3)
    # Long before the lease is over.
    assert time.monotonic() - killed < 3
    delayed = rig.job(job)
    assert (delayed.attempts, delayed.attempt, delayed.crashes) == (1, 1, 1)
    assert "SIGKILL" in delayed.errors[0]["error"]
    if rig.kind != "spool":
        client = redis.Redis.from_url(rig.url)
        score = client.zscore(f"{rig.prefix}:{{default}}:delayed", job)
        assert score is not None
        fire_ms, seq = divmod(int(score), 4096)
        assert killed_ms + 600 <= fire_ms <= killed_ms + 600 + 500
        assert seq == 0
        assert client.hget(f"{rig.prefix}:{{default}}:attempts", job) == b"1"

    stats = rig.until_counts(done=40 + 3 + 1 + 5)
    assert [(entry.attempt, entry.token) for entry in rig.ledger.starts(job)] == [(1, 1), (2, 2)]
    first, second = rig.ledger.starts(job)
    assert second.at_ns - first.at_ns >= 600_000_000
    for other in [*before, *behind, *warm]:
        assert {entry.attempt for entry in rig.ledger.starts(other)} == {1}, f"an attempt of {other} was spent"
    assert (stats.totals["crashed"], stats.totals["retried"], stats.totals["lost"]) == (1, 1, 0)
    assert pool.lines("reaped")
    assert pool.stop() == 0


def test_worker_killed_while_idle_is_replaced(rig: Rig) -> None:
    """Nothing is charged for it, and the next job is run by another."""
    rig.app(APP)
    pool = rig.start(n=1)
    [worker] = pool.workers()
    os.kill(worker, signal.SIGKILL)
    job = rig.enqueue("short")
    assert rig.until_started(job) != worker
    stats = rig.until_counts(done=1, active=0)
    assert stats.totals["crashed"] == stats.totals["lost"] == 0


def test_finished_but_unsettled_jobs_of_a_killed_worker_spend_no_attempt(rig: Rig) -> None:
    """Killed in a batch: what had ended runs again as the same attempt; only the one that ran is charged."""
    rig.app(APP)
    rig.enqueue_many("linger", [(2,)] * 60)
    pool = rig.start(n=1)
    rig.until_counts(done=60)
    rig.store.pause("default")
    # The handler is known to be short now: a batch of them is settled only at its end.
    batch = rig.enqueue_many("linger", [(4,), (4,), (60,), (4,), (4,)])
    rig.store.resume("default")
    worker = rig.until_started(batch[2])
    os.kill(worker, signal.SIGKILL)
    stats = rig.until_counts(done=65)
    for number, job in enumerate(batch):
        starts = rig.ledger.starts(job)
        assert [entry.attempt for entry in starts] == ([1, 2] if number == 2 else [1] * len(starts))
    assert stats.totals["crashed"] == 1
    assert stats.totals["dead"] == 0
    assert pool.stop() == 0


def test_crashes_lead_to_the_morgue_as_poison(rig: Rig) -> None:
    """A job that kills its worker each time is dead after max_crashes, and the error names the death."""
    rig.app(
        """
@app.job(max_attempts=9, backoff=fixed(0))
def poison():
    note("S")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    job = rig.enqueue("poison")
    rig.run_burst("--max-crashes", "3")
    dead = rig.job(job)
    assert (dead.state, dead.reason, dead.attempt, dead.crashes) == (State.DEAD, "poison", 3, 3)
    assert "SIGKILL" in dead.errors[0]["error"]
    assert len(rig.ledger.starts(job)) == 3


def test_claims_that_cannot_be_moved_keep_back_nobody_elses(redis_rig: Rig) -> None:
    """One dead worker of this pool and one of a lost host, whose keys somebody broke: those behind them are reaped, and
    they as well once their keys are mended."""
    rig = redis_rig
    rig.app(APP)
    lost = []
    for worker in ("lost.host.1.a", "lost.host.1.b"):
        rig.store.register("default", worker, 100)
        lost.append(rig.enqueue("short"))
        assert [claim.id for claim in rig.store.claim("default", worker, 1, 0).claims] == [lost[-1]]
    with redis.Redis.from_url(rig.url) as client:
        broken = [_break(client, f"{rig.prefix}:{{default}}:active:lost.host.1.a")]
        pool = rig.start("--lease", "1s", n=2)
        # The second of the lost host.
        rig.until_started(lost[1])
        # The first may count as lost meanwhile, for it is not reaped within its lease: that is no attempt.
        first, second = rig.enqueue("once_claimed"), rig.enqueue("once", 60)
        pids = [rig.until_started(job) for job in (first, second)]
        [name] = [worker for worker in rig.store.leases("default").ends if f".{pids[0]}." in worker]
        broken.append(_break(client, f"{rig.prefix}:{{default}}:active:{name}"))
        os.kill(pids[0], signal.SIGKILL)
        rig.until(lambda: pool.lines("worker_died"), "its death is seen")
        os.kill(pids[1], signal.SIGKILL)
        rig.until(lambda: rig.ledger.ends(second), "the job of the second has been retried")
        assert [entry.attempt for entry in rig.ledger.starts(second)] == [1, 2]
        assert len(rig.ledger.starts(first)) == 1
        assert any(f"worker={name}" in line for line in pool.lines("reap_failed"))
        # Each try waits longer than the one before.
        assert len(pool.lines("reap_failed")) < 20
        for key in broken:
            client.delete(key)
            client.rename(f"{key}:whole", key)
    rig.until_counts(done=4, active=0)
    assert pool.stop() == 0


def _break(client: redis.Redis, key: str) -> str:
    """The set stands under another name, and what stands under its own is none."""
    # In one step: a sweep that finds no set at all takes the worker for one that holds nothing.
    with client.pipeline() as step:
        step.rename(key, f"{key}:whole")
        step.set(key, "broken")
        step.execute()
    return key
