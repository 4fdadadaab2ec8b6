"""requeue: dead, or completed and kept -> pending. Budgets start afresh, the token keeps counting."""

from __future__ import annotations

import pytest

from batchq.job import Completed
from batchq.lifecycle import State, Word
from batchq.store import Store
from tests.contract.conftest import Ground
from tests.contract.helpers import (
    OUTCOMES,
    Q,
    a_job,
    active,
    an_error,
    enlist,
    expire,
    listed,
    lost,
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


def test_dead_job_is_pending_with_fresh_budgets(store: Store, clock: Ground) -> None:
    """Its attempts, crashes and losses are forgiven, its errors kept, its token grows on."""
    enlist(store, "w1")
    enlist(store, "w2")
    claim = active(store, "a")
    store.seal(Q, "w1")
    store.reap(Q, "w1", [lost(claim)])
    for n in (1, 2):
        clock.advance(20_000)
        [claim] = take(store, "w2")
        word = settle(store, retried(claim, cause="crashed", max_attempts=2, error=an_error(f"e{n}")), "w2")
    assert word is Word.DEAD
    assert (read(store, "a").lost, read(store, "a").crashes) == (1, 2)
    assert store.requeue(Q, ["a"]) == [Word.OK]
    job = read(store, "a")
    assert (job.state, job.attempts, job.forgiven, job.attempt) == (State.PENDING, 3, 3, 0)
    assert (job.crashes, job.lost, job.reason) == (0, 0, "")
    assert [error["error"] for error in job.errors] == ["e2", "e1", "lease expired"]
    [claim] = take(store, "w2")
    assert (claim.token, claim.forgiven, claim.attempt, claim.crashes, claim.lost) == (4, 3, 1, 0, 0)
    assert settle(store, retried(claim, max_attempts=2), "w2") is Word.OK


def test_old_claims_of_a_requeued_job_are_stale(store: Store) -> None:
    """The token never goes back."""
    enlist(store, "w1")
    claim = active(store, "a")
    assert settle(store, OUTCOMES["bury"](claim)) is Word.OK
    store.requeue(Q, ["a"])
    [newer] = take(store)
    assert settle(store, Completed(claim)) is Word.STALE
    assert settle(store, Completed(newer)) is Word.OK


def test_kept_completed_job_runs_again_without_its_old_result(store: Store) -> None:
    """The result of the last run is not the result of the next."""
    enlist(store)
    stand(store, State.COMPLETED)
    assert store.requeue(Q, ["a"]) == [Word.OK]
    job = read(store, "a")
    assert (job.state, job.result) == (State.PENDING, None)
    [claim] = take(store)
    assert (claim.token, claim.attempt) == (2, 1)
    assert settle(store, Completed(claim, b"", 600_000)) is Word.OK
    assert read(store, "a").result is None
    assert nonzero(store) == {"enqueued": 1, "requeued": 1, "completed": 2}


def test_requeued_jobs_go_to_the_tail_of_their_priority(store: Store) -> None:
    """They came last, in the order of the call."""
    enlist(store)
    put(store, a_job("d5", priority=5), a_job("d0"), a_job("e0"))
    for claim in take(store, want=3):
        settle(store, OUTCOMES["bury"](claim))
    put(store, a_job("p5", priority=5), "p0")
    assert store.requeue(Q, ["e0", "d0", "d5"]) == [Word.OK] * 3
    assert listed(store, State.PENDING) == ["p5", "d5", "p0", "e0", "d0"]
    assert listed(store, State.DEAD) == []


@pytest.mark.parametrize("state", [State.PENDING, State.DELAYED, State.ACTIVE])
def test_unfinished_job_is_refused(store: Store, state: State) -> None:
    """It has not ended: nothing is changed."""
    enlist(store)
    stand(store, state)
    before = snapshot(store)
    assert store.requeue(Q, ["a"]) == [Word.REFUSED]
    assert snapshot(store) == before


def test_words_of_a_batch_come_in_its_order(store: Store) -> None:
    """Some go, some don't; an id named twice goes once."""
    enlist(store)
    stand(store, State.DEAD, "dead")
    stand(store, State.COMPLETED, "completed")
    stand(store, State.ACTIVE, "active")
    words = store.requeue(Q, ["nobody", "dead", "active", "completed", "dead"])
    assert words == [Word.UNKNOWN, Word.OK, Word.REFUSED, Word.OK, Word.REFUSED]
    assert listed(store, State.PENDING) == ["dead", "completed"]
    assert totals(store)["requeued"] == 2


def test_job_can_die_and_be_requeued_for_ever(store: Store) -> None:
    """Totals count each death and each return; the law holds."""
    enlist(store)
    claim = active(store, "a")
    for n in range(1, 6):
        assert settle(store, retried(claim, max_attempts=1)) is Word.DEAD
        assert store.requeue(Q, ["a"]) == [Word.OK]
        [claim] = take(store)
        assert (claim.token, claim.attempt) == (n + 1, 1)
    assert nonzero(store) == {"enqueued": 1, "requeued": 5, "dead": 5}


def test_expired_result_can_t_be_requeued(store: Store, clock: Ground) -> None:
    """What is over is gone."""
    enlist(store)
    settle(store, Completed(active(store, "a"), b"1", 60_000))
    clock.advance(120_000)
    expire(store)
    assert store.requeue(Q, ["a"]) == [Word.UNKNOWN]


def test_more_ids_than_one_step_carries(store: Store) -> None:
    """The whole morgue, in its order."""
    enlist(store)
    ids = [f"a{n}" for n in range(1000)]
    store.enqueue(Q, [a_job(id) for id in ids])
    held: list = []  # type: ignore[type-arg]
    while got := store.claim(Q, "w1", 480, len(held)).claims:
        held += got
    assert store.bury(Q, "w1", [OUTCOMES["bury"](claim) for claim in held]) == [Word.OK] * 1000  # type: ignore[misc]
    assert store.requeue(Q, ids) == [Word.OK] * 1000
    assert listed(store, State.PENDING) == ids


def test_dead_job_whose_row_is_gone_leaves_nothing_behind(ground: Ground) -> None:
    """Its id is free after a while, and a new job of that id has none of its priority."""
    store = ground.open()
    enlist(store)
    claim = active(store, "a", given=True, priority=5)
    assert settle(store, OUTCOMES["bury"](claim)) is Word.OK
    ground.lose_row(store, Q, "a")
    assert store.requeue(Q, ["a"]) == [Word.UNKNOWN]
    ground.advance(2 * 86_400_000)
    store.promote(Q)
    put(store, a_job("a", given=True))
    assert read(store, "a").priority == 0
