"""The app: enqueueing, one and many; what is refused; results; looking and mending; forks."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest

import batchq
from batchq.app import App
from batchq.clock import MAX_FIRE_MS, SYSTEM, ManualClock
from batchq.config import Settings
from batchq.errors import ConfigError, Dead, InternalError, StoreUnavailable
from batchq.job import Completed, Mark, NewJob
from batchq.lifecycle import State, Word, unaccounted
from batchq.memory_store import MemoryStore
from batchq.refs import JobDead, ResultGone
from batchq.spool import drop
from batchq.store import MAX_BYTES, MAX_JOBS
from batchq.stores import open_store


class Recorder(MemoryStore):
    """A memory store that also keeps what each enqueue call carried, and can be away or answer wrongly."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.calls: list[tuple[str, list[NewJob]]] = []
        self.away_after: int | None = None
        self.word: Word | None = None

    def enqueue(self, queue: str, jobs: Sequence[NewJob], mark: Mark | None = None) -> list[Word]:
        if self.away_after is not None and len(self.calls) >= self.away_after:
            raise StoreUnavailable("the store is away")
        self.calls.append((queue, list(jobs)))
        words = super().enqueue(queue, jobs, mark)
        return words if self.word is None else [self.word] * len(jobs)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SYSTEM.now_us() // 1000)


@pytest.fixture
def store(clock: ManualClock) -> Recorder:
    return Recorder(clock)


@pytest.fixture
def app(store: Recorder) -> App:
    app = App("memory:")
    app._store = store
    return app


@pytest.fixture
def deliver(app: App) -> Any:
    @app.job(queue="webhooks")
    def deliver(url: str, body: dict[str, Any] | None = None) -> int:
        return len(url)

    return deliver


def row_of(store: Recorder) -> dict[str, Any]:
    row: dict[str, Any] = orjson.loads(store.calls[-1][1][-1].row)
    return row


def finish(store: MemoryStore, queue: str, *, result: bytes = b"", keep_ms: int = 0) -> None:
    """A worker claims and completes one job."""
    store.register(queue, "w", 10**9)
    [claim] = store.claim(queue, "w", 1, 0).claims
    assert store.complete(queue, "w", [Completed(claim, result, keep_ms)]) == [Word.OK]


# -- one ---------------------------------------------------------------------------------------------------------


def test_enqueue_writes_the_row_that_was_said(deliver: Any, store: Recorder) -> None:
    """Name and arguments are in the row, and nothing that is the handler's own default."""
    ref = deliver.enqueue("http://x", body={"a": [1, None, 2.5]})
    [(queue, [job])] = store.calls
    assert queue == "webhooks"
    assert orjson.loads(job.row) == {"job": "deliver", "args": ["http://x"], "kwargs": {"body": {"a": [1, None, 2.5]}}}
    assert (job.id, job.priority, job.delay_ms, job.fire_ms, job.given) == (ref.id, 0, 0, None, False)
    assert (ref.created, ref.spooled, ref.queue) == (True, False, "webhooks")
    assert ref.status() is State.PENDING


def test_no_arguments_leave_no_trace_in_the_row(app: App, store: Recorder) -> None:
    """The smallest row is the handler's name."""
    app.job(name="ping")(print).enqueue()
    assert store.calls[0][1][0].row == b'{"job":"ping"}'


def test_options_are_a_copy(deliver: Any, store: Recorder) -> None:
    """Options hold for the copy and what is made from it, not for the handler."""
    call = deliver.options(priority=5, max_attempts=1, timeout=2.5, queue="other", result=60)
    call.options(priority=-3, job_id="order-7").enqueue("u")
    queue, [job] = store.calls[-1]
    assert (queue, job.id, job.given, job.priority) == ("other", "order-7", True, -3)
    assert row_of(store) == {"job": "deliver", "args": ["u"], "max": 1, "timeout": 2500, "keep": 60_000}
    call.enqueue("u")
    assert store.calls[-1][1][0].priority == 5
    deliver.enqueue("u")
    assert row_of(store) == {"job": "deliver", "args": ["u"]}
    assert store.calls[-1][0] == "webhooks"


def test_delays_and_instants(deliver: Any, store: Recorder, clock: ManualClock) -> None:
    """Seconds, timedeltas and aware datetimes become whole milliseconds, rounded up, whatever the zone."""
    at = datetime(2030, 5, 1, 12, 0, 0, 1, tzinfo=UTC)
    expected = 1_903_867_200_001
    for call, delay_ms, fire_ms in [
        (lambda: deliver.enqueue_in(60, "u"), 60_000, None),
        (lambda: deliver.enqueue_in(0.0001, "u"), 1, None),
        (lambda: deliver.enqueue_in(timedelta(minutes=1), "u"), 60_000, None),
        (lambda: deliver.options(delay=3).enqueue("u"), 3_000, None),
        (lambda: deliver.enqueue_at(at, "u"), 0, expected),
        (lambda: deliver.enqueue_at(at.astimezone(timezone(timedelta(hours=9))), "u"), 0, expected),
        (lambda: deliver.options(at=at).enqueue("u"), 0, expected),
        (lambda: deliver.options(delay=9).options(at=at).enqueue("u"), 9_000, expected),
        (lambda: deliver.options(at=at).options(delay=9).enqueue("u"), 9_000, None),
    ]:
        assert call().status() is State.DELAYED
        [job] = store.calls[-1][1]
        assert (job.fire_ms if fire_ms else job.delay_ms) == (fire_ms or delay_ms)
        assert job.fire_ms == fire_ms


@pytest.mark.parametrize("delay", [0, 0.0, -0.0, -1, -1e18, timedelta(seconds=-5)])
def test_a_delay_of_nothing_or_less_means_now(deliver: Any, delay: Any) -> None:
    """Such a job never stands among the delayed."""
    assert deliver.enqueue_in(delay, "u").status() is State.PENDING


def test_a_past_instant_means_now(deliver: Any, clock: ManualClock) -> None:
    """Also one before 1970, which lies further back than any delay reaches."""
    now = datetime.fromtimestamp(clock.now_us() / 1e6, UTC)
    for at in (now - timedelta(milliseconds=1), datetime(1970, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)):
        assert deliver.enqueue_at(at, "u").status() is State.PENDING


@pytest.mark.parametrize("delay", [math.inf, -math.inf, math.nan, 1e308, 2**63, 2**41 / 1000, "10", True, None, [1]])
def test_no_delays(deliver: Any, store: Recorder, delay: Any) -> None:
    """What is no finite number of seconds, or lies past the last fire-time, is refused before anything is stored."""
    with pytest.raises(ConfigError):
        deliver.enqueue_in(delay, "u")
    assert store.calls == []


def test_no_instants(deliver: Any, store: Recorder) -> None:
    """A naive datetime names no instant; the last one that can be stored is the last that is taken."""
    last = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=MAX_FIRE_MS)
    with pytest.raises(ConfigError, match="no time zone"):
        deliver.enqueue_at(datetime(2030, 1, 1), "u")
    with pytest.raises(ConfigError, match="2039"):
        deliver.enqueue_at(last + timedelta(microseconds=1), "u")
    with pytest.raises(ConfigError, match="aware datetime"):
        deliver.enqueue_at(1_900_000_000, "u")
    assert store.calls == []
    deliver.enqueue_at(last, "u")
    assert store.calls[-1][1][0].fire_ms == MAX_FIRE_MS


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "deliver() missing a required argument: 'url'"),
        (("u", {}, 3), {}, "deliver() too many positional arguments"),
        (("u",), {"url": "v"}, "deliver() got multiple values for argument 'url'"),
        (("u",), {"boddy": {}}, "deliver() got an unexpected keyword argument 'boddy'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_where_they_are_written(
    deliver: Any, app: App, store: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    """By handler and by name alike, in Python's words, before anything is stored."""
    for enqueue in (lambda: deliver.enqueue(*args, **kwargs), lambda: app.enqueue("deliver", args, kwargs)):
        with pytest.raises(TypeError) as caught:
            enqueue()
        assert str(caught.value) == words
    assert store.calls == []


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (math.nan, ValueError, "kwargs.body.x[1]: nan"),
        (2**64, ValueError, "kwargs.body.x[1]: an integer beyond 64 bits"),
        ((1, 2), TypeError, "kwargs.body.x[1]: a tuple"),
        (Decimal("1.10"), TypeError, "kwargs.body.x[1]: Decimal"),
        (datetime(2026, 1, 1, tzinfo=UTC), TypeError, "kwargs.body.x[1]: datetime"),
        ({1: "a"}, TypeError, "kwargs.body.x[1]: the key 1"),
        (b"x", TypeError, "kwargs.body.x[1]: bytes"),
        ("\ud800", ValueError, "kwargs.body.x[1]: a string with a lone surrogate"),
    ],
)
def test_values_that_json_would_change_are_refused_with_their_path(
    deliver: Any, store: Recorder, value: Any, error: type[Exception], words: str
) -> None:
    """The path begins where the caller wrote it."""
    with pytest.raises(error) as caught:
        deliver.enqueue("u", body={"x": [0, value]})
    assert str(caught.value).startswith(words)
    assert type(caught.value) is error
    with pytest.raises(error, match=r"^args\[1\]\.y: "):
        deliver.enqueue("u", {"y": value})
    assert store.calls == []


@pytest.mark.parametrize("levels", [10, 128, 240, 260, 500, 100_000])
def test_nesting_is_refused_by_depth_and_never_by_a_crash(deliver: Any, store: Recorder, levels: int) -> None:
    """Below the limit the row can be read back; above it the error says what the limit is."""
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    if levels < 250:
        deliver.enqueue("u", value)
        assert orjson.loads(store.calls[-1][1][0].row)["args"][1] == value
    else:
        with pytest.raises(ValueError, match="nested deeper than 250 levels"):
            deliver.enqueue("u", value)
    while value:  # Python itself recurses when it frees a deep value.
        value = value.pop("a")


def test_a_row_above_max_payload_is_refused_with_its_size(store: Recorder) -> None:
    """The limit counts the bytes of the row; at it a job is taken, above it not."""
    app = App("memory:", max_payload=1000)
    app._store = store
    handler = app.job(name="h")(print)
    room = 1000 - len(b'{"job":"h","args":[""]}')
    handler.enqueue("x" * room)
    with pytest.raises(ConfigError) as caught:
        handler.enqueue("x" * (room + 1))
    assert "1001 bytes" in str(caught.value)
    assert "max_payload is 1000" in str(caught.value)
    assert len(store.calls) == 1


def test_a_known_id_changes_nothing_and_says_so(deliver: Any, store: Recorder) -> None:
    """The second enqueue under a given id answers created=False and the same id."""
    assert deliver.options(job_id="a").enqueue("u").created is True
    again = deliver.options(job_id="a").enqueue("v")
    assert (again.created, again.id) == (False, "a")
    assert store.stats("webhooks").totals["enqueued"] == 1


def test_a_known_generated_id_is_never_silent(deliver: Any, store: Recorder) -> None:
    """Two jobs under one generated id would lose one: a bug of ours, said aloud."""
    store.word = Word.KNOWN
    with pytest.raises(InternalError, match="generated id"):
        deliver.enqueue("u")
    with pytest.raises(InternalError):
        deliver.enqueue_many([("u",)])
    assert deliver.options(job_id="a").enqueue("u").created is False


def test_by_name_a_producer_needs_no_code(app: App, deliver: Any, store: Recorder) -> None:
    """An unknown name goes to `default`, a known one to its handler's queue; options are the same."""
    ref = app.enqueue("elsewhere", [1], {"k": 2}, priority=3, max_attempts=2, delay=5, job_id="x")
    queue, [job] = store.calls[-1]
    assert (queue, job.id, job.priority, job.delay_ms) == ("default", "x", 3, 5_000)
    assert row_of(store) == {"job": "elsewhere", "args": [1], "kwargs": {"k": 2}, "max": 2}
    assert ref.queue == "default"
    assert app.enqueue("deliver", ["u"]).queue == "webhooks"
    assert app.enqueue("deliver", ["u"], queue="mail").queue == "mail"
    for wrong in ("abc", {"a": 1}, 3, b"x"):
        with pytest.raises(TypeError, match="args: expected a list"):
            app.enqueue("elsewhere", wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="kwargs: expected a dict"):
        app.enqueue("elsewhere", [], [1])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no handler's name"):
        app.enqueue("not a name")


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 101},
        {"priority": 1.5},
        {"job_id": "a b"},
        {"job_id": ""},
        {"queue": "a/b"},
        {"max_attempts": 0},
        {"timeout": 0},
        {"result": -1},
        {"delay": "1"},
        {"at": datetime(2030, 1, 1)},
        {"delay": 1, "at": datetime.now(UTC)},
    ],
)
def test_wrong_options_are_refused(deliver: Any, options: dict[str, Any]) -> None:
    """Where they are said, not where the job is sent."""
    with pytest.raises(ConfigError):
        deliver.options(**options)


# -- many --------------------------------------------------------------------------------------------------------


def test_many_are_sent_in_steps_of_bounded_jobs_and_bytes(deliver: Any, store: Recorder) -> None:
    """No step carries more than the store's limits; the order is that of the items."""
    sent = deliver.enqueue_many(((str(i),) for i in range(MAX_JOBS + 1)), ids=True)
    assert [len(jobs) for _, jobs in store.calls] == [MAX_JOBS, 1]
    assert (sent.created, sent.known, sent.spooled, len(sent)) == (MAX_JOBS + 1, 0, 0, MAX_JOBS + 1)
    jobs = [job for _, jobs in store.calls for job in jobs]
    assert sent.ids == tuple(job.id for job in jobs) == tuple(sorted(sent.ids))
    assert [orjson.loads(job.row)["args"] for job in jobs] == [[str(i)] for i in range(MAX_JOBS + 1)]
    store.calls.clear()
    big = "x" * (MAX_BYTES // 3)
    deliver.enqueue_many([{"url": big}] * 7)
    assert [len(jobs) for _, jobs in store.calls] == [2, 2, 2, 1]
    assert all(sum(len(job.row) for job in jobs) <= MAX_BYTES for _, jobs in store.calls)


def test_nothing_is_a_bulk_too(deliver: Any, store: Recorder) -> None:
    """No items: no call, and a sum of zero."""
    assert len(deliver.enqueue_many([])) == 0
    assert store.calls == []


def test_many_take_constant_memory(app: App) -> None:
    """A hundred times the items do not take more memory: nothing but the step at hand is kept."""

    class Swallow(Recorder):
        def enqueue(self, queue: str, jobs: Sequence[NewJob], mark: Mark | None = None) -> list[Word]:
            return [Word.OK] * len(jobs)

    app._store = Swallow(ManualClock())
    handler = app.job(name="h")(print)

    def peak(count: int) -> int:
        tracemalloc.start()
        assert handler.enqueue_many((i,) for i in range(count)).created == count
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(500)
    small, large = peak(500), peak(50_000)
    assert large < 2 * small


def test_derived_ids_make_a_repeated_bulk_harmless(deliver: Any) -> None:
    """The same items again are known, counted as that, and enqueue nothing."""
    items = [("u", {"n": n}) for n in range(10)]
    name = lambda item: f"order-{item[1]['n']}"  # noqa: E731
    assert deliver.enqueue_many(items, job_id=name).created == 10
    sent = deliver.enqueue_many([*items, ("u", {"n": 10})], job_id=name, ids=True)
    assert (sent.created, sent.known) == (1, 10)
    assert sent.ids is not None
    assert sent.ids[-1] == "order-10"
    with pytest.raises(ConfigError, match="one id"):
        deliver.options(job_id="x").enqueue_many(items)


def a_stream(bad: dict[int, Any], count: int = 1000) -> Iterator[Any]:
    for i in range(count):
        item = bad.get(i, ("u", {"i": i}))
        if isinstance(item, Exception):
            raise item
        yield item


@pytest.mark.parametrize("bad", [(math.nan,), ["u", {}], ("u", {}, 3), 7, {"nope": 1}, OSError("the disk is away")])
def test_a_bad_item_stops_a_bulk_at_a_known_place(deliver: Any, store: Recorder, bad: Any) -> None:
    """Everything before it is enqueued, nothing from there on, and the error says how many that is."""
    with pytest.raises((TypeError, ValueError, OSError)) as caught:
        deliver.enqueue_many(a_stream({700: bad}))
    assert store.stats("webhooks").counts["pending"] == 700
    notes = "\n".join(caught.value.__notes__)
    assert "the first 700 jobs are enqueued surely" in notes
    assert isinstance(bad, OSError) or "item 700 (from 0)" in notes


def test_bad_items_can_be_passed_by(deliver: Any, store: Recorder) -> None:
    """With on_invalid each bad item is handed over with its number, and all others are enqueued."""
    seen: list[tuple[int, str]] = []
    stream = a_stream({3: (math.nan,), 500: 7, 999: ("u", {}, 3)})
    sent = deliver.enqueue_many(stream, on_invalid=lambda index, error: seen.append((index, type(error).__name__)))
    assert seen == [(3, "ValueError"), (500, "TypeError"), (999, "TypeError")]
    assert sent.created == store.stats("webhooks").counts["pending"] == 997


def test_a_store_that_goes_away_in_the_middle_is_no_silence(deliver: Any, store: Recorder) -> None:
    """The error of the store arrives, with the number of jobs that are in surely."""
    store.away_after = 2
    with pytest.raises(StoreUnavailable) as caught:
        deliver.enqueue_many(a_stream({}, 1500))
    assert f"the first {2 * MAX_JOBS} jobs" in caught.value.__notes__[0]
    assert store.stats("webhooks").counts["pending"] == 2 * MAX_JOBS


def test_the_awaitable_twins_do_the_same(deliver: Any, store: Recorder) -> None:
    """Inside an event loop, in a thread of its pool; the loop goes on meanwhile."""

    async def main() -> None:
        ref = await deliver.aenqueue("u", body={})
        assert ref.created
        sent = await deliver.options(priority=1).aenqueue_many([("u",), ("v",)], ids=True)
        assert len(sent.ids) == 2

    asyncio.run(main())
    assert store.stats("webhooks").counts["pending"] == 3


def test_an_async_handler_is_called_as_it_was(app: App, store: Recorder) -> None:
    """Its plain call gives the coroutine, its enqueue a job."""

    @app.job
    async def double(n: int) -> int:
        return 2 * n

    assert asyncio.run(double(4)) == 8
    double.enqueue(4)
    assert row_of(store) == {"job": "double", "args": [4]}


# -- results -----------------------------------------------------------------------------------------------------


def test_result_is_what_the_handler_returned(app: App, store: Recorder) -> None:
    """Kept results are read as JSON gives them back, and again as long as they are kept."""
    ref = app.job(name="h", result=True)(print).enqueue()
    finish(store, "default", result=b'{"n":[1,null]}', keep_ms=1000)
    assert ref.result(timeout=1) == {"n": [1, None]}
    assert ref.result(timeout=0) == {"n": [1, None]}
    assert ref.status() is State.COMPLETED


def test_result_waits_for_a_job_that_is_not_done(app: App, store: Recorder) -> None:
    """A worker in another thread ends it while the caller waits."""
    ref = app.job(name="h", result=True)(print).enqueue()
    worker = threading.Thread(target=finish, args=(store, "default"), kwargs={"result": b"7", "keep_ms": 1000})
    looks = 0
    get = store.get

    def look(queue: str, job_id: str) -> Any:
        nonlocal looks
        looks += 1
        if looks == 3:
            worker.start()
            worker.join()
        return get(queue, job_id)

    store.get = look  # type: ignore[method-assign]
    assert ref.result(timeout=10) == 7
    assert looks >= 3


def test_no_result_in_time_is_a_timeout(app: App) -> None:
    """The error names the job and its state; the wait is no longer than was said."""
    ref = app.job(name="h", result=True)(print).enqueue()
    started = SYSTEM.monotonic()
    with pytest.raises(TimeoutError, match=f"job {ref.id}: no result within 0.05 s; it is pending"):
        ref.result(timeout=0.05)
    assert 0.05 <= SYSTEM.monotonic() - started < 2


def test_a_result_that_is_not_kept_is_said_at_once(app: App, deliver: Any, store: Recorder) -> None:
    """Neither a wait for ever, nor a None that could be a result."""
    with pytest.raises(ResultGone, match=r"@app\.job\(result=True\)"):
        deliver.enqueue("u").result()
    by_name = app.enqueue("elsewhere")
    finish(store, "default")
    with pytest.raises(ResultGone, match="no row"):
        by_name.result()
    assert by_name.status() is None
    assert by_name.get() is None


def test_one_call_may_ask_for_its_result(deliver: Any, store: Recorder) -> None:
    """options(result=...) keeps it for this call, whatever the handler says; False drops it."""
    ref = deliver.options(result=True).enqueue("u")
    assert row_of(store)["keep"] == 3_600_000
    finish(store, "webhooks", result=b"1", keep_ms=3_600_000)
    assert ref.result() == 1
    deliver.options(result=False).enqueue("u")
    assert row_of(store)["keep"] == 0


def test_the_result_of_a_dead_job_is_its_error() -> None:
    """JobDead carries the text, the reason and the job."""
    app = App("memory:")

    @app.job(result=True)
    def doomed() -> None:
        raise Dead("no such customer")

    with app.testing() as jobs:
        ref = doomed.enqueue()
        jobs.run_pending()
        with pytest.raises(JobDead) as caught:
            ref.result(timeout=1)
    assert caught.value.reason == "buried"
    assert caught.value.error == "no such customer"
    assert "no such customer" in str(caught.value)
    assert caught.value.job.id == ref.id


# -- looking and mending -----------------------------------------------------------------------------------------


def test_stats_have_the_documented_shape(app: App, deliver: Any, store: Recorder) -> None:
    """What programs rely on is there, and the law of the totals holds in it."""
    deliver.enqueue("u")
    deliver.enqueue_in(60, "u")
    app.enqueue("other")
    app.pause("webhooks")
    store.publish("m", {"workers": [{"id": "w1", "host": "h", "pid": 1, "state": "idle"}]}, 1000)
    stats = app.stats()
    assert set(stats) == {"store", "queues", "workers", "spool"}
    assert set(stats["store"]) == {"url", "kind", "version", "up", "since_ms"}
    assert stats["store"]["up"] is True
    assert set(stats["spool"]) == {"path", "files", "jobs", "bad"}
    assert set(stats["queues"]) == {"default", "webhooks"}
    queue = stats["queues"]["webhooks"]
    assert set(queue) == {"paused", "counts", "totals", "oldest_pending_age_ms"}
    assert queue["paused"] is True
    assert queue["counts"] == {"pending": 1, "delayed": 1, "active": 0, "completed": 0, "dead": 0}
    assert unaccounted(queue["counts"], queue["totals"]) == 0
    assert stats["workers"] == [{"id": "w1", "host": "h", "pid": 1, "state": "idle"}]
    assert orjson.loads(orjson.dumps(stats)) == stats
    app.resume("webhooks")
    assert app.stats()["queues"]["webhooks"]["paused"] is False


def test_stats_say_that_the_store_is_away(app: App, store: Recorder) -> None:
    """Without counts, rather than with wrong ones."""

    def away() -> list[str]:
        raise StoreUnavailable("connection refused")

    store.queues = away  # type: ignore[method-assign]
    stats = app.stats()
    assert stats["store"]["up"] is False
    assert stats["store"]["error"] == "connection refused"
    assert stats["queues"] == {}


def test_stats_count_what_lies_in_the_inbox(tmp_path: Any) -> None:
    """Files that nobody took yet, their jobs, and what was moved aside; of the store's spool, or of the fallback's."""
    path = str(tmp_path / "spool")
    drop(path, [("default", NewJob("a", b'{"job":"h"}')), ("default", NewJob("b", b'{"job":"h"}'))])
    nothing = {"files": 0, "jobs": 0, "bad": 0}
    assert App("memory:", spool=path).stats()["spool"] == {"path": path, "files": 1, "jobs": 2, "bad": 0}
    with App(f"spool:{path}", spool="/elsewhere") as app:
        assert app.stats()["spool"]["path"] == path
    assert App("memory:", spool=f"{path}/none").stats()["spool"] == {"path": f"{path}/none", **nothing}
    (tmp_path / "file").write_text("")
    assert "error" in App("memory:", spool=str(tmp_path / "file" / "below")).stats()["spool"]


def test_jobs_lists_all_or_some(app: App, deliver: Any) -> None:
    """By state, queue and handler; over pages; no more than the limit."""
    deliver.enqueue_many(("u", {"i": i}) for i in range(250))
    deliver.enqueue_in(60, "later")
    app.enqueue("other", queue="webhooks")
    app.enqueue("other")
    assert len(list(app.jobs())) == 253
    assert len(list(app.jobs(queue="webhooks", state="pending"))) == 251
    assert [job.queue for job in app.jobs(job="other")] == ["default", "webhooks"]
    assert [job.args for job in app.jobs(state=State.DELAYED)] == [["later"]]
    assert len(list(app.jobs(limit=120))) == 120
    assert len(list(app.jobs(job="deliver", limit=3))) == 3
    with pytest.raises(ConfigError, match="did you mean pending"):
        app.jobs(state="pendign")
    with pytest.raises(ConfigError, match="limit"):
        app.jobs(limit=0)


def test_a_listing_goes_on_at_its_cursor(app: App, deliver: Any) -> None:
    """Page by page each job is seen once, in the order of the state."""
    deliver.enqueue_many(("u", {"i": i}) for i in range(25))
    seen: list[int] = []
    cursor = ""
    for _ in range(3):
        listing = app.jobs(queue="webhooks", state="pending", limit=10, cursor=cursor)
        seen += [job.args[1]["i"] for job in listing]
        cursor = listing.cursor
    assert seen == list(range(25))
    assert cursor == ""
    with pytest.raises(ConfigError, match="cursor"):
        app.jobs(cursor="x")


def test_get_cancel_and_requeue_find_the_queue(app: App, deliver: Any) -> None:
    """An id is looked for in all queues; words say what became of each."""
    first, second = deliver.enqueue("u"), app.enqueue("other")
    job = app.get(second.id)
    assert job is not None
    assert (job.queue, job.job) == ("default", "other")
    assert app.get(second.id, queue="webhooks") is None
    assert app.get("nothing") is None
    assert app.cancel(first.id) is Word.CANCELLED
    assert app.cancel([second.id, "nothing"]) == [Word.CANCELLED, Word.UNKNOWN]
    assert app.cancel("nothing") is Word.UNKNOWN
    assert app.requeue("nothing") is Word.UNKNOWN
    assert app.requeue([]) == []


def test_requeue_sends_the_dead_round_again() -> None:
    """Its budget begins afresh; a job that waits is refused."""
    app = App("memory:")

    @app.job(max_attempts=1)
    def fail() -> None:
        raise OSError("no")

    with app.testing() as jobs:
        ref = fail.enqueue()
        assert app.requeue(ref.id) is Word.REFUSED
        jobs.run_pending()
        assert ref.status() is State.DEAD
        assert app.requeue(ref.id) is Word.OK
        jobs.run_pending()
        job = app.get(ref.id)
        assert job is not None
        assert (job.state, job.attempts, job.attempt) == (State.DEAD, 2, 1)


def test_purge_removes_by_state_age_handler_and_queue(
    app: App, deliver: Any, clock: ManualClock, store: Recorder
) -> None:
    """What is younger, another handler's or in another queue stays, over many pages."""
    deliver.enqueue_many(("u",) for _ in range(350))
    app.call("other").options(queue="webhooks").enqueue_many(() for _ in range(150))
    clock.advance(60_000)
    deliver.enqueue_many(("young",) for _ in range(130))
    app.enqueue("deliver", ["u"], queue="elsewhere")
    assert app.purge(state="pending", older_than=30, job="deliver", queue="webhooks") == 350
    assert store.stats("webhooks").counts["pending"] == 280
    assert app.purge(state="pending", older_than=timedelta(minutes=2)) == 0
    assert app.purge(state="pending") == 281
    assert app.purge(state="dead") == 0
    for queue in ("webhooks", "elsewhere"):
        stats = store.stats(queue)
        assert unaccounted(stats.counts, stats.totals) == 0
    with pytest.raises(ConfigError):
        app.purge(state="active")


# -- the handle --------------------------------------------------------------------------------------------------


def test_urls_name_their_stores(tmp_path: Any) -> None:
    """memory: and redis:// open, nothing else does but what is named; a refused one shows no password."""
    assert open_store("memory:", Settings()).traits.kind == "memory"
    redis = open_store("redis://127.0.0.1:1/0", Settings())
    assert redis.traits.kind == "redis"
    redis.close()
    spool = open_store(f"spool:{tmp_path}/spool", Settings())
    assert spool.traits.kind == "spool"
    spool.close()
    for wrong in ("mysql://u:hunter2@x/0", "memory", "spool:", "memory:x", ""):
        with pytest.raises(ConfigError) as caught:
            open_store(wrong, Settings())
        assert "names no store" in str(caught.value)
        assert "hunter2" not in str(caught.value)


def test_the_store_opens_once_and_again_after_close() -> None:
    """Lazily, one handle for all threads; close is not the end."""
    with App("memory:") as app:
        assert app._store is None
        found: list[Any] = []
        threads = [threading.Thread(target=lambda: found.append(app.store)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(store) for store in found}) == 1
        app.close()
        assert app.store is not found[0]
    assert app._store is None


def test_configure_puts_flags_above_code() -> None:
    """A flag of the command line wins over what the app's code says."""
    app = App("memory:", lease="20s", max_payload="2KiB")
    assert (app.settings.lease_ms, app.max_payload) == (20_000, 2048)
    app.configure({"lease": "3s", "max_payload": None})
    assert (app.settings.lease_ms, app.max_payload) == (3_000, 2048)
    app.configure({"max_payload": 500})
    assert (app.settings.lease_ms, app.max_payload) == (20_000, 500)


def test_a_wrong_setting_fails_where_it_is_written() -> None:
    """At import, not at the first use."""
    with pytest.raises(ConfigError, match="lease"):
        App("memory:", lease="half a minute")
    with pytest.raises(ConfigError, match="did you mean lease"):
        App("memory:", lese=3)


def test_hooks_are_kept_in_order(app: App) -> None:
    """The worker calls them; the functions stay what they were."""

    @app.on_worker_start
    def first() -> None: ...

    @app.on_worker_start
    def second() -> None: ...

    @app.on_worker_stop
    def last() -> None: ...

    @app.on_dead
    def told(job: Any) -> None: ...

    assert app.worker_start_hooks == [first, second]
    assert app.worker_stop_hooks == [last]
    assert app.dead_hooks == [told]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_drops_what_it_inherited() -> None:
    """before_fork is called before, after_fork in the child only, also while another thread holds the app's lock."""
    app = App("memory:")
    told: list[str] = []
    app.store.before_fork = lambda: told.append("before")  # type: ignore[method-assign]
    app.store.after_fork = lambda: told.append("after")  # type: ignore[method-assign]
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with app._lock:
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with app._lock:
            os.write(write, ",".join(told).encode())
        os._exit(0)
    os.close(write)
    done.set()
    thread.join()
    with open(read, "rb") as pipe:
        assert pipe.read() == b"before,after"
    assert os.waitpid(pid, 0)[1] == 0
    assert told == ["before"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_waits_for_a_store_that_another_thread_is_opening(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its modules are half imported by then: the child would wait for that thread for ever, which it has not. Nor is
    the thread inside a call of the store, which it goes on with at once."""
    app = App(f"spool:{tmp_path / 's'}")
    opens, forks, done = threading.Event(), threading.Event(), threading.Event()

    def slowly(*given: Any, **more: Any) -> Any:
        opens.set()
        assert forks.wait(30)
        return open_store(*given, **more)

    def produce() -> None:
        while not done.is_set():
            app.enqueue("send")

    monkeypatch.setattr("batchq.stores.open_store", slowly)
    thread = threading.Thread(target=produce)
    thread.start()
    assert opens.wait(30)
    # The last to be registered is called first.
    os.register_at_fork(before=forks.set)
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        opened = app._store is not None
        app.enqueue("send")
        os._exit(0 if opened else 1)
    assert os.waitpid(pid, 0)[1] == 0
    done.set()
    thread.join(30)
    assert not thread.is_alive()
    # It is nobody's any more.
    app.close()
    app.enqueue("send")
    app.close()


def test_import_is_light() -> None:
    """Neither the package nor an app imports Redis, the spool, rich or asyncio before they are used."""
    heavy = "{'redis', 'rich', 'click', 'psutil', 'tenacity', 'asyncio', 'sqlite3'}"
    code = (
        "import sys, batchq; assert 'orjson' not in sys.modules; "
        "app = batchq.App('memory:'); app.job(name='h')(print).enqueue(); "
        f"found = {heavy} & set(sys.modules); assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_every_exported_name_is_there() -> None:
    """What the package lists can be imported, and an unknown name is an AttributeError."""
    for name in batchq.__all__:
        assert getattr(batchq, name) is not None
    assert set(batchq.__all__) <= set(dir(batchq))
    with pytest.raises(AttributeError):
        batchq.nothing  # noqa: B018
