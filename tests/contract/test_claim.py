"""claim: pending -> active. It mints the token."""

from __future__ import annotations

import pytest

from batchq.job import Completed, Released, pack_row
from batchq.lifecycle import State, Word
from batchq.store import Store
from tests.contract.conftest import Ground
from tests.contract.helpers import (
    Q,
    a_job,
    active,
    enlist,
    listed,
    nonzero,
    put,
    read,
    retried,
    settle,
    snapshot,
    stand,
    take,
    totals,
)


def test_claim_hands_out_the_job_under_its_first_token(store: Store) -> None:
    """The claim names the job, its row and its token; the job stands among the worker's."""
    enlist(store)
    row = pack_row("send", [1])
    put(store, a_job("a", row=row))
    answer = store.claim(Q, "w1", 1, 0)
    assert answer.word is Word.OK
    [claim] = answer.claims
    assert (claim.queue, claim.id, claim.token, claim.attempt) == (Q, "a", 1, 1)
    assert (claim.forgiven, claim.crashes, claim.lost) == (0, 0, 0)
    assert claim.row.endswith(row[1:])
    job = read(store, "a")
    assert (job.state, job.attempts, job.worker) == (State.ACTIVE, 1, "w1")


def test_unregistered_worker_gets_nothing(store: Store) -> None:
    """A claim needs a lease."""
    put(store, "a")
    before = snapshot(store)
    assert store.claim(Q, "nobody", 1, 0) == (Word.UNKNOWN, ())
    assert snapshot(store) == before


def test_sealed_worker_gets_nothing(store: Store) -> None:
    """A worker that was declared gone finds out by its next claim."""
    enlist(store)
    put(store, "a")
    store.seal(Q, "w1")
    before = snapshot(store)
    assert store.claim(Q, "w1", 1, 0) == (Word.SEALED, ())
    assert snapshot(store) == before


def test_claim_takes_no_more_than_wanted_and_no_more_than_there_is(store: Store) -> None:
    """`want` is a limit."""
    enlist(store)
    ids = put(store, *(f"a{n}" for n in range(7)))
    assert [claim.id for claim in take(store, want=3)] == ids[:3]
    assert [claim.id for claim in take(store, want=10)] == ids[3:]
    assert take(store, want=10) == []


def test_claim_from_an_empty_or_unseen_queue_answers_ok(store: Store) -> None:
    """Nothing there is no failure."""
    enlist(store, queue="unseen")
    assert store.claim("unseen", "w1", 5, 0) == (Word.OK, ())


def test_claims_of_two_workers_share_no_job(store: Store) -> None:
    """A job is in one hand."""
    enlist(store, "w1")
    enlist(store, "w2")
    ids = put(store, *(f"a{n}" for n in range(10)))
    one, two = take(store, "w1", 4), take(store, "w2", 4)
    assert [claim.id for claim in (*one, *two)] == ids[:8]


def test_priorities_are_claimed_across_calls(store: Store) -> None:
    """What came later with a higher priority goes first."""
    enlist(store)
    put(store, a_job("low", priority=-1), a_job("plain"), a_job("high", priority=1))
    assert [claim.id for claim in take(store, want=2)] == ["high", "plain"]
    put(store, a_job("top", priority=100))
    assert [claim.id for claim in take(store, want=2)] == ["top", "low"]


def test_token_grows_by_one_with_each_claim(store: Store, clock: Ground) -> None:
    """The token is how often the job was claimed, over all that can happen between two claims."""
    enlist(store)
    claim = active(store, "a")
    for token in range(2, 6):
        assert settle(store, Released(claim)) is Word.OK
        [claim] = take(store)
        assert (claim.token, claim.forgiven, claim.attempt) == (token, token - 1, 1)
    for attempt in range(2, 5):
        assert settle(store, retried(claim, 10_000, max_attempts=99)) is Word.OK
        clock.advance(20_000)
        [claim] = take(store)
        assert (claim.token, claim.attempt) == (attempt + 4, attempt)


# -- held: what both sides believe ---------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [0, 1, 3, 480])
def test_worker_that_counts_otherwise_is_told_what_it_holds(store: Store, held: int) -> None:
    """After a lost answer the store's list decides: (id, token) without rows, and no new jobs."""
    enlist(store, "w1")
    enlist(store, "w2")
    put(store, "a", "b", "c", "d")
    mine = take(store, "w1", 2)
    take(store, "w2", 1)
    before = snapshot(store)
    answer = store.claim(Q, "w1", 5, held)
    assert answer.word is Word.HELD
    assert {(claim.id, claim.token, claim.row) for claim in answer.claims} == {(c.id, c.token, b"") for c in mine}
    assert snapshot(store) == before
    assert [claim.id for claim in store.claim(Q, "w1", 5, 2).claims] == ["d"]


def test_worker_that_lost_its_claims_is_told_that_it_holds_none(store: Store) -> None:
    """The list may be empty: then the worker drops what it believes to hold."""
    enlist(store)
    put(store, "a")
    assert store.claim(Q, "w1", 1, 2) == (Word.HELD, ())


def test_listed_claim_can_be_released(store: Store) -> None:
    """The worker releases what it does not know, by the tokens of the list."""
    enlist(store)
    put(store, "a", "b")
    take(store, want=2)
    answer = store.claim(Q, "w1", 1, 0)
    assert store.release(Q, "w1", [Released(claim) for claim in answer.claims]) == [Word.OK, Word.OK]
    assert sorted(claim.id for claim in take(store, want=2)) == ["a", "b"]


def test_settled_claims_are_held_no_more(store: Store) -> None:
    """`held` goes down with every claim that is settled."""
    enlist(store)
    put(store, *(f"a{n}" for n in range(6)))
    claims = take(store, want=3)
    store.complete(Q, "w1", [Completed(claim) for claim in claims[:2]])
    assert store.claim(Q, "w1", 1, 1).word is Word.OK


@pytest.mark.parametrize("priority", [0, 3])
def test_claim_never_invents_a_job(store: Store, ground: Ground, priority: int) -> None:
    """An id whose row is gone is dropped and counted; the next ones are handed out in its place."""
    enlist(store)
    put(store, *(a_job(id, priority=priority) for id in ("a", "b", "c")))
    ground.lose_row(store, Q, "b")
    claims = take(store, want=3)
    assert [claim.id for claim in claims] == ["a", "c"]
    assert nonzero(store) == {"enqueued": 3, "dropped": 1}
    assert store.get(Q, "b") is None
    put(store, "b")
    assert [claim.token for claim in take(store)] == [1]


# -- pauses and time -----------------------------------------------------------------------------------------------


def test_paused_queue_gives_nothing(store: Store) -> None:
    """The word says why there is nothing."""
    enlist(store)
    put(store, "a")
    store.pause(Q)
    before = snapshot(store)
    assert store.claim(Q, "w1", 1, 0) == (Word.PAUSED, ())
    assert snapshot(store) == before


def test_due_jobs_are_promoted_on_the_way(store: Store, clock: Ground) -> None:
    """A busy queue promotes itself: what is due is claimed without a sweep, behind what was ready before."""
    enlist(store)
    put(store, a_job("later", delay_ms=30_000), a_job("first", delay_ms=10_000))
    put(store, "ready")
    clock.advance(60_000)
    assert [claim.id for claim in take(store, want=5)] == ["ready", "first", "later"]
    assert totals(store)["promoted"] == 2


def test_delayed_job_is_not_claimed_early(store: Store, clock: Ground) -> None:
    """Nobody gets a job before its fire-time by the store's clock."""
    enlist(store)
    put(store, a_job("a", delay_ms=30_000))
    clock.advance(20_000)
    assert take(store, want=5) == []
    fire = read(store, "a").since_ms
    clock.advance(20_000)
    [claim] = take(store, want=5)
    assert claim.id == "a"
    assert store.now_ms() >= fire


@pytest.mark.parametrize("state", [State.DELAYED, State.ACTIVE, State.COMPLETED, State.DEAD])
def test_only_pending_jobs_are_claimed(store: Store, state: State) -> None:
    """No other state gives a job away."""
    enlist(store, "w1")
    enlist(store, "w2")
    stand(store, state, worker="w1")
    assert take(store, "w2", 5) == []
    assert listed(store, state) == ["a"]
