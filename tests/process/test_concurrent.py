"""Workers that run many jobs at once: places, time limits, orders, deaths and stops, in the loop and on threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil

from batchq.lifecycle import State
from tests.process.rig import Rig, is_running, is_stopped

APP = """
import asyncio, threading


@app.job
async def sleeps(seconds=0.1):
    note("S")
    await asyncio.sleep(seconds)
    note("E")


@app.job(max_attempts=1, timeout=0.3)
async def overruns(swallow=False):
    note("S")
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        if not swallow:
            raise
    while True:
        await asyncio.sleep(0.1)


@app.job(threads=True)
def on_thread(seconds=0.1):
    note("S")
    time.sleep(seconds)
    note("E")


@app.job(max_attempts=1, timeout=0.3, threads=True)
def stuck():
    note("S")
    time.sleep(600)


@app.job(max_attempts=1)
async def blocks():
    time.sleep(0.6)


@app.job(max_attempts=1)
async def exits():
    note("S")
    sys.exit(3)


@app.job(max_attempts=1)
async def lets_a_task_exit():
    async def leave():
        sys.exit(3)
    task = asyncio.create_task(leave())
    await asyncio.sleep(0.05)


@app.job
async def dies():
    note("S")
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)
    os._exit(3)
"""


def most_at_once(rig: Rig) -> int:
    """How many handlers were under way together, by their own account."""
    steps = sorted([(s.at_ns, 1) for s in rig.ledger.starts()] + [(e.at_ns, -1) for e in rig.ledger.ends()])
    now = most = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


def test_one_worker_runs_as_many_at_once_as_it_has_places(rig: Rig) -> None:
    """Never more than the places, in the loop and on threads alike; each job once."""
    rig.app(APP)
    for name in ("sleeps", "on_thread"):
        rig.enqueue_many(name, [(0.2,)] * 60)
    rig.run_burst("-c", "30")
    assert rig.stats().totals["completed"] == 120
    assert sorted({entry.attempt for entry in rig.ledger.ends()}) == [1]
    assert len({entry.job for entry in rig.ledger.ends()}) == 120
    assert most_at_once(rig) == 30


def test_short_jobs_pass_long_ones(rig: Rig) -> None:
    """A free place is filled at once, whatever the others do."""
    rig.app(APP)
    long = rig.enqueue_many("sleeps", [(600,)] * 3)
    pool = rig.start("-c", "4", "--shutdown-timeout", "0.2s")
    for job in long:
        rig.until_started(job)
    short = rig.enqueue_many("sleeps", [(0.01,)] * 20)
    rig.until_counts(done=20, active=3)
    assert {entry.job for entry in rig.ledger.ends()} == set(short)
    assert pool.stop() == 0
    stats = rig.stats()
    assert (stats.counts["pending"], stats.totals["released"], stats.counts["active"]) == (3, 3, 0)
    assert {rig.job(job).attempt for job in long} == {0}


def test_time_limit_cancels_a_coroutine_and_spares_the_others(rig: Rig) -> None:
    """The attempt timed out; what ran beside it ended well, in the same process."""
    rig.app(APP)
    late = rig.enqueue("overruns")
    others = rig.enqueue_many("sleeps", [(1.0,)] * 5)
    pool = rig.start("-c", "10")
    rig.until_counts(done=5, dead=1)
    assert (rig.job(late).reason, rig.job(late).errors[0]["kind"]) == ("timed_out", "JobTimeout")
    assert {entry.attempt for entry in rig.ledger.ends()} == {1}
    assert len({entry.pid for entry in rig.ledger.entries()}) == 1
    assert {entry.job for entry in rig.ledger.ends()} == set(others)
    assert pool.lines("timed_out")


def test_who_does_not_listen_takes_the_worker_down_and_is_charged_alone(rig: Rig) -> None:
    """A coroutine that swallows its cancellation, and a thread: killed after the grace. The others lose no attempt."""
    rig.app(APP)
    for name, args in (("overruns", (True,)), ("stuck", ())):
        job = rig.enqueue(name, *args)
        other = rig.enqueue("on_thread", 3)
        pool = rig.start("-c", "10", "--grace", "0.3s")
        rig.until(lambda job=job: rig.job(job).state is State.DEAD, "the one is charged")
        assert rig.job(job).reason == "timed_out"
        rig.until(lambda other=other: len(rig.ledger.starts(other)) == 2, "the other is begun again")
        assert [entry.attempt for entry in rig.ledger.starts(other)] == [1, 1]
        assert rig.job(other).crashes == rig.job(other).lost == 0
        pool.stop(signal.SIGQUIT)
        rig.store.cancel("default", [other])


def test_nobody_is_charged_for_a_death_with_several_under_way(rig: Rig) -> None:
    """They are lost, delayed, and spend no attempt; a job that dies alone is charged."""
    rig.app(APP)
    both = [rig.enqueue("dies"), rig.enqueue("sleeps", 600)]
    pool = rig.start("-c", "2", "--shutdown-timeout", "0s")
    for job in both:
        rig.until_started(job)
    (rig.folder / "go").touch()
    rig.until(lambda: sum(rig.job(job).lost for job in both) >= 2, "both are lost")
    assert {rig.job(job).crashes for job in both} == {0}
    pool.stop(signal.SIGQUIT)
    rig.store.cancel("default", both)
    alone = rig.enqueue("dies")
    pool = rig.start("-c", "2")
    rig.until(lambda: rig.job(alone).crashes == 1, "it is charged")
    pool.stop(signal.SIGQUIT)


def test_blocking_call_is_named_in_the_log(rig: Rig) -> None:
    """Its handler, its job, and the line where it stands."""
    rig.app(APP)
    job = rig.enqueue("blocks")
    pool = rig.run_burst("-c", "5")
    [line] = pool.lines("loop_blocked")
    assert "handler=blocks" in line
    assert f"job={job}" in line
    assert "app.py:" in line


def test_exit_in_a_coroutine_is_a_failed_attempt(rig: Rig) -> None:
    """In the handler, and in a task that it has made; the worker goes on."""
    rig.app(APP)
    job = rig.enqueue("exits")
    rig.enqueue("lets_a_task_exit")
    rig.enqueue_many("sleeps", [()] * 5)
    pool = rig.run_burst("-c", "5")
    assert (rig.job(job).state, rig.job(job).errors[0]["kind"]) == (State.DEAD, "SystemExit")
    assert not pool.lines("worker_died")
    assert rig.stats().totals["completed"] == 6


def test_cancel_ends_a_coroutine(rig: Rig) -> None:
    """Its task is cancelled, the job leaves no row; on a thread it ends when it ends."""
    rig.app(APP)
    job, thread = rig.enqueue("sleeps", 600), rig.enqueue("on_thread", 2)
    rig.start("-c", "5")
    for one in (job, thread):
        rig.until_started(one)
    rig.store.cancel("default", [job, thread])
    rig.until(lambda: rig.store.get("default", job) is None, "the coroutine is cancelled")
    rig.until_counts(cancelled=1, done=1, active=0)


def test_order_for_a_worker_that_is_gone_meets_no_job_of_the_next(rig: Rig) -> None:
    """Which has its place on the board, and numbers its runs as that one did."""
    rig.app(APP)
    pool = rig.start("-c", "2", "--shutdown-timeout", "0s")

    def cancel(job: str, of: int) -> None:
        rig.until_started(job)
        rig.store.cancel("default", [job])
        rig.until(lambda: rig.stats().totals["cancelled"] == of, f"{job} is cancelled")

    cancel(rig.enqueue("sleeps", 600), 1)
    [worker] = pool.workers()
    os.kill(worker, signal.SIGKILL)
    rig.until(lambda: pool.workers() not in ([], [worker]), "another has come")
    job = rig.enqueue("sleeps", 600)
    rig.until_started(job)
    # The worker looks for orders when a signal comes.
    cancel(rig.enqueue("sleeps", 600), 2)
    assert (rig.job(job).state, rig.job(job).errors) == (State.ACTIVE, ())
    assert rig.stats().counts["active"] == 1
    assert pool.stop() == 0


def test_worker_that_was_sealed_goes_on_under_a_new_id(rig: Rig) -> None:
    """What it ran then is refused; what it claims from now on counts."""
    rig.app(APP)
    old = rig.enqueue("sleeps", 1.0)
    pool = rig.start("-c", "5")
    rig.until_started(old)
    [worker] = [name for name, end in rig.store.leases("default").ends.items() if end]
    sealed = rig.store.seal("default", worker)
    rig.store.release("default", worker, [_released(claim) for claim in sealed.claims])
    rig.enqueue_many("sleeps", [(0.01,)] * 5)
    rig.until_counts(done=6, active=0)
    assert pool.lines("sealed")
    assert rig.stats().totals["fenced"] == 1
    assert len(rig.ledger.ends(old)) == 2


def test_idle_worker_that_was_stopped_goes_on_as_it_was(rig: Rig) -> None:
    """No claim of it can stand at the store: what it may just have asked for is its own when it goes on."""
    rig.app(APP)
    pool = rig.start("-c", "4", "--threads")
    before = set(rig.store.leases("default").ends)
    [worker] = pool.workers()
    os.kill(worker, signal.SIGSTOP)
    rig.until(lambda: is_stopped(worker), "it is stopped")
    pool.send(signal.SIGUSR1)
    rig.until(lambda: pool.lines("scoreboard"), "the master has looked")
    os.kill(worker, signal.SIGCONT)
    job = rig.enqueue("sleeps", 0)
    rig.until_counts(done=1)
    assert set(rig.store.leases("default").ends) == before
    assert len(rig.ledger.starts(job)) == 1


def _released(claim: object) -> object:
    from batchq.job import Released

    return Released(claim)  # type: ignore[arg-type]


def test_killed_master_leaves_what_had_started_on_the_board(rig: Rig) -> None:
    """The next start reaps at once: what ran is lost, and nothing else."""
    rig.app(APP)
    jobs = rig.enqueue_many("sleeps", [(600,)] * 4)
    args = ("-c", "3", "--pid-file", str(rig.folder / "pid"), "--lease", "60s")
    pool = rig.start(*args)
    rig.until_counts(active=3)
    workers = pool.workers()
    os.kill(pool.pid, signal.SIGKILL)
    pool.wait()
    rig.until(lambda: not any(is_running(pid) for pid in workers), "the workers end with it")
    again = rig.start(*args)
    rig.until(lambda: again.lines("reaped_lost"), "the rest is reaped")
    assert sorted(rig.job(job).lost for job in jobs) == [0, 1, 1, 1]
    again.stop(signal.SIGQUIT)


def test_reload_lets_running_jobs_end(rig: Rig) -> None:
    """The old worker finishes what it runs beside the new one; no attempt is spent on it."""
    rig.app(APP)
    jobs = rig.enqueue_many("sleeps", [(2.0,)] * 3)
    pool = rig.start("-c", "5")
    for job in jobs:
        rig.until_started(job)
    pool.send(signal.SIGHUP)
    rig.until_counts(done=3, within=20)
    rig.until(lambda: pool.lines("reloaded"), "the reload is over", within=20)
    assert len({entry.pid for entry in rig.ledger.ends()}) == 1
    assert {entry.attempt for entry in rig.ledger.ends()} == {1}
    after = rig.enqueue("sleeps")
    rig.until(lambda: rig.ledger.ends(after), "the new one works")


def test_outage_stops_no_coroutine(redis_rig: Rig) -> None:
    """While the store hangs, what runs goes on; it is settled when the store is back."""
    rig = redis_rig
    rig.app(APP)
    job = rig.enqueue("sleeps", 1.0)
    rig.start("-c", "5")
    rig.until_started(job)
    server = next(
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and f":{connection.laddr.port}/" in rig.url
    )
    assert server is not None
    os.kill(server, signal.SIGSTOP)
    try:
        rig.until(lambda: rig.ledger.ends(job), "the handler ends meanwhile")
    finally:
        os.kill(server, signal.SIGCONT)
    rig.until_counts(done=1)


def test_plain_function_beside_others_must_say_so(rig: Rig) -> None:
    """The start is refused with what can be done; --threads is one of it."""
    rig.app("@app.job\ndef plain():\n    note('S')\n")
    command = [sys.executable, "-m", "batchq", "start", "-c", "4", "app:app"]
    done = subprocess.run(command, cwd=rig.folder, env=rig.env(), capture_output=True, text=True, timeout=30)
    assert done.returncode == 2, done.stderr
    assert "plain" in done.stderr
    assert "threads=True" in done.stderr
    rig.enqueue("plain")
    rig.run_burst("-c", "4", "--threads")
    assert rig.stats().totals["completed"] == 1


def test_one_worker_of_200_places_comes_near_the_ideal(rig: Rig) -> None:
    """Jobs of 100 ms: 200 places could run 2,000 a second, on a busy machine less. Filled each second only, it
    were 200."""
    rig.app(APP.replace('note("S")', "pass").replace('note("E")', "pass"))
    rig.enqueue_many("sleeps", [(0.1,)] * 3000)
    rig.start("-c", "200")
    rig.until(lambda: rig.stats().totals["completed"] > 200, "it has begun")
    before, began = rig.stats().totals["completed"], time.monotonic()
    rig.until_counts(done=3000, within=30)
    rate = (3000 - before) / (time.monotonic() - began)
    assert rate > 400, f"{rate:.0f} jobs/s"


HOOKS = """
import asyncio

loops = []


@app.on_worker_start
async def begin():
    loops.append(asyncio.get_running_loop())


@app.on_worker_stop
async def end():
    open("ended", "w").write(str(asyncio.get_running_loop() is loops[0]))


@app.job
async def runs():
    assert asyncio.get_running_loop() is loops[0]
    note("E")
"""


def test_coroutine_hooks_run_in_the_loop_of_the_handlers(rig: Rig) -> None:
    """In workers of one job and of many; each job sees itself as the current one."""
    rig.app(HOOKS)
    for args in ((), ("-c", "5")):
        jobs = rig.enqueue_many("runs", [()] * 3)
        rig.run_burst(*args)
        assert {entry.job for entry in rig.ledger.ends()} >= set(jobs)
        assert (rig.folder / "ended").read_text() == "True"
        (rig.folder / "ended").unlink()
    assert len(rig.ledger.ends()) == 6


#: A worker looks by itself after as long as on Redis.
SELDOM = """
from dataclasses import replace
from batchq.spool import SpoolStore

SpoolStore.traits = replace(SpoolStore.traits, idle_wait_s=5.0)
"""


def test_hint_that_comes_during_a_look_is_not_lost(rig: Rig) -> None:
    """Jobs that come while the worker settles another begin at once, not at its own next look seconds later."""
    rig.app(APP + SELDOM)
    rig.start("-c", "5", "--sweep", "1m")
    late = []
    for _ in range(60):
        first = rig.enqueue("sleeps", 0.0)
        rig.until_started(first)
        began = time.monotonic()
        second = rig.enqueue("sleeps", 0.0)
        rig.until_started(second)
        late.append(time.monotonic() - began)
    assert max(late) < 4, sorted(late)[-5:]
