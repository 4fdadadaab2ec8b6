"""What attempts leave behind: read as it was written, wherever and however short a store keeps it."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha1

import orjson
import pytest

from batchq.job import Buried, Claim, Completed, NewJob, Outcome, Released, Retried, Snoozed, pack_error
from batchq.lifecycle import State, Word, unaccounted
from batchq.redis.notes import part
from batchq.store import Store
from tests.contract.conftest import Ground
from tests.contract.helpers import Q, enlist, lost, put, read, settle, take_all
from tests.contract.test_traces import an_error_of, fail, stored

#: Bytes of a row: small with the notes that are usual, small without, never small.
SIZES = [100, 900, 3000]


def a_row(size: int) -> bytes:
    return b'{"job":"send","args":["%b"]}' % (b"x" * size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("off_ms", [-86_400_000, -1, 0, 1, 700, 86_400_000])
def test_times_of_errors_are_what_they_were(store: Store, clock: Ground, size: int, off_ms: int) -> None:
    """A worker's clock may go before the store's, or behind it; after any way out of a claim."""
    enlist(store)
    put(store, NewJob("a", a_row(size)))
    at_ms = read(store, "a").enqueued_ms + off_ms
    error = pack_error("OSError", "no", attempt=1, at_ms=at_ms, started_ms=at_ms - 1, delay_ms=0, worker="web-1.1.1.x")
    ends: list[Callable[[Claim], Outcome]] = [
        lambda claim: Retried(claim, 1_000, 9, error),
        lambda claim: Released(claim, error),
        lambda claim: Snoozed(claim, 1_000),
        lambda claim: Buried(claim, "why", error),
    ]
    for end, known in zip(ends, (1, 2, 2, 3), strict=True):
        [claim] = take_all(store)
        assert settle(store, end(claim)) is Word.OK
        assert read(store, "a").errors == (orjson.loads(error),) * known
        clock.advance(5_000)


@pytest.mark.parametrize("size", SIZES)
def test_a_whole_life(store: Store, clock: Ground, size: int) -> None:
    """Each claim hands out the row as it came, and nothing is forgotten on the way: failures, the death of a worker, a
    cancel mark, a kept end, a second life."""
    enlist(store)
    put(store, NewJob("a", a_row(size)))
    errors: list[bytes] = []

    def claimed(token: int) -> Claim:
        clock.advance(20_000)
        [claim] = take_all(store)
        assert claim.row.endswith(a_row(size)[1:])
        assert orjson.loads(claim.row)["t"] == read(store, "a").enqueued_ms
        assert claim == Claim(Q, "a", token, claim.row)
        return claim

    def failed(attempt: int) -> bytes:
        errors.insert(0, an_error_of(attempt, f"try {attempt}", attempt=attempt))
        return errors[0]

    def known() -> list[bytes]:
        return [orjson.dumps(error) for error in read(store, "a").errors]

    for token in (1, 2):
        fail(store, [claimed(token)], [failed(token)])
        assert known() == errors
    claimed(3)
    assert store.seal(Q, "w1").word is Word.OK
    [held] = store.seal(Q, "w1").claims
    assert held.row.endswith(a_row(size)[1:])
    assert store.reap(Q, "w1", [lost(held, error=failed(3))]) == 0
    assert known() == errors
    enlist(store, "w2")
    clock.advance(20_000)
    [claim] = store.claim(Q, "w2", 9, 0).claims
    assert (claim.token, claim.forgiven, claim.lost) == (4, 1, 1)
    assert store.cancel(Q, ["a"]) == [Word.MARKED]
    assert read(store, "a").cancel
    assert known() == errors
    assert store.renew(Q, ["w2"], 15_000).marks == (("w2", "a", 4),)
    assert store.complete(Q, "w2", [Completed(claim, b"7", 3_600_000)]) == [Word.OK]
    assert known() == errors
    assert store.requeue(Q, ["a"]) == [Word.OK]
    clock.advance(20_000)
    [claim] = store.claim(Q, "w2", 9, 0).claims
    assert (claim.token, claim.forgiven, claim.crashes, claim.lost) == (5, 4, 0, 0)
    assert known() == errors
    assert store.bury(Q, "w2", [Buried(claim, "why", failed(5))]) == [Word.OK]
    assert known() == errors[:5]
    assert read(store, "a").reason == "why"
    assert store.purge(Q, State.DEAD, ["a"]) == 1


def home(ground: Ground, store: Store, id: str) -> str:
    """Where the note of a job stands on a server: with its row, or apart; nowhere, where there is none."""
    row, note = (stored(ground, store, name).get(id.encode()) for name in ("rows", "notes"))
    with_row = row is not None and not row.startswith(b"{")
    assert not (with_row and note), "one place is right"
    return "row" if with_row else "apart" if note else ""


def test_a_note_stands_once(ground: Ground) -> None:
    """With a small row, as long as the two are small; apart where the row is large, and with a cancel mark."""
    store = ground.open()
    assert home(ground, store, "a") == ""
    enlist(store)
    put(store, *(NewJob(id, a_row(size)) for id, size in (("a", 100), ("b", 900), ("c", 3000))))
    fail(store, take_all(store), [an_error_of(1, "x")] * 3)
    assert [home(ground, store, id) for id in "abc"] == ["row", "row", "apart"]
    ground.advance(20_000)
    claims = take_all(store)
    fail(store, claims, [an_error_of(1, "x" * 200, attempt=2)] * 3)
    assert [home(ground, store, id) for id in "abc"] == ["row", "apart", "apart"]
    ground.advance(20_000)
    claims = take_all(store)
    assert store.cancel(Q, ["a"]) == [Word.MARKED]
    assert [home(ground, store, id) for id in "abc"] == ["apart"] * 3
    assert store.complete(Q, "w1", [Completed(claim) for claim in claims]) == [Word.OK] * 3
    assert [home(ground, store, id) for id in "abc"] == [""] * 3


def test_errors_whose_ends_are_gone_are_told_without(ground: Ground) -> None:
    """Somebody deletes what jobs share: of the worker and the way nothing is known, of the rest all; and it goes on."""
    store = ground.open()
    assert stored(ground, store, "traces") == {}
    enlist(store)
    put(store, "a", "b")
    fail(store, take_all(store), [an_error_of(1, "why a"), pack_error("Odd", "why b", attempt=1, at_ms=5, worker="w1")])
    client = ground._servers.get(ground.kind).client
    client.delete(f"{ground.opened[store]}:{{{Q}}}:traces")
    left = {"attempt": 1, "at_ms": 1_767_225_600_500}
    assert read(store, "a").errors == ({"kind": "Error", "error": "why a", **left},)
    assert read(store, "b").errors == ({"kind": "Odd", "error": "why b", "attempt": 1, "at_ms": 5},)
    ground.advance(20_000)
    fail(store, take_all(store), [an_error_of(1, f"again {id}", attempt=2) for id in "ab"], most=2)
    assert read(store, "a").state is State.DEAD
    assert [error["error"] for error in read(store, "a").errors] == ["again a", "why a"]
    assert read(store, "a").errors[0] == orjson.loads(an_error_of(1, "again a", attempt=2))


@pytest.mark.parametrize("which", [0, 1])
def test_a_ref_that_another_has_is_left_to_it(ground: Ground, which: int) -> None:
    """They are short. What is told of a job is its own."""
    store = ground.open()
    assert stored(ground, store, "traces") == {}
    enlist(store)
    put(store, "a")
    fail(store, take_all(store), [an_error_of(1, "x")])
    client, key = ground._servers.get(ground.kind).client, f"{ground.opened[store]}:{{{Q}}}:traces"
    ref = sorted(client.hgetall(key), key=lambda ref: len(client.hget(key, ref)))[which]
    client.hset(key, ref, b'"another"]')
    put(store, "b")
    fail(store, take_all(store), [an_error_of(1, "y")])
    assert read(store, "b").errors == (orjson.loads(an_error_of(1, "y")),)


def test_two_ends_of_one_call_with_the_same_ref_are_told_apart(ground: Ground) -> None:
    """Refs have 32 bits: of some tens of thousands of tracebacks two have the same."""
    store = ground.open()
    assert stored(ground, store, "traces") == {}
    enlist(store)
    put(store, "a", "b")
    claims = take_all(store)
    seen: dict[bytes, bytes] = {}
    for n in range(2_000_000):
        error = pack_error(
            "OSError", "no", attempt=1, at_ms=5, worker="w1", trace=f"{n} of many different tracebacks, x"
        )
        end = part(error, b"").split(b"\n")[2]
        other = seen.setdefault(sha1(end).digest()[:4], error)
        if other is not error:
            break
    fail(store, claims, [other, error])
    assert [read(store, id).errors[0] for id in "ab"] == [orjson.loads(other), orjson.loads(error)]


#: What somebody might write by hand where a row is expected.
SLIPS = [
    b"",
    b"12",
    b"404 gone",
    b"2026-01-01",
    b"404 gone\n\n",
    b"404 gone\n\n{}",
    b"1 2 3\n\n{",
    b"1\n\n\n\n{",
    b"\n\n",
]


@pytest.mark.parametrize("slip", SLIPS)
@pytest.mark.parametrize("end", ["retry", "release", "reap", "complete"])
def test_a_row_that_is_none_harms_no_other(ground: Ground, slip: bytes, end: str) -> None:
    """It is handed out as it is, for the worker to bury; what is settled with it goes its way."""
    store = ground.open()
    assert stored(ground, store, "traces") == {}
    enlist(store)
    put(store, "a", "b")
    client, key = ground._servers.get(ground.kind).client, f"{ground.opened[store]}:{{{Q}}}"
    client.hset(f"{key}:rows", "a", slip)
    claims = take_all(store)
    assert [claim.id for claim in claims] == ["a", "b"]
    if end == "reap":
        assert {claim.id for claim in store.seal(Q, "w1").claims} == {"a", "b"}
        assert store.reap(Q, "w1", [lost(claim) for claim in claims]) == 0
        assert store.purge(Q, State.DELAYED, ["a", "b"]) == 2
    elif end == "complete":
        assert store.complete(Q, "w1", [Completed(claim) for claim in claims]) == [Word.OK] * 2
    else:
        ends = [
            Retried(claim, 1_000, 5, an_error_of(1, "x")) if end == "retry" else Released(claim) for claim in claims
        ]
        assert [settle(store, one) for one in ends] == [Word.OK] * 2
        ground.advance(20_000)
        claims = take_all(store)
        assert {claim.id for claim in claims} == {"a", "b"}
        assert (
            store.bury(Q, "w1", [Buried(claim, "unreadable", an_error_of(1, "x")) for claim in claims]) == [Word.OK] * 2
        )
        assert store.purge(Q, State.DEAD, ["a", "b"]) == 2
    stats = store.stats(Q)
    assert unaccounted(stats.counts, stats.totals) == 0
