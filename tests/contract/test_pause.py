"""pause: no claims from this queue."""

from __future__ import annotations

from batchq.job import Completed
from batchq.lifecycle import State, Word
from batchq.store import Store
from tests.contract.conftest import Ground
from tests.contract.helpers import OUTCOMES, Q, a_job, enlist, listed, put, settle, take


def test_pause_stops_claims_and_nothing_else(store: Store, clock: Ground) -> None:
    """Enqueues, settling, promotion and cancel go on."""
    enlist(store)
    put(store, "a", "b", "c", "d", "e", "f")
    claims = take(store, want=5)
    store.pause(Q)
    assert store.stats(Q).paused is True
    for make, claim in zip(OUTCOMES.values(), claims, strict=True):
        assert settle(store, make(claim)) is Word.OK
    put(store, a_job("later", delay_ms=10_000), "g")
    assert store.cancel(Q, ["f"]) == [Word.CANCELLED]
    clock.advance(20_000)
    assert store.promote(Q).moved == 3
    assert sorted(listed(store, State.PENDING)) == ["b", "d", "e", "g", "later"]
    assert store.claim(Q, "w1", 5, 0).word is Word.PAUSED


def test_pause_can_be_repeated(store: Store) -> None:
    """Twice paused is paused; one resume ends it."""
    enlist(store)
    put(store, "a")
    store.pause(Q)
    store.pause(Q)
    assert store.claim(Q, "w1", 1, 0).word is Word.PAUSED
    store.resume(Q)
    assert store.claim(Q, "w1", 1, 0).word is Word.OK


def test_pause_is_of_one_queue(store: Store) -> None:
    """The others go on."""
    for queue in ("mail", "images"):
        enlist(store, queue=queue)
        put(store, "a", queue=queue)
    store.pause("mail")
    assert store.claim("mail", "w1", 1, 0).word is Word.PAUSED
    [claim] = take(store, queue="images")
    assert settle(store, Completed(claim), queue="images") is Word.OK


def test_queue_can_be_paused_before_its_first_job(store: Store) -> None:
    """A deploy pauses first and enqueues then. A pause makes no queue."""
    store.pause(Q)
    assert store.queues() == []
    enlist(store)
    put(store, "a")
    assert store.claim(Q, "w1", 1, 0).word is Word.PAUSED
    assert store.stats(Q).paused is True
