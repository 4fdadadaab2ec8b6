"""renew: the master prolongs its workers' leases and learns of cancel marks."""

from __future__ import annotations

from batchq.job import Completed, Renewal
from batchq.lifecycle import Word
from batchq.store import Store
from tests.contract.conftest import Ground
from tests.contract.helpers import DRIFT_MS, LEASE_MS, Q, active, enlist, put, settle, take


def test_lease_ends_one_lease_from_now(store: Store, clock: Ground) -> None:
    """Each worker of the call gets the same new end; the others keep theirs."""
    for worker in ("w1", "w2", "w3"):
        enlist(store, worker)
    old = store.leases(Q).ends["w3"]
    clock.advance(10_000)
    before = store.now_ms()
    assert store.renew(Q, ["w1", "w2"], LEASE_MS) == Renewal((Word.OK, Word.OK), ())
    leases = store.leases(Q)
    for worker in ("w1", "w2"):
        assert before + LEASE_MS <= leases.ends[worker] <= leases.now_ms + LEASE_MS + 1
    assert leases.ends["w3"] == old


def test_words_come_in_the_order_of_the_workers(store: Store) -> None:
    """A sealed or unknown worker is said to be so, and gets no lease by it."""
    enlist(store, "w1")
    enlist(store, "gone")
    active(store, "a", "gone")
    store.seal(Q, "gone")
    assert store.renew(Q, ["gone", "w1", "nobody"], LEASE_MS).words == (Word.SEALED, Word.OK, Word.UNKNOWN)
    assert store.leases(Q).ends["gone"] == 0
    assert "nobody" not in store.leases(Q).ends


def test_nobody_to_renew_gets_no_words(store: Store) -> None:
    """An empty call is answered by an empty one."""
    assert store.renew(Q, [], LEASE_MS) == Renewal((), ())


def test_expired_lease_can_be_renewed_until_it_is_sealed(store: Store, clock: Ground) -> None:
    """No clock decides alone: a late renewal in time before the seal keeps the claims."""
    enlist(store)
    claim = active(store, "a")
    clock.advance(10 * LEASE_MS)
    assert store.renew(Q, ["w1"], LEASE_MS).words == (Word.OK,)
    assert settle(store, Completed(claim)) is Word.OK


def test_cancel_marks_come_back_with_the_renewal(store: Store) -> None:
    """The master learns which of its workers' claims were cancelled: those and no others, until they end."""
    for worker in ("w1", "w2"):
        enlist(store, worker)
    put(store, "a", "b", "c")
    one, two = take(store, "w1", 2)
    [three] = take(store, "w2", 1)
    assert store.renew(Q, ["w1", "w2"], LEASE_MS).marks == ()
    assert store.cancel(Q, ["b", "c"]) == [Word.MARKED, Word.MARKED]
    assert store.renew(Q, ["w1"], LEASE_MS).marks == (("w1", "b", 1),)
    assert set(store.renew(Q, ["w1", "w2"], LEASE_MS).marks) == {("w1", "b", 1), ("w2", "c", 1)}
    assert settle(store, Completed(two)) is Word.OK
    assert store.renew(Q, ["w1", "w2"], LEASE_MS).marks == (("w2", "c", 1),)
    store.complete(Q, "w2", [Completed(three)])
    store.complete(Q, "w1", [Completed(one)])
    assert store.renew(Q, ["w1", "w2"], LEASE_MS).marks == ()


def test_lease_from_before_the_clock_went_back_is_cut(store: Store, clock: Ground) -> None:
    """A lease end further away than one lease would keep a dead worker's claims for as long as the clock jumped."""
    enlist(store, "w1")
    enlist(store, "gone")
    clock.advance(-3_600_000)
    assert store.leases(Q).ends["gone"] > store.now_ms() + 3_000_000
    store.renew(Q, ["w1"], LEASE_MS)
    leases = store.leases(Q)
    assert abs(leases.ends["gone"] - leases.now_ms - LEASE_MS) < DRIFT_MS
    assert abs(leases.ends["w1"] - leases.now_ms - LEASE_MS) < DRIFT_MS


def test_longer_lease_of_another_worker_is_not_cut(store: Store) -> None:
    """What is too far away is measured by the longest lease in use, not by the caller's."""
    enlist(store, "long", lease_ms=120_000)
    enlist(store, "w1")
    end = store.leases(Q).ends["long"]
    store.renew(Q, ["w1"], LEASE_MS)
    assert store.leases(Q).ends["long"] == end
