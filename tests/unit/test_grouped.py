"""Batch handlers: what they are called with, and how each job ends. Workers and deaths are in tests/process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest

from batchq import App, BatchJob, ConfigError, Dead, Retry, Snooze, State
from batchq.config import Settings
from batchq.job import Claim, pack_row
from batchq.testing import Harness, Ran
from batchq.worker.admission import read
from batchq.worker.concurrent import check_concurrency
from batchq.worker.grouped import gather
from batchq.worker.runner import Runner

calls: list[list[int]] = []


def app_of(body: Any, **options: Any) -> tuple[App, Any]:
    """An app with one batch handler, which notes with what it was called."""
    app = App("memory:")
    calls.clear()

    @app.job(**({"batch": 10, "max_attempts": 3, "backoff": [10]} | options))
    def load(jobs: list[BatchJob]) -> Any:
        calls.append([job.args[0] for job in jobs])
        return body(jobs)

    return app, load


@pytest.fixture
def run() -> Iterator[Any]:
    """Runs the numbers through a batch handler once; answers the harness and how each ended."""
    opened: list[Any] = []

    def call(body: Any, numbers: Sequence[int], **options: Any) -> tuple[Harness, dict[int, Ran], App]:
        app, load = app_of(body, **options)
        testing = app.testing()
        opened.append(testing)
        harness = testing.__enter__()
        load.enqueue_many((n,) for n in numbers)
        ran = harness.run_pending()
        return harness, {orjson.loads(one.claim.row)["args"][0]: one for one in ran}, app

    yield call
    for testing in opened:
        testing.__exit__(None, None, None)


def kinds(ran: dict[int, Ran]) -> dict[int, str]:
    return {n: type(one.outcome).__name__ for n, one in ran.items()}


def test_the_handler_gets_many_jobs_at_a_time(run: Any) -> None:
    """As many as it takes, in the queue's order; all are done when it returns."""
    harness, ran, _ = run(lambda jobs: None, range(25))
    assert calls == [list(range(10)), list(range(10, 20)), list(range(20, 25))]
    assert set(kinds(ran).values()) == {"Completed"}
    assert harness.store.stats("default").totals["completed"] == 25


def test_a_job_tells_what_it_is(run: Any) -> None:
    """Arguments, id, token, attempt, budget: what a handler of single jobs knows of its own."""
    seen: list[BatchJob] = []
    app, load = app_of(seen.extend)
    with app.testing() as harness:
        ref = load.options(job_id="order-7", max_attempts=9).enqueue(1, note="x")
        harness.run_pending()
    [job] = seen
    assert (job.id, job.queue, job.args, job.kwargs) == (ref.id, "default", [1], {"note": "x"})
    assert (job.token, job.attempt, job.max_attempts) == (1, 1, 9)
    assert job.enqueued_ms > 0
    assert "order-7" in repr(job)


def test_an_exception_fails_them_all(run: Any) -> None:
    """Each by its own budget and backoff, with the error."""

    def body(jobs: list[BatchJob]) -> None:
        raise ValueError("down")

    harness, ran, app = run(body, range(3))
    assert set(kinds(ran).values()) == {"Retried"}
    harness.run_for(30)
    assert len(calls) == 3
    dead = list(app.jobs(state="dead"))
    assert len(dead) == 3
    assert {(job.errors[0]["error"], job.attempts) for job in dead} == {("down", 3)}


def test_one_bad_job_does_not_fail_the_others(run: Any) -> None:
    """What was said of one stands; the others end as the handler does."""

    def body(jobs: list[BatchJob]) -> None:
        jobs[0].fail("bad row")
        jobs[1].dead("hopeless")
        jobs[2].retry(after=7)
        jobs[3].snooze(5)
        jobs[4].fail(KeyError("k"))

    _, ran, app = run(body, range(7))
    assert kinds(ran) == {
        0: "Retried",
        1: "Buried",
        2: "Retried",
        3: "Snoozed",
        4: "Retried",
        5: "Completed",
        6: "Completed",
    }
    assert ran[2].outcome.delay_ms == 7000  # type: ignore[union-attr]
    errors = {job.args[0]: job.errors[0] for job in app.jobs() if job.errors}
    assert (errors[0]["kind"], errors[0]["error"]) == ("JobFailed", "bad row")
    assert errors[4]["kind"] == "KeyError"


def test_what_was_said_before_an_exception_stands(run: Any) -> None:
    """A part that is committed is done, whatever comes then."""

    def body(jobs: list[BatchJob]) -> None:
        for job in jobs[:2]:
            job.done()
        raise ValueError("half way")

    _, ran, _ = run(body, range(4))
    assert kinds(ran) == {0: "Completed", 1: "Completed", 2: "Retried", 3: "Retried"}


def test_a_list_answers_for_each(run: Any) -> None:
    """Results, and what else would be raised; a word that was said before goes first."""

    def body(jobs: list[BatchJob]) -> list[Any]:
        jobs[3].fail("said before")
        return [1, Retry(after=3), Dead("no"), 4, Snooze(9), ValueError("five"), None]

    _, ran, app = run(body, range(7), result=True)
    assert kinds(ran) == {
        0: "Completed",
        1: "Retried",
        2: "Buried",
        3: "Retried",
        4: "Snoozed",
        5: "Retried",
        6: "Completed",
    }
    assert {job.args[0]: job.result for job in app.jobs(state="completed")} == {0: 1, 6: None}


@pytest.mark.parametrize(
    ("answer", "says"),
    [([1], "was called with 2 jobs and returned 1 answers"), ("yes", "not str"), ({}, "not dict"), (True, "not bool")],
)
def test_answers_that_fit_no_job_fail_all(run: Any, answer: Any, says: str) -> None:
    """Nobody guesses which answer is whose."""
    _, ran, app = run(lambda jobs: answer, range(2))
    assert set(kinds(ran).values()) == {"Retried"}
    assert all(says in job.errors[0]["error"] for job in app.jobs(state=State.DELAYED))


def test_a_result_that_can_not_be_kept_is_one_job_s_fault(run: Any) -> None:
    _, ran, _ = run(lambda jobs: [1, object(), "x" * 70_000], range(3), result=True)
    assert kinds(ran) == {0: "Completed", 1: "Retried", 2: "Retried"}


@pytest.mark.parametrize(
    ("error", "kind"), [(Retry(after=2), "Retried"), (Dead("all"), "Buried"), (Snooze(5), "Snoozed")]
)
def test_what_is_raised_for_all_is_meant_for_all(run: Any, error: Exception, kind: str) -> None:
    """Also with bisect: their halves are not tried."""

    def body(jobs: list[BatchJob]) -> None:
        raise error

    _, ran, _ = run(body, range(4), bisect=True)
    assert set(kinds(ran).values()) == {kind}
    assert len(calls) == 1


def test_bisecting_finds_the_bad_ones(run: Any) -> None:
    """By halves, down to single jobs; all others are done, and each is called alone at most once."""

    def body(jobs: list[BatchJob]) -> None:
        if {3, 7} & {job.args[0] for job in jobs}:
            raise ValueError("one of these")

    _, ran, _ = run(body, range(10), bisect=True)
    assert {n for n, kind in kinds(ran).items() if kind == "Retried"} == {3, 7}
    assert len(calls) == 13
    assert calls.count([3]) == calls.count([7]) == 1


def test_bisecting_leaves_what_was_answered(run: Any) -> None:
    """Only those without an answer are tried again."""

    def body(jobs: list[BatchJob]) -> None:
        if len(jobs) == 4:
            jobs[0].done()
            raise ValueError("no")

    _, ran, _ = run(body, range(4), bisect=True)
    assert set(kinds(ran).values()) == {"Completed"}
    assert calls == [[0, 1, 2, 3], [1], [2, 3]]


def test_an_async_batch_handler_is_awaited() -> None:
    app = App("memory:")

    @app.job(batch=5, result=True)
    async def load(jobs: list[BatchJob]) -> list[int]:
        return [job.args[0] + 1 for job in jobs]

    with app.testing() as harness:
        refs = [load.enqueue(n) for n in range(3)]
        harness.run_pending()
        assert [ref.result(0) for ref in refs] == [1, 2, 3]


def test_other_handlers_of_the_queue_run_by_themselves() -> None:
    """A batch is of one handler; what else stands in the queue keeps its place."""
    app, load = app_of(lambda jobs: None)
    single: list[int] = []

    @app.job
    def other(n: int) -> None:
        single.append(n)

    with app.testing() as harness:
        for n in range(6):
            (other if n % 3 == 2 else load).enqueue(n)
        harness.run_pending()
    assert calls == [[0, 1, 3, 4]]
    assert single == [2, 5]


def test_its_plain_call_takes_a_list() -> None:
    """For tests of the handler itself."""
    _, load = app_of(len)
    assert load([]) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch": 0}, "batch: expected a whole number from 1"),
        ({"batch": True}, "batch"),
        ({"batch": 20_000}, "from 1 to 10000"),
        ({"batch": None, "linger": 1}, "linger, bisect: are for batch handlers"),
        ({"batch": None, "bisect": True}, "for batch handlers"),
        ({"batch": 5, "linger": -1}, "linger"),
        ({"batch": 5, "linger": 90}, "linger: expected at most 60 s"),
        ({"batch": 5, "bisect": 1}, "bisect: expected True or False"),
    ],
)
def test_wrong_terms_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        app_of(lambda jobs: None, **options)


def test_a_function_that_takes_no_list_is_refused() -> None:
    """At import, with the place."""
    app = App("memory:")

    def load(a: int, b: int) -> None:
        pass

    with pytest.raises(ConfigError, match="is called with one argument, the list of jobs"):
        app.job(batch=5)(load)  # type: ignore[arg-type]


def test_a_pool_with_a_concurrency_does_not_serve_batch_handlers() -> None:
    """It says so before it starts; other queues are served all the same."""
    app, _ = app_of(lambda jobs: None, queue="bulk")
    wide = replace(Settings(), concurrency=5)
    with pytest.raises(ConfigError, match=r"handler 'load'.*takes many jobs a call.*start this pool with -c 1"):
        check_concurrency(app.registry, wide)
    app.job(name="one", threads=True)(print)
    with pytest.raises(ConfigError, match="two pools: `batchq start -c 1 -q bulk` and `batchq start -c 5 -q default`"):
        check_concurrency(app.registry, wide)
    check_concurrency(app.registry, replace(wide, queues=(("default", 1),)))
    app.job(name="other", threads=True, queue="bulk")(print)
    with pytest.raises(ConfigError, match=r"give it a queue of its own \(other handlers are on bulk\)"):
        check_concurrency(app.registry, wide)


# -- gathering ---------------------------------------------------------------------------------------------------------


def claims(*specs: tuple[str, int]) -> list[Claim]:
    """(handler, crashes) each."""
    return [Claim("q", f"{n}", 1, pack_row(name, [n]), crashes=crashes) for n, (name, crashes) in enumerate(specs)]


def test_gathering() -> None:
    """Alike ones out of the tail and out of what comes, until the batch is full; the others stay in their order."""
    app, _ = app_of(lambda jobs: None, batch=4, linger=0.001)
    app.job(name="other")(print)
    runner = Runner(app.registry, Settings())
    first, *rest = read(runner, claims(("load", 0), ("other", 0), ("load", 0), ("load", 1))).ready
    more = [[Claim("q", "x", 1, pack_row("load", [9])), Claim("q", "y", 1, pack_row("other", []))]]
    asked: list[tuple[int, int]] = []
    tail = deque(rest)

    def claim_more(want: int, held: int) -> bool:
        asked.append((want, held))
        came = read(runner, more.pop()).ready if more else []
        tail.extend(came)
        return bool(came)

    group = gather(first, tail, claim_more, lambda seconds: False)
    assert [one.claim.id for one in group] == ["0", "2", "x"]
    assert [one.claim.id for one in tail] == ["1", "3", "y"]
    assert asked == [(2, 4), (1, 6)]


def test_what_crashed_runs_alone() -> None:
    """The others are not charged a second time for one that takes its worker down."""
    app, _ = app_of(lambda jobs: None)
    runner = Runner(app.registry, Settings())
    first, *rest = read(runner, claims(("load", 1), ("load", 0))).ready
    group = gather(first, deque(rest), lambda want, held: pytest.fail("claims"), lambda seconds: True)
    assert group == [first]
