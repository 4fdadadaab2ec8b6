"""release: active -> pending, at the head of its priority. Not the job's fault: the attempt is forgiven."""

from __future__ import annotations

from batchq.job import Completed, Released
from batchq.lifecycle import State, Word
from batchq.store import Store
from tests.contract.helpers import (
    Q,
    a_job,
    active,
    an_error,
    enlist,
    listed,
    nonzero,
    put,
    read,
    settle,
    take,
    take_all,
)


def test_released_job_is_pending_and_forgiven(store: Store) -> None:
    """It comes back as the same attempt, under a new token."""
    enlist(store)
    claim = active(store, "a")
    assert store.release(Q, "w1", [Released(claim)]) == [Word.OK]
    job = read(store, "a")
    assert (job.state, job.attempts, job.forgiven, job.attempt, job.worker) == (State.PENDING, 1, 1, 0, "")
    [claim] = take(store)
    assert (claim.token, claim.forgiven, claim.attempt) == (2, 1, 1)
    assert nonzero(store) == {"enqueued": 1, "released": 1}


def test_released_batch_goes_to_the_head_in_its_order(store: Store) -> None:
    """Nobody loses the place in the queue to a planned stop."""
    enlist(store)
    put(store, "a", "b", "c", "d", "e")
    a, b, c = take(store, want=3)
    assert store.release(Q, "w1", [Released(a), Released(b), Released(c)]) == [Word.OK] * 3
    assert listed(store, State.PENDING) == ["a", "b", "c", "d", "e"]
    assert [claim.id for claim in take(store, want=5)] == ["a", "b", "c", "d", "e"]


def test_later_release_goes_before_an_earlier_one(store: Store) -> None:
    """The head is the head."""
    enlist(store)
    put(store, "a", "b", "c", "d")
    a, b, c = take(store, want=3)
    store.release(Q, "w1", [Released(c)])
    store.release(Q, "w1", [Released(a), Released(b)])
    assert listed(store, State.PENDING) == ["a", "b", "c", "d"]


def test_each_goes_to_the_head_of_its_own_priority(store: Store) -> None:
    """A released job never overtakes a higher priority, nor waits behind its own."""
    enlist(store)
    levels = {"p5": 5, "p5b": 5, "p0": 0, "p0b": 0, "m5": -5, "m5b": -5}
    put(store, *(a_job(id, priority=level) for id, level in levels.items()))
    claims = {claim.id: claim for claim in take(store, want=6)}
    store.release(Q, "w1", [Released(claims[id]) for id in ("m5b", "p0b", "p5b")])
    put(store, a_job("p5c", priority=5), a_job("p0c"), a_job("m5c", priority=-5))
    store.release(Q, "w1", [Released(claims[id]) for id in ("m5", "p0", "p5")])
    assert listed(store, State.PENDING) == ["p5", "p5b", "p5c", "p0", "p0b", "p0c", "m5", "m5b", "m5c"]
    assert [claim.id for claim in take(store, want=20)] == ["p5", "p5b", "p5c", "p0", "p0b", "p0c", "m5", "m5b", "m5c"]


def test_batch_of_more_than_one_step_keeps_its_order(store: Store) -> None:
    """A release of 1100 claims is split by the store, and nobody sees it in the order."""
    enlist(store)
    ids = [f"a{n}" for n in range(1150)]
    for start in range(0, 1150, 480):
        put(store, *ids[start : start + 480])
    claims = take_all(store)
    assert [claim.id for claim in claims] == ids
    assert store.release(Q, "w1", [Released(claim) for claim in claims[:1100]]) == [Word.OK] * 1100
    assert listed(store, State.PENDING) == ids[:1100]
    store.complete(Q, "w1", [Completed(claim) for claim in claims[1100:]])
    assert [claim.id for claim in take_all(store)] == ids[:1100]


def test_interrupted_run_leaves_a_note(store: Store) -> None:
    """A run cut off by a planned stop can be read from the job; one that never started leaves nothing."""
    enlist(store)
    put(store, "a", "b")
    ran, waited = take(store, want=2)
    store.release(Q, "w1", [Released(ran, an_error("interrupted by a stop")), Released(waited)])
    assert [error["error"] for error in read(store, "a").errors] == ["interrupted by a stop"]
    assert read(store, "b").errors == ()


def test_marked_job_is_cancelled_instead(store: Store) -> None:
    """A cancel mark ends it: it does not go back to the queue."""
    enlist(store)
    put(store, "a", "b", "c")
    claims = take(store, want=3)
    store.cancel(Q, ["b"])
    assert store.release(Q, "w1", [Released(claim) for claim in claims]) == [Word.OK, Word.CANCELLED, Word.OK]
    assert listed(store, State.PENDING) == ["a", "c"]
    assert nonzero(store) == {"enqueued": 3, "released": 2, "cancelled": 1}


def test_paused_queue_takes_releases(store: Store) -> None:
    """A pause stops claims and nothing else."""
    enlist(store)
    claim = active(store, "a")
    store.pause(Q)
    assert settle(store, Released(claim)) is Word.OK
    assert listed(store, State.PENDING) == ["a"]
