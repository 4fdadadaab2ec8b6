"""seal: a worker is declared gone for good; answers what it held."""

from __future__ import annotations

import pytest

from batchq.job import Completed, Sealed
from batchq.lifecycle import Word
from batchq.store import Store
from tests.contract.conftest import Ground
from tests.contract.helpers import (
    LEASE_MS,
    OUTCOMES,
    Q,
    active,
    enlist,
    put,
    retried,
    settle,
    snapshot,
    take,
    totals,
)


def test_seal_answers_the_claims_with_their_rows_and_counters(store: Store, clock: Ground) -> None:
    """The reaper computes delays and budgets from them."""
    enlist(store)
    assert settle(store, retried(active(store, "a"), cause="crashed")) is Word.OK
    clock.advance(20_000)
    put(store, "b")
    claims = take(store, want=5)
    sealed = store.seal(Q, "w1")
    assert sealed.word is Word.OK
    # Whoever reaps them looks at gates.
    assert sorted(sealed.claims) == sorted(claim._replace(gated=True) for claim in claims)
    by_id = {claim.id: claim for claim in sealed.claims}
    assert (by_id["a"].token, by_id["a"].crashes, by_id["b"].token) == (2, 1, 1)
    assert store.leases(Q).ends == {"w1": 0}


def test_sealed_worker_is_refused_everywhere(store: Store) -> None:
    """Renew, claim and register say so; nothing prolongs its lease again."""
    enlist(store)
    active(store, "a")
    store.seal(Q, "w1")
    assert store.renew(Q, ["w1"], LEASE_MS).words == (Word.SEALED,)
    assert store.claim(Q, "w1", 1, 1).word is Word.SEALED
    assert store.register(Q, "w1", LEASE_MS) is Word.SEALED
    assert store.leases(Q).ends == {"w1": 0}


def test_unknown_worker_can_t_be_sealed(store: Store) -> None:
    """No lease, no seal, and none is made."""
    assert store.seal(Q, "nobody") == Sealed(Word.UNKNOWN, ())
    assert store.leases(Q).ends == {}


def test_seal_with_the_lease_end_that_was_seen(store: Store, clock: Ground) -> None:
    """A reaper's look is checked again by the store: a lease renewed meanwhile stays."""
    enlist(store)
    claim = active(store, "a")
    seen = store.leases(Q).ends["w1"]
    clock.advance(5_000)
    store.renew(Q, ["w1"], LEASE_MS)
    before = snapshot(store)
    assert store.seal(Q, "w1", seen) == Sealed(Word.RENEWED, ())
    assert snapshot(store) == before
    assert store.seal(Q, "w1", store.leases(Q).ends["w1"]).claims == (claim._replace(gated=True),)


@pytest.mark.parametrize("expected", [True, False])
def test_seal_can_be_repeated(store: Store, expected: bool) -> None:
    """A reaper that died, or lost its answer, is followed by another: it gets what is still held."""
    enlist(store)
    put(store, "a", "b", "c")
    claims = take(store, want=3)
    seen = store.leases(Q).ends["w1"] if expected else None
    assert len(store.seal(Q, "w1", seen).claims) == 3
    assert settle(store, Completed(claims[1])) is Word.OK
    again = store.seal(Q, "w1", seen)
    assert again.word is Word.OK
    assert sorted(claim.id for claim in again.claims) == ["a", "c"]
    assert store.seal(Q, "w1", store.leases(Q).ends["w1"]).word is Word.OK


def test_reaped_counts_what_stood_there_at_the_first_seal(store: Store) -> None:
    """Repeating the seal counts nothing twice."""
    enlist(store)
    put(store, "a", "b")
    take(store, want=2)
    for _ in range(3):
        store.seal(Q, "w1")
    assert totals(store)["reaped"] == 2


@pytest.mark.parametrize("verb", OUTCOMES)
def test_claims_of_a_sealed_worker_can_be_settled_under_its_id(store: Store, verb: str) -> None:
    """What surely ran or surely did not goes the usual way; the tokens still decide."""
    enlist(store)
    claim = active(store, "a")
    store.seal(Q, "w1")
    assert settle(store, OUTCOMES[verb](claim)) is Word.OK
    assert store.seal(Q, "w1").claims == ()
    assert settle(store, OUTCOMES[verb](claim)) is Word.STALE


def test_seal_of_one_leaves_the_others(store: Store) -> None:
    """Other workers go on."""
    enlist(store, "w1")
    enlist(store, "w2")
    put(store, "a", "b")
    take(store, "w1")
    [claim] = take(store, "w2")
    store.seal(Q, "w1")
    assert settle(store, Completed(claim), "w2") is Word.OK
    assert store.renew(Q, ["w2"], LEASE_MS).words == (Word.OK,)
