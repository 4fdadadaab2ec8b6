"""Time limits and cancelling: the soft way, the hard way, and never the neighbour's."""

from __future__ import annotations

import time

from batchq.lifecycle import State, Word
from tests.process.rig import Rig

APP = """
@app.job(timeout=0.3, max_attempts=1)
def polite():
    note("S")
    try:
        time.sleep(30)
    except JobTimeout:
        note("T")
        raise
    note("E")


@app.job(timeout=0.3, max_attempts=1)
def swallows():
    note("S")
    try:
        time.sleep(30)
    except Exception:
        note("T")
    return "done"


@app.job(timeout=0.3, max_attempts=1)
def deaf():
    note("S")
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(30)
    note("E")


@app.job(timeout=0.3, max_attempts=1)
def catches_all():
    note("S")
    while True:
        try:
            time.sleep(30)
        except BaseException:
            note("T")


@app.job(timeout=0.3, max_attempts=1)
async def waits():
    import asyncio
    note("S")
    try:
        await asyncio.sleep(30)
    finally:
        note("T")


@app.job(timeout=0.3, max_attempts=1)
async def waits_on():
    import asyncio
    note("S")
    await asyncio.sleep(2.3)
    note("E")


@app.job(max_attempts=1)
async def fine():
    import asyncio
    note("S")
    # Longer than what is left of the other.
    await asyncio.sleep(2.5)
    note("E")


@app.job(timeout=0.06, max_attempts=1)
def near(seconds):
    note("S")
    try:
        time.sleep(seconds)
    except JobTimeout:
        note("T")
        raise
    note("E")


@app.job(backoff=fixed(0))
def patient():
    note("S")
    try:
        time.sleep(30)
    except JobCancelled:
        note("C")
        raise
    note("E")


@app.job(backoff=fixed(0))
def hears_nothing():
    note("S")
    while True:
        try:
            time.sleep(30)
        except BaseException:
            note("C")


@app.job(backoff=fixed(0.2))
def slow_at_first():
    note("S")
    if current_job().attempt == 1:
        time.sleep(30)
    note("E")


@app.job(timeout=0.15, max_attempts=1)
def floods():
    note("S")
    count = 0
    try:
        while True:
            app.enqueue("leaf", queue="leaves")
            count += 1
    except JobTimeout:
        note("T")
        open(f"count-{current_job().id}", "w").write(str(count))
        # The app's store is whole: it can be used at once.
        app.enqueue("leaf", queue="leaves")
        raise


@app.job(queue="leaves")
def leaf():
    pass
"""


def test_time_limits_end_every_kind_of_handler(rig: Rig) -> None:
    """Soft where it is heard, SIGKILL after the grace where it is not; each attempt is a timeout, none is a crash."""
    rig.app(APP)
    jobs = {name: rig.enqueue(name) for name in ("polite", "swallows", "deaf", "catches_all", "waits")}
    began = time.monotonic()
    pool = rig.run_burst("--grace", "300ms", n=5)
    assert time.monotonic() - began < 15
    for name, job in jobs.items():
        dead = rig.job(job)
        assert (name, dead.state, dead.reason) == (name, State.DEAD, "timed_out")
        assert (dead.attempt, dead.crashes) == (1, 0)
        assert "time limit of 0.3 s" in dead.errors[0]["error"]
        assert dead.errors[0]["kind"] == "JobTimeout"
    stats = rig.stats()
    assert (stats.totals["timed_out"], stats.totals["crashed"], stats.totals["completed"]) == (5, 0, 0)
    for name in ("polite", "swallows", "waits", "catches_all"):
        [noted] = rig.ledger.entries("T", jobs[name])
        [started] = rig.ledger.starts(jobs[name])
        # The limit counts from before the first line of the handler, which notes its start.
        assert 0.2 < (noted.at_ns - started.at_ns) / 1e9 < 3, name
    killed = [line for line in pool.lines("killed") if "time limit" in line]
    assert len(killed) == 2
    assert len(pool.lines("worker_died")) == 0


def test_attempt_after_a_timeout_is_delayed_by_the_backoff(rig: Rig) -> None:
    """A limit of one call, on a handler without one: attempt 1 times out, attempt 2 completes."""
    rig.app(APP)
    job = rig.enqueue("slow_at_first", timeout_ms=200)
    rig.run_burst()
    first, second = rig.ledger.starts(job)
    assert (first.attempt, second.attempt) == (1, 2)
    # The limit, then the backoff; a limit that no handler has may be seen up to a second late.
    assert 0.4 <= (second.at_ns - first.at_ns) / 1e9 < 10
    assert rig.stats().totals["timed_out"] == 1


def test_coroutine_that_was_cut_off_does_not_go_on_beside_the_next_job(rig: Rig) -> None:
    """What its time limit ended stays ended, though the worker and its event loop live on."""
    rig.app(APP)
    cut, after = rig.enqueue("waits_on"), rig.enqueue("fine")
    rig.run_burst()
    assert rig.job(cut).reason == "timed_out"
    assert rig.ledger.ends(after)
    assert not rig.ledger.ends(cut)
    assert {entry.pid for entry in rig.ledger.starts(cut)} == {entry.pid for entry in rig.ledger.starts(after)}


def test_late_alarm_never_hits_the_next_job(rig: Rig) -> None:
    """Jobs far below their limit, between others that end just when their alarm comes: only those are timed out."""
    rig.app(APP)
    times = [seconds for number in range(40) for seconds in (0.06 + number % 8 * 0.007, 0.002)]
    jobs = list(zip(rig.enqueue_many("near", [(seconds,) for seconds in times]), times, strict=True))
    rig.run_burst(n=2)
    timed_out = 0
    for job, seconds in jobs:
        found = rig.store.get("default", job)
        if found is None:
            assert rig.ledger.ends(job), f"{job} completed without an end"
            assert not rig.ledger.entries("T", job), f"{job} was timed out and completed"
        else:
            assert (found.state, found.reason) == (State.DEAD, "timed_out")
            assert seconds > 0.05, f"{job} of {seconds} s was hit by another's alarm"
            timed_out += 1
    stats = rig.stats()
    assert stats.totals["completed"] + stats.totals["dead"] == len(jobs)
    assert (stats.totals["timed_out"], stats.totals["crashed"]) == (timed_out, 0)
    assert timed_out > 0, "no alarm came: this run proved nothing"


def test_cancel_ends_waiting_and_running_jobs_and_none_is_retried(rig: Rig) -> None:
    """Pending and delayed ones are gone at once; running ones meet JobCancelled, or SIGKILL after the grace."""
    rig.app(APP)
    running, deaf = rig.enqueue("patient"), rig.enqueue("hears_nothing")
    pool = rig.start("--grace", "300ms", n=2)
    rig.until_started(running)
    rig.until_started(deaf)
    pending, delayed = rig.enqueue("patient"), rig.enqueue("patient", delay_ms=60_000)
    words = rig.store.cancel("default", [pending, delayed, running, deaf])
    assert words == [Word.CANCELLED, Word.CANCELLED, Word.MARKED, Word.MARKED]
    began = time.monotonic()
    stats = rig.until_counts(cancelled=4, active=0, within=8)
    assert time.monotonic() - began < 8
    assert not any(stats.counts.values())
    assert (stats.totals["retried"], stats.totals["crashed"], stats.totals["dead"]) == (0, 0, 0)
    assert len(rig.ledger.entries("C", running)) == 1
    assert len(rig.ledger.starts()) == 2
    assert not rig.ledger.starts(pending)
    # The pool lives on.
    pool.wait_ready(2)
    assert pool.stop() == 0
    assert rig.stats().totals["cancelled"] == 4


def test_limit_inside_a_call_of_the_store_leaves_the_store_whole(rig: Rig) -> None:
    """Handlers that enqueue all the time are cut off between two calls: what they enqueued is there, and no more."""
    rig.app(APP)
    jobs = rig.enqueue_many("floods", [()] * 12)
    pool = rig.start("-q", "default", "--grace", "3s", n=2)
    stats = rig.until_counts(dead=12, within=20)
    assert (stats.totals["timed_out"], stats.totals["crashed"]) == (12, 0)
    counted = sum(int((rig.folder / f"count-{job}").read_text()) for job in jobs)
    leaves = rig.stats("leaves").totals["enqueued"]
    print(f"{rig.kind}: {leaves} jobs enqueued by handlers that were cut off")
    # Perhaps one more after the limit; and the one whose call the order waited for.
    assert counted <= leaves <= counted + 24
    assert not pool.lines("killed")
    for job in jobs:
        [noted] = rig.ledger.entries("T", job)
        [started] = rig.ledger.starts(job)
        assert (noted.at_ns - started.at_ns) / 1e9 < 2.5
    assert pool.stop() == 0
