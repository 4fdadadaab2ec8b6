"""resume: claims go on."""

from __future__ import annotations

from batchq.lifecycle import State
from batchq.store import Store
from tests.contract.helpers import Q, a_job, enlist, hinted, listed, put, take


def test_claims_go_on_in_order(store: Store) -> None:
    """Nothing was lost or reordered while it stood."""
    enlist(store)
    put(store, "a", a_job("top", priority=1))
    store.pause(Q)
    put(store, "b", a_job("top2", priority=1))
    store.resume(Q)
    assert store.stats(Q).paused is False
    assert [claim.id for claim in take(store, want=5)] == ["top", "top2", "a", "b"]


def test_resume_wakes_idle_workers(store: Store) -> None:
    """They need not wait for the next enqueue."""
    put(store, "a")
    store.pause(Q)
    waiter = store.wake_waiter([Q])
    try:
        waiter.arm()
        while hinted(waiter, 0.05):  # Hints from before the pause.
            waiter.arm()
        store.resume(Q)
        assert hinted(waiter)
    finally:
        waiter.close()


def test_resume_of_a_running_queue_changes_nothing(store: Store) -> None:
    """It can be repeated, and come first."""
    store.resume(Q)
    put(store, "a")
    store.resume(Q)
    assert listed(store, State.PENDING) == ["a"]
    assert store.stats(Q).paused is False
