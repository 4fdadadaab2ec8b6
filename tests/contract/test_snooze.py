"""snooze: active -> delayed. Not a failure: the attempt is forgiven."""

from __future__ import annotations

import pytest

from batchq.clock import MAX_FIRE_MS
from batchq.job import SNOOZE_MIN_MS, Snoozed
from batchq.lifecycle import State, Word
from batchq.store import Store
from tests.contract.conftest import Ground
from tests.contract.helpers import Q, active, enlist, listed, nonzero, put, read, settle, take


def test_snoozed_job_is_delayed_and_forgiven(store: Store, clock: Ground) -> None:
    """It comes back as the same attempt, under a new token."""
    enlist(store)
    claim = active(store, "a")
    before = store.now_ms()
    assert store.snooze(Q, "w1", [Snoozed(claim, 30_000)]) == [Word.OK]
    job = read(store, "a")
    assert (job.state, job.attempts, job.forgiven, job.attempt, job.errors) == (State.DELAYED, 1, 1, 0, ())
    assert before + 30_000 <= job.since_ms <= store.now_ms() + 30_001
    clock.advance(40_000)
    [claim] = take(store)
    assert (claim.token, claim.forgiven, claim.attempt) == (2, 1, 1)
    assert nonzero(store) == {"enqueued": 1, "snoozed": 1, "promoted": 1}


@pytest.mark.parametrize("delay_ms", [0, 1, 99, -5])
def test_snooze_is_at_least_100_ms(store: Store, delay_ms: int) -> None:
    """A handler that snoozes for nothing does not spin."""
    enlist(store)
    claim = active(store, "a")
    before = store.now_ms()
    assert settle(store, Snoozed(claim, delay_ms)) is Word.OK
    assert before + SNOOZE_MIN_MS <= read(store, "a").since_ms <= store.now_ms() + SNOOZE_MIN_MS + 1


def test_snooze_past_the_end_of_time_ends_there(store: Store) -> None:
    """An outcome is never refused for its delay."""
    enlist(store)
    assert settle(store, Snoozed(active(store, "a"), 10**15)) is Word.OK
    assert read(store, "a").since_ms == MAX_FIRE_MS


def test_snoozes_spend_no_budget_ever(store: Store, clock: Ground) -> None:
    """However often: the attempt stays the first."""
    enlist(store)
    claim = active(store, "a")
    for n in range(1, 21):
        assert settle(store, Snoozed(claim, 10_000)) is Word.OK
        clock.advance(20_000)
        [claim] = take(store)
        assert (claim.token, claim.attempt) == (n + 1, 1)


def test_marked_job_is_cancelled_instead(store: Store) -> None:
    """A cancel mark ends it."""
    enlist(store)
    put(store, "a", "b")
    one, two = take(store, want=2)
    store.cancel(Q, ["a"])
    assert store.snooze(Q, "w1", [Snoozed(one, 10_000), Snoozed(two, 10_000)]) == [Word.CANCELLED, Word.OK]
    assert listed(store, State.DELAYED) == ["b"]
    assert nonzero(store) == {"enqueued": 2, "snoozed": 1, "cancelled": 1}
