"""bury: active -> dead. An error that no retry can mend."""

from __future__ import annotations

import pytest

from batchq.job import Buried
from batchq.lifecycle import State, Word
from batchq.store import Store
from tests.contract.conftest import Ground
from tests.contract.helpers import (
    DAY_MS,
    Q,
    active,
    an_error,
    enlist,
    listed,
    nonzero,
    put,
    read,
    retried,
    settle,
    take,
)


@pytest.mark.parametrize("reason", ["buried", "no_handler", "a-word.of_its:own"])
def test_buried_job_is_dead_at_once_with_its_reason(store: Store, reason: str) -> None:
    """No budget is asked; the morgue keeps reason and error."""
    enlist(store)
    claim = active(store, "a")
    before = store.now_ms()
    assert store.bury(Q, "w1", [Buried(claim, reason, an_error("no mending"))]) == [Word.OK]
    job = read(store, "a")
    assert (job.state, job.reason, job.attempts, job.worker) == (State.DEAD, reason, 1, "")
    assert [error["error"] for error in job.errors] == ["no mending"]
    assert before <= job.since_ms <= store.now_ms()
    shown = job.as_dict()
    assert (shown["error"], shown["reason"], shown["died_ms"]) == ("no mending", reason, job.since_ms)
    assert nonzero(store) == {"enqueued": 1, "dead": 1}


def test_error_of_the_burial_stands_before_those_of_the_retries(store: Store, clock: Ground) -> None:
    """The newest error is the one that ended it."""
    enlist(store)
    settle(store, retried(active(store, "a"), error=an_error("first")))
    clock.advance(20_000)
    [claim] = take(store)
    assert settle(store, Buried(claim, "buried", an_error("second"))) is Word.OK
    assert [error["error"] for error in read(store, "a").errors] == ["second", "first"]


def test_dead_are_listed_by_their_time_of_death(store: Store, clock: Ground) -> None:
    """Whoever died first is first, however the id reads."""
    enlist(store)
    put(store, "c", "a", "b")
    for claim in take(store, want=3):
        assert settle(store, Buried(claim, "buried", an_error())) is Word.OK
        clock.advance(10_000)
    assert listed(store, State.DEAD) == ["c", "a", "b"]


def test_dead_stay_until_somebody_acts(store: Store, clock: Ground) -> None:
    """No sweep brings them back or removes them."""
    enlist(store)
    settle(store, Buried(active(store, "a"), "buried", an_error()))
    clock.advance(60 * DAY_MS)
    store.promote(Q)
    assert take(store, want=5) == []
    assert listed(store, State.DEAD) == ["a"]


def test_marked_job_is_cancelled_instead(store: Store) -> None:
    """A cancel mark ends it without a place in the morgue."""
    enlist(store)
    claim = active(store, "a")
    store.cancel(Q, ["a"])
    assert settle(store, Buried(claim, "buried", an_error())) is Word.CANCELLED
    assert store.get(Q, "a") is None
    assert nonzero(store) == {"enqueued": 1, "cancelled": 1}
