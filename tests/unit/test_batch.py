"""Batches and full queues as producers and handlers meet them, in memory; the stores' part is in tests/contract."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from batchq import App, BatchGone, ConfigError, Dead, JobRef, QueueFull, ResultGone, State
from batchq.testing import Harness

app = App("memory:")
called: list[tuple[str, dict[str, Any]]] = []


@app.job(result=True)
def square(n: int) -> int:
    if n < 0:
        raise Dead("negative")
    return n * n


@app.job(queue="other")
def elsewhere() -> None:
    pass


@app.job
def done(batch: dict[str, Any]) -> None:
    called.append(("done", batch))


@app.job
def cheer(batch: dict[str, Any]) -> None:
    called.append(("cheer", batch))


@app.job
def fan_out(batch_id: str, n: int) -> None:
    batch = app.get_batch(batch_id)
    assert batch is not None
    with batch:
        square.enqueue_many((k,) for k in range(n))


@app.job
def enqueues_another() -> None:
    square.enqueue(1)


@pytest.fixture
def jobs() -> Iterator[Harness]:
    called.clear()
    with app.testing() as harness:
        yield harness


def test_what_is_enqueued_inside_is_in_the_batch(jobs: Harness) -> None:
    """One by one and in bulk; what comes before and behind is not."""
    square.enqueue(1)
    with app.batch("squares", on_complete=done, on_success=cheer) as batch:
        square.enqueue(2)
        assert square.enqueue_many((n,) for n in range(600)).created == 600
    square.enqueue(3)
    stats = batch.progress()
    assert (stats.total, stats.pending, stats.name, stats.queue) == (601, 601, "squares", "default")
    jobs.run_pending()
    assert [word for word, _ in called] == ["done", "cheer"]
    numbers = {"id": batch.id, "name": "squares", "total": 601, "completed": 601, "dead": 0, "cancelled": 0}
    assert called[0][1] == numbers
    assert batch.wait(0).finished


def test_results_are_streamed(jobs: Harness) -> None:
    """Those of the completed, once the last has ended; of other jobs in the queue none."""
    square.enqueue(100)
    with app.batch() as batch:
        refs = [square.enqueue(n) for n in (2, 3, -1)]
    jobs.run_pending()
    assert sorted(one.value for one in batch.results()) == [4, 9]
    assert {one.id for one in batch.results()} == {ref.id for ref in refs[:2]}
    assert [job.reason for job in batch.jobs("dead")] == ["buried"]
    assert [job.id for job in app.jobs(state="dead")] == [refs[2].id]
    jobs.advance(3700)
    with pytest.raises(ResultGone, match="2 of 2 results are not there"):
        list(batch.results())


def test_wait_waits_for_the_last(jobs: Harness) -> None:
    """It runs what is due meanwhile; where it does not end in time it says how it stands."""
    with app.batch() as batch:
        square.enqueue(1)
        square.options(delay=30).enqueue(2)
        with pytest.raises(ConfigError, match="would never end"):
            batch.wait()
    with pytest.raises(TimeoutError, match="not finished within 5 s; 1 of 2 jobs are pending"):
        batch.wait(5)
    assert batch.wait(60).completed == 2


def test_a_batch_is_of_one_queue(jobs: Harness) -> None:
    """A job for another is refused by name, and nothing of it is in; nothing stops the batch."""
    with app.batch() as batch:
        square.enqueue(1)
        with pytest.raises(ConfigError, match=r"its jobs are in queue default, this one is for other.*options\(queue="):
            elsewhere.enqueue()
        elsewhere.options(queue="default").enqueue()
    assert batch.progress().total == 2
    with app.batch(queue="other") as named:
        elsewhere.enqueue()
    assert (named.progress().total, named.queue) == (1, "other")


def test_a_block_that_raises_leaves_the_batch_open(jobs: Harness) -> None:
    """Half a batch calls nobody; the error says how to go on, and another process can."""
    batch = app.batch(on_complete=done)

    def half() -> None:
        with batch:
            square.enqueue(1)
            raise ValueError("half")

    with pytest.raises(ValueError, match="half") as stopped:
        half()
    [note] = stopped.value.__notes__
    assert f"app.get_batch('{batch.id}').conclude()" in note
    jobs.run_pending()
    assert called == []
    assert not batch.progress().finished
    again = app.get_batch(batch.id)
    assert again is not None
    with again:
        square.enqueue(2)
    jobs.run_pending()
    assert [(word, numbers["total"]) for word, numbers in called] == [("done", 2)]


def test_an_empty_block_is_a_batch_too(jobs: Harness) -> None:
    """Nothing to do is done at once."""
    with app.batch(on_success=cheer) as batch:
        pass
    jobs.run_pending()
    assert [word for word, _ in called] == ["cheer"]
    assert batch.wait(0).total == 0


def test_jobs_may_add_to_their_batch(jobs: Harness) -> None:
    """Its end is that of the last one, whoever added it."""
    with app.batch(on_success=cheer) as batch:
        fan_out.enqueue(batch.id, 5)
    jobs.run_pending()
    assert [numbers["total"] for _, numbers in called] == [6]


def test_inline_handlers_are_outside_the_batch() -> None:
    """What they enqueue is not counted."""
    with app.testing(inline=True):
        with app.batch() as batch:
            enqueues_another.enqueue()
        assert batch.progress().total == 1


def test_the_innermost_block_counts_and_threads_have_their_own(jobs: Harness) -> None:
    """A batch is that of the thread or task that opened it."""
    with app.batch() as outer:
        square.enqueue(1)
        with app.batch() as inner:
            square.enqueue(2)
        thread = threading.Thread(target=lambda: square.enqueue(3))
        thread.start()
        thread.join()
        square.enqueue(4)
    assert (outer.progress().total, inner.progress().total) == (2, 1)
    assert jobs.store.stats("default").counts["pending"] == 4


def test_batches_of_other_apps_are_not_meant(jobs: Harness) -> None:
    """A block of one app does not count what is enqueued into another's store."""
    other = App("memory:")
    with other.testing(), other.batch() as batch:
        square.enqueue(1)
    assert batch.id
    assert jobs.store.stats("default").totals["enqueued"] == 1


def test_cancelling_a_batch(jobs: Harness) -> None:
    """What is still to end ends; the callbacks say so."""
    with app.batch(on_complete=done) as batch:
        square.enqueue(1)
        square.options(delay=60).enqueue(2)
    other = square.enqueue(3)
    assert batch.cancel() == 2
    assert other.status() is State.PENDING
    jobs.run_pending()
    assert [numbers["cancelled"] for _, numbers in called] == [2]


def test_batches_can_be_found_and_listed(jobs: Harness) -> None:
    """By id in any queue; the numbers of all."""
    with app.batch("one", queue="other") as one:
        elsewhere.enqueue()
    with app.batch("two"):
        pass
    found = app.get_batch(one.id)
    assert found is not None
    assert (found.name, found.queue, found.progress().total) == ("one", "other", 1)
    assert app.get_batch("nobody's") is None
    assert {stats.name for stats in app.batches("other")} == {"one"}


def test_what_has_not_begun_or_is_forgotten_says_so(jobs: Harness) -> None:
    """No number is made up."""
    with pytest.raises(BatchGone, match="it has not begun"):
        app.batch().progress()
    with app.batch() as batch:
        pass
    jobs.advance(8 * 86_400)
    with pytest.raises(BatchGone, match="longer ago than batches are kept"):
        batch.progress()
    with pytest.raises(BatchGone):
        batch.conclude()


@pytest.mark.parametrize(
    ("callback", "error", "says"),
    [
        (lambda: square.options(priority=5), ConfigError, "on_complete: square has options for priority"),
        (lambda: square.options(delay=5), ConfigError, "delay_ms"),
        (lambda: fan_out, TypeError, "on_complete: it is called with one argument"),
        (lambda: print, ConfigError, "on_complete: expected a handler or its name"),
        (lambda: "no name!", ConfigError, "is no handler's name"),
    ],
)
def test_callbacks_that_can_not_be_called_are_refused(callback: Any, error: type[Exception], says: str) -> None:
    """When the batch is made, not when it ends."""
    with pytest.raises(error, match=says):
        app.batch(on_complete=callback())


def test_callbacks_by_name_and_with_options(jobs: Harness) -> None:
    """A producer needs no code of theirs; budget and the like go with them."""
    with app.batch(on_complete="done", on_success=cheer.options(max_attempts=2, timeout=7, result=60)) as batch:
        pass
    job = app.get(f"{batch.id}.success")
    assert job is not None
    assert (job.max_attempts, job.timeout_ms, job.keep_ms) == (2, 7000, 60_000)
    jobs.run_pending()
    assert [word for word, _ in called] == ["done", "cheer"]


# -- full queues -------------------------------------------------------------------------------------------------------


def bounded(**settings: Any) -> tuple[App, Any]:
    made = App("memory:", **settings)

    @made.job
    def note(n: int) -> None:
        pass

    return made, note


def test_a_full_queue_is_an_error_by_default() -> None:
    """One more is refused; others may be full at other numbers, or never."""
    made, note = bounded(max_pending="3,big:5")
    with made.testing() as jobs:
        for n in range(3):
            note.enqueue(n)
        with pytest.raises(QueueFull, match="queue default: 3 jobs are pending, max_pending is 3"):
            note.enqueue(3)
        assert [note.options(queue="big").enqueue(n).created for n in range(5)] == [True] * 5
        with pytest.raises(QueueFull):
            note.options(queue="big").enqueue(5)
        jobs.run_pending()
        assert isinstance(note.enqueue(4), JobRef)


def test_waiting_for_room() -> None:
    """The call goes on when there is some; it raises when its time is over."""
    made, note = bounded(max_pending=2, when_full="10s")
    with made.testing() as jobs:
        assert note.enqueue_many((n,) for n in range(9)).created == 9
        jobs.run_pending()
        jobs.store.pause("default")
        note.enqueue_many((n,) for n in range(2))
        before = jobs.clock.monotonic()
        with pytest.raises(QueueFull):
            note.enqueue(2)
        assert 10 <= jobs.clock.monotonic() - before < 11
        with pytest.raises(QueueFull):
            note.options(when_full="raise").enqueue(2)
        assert jobs.clock.monotonic() - before < 11


def test_spooling_needs_a_fallback() -> None:
    """In memory and on a spool there is none: the setting is named."""
    made, note = bounded(max_pending=1, when_full="spool")
    with made.testing():
        note.enqueue(1)
        with pytest.raises(ConfigError, match="when_full: spool needs the fallback spool"):
            note.enqueue(2)


def test_a_full_queue_stops_a_batch_too() -> None:
    """Its jobs obey the limit, and wait for room where they may."""
    made, note = bounded(max_pending=2, when_full=5)
    with made.testing():
        with made.batch() as batch:
            note.enqueue_many((n,) for n in range(7))
        assert batch.wait(5).completed == 7


@pytest.mark.parametrize(
    ("given", "shown"),
    [(1000, "1000"), ("1000", "1000"), ("a:5,7", "a:5,7"), ({"a": 5}, "a:5"), (["a:5", "9"], "a:5,9"), ("", "none")],
)
def test_limits_are_written_in_many_ways(given: Any, shown: str) -> None:
    """One number for all queues, or one a queue."""
    settings = App(max_pending=given).settings if given else App().settings
    assert {key: value for key, value, _ in settings.effective()}["max_pending"] == shown


@pytest.mark.parametrize("wrong", ["a", "a:0", 0, -1, "a:x", "a:5,a:6", True])
def test_limits_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="max_pending"):
        App(max_pending=wrong)


def test_when_full_that_is_none_is_refused() -> None:
    made, note = bounded()
    with pytest.raises(ConfigError, match="when_full"):
        App(when_full="soon")
    with pytest.raises(ConfigError, match="when_full"):
        note.options(when_full="soon")
    assert made.settings.when_full == "raise"
