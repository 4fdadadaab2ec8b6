"""purge: removes rows of a state, counted."""

from __future__ import annotations

import pytest

from batchq.job import Completed
from batchq.lifecycle import State, Word
from batchq.store import Store
from tests.contract.helpers import (
    Q,
    a_job,
    active,
    enlist,
    listed,
    nonzero,
    put,
    settle,
    snapshot,
    stand,
    take,
    totals,
)

STATES = [State.PENDING, State.DELAYED, State.COMPLETED, State.DEAD]


@pytest.mark.parametrize("state", STATES)
def test_purged_job_leaves_only_its_count(store: Store, state: State) -> None:
    """`purged` counts unfinished jobs only: a finished one is counted where it ended."""
    enlist(store)
    stand(store, state)
    before = totals(store)
    assert store.purge(Q, state, ["a"]) == 1
    assert store.get(Q, "a") is None
    unfinished = state in (State.PENDING, State.DELAYED)
    assert totals(store) == {**before, "purged": 1 if unfinished else 0}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    "named", [State.PENDING, State.DELAYED, State.ACTIVE, State.COMPLETED, State.DEAD, State.CANCELLED]
)
def test_only_jobs_of_the_named_state_are_purged(store: Store, state: State, named: State) -> None:
    """A job that moved on meanwhile is not caught by an old list."""
    if named is state:
        named = State.CANCELLED
    enlist(store)
    stand(store, state)
    before = snapshot(store)
    assert store.purge(Q, named, ["a"]) == 0
    assert snapshot(store) == before


def test_active_jobs_are_never_purged(store: Store) -> None:
    """They are their holder's: cancel them."""
    enlist(store)
    claim = active(store, "a")
    before = snapshot(store)
    for state in (*STATES, State.ACTIVE):
        assert store.purge(Q, state, ["a"]) == 0
    assert snapshot(store) == before
    assert settle(store, Completed(claim)) is Word.OK


def test_purge_counts_what_it_removed(store: Store) -> None:
    """Unknown ids and those named twice count once or not at all; the others keep their order."""
    put(store, *(a_job(f"a{n}", priority=n % 3) for n in range(9)))
    left = [id for id in listed(store, State.PENDING) if id not in ("a1", "a3", "a8")]
    assert store.purge(Q, State.PENDING, ["a3", "nobody", "a1", "a3", "a8"]) == 3
    assert listed(store, State.PENDING) == left
    assert totals(store)["purged"] == 3


def test_purged_id_is_as_new(store: Store) -> None:
    """A generated id enqueued again is a new job: its token begins at 1, its budgets are whole, no error is left."""
    enlist(store)
    stand(store, State.DEAD)
    assert store.purge(Q, State.DEAD, ["a"]) == 1
    claim = active(store, "a")
    assert (claim.token, claim.forgiven, claim.attempt) == (1, 0, 1)
    job = store.get(Q, "a")
    assert job is not None
    assert (job.errors, job.priority) == ((), 0)


def test_purged_priority_does_not_pass_on(store: Store) -> None:
    """Nor does the place of the old life."""
    put(store, a_job("a", priority=9), "b")
    store.purge(Q, State.PENDING, ["a"])
    put(store, "a")
    assert listed(store, State.PENDING) == ["b", "a"]


def test_more_ids_than_one_step_carries(store: Store) -> None:
    """A caller may name any number."""
    ids = [f"a{n}" for n in range(1100)]
    store.enqueue(Q, [a_job(id) for id in ids])
    assert store.purge(Q, State.PENDING, ids[:1050]) == 1050
    assert listed(store, State.PENDING) == ids[1050:]


def test_purge_of_nothing(store: Store) -> None:
    """No ids, nothing to count."""
    enlist(store)
    assert store.purge(Q, State.DEAD, []) == 0
    assert take(store) == []
    assert nonzero(store) == {}
