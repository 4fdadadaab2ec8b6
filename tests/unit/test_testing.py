"""The harness: jobs of an app in memory, step by step or inline, on a clock that stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from batchq import Dead, Retry, Snooze, current_job, fixed
from batchq.app import App
from batchq.errors import BatchqError
from batchq.job import Buried, Completed, Job, Retried, Snoozed
from batchq.lifecycle import State, Word, unaccounted
from batchq.testing import Harness


@pytest.fixture
def app() -> App:
    return App("redis://127.0.0.1:1/0", max_attempts=3)


@pytest.fixture
def jobs(app: App) -> Iterator[Harness]:
    with app.testing() as harness:
        yield harness


def assert_law(jobs: Harness) -> None:
    for queue in jobs.store.queues():
        stats = jobs.store.stats(queue)
        assert unaccounted(stats.counts, stats.totals) == 0
        assert stats.counts["active"] == 0


def test_nothing_runs_before_it_is_told_to(app: App, jobs: Harness) -> None:
    """run_pending runs what is pending, in order, with the arguments that JSON gives back."""
    seen: list[Any] = []

    @app.job
    def note(what: Any, *, more: Any = None) -> None:
        seen.append((what, more))

    note.enqueue("a", more={"x": [1]})
    note.options(priority=1).enqueue("first")
    assert seen == []
    ran = jobs.run_pending()
    assert seen == [("first", None), ("a", {"x": [1]})]
    assert [type(one.outcome) for one in ran] == [Completed, Completed]
    assert [one.word for one in ran] == [Word.OK, Word.OK]
    assert jobs.run_pending() == []
    assert_law(jobs)


def test_a_failed_attempt_leaves_its_times(app: App, jobs: Harness) -> None:
    """When it began, when it ended, and what it asked for: what `show` prints as the history."""
    began: list[int] = []

    @app.job(backoff=fixed(30))
    def fail() -> None:
        began.append(current_job().started_ms)
        raise ValueError("no")

    ref = fail.enqueue()
    jobs.run_pending()
    job = app.get(ref.id)
    assert job is not None
    [entry] = job.errors
    assert [entry["started_ms"]] == began
    assert 0 <= entry["at_ms"] - entry["started_ms"] < 60_000
    assert entry["delay_ms"] == 30_000


def test_a_failed_attempt_runs_again_at_its_backoff(app: App, jobs: Harness) -> None:
    """Not before, not twice, and dead when the budget is spent; the dead hook is told once."""
    dead: list[Job] = []
    app.on_dead(dead.append)
    attempts: list[int] = []

    @app.job(backoff=fixed(10))
    def fail() -> None:
        attempts.append(current_job().attempt)
        raise OSError("the disk is away")

    ref = fail.enqueue()
    [ran] = jobs.run_pending()
    assert isinstance(ran.outcome, Retried)
    assert ref.status() is State.DELAYED
    assert jobs.run_for(9.999) == []
    assert attempts == [1]
    jobs.run_for(0.001)
    assert attempts == [1, 2]
    assert [one.word for one in jobs.run_for(60)] == [Word.DEAD]
    assert attempts == [1, 2, 3]
    [job] = dead
    assert (job.id, job.reason, job.errors[0]["error"]) == (ref.id, "max_attempts", "the disk is away")
    assert_law(jobs)


def test_steering_ends_attempts_as_in_a_worker(app: App, jobs: Harness) -> None:
    """Retry(after), Snooze and Dead have the outcomes that they have in production."""
    plan: list[Exception | None] = [Snooze(5), Retry(after=7), None]

    @app.job(result=True)
    def steered() -> str:
        step = plan.pop(0)
        if step:
            raise step
        return f"attempt {current_job().attempt}, token {current_job().token}"

    ref = steered.enqueue()
    assert isinstance(jobs.run_pending()[0].outcome, Snoozed)
    assert isinstance(jobs.run_for(5)[0].outcome, Retried)
    assert jobs.run_for(6.9) == []
    jobs.run_for(0.1)
    assert ref.result() == "attempt 2, token 3"

    @app.job
    def given_up() -> None:
        raise Dead("no such order")

    ref2 = given_up.enqueue()
    assert isinstance(jobs.run_pending()[0].outcome, Buried)
    assert ref2.status() is State.DEAD
    assert_law(jobs)


def test_scheduled_jobs_run_in_the_order_of_their_times(app: App, jobs: Harness) -> None:
    """run_for goes from fire-time to fire-time; each job sees the clock at its own."""
    seen: list[tuple[str, int]] = []
    start = jobs.clock.now_us() // 1000

    @app.job
    def note(name: str) -> None:
        seen.append((name, jobs.clock.now_us() // 1000 - start))
        if name == "a":
            note.enqueue_in(1, "after a")

    note.enqueue_in(30, "c")
    note.enqueue_in(10, "a")
    note.enqueue_in(20, "b")
    note.enqueue_in(61, "too late")
    jobs.run_for(60)
    assert seen == [("a", 10_000), ("after a", 11_000), ("b", 20_000), ("c", 30_000)]
    assert jobs.clock.now_us() // 1000 - start == 60_000


def test_advance_makes_due_and_does_not_run(app: App, jobs: Harness) -> None:
    """Step by step: the clock first, the jobs when the test says so."""
    ref = app.job(name="h")(print).enqueue_in(10)
    assert jobs.advance(9) == []
    assert ref.status() is State.DELAYED
    assert jobs.advance(1) == []
    assert ref.status() is State.PENDING
    assert len(jobs.run_pending()) == 1


def test_inline_runs_at_the_enqueue(app: App) -> None:
    """A job has run when its enqueue returns, with all that it enqueued in turn; delayed ones wait for the clock."""
    seen: list[str] = []

    @app.job(queue="other")
    def child(name: str) -> None:
        seen.append(name)

    @app.job
    def parent() -> None:
        child.enqueue("now")
        child.enqueue_in(5, "later")
        seen.append("parent")

    with app.testing(inline=True) as jobs:
        parent.enqueue()
        assert seen == ["parent", "now"]
        jobs.advance(5)
        assert seen == ["parent", "now", "later"]
        child.enqueue_many([("x",), ("y",)])
        assert seen[-2:] == ["x", "y"]
        assert_law(jobs)


def test_waiting_for_a_result_moves_the_clock(app: App, jobs: Harness) -> None:
    """A wait in a test takes no time: it runs what is due on the way, and times out on the clock that stands."""

    @app.job(result=True)
    def slow(n: int) -> int:
        return n + 1

    assert slow.enqueue_in(3600, 1).result(timeout=4000) == 2
    with pytest.raises(TimeoutError):
        slow.enqueue_in(3600, 1).result(timeout=10)


def test_a_handler_may_wait_for_another_job(app: App, jobs: Harness) -> None:
    """As a second worker would, the inner job runs inside the outer one's wait."""

    @app.job(result=True)
    def inner() -> str:
        return current_job().name

    @app.job(result=True)
    def outer() -> list[str]:
        return [inner.enqueue().result(timeout=10), current_job().name]

    ref = outer.enqueue()
    jobs.run_pending()
    assert ref.result() == ["inner", "outer"]
    assert_law(jobs)


def test_async_handlers_run(app: App, jobs: Harness) -> None:
    """Their jobs' results are what they return, not coroutines."""

    @app.job(result=True)
    async def double(n: int) -> int:
        return 2 * n

    ref = double.enqueue(21)
    jobs.run_pending()
    assert ref.result() == 42


def test_worker_hooks_run_around_the_jobs(app: App) -> None:
    """Start hooks before the first job, stop hooks at the end; neither where no job ran."""
    told: list[str] = []
    app.on_worker_start(lambda: told.append("start"))
    app.on_worker_stop(lambda: told.append("stop"))
    app.job(name="h")(lambda: told.append("job"))
    with app.testing():
        pass
    assert told == []
    with app.testing() as jobs:
        app.enqueue("h")
        app.enqueue("h")
        jobs.run_pending()
    assert told == ["start", "job", "job", "stop"]


def test_an_unknown_handler_is_parked(app: App, jobs: Harness) -> None:
    """As in a rolling deploy: no attempt is spent."""
    ref = app.enqueue("elsewhere")
    assert isinstance(jobs.run_pending()[0].outcome, Snoozed)
    job = ref.get()
    assert job is not None
    assert (job.state, job.attempt) == (State.DELAYED, 0)


def test_an_unknown_handler_is_dead_when_its_grace_is_over(app: App, jobs: Harness) -> None:
    """An hour by the clock of the test."""
    ref = app.enqueue("elsewhere")
    jobs.run_for(3500)
    assert ref.status() is State.DELAYED
    jobs.run_for(200)
    job = ref.get()
    assert job is not None
    assert (job.state, job.reason) == (State.DEAD, "no_handler")


def test_jobs_that_enqueue_each_other_for_ever_are_stopped(app: App, jobs: Harness) -> None:
    """A test fails instead of hanging."""

    @app.job
    def again() -> None:
        again.enqueue()

    again.enqueue()
    with pytest.raises(BatchqError, match="after 50 attempts"):
        jobs.run_pending(limit=50)


def test_afterwards_the_app_is_what_it_was(app: App) -> None:
    """The store of before is back, also after an error; each harness begins empty."""

    def fail() -> None:
        with app.testing():
            app.enqueue("h")
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail()
    assert app._store is None
    assert app._harness is None
    with app.testing() as jobs:
        assert jobs.store.queues() == []


def test_outside_a_job_there_is_no_current_job() -> None:
    """The error says where to call it."""
    with pytest.raises(BatchqError, match="no job runs here"):
        current_job()
