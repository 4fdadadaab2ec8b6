"""Tracebacks of failed attempts: each job shows its own, however many failed the same way, and nothing stays."""

from __future__ import annotations

import orjson
import pytest

from batchq.job import Buried, Claim, NewJob, Retried, pack_error
from batchq.lifecycle import State, Word
from batchq.redis.notes import apart
from batchq.store import Limits, Store
from tests.contract.conftest import Ground
from tests.contract.helpers import Q, a_job, enlist, lost, put, read, take_all
from tests.servers import FLAVOURS

DAY_MS = 24 * 3600 * 1000


def a_trace(way: int = 0, frames: int = 12) -> str:
    """As long as they are where a handler calls a library."""
    lines = (
        f'  File "/srv/app/lib/part_{n}.py", line {way * 100 + n}, in step\n    return self.next("{way}", *args)\n'
        for n in range(frames)
    )
    return "Traceback (most recent call last):\n" + "".join(lines)


def an_error_of(way: int, text: str, *, attempt: int = 1) -> bytes:
    return pack_error(
        "OSError",
        text,
        attempt=attempt,
        at_ms=1_767_225_600_500,
        worker="web-1.1.1.x",
        trace=f"{a_trace(way)}OSError: {text}\n",
    )


def fail(store: Store, claims: list[Claim], errors: list[bytes], *, delay_ms: int = 10_000, most: int = 5) -> None:
    outcomes = [Retried(claim, delay_ms, most, error) for claim, error in zip(claims, errors, strict=True)]
    assert set(store.retry(Q, "w1", outcomes)) <= {Word.OK, Word.DEAD}


def again(store: Store, clock: Ground, ms: int) -> list[Claim]:
    clock.advance(ms)
    return take_all(store)


def test_each_job_shows_its_own_traceback(store: Store, clock: Ground) -> None:
    """Of all attempts, as they were handed over: jobs of one way with texts of their own, of others, of none."""
    enlist(store)
    put(store, *(a_job(f"j{n:02}") for n in range(30)))
    given: dict[str, list[bytes]] = {}
    for attempt in (1, 2, 3):
        claims = take_all(store) if attempt == 1 else again(store, clock, 20_000)
        assert len(claims) == 30
        errors = [
            an_error_of(attempt * 10 + n % 3, f"no {n}", attempt=attempt)
            if n % 5
            else pack_error("Odd", "[]", attempt=attempt, at_ms=5)
            for n in range(30)
        ]
        fail(store, claims, errors)
        for claim, error in zip(claims, errors, strict=True):
            given.setdefault(claim.id, []).insert(0, error)
    for id, errors in given.items():
        assert list(read(store, id).errors) == list(map(orjson.loads, errors))


def test_ways_without_number_lose_nothing(store: Store) -> None:
    """Texts that differ from job to job, inside the traceback as well."""
    enlist(store)
    ids = [id for _ in range(3) for id in put(store, *(a_job() for _ in range(400)))]
    fail(store, take_all(store), [an_error_of(1000 + n, "x") for n in range(1200)])
    lines = {str(orjson.loads(an_error_of(1000 + n, "x"))["trace"]) for n in range(1200)}
    assert {str(read(store, id).errors[0]["trace"]) for id in ids} == lines


@pytest.mark.parametrize("end", ["retry", "bury", "reap"])
@pytest.mark.parametrize("most", [1, 3])
def test_the_dead_keep_theirs(ground: Ground, most: int, end: str) -> None:
    """Of all their attempts, whichever way they died; also when nobody has failed like that for half a year."""
    store = ground.open(Limits())
    enlist(store)
    put(store, "a")
    errors = [an_error_of(n, f"try {n}", attempt=n) for n in range(1, most + 1)]
    for error in errors:
        [claim] = again(store, ground, 20_000)
        if error is not errors[-1] or end == "retry":
            fail(store, [claim], [error], most=most)
        elif end == "bury":
            assert store.bury(Q, "w1", [Buried(claim, "dead", error)]) == [Word.OK]
        else:
            assert store.seal(Q, "w1").word is Word.OK
            assert store.reap(Q, "w1", [lost(claim, max_lost=1, error=error)]) == 0
    assert read(store, "a").state is State.DEAD
    for _ in range(3):
        ground.advance(60 * DAY_MS)
        store.promote(Q)
    assert read(store, "a").errors == tuple(map(orjson.loads, reversed(errors)))


def test_a_retry_in_a_year_knows_why(store: Store, clock: Ground) -> None:
    enlist(store)
    put(store, "a")
    fail(store, take_all(store), [an_error_of(0, "slow")], delay_ms=365 * DAY_MS)
    clock.advance(200 * DAY_MS)
    store.promote(Q)
    assert read(store, "a").errors == (orjson.loads(an_error_of(0, "slow")),)


def stored(ground: Ground, store: Store, name: str) -> dict[bytes, bytes]:
    if ground.kind not in FLAVOURS:
        pytest.skip("a spool keeps them on disk, each beside its job")
    client = ground._servers.get(ground.kind).client
    return dict(client.hgetall(f"{ground.opened[store]}:{{{Q}}}:{name}"))


def notes(ground: Ground, store: Store) -> list[bytes]:
    """Of all jobs that have one."""
    both = [apart(row, None)[1] for row in stored(ground, store, "rows").values()]
    return [note for note in (*both, *stored(ground, store, "notes").values()) if note]


def test_one_way_is_in_memory_once(ground: Ground) -> None:
    """Whatever the errors say beside it, and after each attempt."""
    store = ground.open()
    assert stored(ground, store, "traces") == {}
    enlist(store)
    put(store, *(a_job() for _ in range(50)))
    for attempt in (1, 2):
        claims = take_all(store) if attempt == 1 else again(store, ground, 20_000)
        fail(store, claims, [an_error_of(7, f"text {n}", attempt=attempt) for n in range(50)])
    assert len(stored(ground, store, "traces")) == 2, "the traceback; the worker with a reference to it"
    assert max(map(len, notes(ground, store))) < 120
    assert len(a_trace()) > 1000


def test_they_go_with_the_last_job_and_with_time(ground: Ground) -> None:
    store = ground.open()
    assert stored(ground, store, "traces") == {}
    enlist(store)
    put(store, *(NewJob(f"j{n}", b'{"job":"h"}') for n in range(2)))
    first, second = take_all(store)
    fail(store, [first], [an_error_of(1, "x")])
    ground.advance(100 * DAY_MS)
    fail(store, [second], [an_error_of(2, "x")])
    store.promote(Q)
    assert len(stored(ground, store, "traces")) == 2, "what was of use a hundred days ago went"
    for job in [*store.jobs(Q, State.PENDING).jobs, *store.jobs(Q, State.DELAYED).jobs]:
        store.cancel(Q, [job.id])
    put(store, "dead")
    fail(store, take_all(store), [an_error_of(3, "x")], most=1)
    store.promote(Q)
    assert read(store, "dead").errors == (orjson.loads(an_error_of(3, "x")),)
    assert stored(ground, store, "traces") == {}
    client = ground._servers.get(ground.kind).client
    assert not client.exists(f"{ground.opened[store]}:{{{Q}}}:traced")


def test_ways_of_which_each_was_met_once_make_room_for_others(ground: Ground) -> None:
    """Thousands of one day: what fails the same way some days later stands once all the same."""
    store = ground.open()
    assert stored(ground, store, "traces") == {}
    enlist(store)
    for first in (0, 800, 1600):
        for _ in range(2):
            put(store, *(a_job() for _ in range(400)))
        fail(store, take_all(store), [an_error_of(first + n, "x") for n in range(800)], delay_ms=3_600_000)
    assert len(stored(ground, store, "traces")) == 3000
    ground.advance(3 * DAY_MS)
    for _ in range(3):
        store.promote(Q)
    claims = take_all(store)
    fail(store, claims, [an_error_of(5000, f"text {n}", attempt=2) for n in range(len(claims))])
    traces = stored(ground, store, "traces")
    assert sum(b"line 500000" in trace for trace in traces.values()) == 1
    assert max(len(note.split(b"\n")[1]) for note in notes(ground, store)) < 120
