"""Sizes: what is more than one step can carry is split by the store, or refused before anything is written."""

from __future__ import annotations

import pytest

from batchq.job import Completed, Mark, pack_row
from batchq.lifecycle import State, Word
from batchq.store import MAX_BYTES, MAX_JOBS, Store
from tests.contract.conftest import Ground
from tests.contract.helpers import (
    OUTCOMES,
    Q,
    a_job,
    enlist,
    listed,
    put,
    read,
    retried,
    snapshot,
    take_all,
    totals,
)

LARGE = 900 * 1024


@pytest.mark.parametrize("count", [1, MAX_JOBS, MAX_JOBS + 1, 2 * MAX_JOBS, 1501])
def test_batch_of_any_size_goes_in_and_out_in_order(store: Store, count: int) -> None:
    """One call for the caller, enqueued, claimed and completed."""
    enlist(store)
    ids = [f"j{n}" for n in range(count)]
    assert store.enqueue(Q, [a_job(id) for id in ids]) == [Word.OK] * count
    assert listed(store, State.PENDING) == ids
    claims = take_all(store, want=2000)
    assert [claim.id for claim in claims] == ids
    assert store.complete(Q, "w1", [Completed(claim) for claim in claims]) == [Word.OK] * count
    assert totals(store)["completed"] == count


@pytest.mark.parametrize("verb", OUTCOMES)
def test_large_batch_of_every_outcome_is_settled_whole(store: Store, verb: str) -> None:
    """More than twice what one step carries, with a stale one in the second half."""
    enlist(store)
    ids = [f"j{n}" for n in range(1001)]
    store.enqueue(Q, [a_job(id) for id in ids])
    claims = take_all(store)
    store.complete(Q, "w1", [Completed(claims[700])])
    words = getattr(store, verb)(Q, "w1", [OUTCOMES[verb](claim) for claim in claims])
    assert words == [Word.OK] * 700 + [Word.STALE] + [Word.OK] * 300
    assert listed(store, State.ACTIVE) == []


def test_mark_covers_exactly_one_step(store: Store) -> None:
    """MAX_JOBS fit a mark, one more is refused before anything is written."""
    assert store.enqueue(Q, [a_job(f"j{n}") for n in range(MAX_JOBS)], Mark("lane", 1)) == [Word.OK] * MAX_JOBS
    before = snapshot(store)
    with pytest.raises(ValueError, match="mark"):
        store.enqueue(Q, [a_job(f"k{n}") for n in range(MAX_JOBS + 1)], Mark("lane", 2))
    assert snapshot(store) == before
    assert store.enqueue(Q, [a_job("k0")], Mark("lane", 2)) == [Word.OK]


def test_mark_covers_max_bytes_of_rows_or_one_larger_job(store: Store) -> None:
    """Two rows of 900 KiB are more than one step carries; one of 1.5 MiB is one larger job."""
    row = pack_row("send", ["x" * LARGE])
    with pytest.raises(ValueError, match="mark"):
        store.enqueue(Q, [a_job("a", row=row), a_job("b", row=row)], Mark("lane", 1))
    assert listed(store, State.PENDING) == []
    larger = pack_row("send", ["x" * (MAX_BYTES * 3 // 2)])
    assert store.enqueue(Q, [a_job("a", row=larger)], Mark("lane", 1)) == [Word.OK]
    assert len(read(store, "a").args[0]) == MAX_BYTES * 3 // 2


def test_rows_beyond_one_step_go_in_and_out(store: Store, clock: Ground) -> None:
    """Six rows of 900 KiB in one call: enqueued in order, claimed in as many answers as it takes, retried, listed."""
    enlist(store)
    ids = [f"j{n}" for n in range(6)]
    jobs = [a_job(id, row=pack_row("send", [id * (LARGE // 2)])) for id in ids]
    assert store.enqueue(Q, jobs) == [Word.OK] * 6
    claims = take_all(store, want=10)
    assert [claim.id for claim in claims] == ids
    for claim, job in zip(claims, jobs, strict=True):
        assert claim.row.endswith(job.row[1:])
    assert store.retry(Q, "w1", [retried(claim) for claim in claims]) == [Word.OK] * 6
    clock.advance(20_000)
    assert [claim.id for claim in take_all(store, want=10)] == ids
    sealed = store.seal(Q, "w1")
    assert sorted(len(claim.row) for claim in sealed.claims) == sorted(len(claim.row) for claim in claims)


def test_large_results_are_kept_whole(store: Store) -> None:
    """Several results of 900 KiB in one batch."""
    enlist(store)
    put(store, "a", "b", "c")
    claims = take_all(store)
    outcomes = [Completed(claim, b'"' + claim.id.encode() * LARGE + b'"', 600_000) for claim in claims]
    assert store.complete(Q, "w1", outcomes) == [Word.OK] * 3
    for id in ("a", "b", "c"):
        assert read(store, id).result == id * LARGE


def test_more_workers_than_one_step_carries_are_renewed(store: Store, clock: Ground) -> None:
    """A large pool is renewed by one call, and its marks come back."""
    workers = [enlist(store, f"w{n}") for n in range(600)]
    put(store, "a")
    [claim] = store.claim(Q, "w577", 1, 0).claims
    store.cancel(Q, ["a"])
    clock.advance(5_000)
    renewal = store.renew(Q, workers, 15_000)
    assert renewal.words == (Word.OK,) * 600
    assert renewal.marks == (("w577", "a", claim.token),)


def test_an_answer_carries_no_more_than_a_step(store: Store) -> None:
    """Or one larger job; the others stay the next, each at its priority."""
    enlist(store)
    given = {
        "p1": (5, 600),
        "p2": (5, 300),
        "p3": (5, 300),
        "n1": (0, 1200),
        "n2": (0, 10),
        "l1": (-5, 900),
        "l2": (-5, 1),
    }
    for id, (priority, kib) in given.items():
        put(store, a_job(id, row=pack_row("send", ["x" * (kib << 10)]), priority=priority))
    assert listed(store, State.PENDING) == list(given)
    answers: list[list[str]] = []
    while claims := store.claim(Q, "w1", MAX_JOBS, sum(map(len, answers))).claims:
        assert len(claims) == 1 or sum(len(claim.row) for claim in claims) <= MAX_BYTES
        answers.append([claim.id for claim in claims])
        assert listed(store, State.PENDING) == list(given)[sum(map(len, answers)) :]
    assert answers == [["p1", "p2"], ["p3"], ["n1"], ["n2", "l1", "l2"]]
