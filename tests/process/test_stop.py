"""How a pool stops: in order, at once, and while its store is away. What was cut off is given back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.lifecycle import State
from tests.process.rig import Rig, is_running, opened
from tests.servers import Server, flavours

APP = """
@app.job
def run(seconds):
    note("S")
    time.sleep(seconds)
    note("E")


@app.job
def stubborn():
    note("S")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            time.sleep(60)
        except BaseException:
            note("X")


@app.job
def short():
    note("S")
    note("E")
"""


def attempts_spent(rig: Rig, job: str) -> int:
    return rig.job(job).attempt


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_graceful_stop_finishes_what_runs_and_gives_back_the_rest(rig: Rig, number: signal.Signals) -> None:
    """The running job ends well, those behind it are pending and untouched, the pool ends with 0."""
    rig.app(APP)
    rig.enqueue_many("short", [()] * 30)
    pool = rig.start(n=1)
    rig.until_counts(done=30)
    rig.store.pause("default")
    running = rig.enqueue("run", 0.4)
    behind = rig.enqueue_many("short", [()] * 6)
    rig.store.resume("default")
    rig.until_started(running)
    assert pool.stop(number) == 0
    rig.until_clean()
    stats = rig.stats()
    assert (stats.totals["completed"], stats.counts["pending"], stats.counts["active"]) == (31, 6, 0)
    assert [attempts_spent(rig, job) for job in behind] == [0] * 6
    assert not rig.store.leases("default").ends, "a lease was left"
    # In their old order, and as first attempts.
    rig.run_burst()
    ran = [entry for entry in rig.ledger.starts() if entry.job in behind]
    assert [entry.job for entry in ran] == behind
    assert {entry.attempt for entry in ran} == {1}


def test_job_longer_than_the_shutdown_timeout_is_interrupted_and_released(rig: Rig) -> None:
    """Interrupted after the timeout, killed where it does not listen; released either way, and the pool ends with 0."""
    rig.app(APP)
    listens, deaf = rig.enqueue("run", 60), rig.enqueue("stubborn")
    pool = rig.start("--shutdown-timeout", "400ms", "--grace", "300ms", n=2)
    rig.until_started(listens)
    rig.until_started(deaf)
    began = time.monotonic()
    assert pool.stop() == 0
    took = time.monotonic() - began
    assert 0.4 <= took < 10
    rig.until_clean()
    for job in (listens, deaf):
        given_back = rig.job(job)
        assert (given_back.state, given_back.attempt, given_back.crashes) == (State.PENDING, 0, 0)
        assert given_back.errors[0]["kind"] == "Interrupted"
    stats = rig.stats()
    assert (stats.totals["released"], stats.totals["crashed"], stats.totals["retried"]) == (2, 0, 0)
    assert not rig.ledger.ends()


@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT), (signal.SIGQUIT,)],
    ids=lambda numbers: "-".join(n.name for n in numbers),
)
def test_second_stop_and_quit_are_at_once(rig: Rig, numbers: tuple[signal.Signals, ...]) -> None:
    """Nobody is waited for; what ran is released without an attempt, and the pool ends with 0."""
    rig.app(APP)
    jobs = rig.enqueue_many("run", [(60,), (60,)])
    pool = rig.start(n=2)
    for job in jobs:
        rig.until_started(job)
    began = time.monotonic()
    for number in numbers:
        pool.send(number)
        rig.until(lambda: pool.lines("stopping") or pool.process.poll() is not None, "it is stopping")
    assert pool.wait() == 0
    assert time.monotonic() - began < 10
    rig.until_clean()
    assert [(rig.job(job).state, rig.job(job).attempt) for job in jobs] == [(State.PENDING, 0)] * 2
    assert rig.stats().totals["released"] == 2


def test_signals_at_the_very_end_change_nothing(redis_rig: Rig) -> None:
    """One Ctrl-C after the other, up to the last moment: the exit code is that of the stop."""
    redis_rig.app(APP)
    pool = redis_rig.start(n=1)
    while pool.process.poll() is None:
        pool.send(signal.SIGINT)
    assert pool.wait() == 0
    assert pool.lines("stopped")


def test_pool_grows_and_shrinks_by_signal(rig: Rig) -> None:
    """TTIN starts a worker more; TTOU lets one go when its job is done, and never the last."""
    rig.app(APP)
    pool = rig.start(n=1)
    pool.send(signal.SIGTTIN)
    pool.wait_ready(2)
    jobs = rig.enqueue_many("run", [(0.5,), (0.5,)])
    for job in jobs:
        rig.until_started(job)
    pool.send(signal.SIGTTOU)
    rig.until_counts(done=2)
    rig.until(lambda: len(pool.workers()) == 1, "one worker is left")
    pool.send(signal.SIGTTOU)
    last = rig.enqueue("short")
    rig.until_started(last)
    assert len(pool.workers()) == 1
    stats = rig.stats()
    assert (stats.totals["crashed"], stats.totals["released"]) == (0, 0)
    assert pool.stop() == 0


@pytest.fixture(params=flavours())
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of its own that keeps what it acknowledged, to be killed and brought back."""
    made = Server(request.param, "--appendonly", "yes", "--appendfsync", "always")
    yield made
    made.stop()


@pytest.fixture
def own(server: Server, tmp_path: Path, prefix: str) -> Iterator[Rig]:
    with opened(tmp_path, server.flavour, server.url, prefix) as made:
        yield made


@pytest.fixture(params=flavours())
def empty_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of its own that keeps nothing."""
    made = Server(request.param)
    yield made
    made.stop()


@pytest.fixture
def own_empty(empty_server: Server, tmp_path: Path, prefix: str) -> Iterator[Rig]:
    with opened(tmp_path, empty_server.flavour, empty_server.url, prefix) as made:
        yield made


def test_stop_while_the_store_is_away_tells_that_work_was_not_given_back(own: Rig, server: Server) -> None:
    """The pool ends in bounded time with 1; when the store is back, another pool runs the job, no attempt spent."""
    own.app(APP)
    job = own.enqueue("run", 0.3)
    pool = own.start("--shutdown-timeout", "1s", "--grace", "500ms", "--lease", "1s", n=2)
    own.until_started(job)
    server.kill()
    assert pool.stop() == 1
    own.until_clean()
    assert pool.lines("not_given_back")
    assert 1 <= len(pool.lines("store_unavailable")) <= 2 * 3, "an outage is a line or two a process"
    assert any("jobs=1" in line for line in pool.lines("not_settled"))
    assert not pool.lines("worker_died")
    server.start()
    own.start("--lease", "1s")
    own.until_started(job, times=2)
    stats = own.until_counts(done=1, active=0)
    assert [entry.attempt for entry in own.ledger.starts(job)] == [1, 1]
    assert (stats.totals["lost"], stats.totals["crashed"], stats.totals["dead"]) == (1, 0, 0)


def test_outcome_is_kept_while_the_store_is_away(own: Rig, server: Server) -> None:
    """A job that ends during an outage is settled when the store is back, and not run again."""
    own.app(APP)
    job = own.enqueue("run", 0.5)
    pool = own.start(n=2)
    own.until_started(job)
    workers = pool.workers()
    server.kill()
    own.until(lambda: own.ledger.ends(job), "the handler has ended")
    own.until(lambda: pool.lines("store_unavailable"), "the master has noticed")
    server.start()
    own.until_counts(done=1, active=0)
    after = own.enqueue("short")
    own.until_started(after)
    own.until_counts(done=2)
    assert len(own.ledger.starts(job)) == 1
    assert pool.workers() == workers, "a worker was lost to the outage"
    assert 1 <= len(pool.lines("store_unavailable")) <= 2 * 3, "an outage is a line or two a process"
    assert pool.stop() == 0


def test_no_worker_outlives_a_killed_master(rig: Rig) -> None:
    """SIGKILL of the master ends its workers at once; another master finds their jobs lost, no attempt spent."""
    rig.app(APP)
    job = rig.enqueue("run", 1)
    pool = rig.start("--lease", "3s", n=3)
    rig.until_started(job)
    workers = pool.workers()
    assert len(workers) == 3
    os.kill(pool.pid, signal.SIGKILL)
    pool.wait()
    rig.until(lambda: not any(map(is_running, workers)), "the workers are gone", within=1.5)
    assert rig.stats().counts["active"] == 1
    rig.start("--lease", "3s")
    rig.until(lambda: rig.stats().totals["lost"] == 1, "the job is found lost", within=15)
    rig.until_started(job, times=2)
    stats = rig.until_counts(done=1)
    assert [(entry.attempt, entry.token) for entry in rig.ledger.starts(job)] == [(1, 1), (1, 2)]
    assert (stats.totals["crashed"], stats.totals["retried"], stats.totals["reaped"]) == (0, 0, 1)
    rig.until(lambda: len(rig.store.leases("default").ends) == 1, "the leases of the dead are gone")


def test_pool_goes_on_after_the_server_lost_everything(own_empty: Rig, empty_server: Server) -> None:
    """A server that comes back empty: the workers take new ids, a late outcome changes nothing, and new jobs run."""
    rig, server = own_empty, empty_server
    rig.app(APP)
    job = rig.enqueue("run", 0.6)
    pool = rig.start(n=2)
    rig.until_started(job)
    workers = pool.workers()
    server.kill()
    server.start()
    jobs = rig.enqueue_many("short", [()] * 20)
    rig.until(lambda: all(rig.ledger.ends(one) for one in jobs), "the new jobs have run", within=12)
    rig.until(lambda: rig.ledger.ends(job), "the handler has ended")
    rig.until(lambda: len(pool.lines("sealed")) == 2, "both workers took new ids")
    stats = rig.until_counts(done=20, active=0, pending=0)
    assert stats.totals["enqueued"] == 20
    rig.until(lambda: pool.lines("store_back"), "the master has noticed", within=12)
    assert pool.workers() == workers
    assert pool.stop() == 0


def test_server_that_hangs_does_not_hold_the_stop(own: Rig, server: Server) -> None:
    """A server that takes calls and answers none: the pool ends all the same, and says what it could not give back."""
    own.app(APP)
    job = own.enqueue("run", 0.2)
    pool = own.start("--shutdown-timeout", "1s", "--grace", "500ms", "--socket-timeout", "1s", n=2)
    own.until_started(job)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        own.until(lambda: own.ledger.ends(job), "the handler has ended")
        began = time.monotonic()
        assert pool.stop(within=15) == 1
        # The stop's own time and grace, and a time-out of the call under way.
        assert time.monotonic() - began < 5
    finally:
        os.kill(server.pid, signal.SIGCONT)
    own.until_clean()
    assert pool.lines("not_given_back")


def test_graceful_stop_of_a_worker_alone_is_a_replacement(rig: Rig) -> None:
    """TERM to one worker, as a service manager sends to all of a group: it ends its job and leaves; a new one comes."""
    rig.app(APP)
    job = rig.enqueue("run", 0.3)
    pool = rig.start(n=1)
    worker = rig.until_started(job)
    os.kill(worker, signal.SIGTERM)
    rig.until_counts(done=1, active=0)
    rig.until(lambda: not is_running(worker), "it has left")
    other = rig.enqueue("short")
    assert rig.until_started(other) != worker
    stats = rig.until_counts(done=2)
    assert (stats.totals["crashed"], stats.totals["released"]) == (0, 0)
    assert pool.stop() == 0


def test_everything_signalled_at_once_stops_in_order(rig: Rig) -> None:
    """TERM to the master and to all its workers: the running jobs end well, nobody is called back."""
    rig.app(APP)
    jobs = rig.enqueue_many("run", [(0.3,), (0.3,), (0.3,), (0.3,)])
    pool = rig.start(n=2)
    for job in jobs[:2]:
        rig.until_started(job)
    for pid in (*pool.workers(), pool.pid):
        os.kill(pid, signal.SIGTERM)
    assert pool.wait() == 0
    stats = rig.stats()
    assert (stats.totals["completed"], stats.counts["pending"], stats.counts["active"]) == (2, 2, 0)
    assert [rig.job(job).attempt for job in jobs[2:]] == [0, 0]
    rig.until_clean()
