"""reap: what a lost worker held is delayed, no attempt spent; its lease entry goes."""

from __future__ import annotations

from batchq.job import Completed, Released
from batchq.lifecycle import State, Word
from batchq.store import Store
from tests.contract.conftest import Ground
from tests.contract.helpers import (
    Q,
    a_job,
    active,
    enlist,
    listed,
    lost,
    nonzero,
    put,
    read,
    settle,
    snapshot,
    take,
    totals,
)


def test_lost_claim_is_delayed_and_spends_no_attempt(store: Store, clock: Ground) -> None:
    """Nobody knows whether it ran: it runs again, as the same attempt, and the loss is counted."""
    enlist(store, "w1")
    enlist(store, "w2")
    claim = active(store, "a")
    before = store.now_ms()
    store.seal(Q, "w1")
    assert store.reap(Q, "w1", [lost(claim, 30_000)]) == 0
    job = read(store, "a")
    assert (job.state, job.attempts, job.forgiven, job.lost, job.worker) == (State.DELAYED, 1, 1, 1, "")
    assert before + 30_000 <= job.since_ms <= store.now_ms() + 30_001
    assert [error["error"] for error in job.errors] == ["lease expired"]
    clock.advance(40_000)
    [claim] = take(store, "w2")
    assert (claim.token, claim.attempt, claim.lost, claim.crashes) == (2, 1, 1, 0)
    assert nonzero(store) == {"enqueued": 1, "reaped": 1, "lost": 1, "promoted": 1}


def test_lease_entry_goes_with_the_last_claim(store: Store) -> None:
    """As long as something is left, the sealed entry stays for the next sweep to find."""
    enlist(store)
    put(store, "a", "b", "c")
    claims = take(store, want=3)
    store.seal(Q, "w1")
    assert store.reap(Q, "w1", [lost(claims[0])]) == 2
    assert store.leases(Q).ends == {"w1": 0}
    assert store.reap(Q, "w1", []) == 2
    assert settle(store, Released(claims[1])) is Word.OK
    assert store.leases(Q).ends == {"w1": 0}
    assert store.reap(Q, "w1", [lost(claims[2])]) == 0
    assert store.leases(Q).ends == {}


def test_empty_worker_leaves_by_an_empty_reap(store: Store) -> None:
    """A worker that ends well is sealed and leaves no entry."""
    enlist(store)
    assert settle(store, Completed(active(store, "a"))) is Word.OK
    store.seal(Q, "w1")
    assert store.reap(Q, "w1", []) == 0
    assert store.leases(Q).ends == {}


def test_worker_that_is_not_sealed_is_not_reaped(store: Store) -> None:
    """First the seal, then the claims: otherwise the worker could renew in between."""
    enlist(store)
    claim = active(store, "a")
    before = snapshot(store)
    assert store.reap(Q, "w1", [lost(claim)]) == -1
    assert store.reap(Q, "nobody", [lost(claim)]) == -1
    assert snapshot(store) == before


def test_reap_repeated_moves_nothing_twice(store: Store) -> None:
    """Two reapers, or one that lost its answer: a claim is moved once."""
    enlist(store)
    put(store, "a", "b")
    one, two = take(store, want=2)
    store.seal(Q, "w1")
    assert store.reap(Q, "w1", [lost(one)]) == 1
    before = snapshot(store)
    assert store.reap(Q, "w1", [lost(one)]) == 1
    assert snapshot(store) == before
    assert store.reap(Q, "w1", [lost(two)]) == 0
    assert store.reap(Q, "w1", [lost(two)]) == -1
    assert [read(store, id).lost for id in ("a", "b")] == [1, 1]


def test_reap_leaves_what_is_held_under_another_token_or_worker(store: Store) -> None:
    """The reaper's list may be old: only current claims are moved."""
    enlist(store, "w1")
    enlist(store, "w2")
    old = active(store, "a", "w1")
    assert settle(store, Released(old)) is Word.OK
    [newer] = take(store, "w1")
    put(store, "b")
    [other] = take(store, "w2")
    store.seal(Q, "w1")
    assert store.reap(Q, "w1", [lost(old), lost(other)]) == 1
    assert sorted(listed(store, State.ACTIVE)) == ["a", "b"]
    assert settle(store, Completed(newer), "w1") is Word.OK


def test_job_lost_too_often_is_poison(store: Store, clock: Ground) -> None:
    """max_lost losses end it, also where no attempt was ever spent."""
    put(store, "a")
    for n in (1, 2, 3):
        enlist(store, f"w{n}")
        [claim] = take(store, f"w{n}")
        assert (claim.lost, claim.attempt) == (n - 1, 1)
        store.seal(Q, f"w{n}")
        assert store.reap(Q, f"w{n}", [lost(claim, max_lost=3)]) == 0
        clock.advance(20_000)
        store.promote(Q)
    job = read(store, "a")
    assert (job.state, job.reason, job.lost, job.attempts, job.attempt) == (State.DEAD, "poison", 3, 3, 0)
    assert nonzero(store) == {"enqueued": 1, "reaped": 3, "lost": 3, "promoted": 2, "dead": 1}


def test_marked_job_is_cancelled_instead(store: Store) -> None:
    """A cancel mark ends it: it is not delayed."""
    enlist(store)
    put(store, "a", "b")
    claims = take(store, want=2)
    store.cancel(Q, ["a"])
    store.seal(Q, "w1")
    assert store.reap(Q, "w1", [lost(claim) for claim in claims]) == 0
    assert store.get(Q, "a") is None
    assert listed(store, State.DELAYED) == ["b"]
    assert nonzero(store) == {"enqueued": 2, "reaped": 2, "lost": 1, "cancelled": 1}


def test_lost_jobs_keep_priority_and_order(store: Store, clock: Ground) -> None:
    """They come back as they stood, each at its level."""
    enlist(store, "w1")
    enlist(store, "w2")
    put(store, *(a_job(f"a{n}", priority=n % 2) for n in range(6)))
    claims = take(store, want=6)
    store.seal(Q, "w1")
    assert store.reap(Q, "w1", [lost(claim) for claim in claims]) == 0
    clock.advance(20_000)
    assert [claim.id for claim in take(store, "w2", 6)] == ["a1", "a3", "a5", "a0", "a2", "a4"]


def test_worker_of_many_claims_is_reaped_whole(store: Store) -> None:
    """More claims than one step carries."""
    enlist(store)
    ids = [f"a{n}" for n in range(600)]
    put(store, *ids[:480])
    put(store, *ids[480:])
    held = 0
    while got := store.claim(Q, "w1", 480, held).claims:
        held += len(got)
    sealed = store.seal(Q, "w1")
    assert len(sealed.claims) == 600
    assert store.reap(Q, "w1", [lost(claim) for claim in sealed.claims]) == 0
    assert sorted(listed(store, State.DELAYED)) == sorted(ids)
    assert store.leases(Q).ends == {}
    assert [totals(store)[name] for name in ("reaped", "lost")] == [600, 600]
