"""cancel: ends a waiting job; marks an active one."""

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
    enlist,
    listed,
    nonzero,
    put,
    read,
    settle,
    snapshot,
    stand,
    take,
    totals,
)


@pytest.mark.parametrize("state", [State.PENDING, State.DELAYED])
@pytest.mark.parametrize("priority", [0, 7])
def test_waiting_job_is_gone_but_for_its_count(store: Store, clock: Ground, state: State, priority: int) -> None:
    """It leaves no row, is never claimed, and its neighbours keep their order."""
    delay = 60_000 if state is State.DELAYED else 0
    put(store, *(a_job(id, priority=priority, delay_ms=delay) for id in ("a", "b", "c")))
    assert store.cancel(Q, ["b"]) == [Word.CANCELLED]
    assert store.get(Q, "b") is None
    assert listed(store, state) == ["a", "c"]
    clock.advance(120_000)
    enlist(store)
    assert [claim.id for claim in take(store, want=5)] == ["a", "c"]
    assert totals(store)["cancelled"] == 1


def test_active_job_is_marked_and_goes_on(store: Store) -> None:
    """Its worker is not robbed of it: the mark can be read and waits for the end of the attempt."""
    enlist(store)
    claim = active(store, "a")
    assert store.cancel(Q, ["a"]) == [Word.MARKED]
    assert store.cancel(Q, ["a"]) == [Word.MARKED]
    job = read(store, "a")
    assert (job.state, job.cancel, job.worker) == (State.ACTIVE, True, "w1")
    assert nonzero(store) == {"enqueued": 1}
    assert settle(store, Completed(claim)) is Word.OK


@pytest.mark.parametrize("verb", [verb for verb in OUTCOMES if verb != "complete"])
def test_every_move_out_of_active_but_complete_ends_marked_jobs(store: Store, verb: str) -> None:
    """Whatever its attempt came to: not retried, not buried, not given back."""
    enlist(store)
    claim = active(store, "a")
    store.cancel(Q, ["a"])
    assert settle(store, OUTCOMES[verb](claim)) is Word.CANCELLED
    assert store.get(Q, "a") is None
    assert not any(store.stats(Q).counts.values())
    assert nonzero(store) == {"enqueued": 1, "cancelled": 1}
    assert settle(store, OUTCOMES[verb](claim)) is Word.STALE


def test_mark_is_of_one_life(store: Store) -> None:
    """The next job of that id is not marked."""
    enlist(store)
    claim = active(store, "a")
    store.cancel(Q, ["a"])
    settle(store, OUTCOMES["release"](claim))
    claim = active(store, "a")
    assert read(store, "a").cancel is False
    assert settle(store, OUTCOMES["release"](claim)) is Word.OK


@pytest.mark.parametrize("state", [State.DEAD, State.COMPLETED])
def test_finished_job_can_t_be_cancelled(store: Store, state: State) -> None:
    """It ended already; nothing is changed."""
    enlist(store)
    stand(store, state)
    before = snapshot(store)
    assert store.cancel(Q, ["a"]) == [Word.FINISHED]
    assert snapshot(store) == before


def test_job_that_never_was_is_unknown(store: Store) -> None:
    """On this queue: another queue's job of that id is another's."""
    put(store, "a", queue="images")
    assert store.cancel(Q, ["a", "b"]) == [Word.UNKNOWN, Word.UNKNOWN]
    assert listed(store, State.PENDING, queue="images") == ["a"]


def test_words_of_a_batch_come_in_its_order(store: Store) -> None:
    """All states in one call, one id twice."""
    enlist(store)
    stand(store, State.DEAD, "dead")
    stand(store, State.COMPLETED, "completed")
    stand(store, State.ACTIVE, "active")
    put(store, "pending", a_job("delayed", delay_ms=60_000))
    words = store.cancel(Q, ["delayed", "active", "nobody", "pending", "dead", "completed", "pending"])
    cancelled = Word.CANCELLED
    assert words == [cancelled, Word.MARKED, Word.UNKNOWN, cancelled, Word.FINISHED, Word.FINISHED, Word.UNKNOWN]
    assert totals(store)["cancelled"] == 2


def test_more_ids_than_one_step_carries(store: Store) -> None:
    """A caller may name any number."""
    ids = [f"a{n}" for n in range(1100)]
    store.enqueue(Q, [a_job(id) for id in ids])
    assert store.cancel(Q, ids) == [Word.CANCELLED] * 1100
    assert totals(store)["cancelled"] == 1100


def test_cancel_of_nothing(store: Store) -> None:
    """No ids, no words."""
    assert store.cancel(Q, []) == []
