"""register: a worker's lease begins; always under a new id."""

from __future__ import annotations

from batchq.lifecycle import Word
from batchq.store import Store
from tests.contract.conftest import Ground
from tests.contract.helpers import DRIFT_MS, LEASE_MS, Q, active, enlist, lost, put


def test_lease_begins_at_the_store_s_now(store: Store) -> None:
    """The lease ends one lease from now, by the store's clock."""
    before = store.now_ms()
    assert store.register(Q, "w1", LEASE_MS) is Word.OK
    leases = store.leases(Q)
    assert set(leases.ends) == {"w1"}
    assert before + LEASE_MS <= leases.ends["w1"] <= leases.now_ms + LEASE_MS + 1


def test_register_can_be_sent_again(store: Store, clock: Ground) -> None:
    """After a lost answer the same worker registers again: one lease, from then on."""
    enlist(store)
    clock.advance(10_000)
    assert store.register(Q, "w1", LEASE_MS) is Word.OK
    leases = store.leases(Q)
    assert abs(leases.ends["w1"] - leases.now_ms - LEASE_MS) < DRIFT_MS


def test_sealed_worker_can_t_come_back(store: Store) -> None:
    """An id that was declared gone is used up."""
    enlist(store)
    active(store, "a")
    assert store.seal(Q, "w1").word is Word.OK
    assert store.register(Q, "w1", LEASE_MS) is Word.SEALED
    assert store.leases(Q).ends == {"w1": 0}


def test_leases_are_the_queue_s_own(store: Store) -> None:
    """A worker of one queue is unknown on another, and sealed only where it was sealed."""
    enlist(store, queue="mail")
    put(store, "a", queue="images")
    assert store.claim("images", "w1", 1, 0).word is Word.UNKNOWN
    enlist(store, queue="images")
    store.seal("mail", "w1")
    assert store.claim("images", "w1", 1, 0).word is Word.OK


def test_lease_is_no_job(store: Store) -> None:
    """Registering and leaving moves no job and is no total."""
    enlist(store)
    assert not any(store.stats(Q).totals.values())
    assert store.seal(Q, "w1").claims == ()
    assert store.reap(Q, "w1", []) == 0
    assert not any(store.stats(Q).totals.values())
    assert store.leases(Q).ends == {}


def test_new_worker_takes_over(store: Store) -> None:
    """After a reap the jobs are another worker's, under a new id."""
    enlist(store)
    claim = active(store, "a")
    store.seal(Q, "w1")
    assert store.reap(Q, "w1", [lost(claim)]) == 0
    assert store.register(Q, "w2", LEASE_MS) is Word.OK
