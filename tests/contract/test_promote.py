"""promote: delayed -> pending, what is due, in the order of fire-times."""

from __future__ import annotations

from batchq.job import Promoted
from batchq.lifecycle import State
from batchq.store import Limits, Store
from tests.contract.conftest import Ground
from tests.contract.helpers import DRIFT_MS, Q, a_job, active, enlist, listed, put, retried, stand, totals


def test_due_jobs_move_in_the_order_of_their_fire_times(store: Store, clock: Ground) -> None:
    """Not in the order of arrival; what is not due stays."""
    put(store, a_job("c", delay_ms=30_000), a_job("a", delay_ms=10_000), a_job("b", delay_ms=20_000))
    put(store, a_job("later", delay_ms=500_000), "ready")
    clock.advance(60_000)
    assert store.promote(Q).moved == 3
    assert listed(store, State.PENDING) == ["ready", "a", "b", "c"]
    assert listed(store, State.DELAYED) == ["later"]
    assert totals(store)["promoted"] == 3


def test_nothing_is_promoted_early(store: Store, clock: Ground) -> None:
    """Before the fire-time by the store's own clock nothing moves."""
    put(store, a_job("a", delay_ms=30_000))
    for _ in range(2):
        clock.advance(10_000)
        assert store.promote(Q).moved == 0
    clock.advance(20_000)
    assert store.promote(Q).moved == 1


def test_answer_tells_when_the_next_one_is_due(store: Store, clock: Ground) -> None:
    """The master sleeps to that, and for ever where none stands there."""
    assert store.promote(Q) == Promoted(0, None)
    put(store, a_job("a", delay_ms=30_000), a_job("b", delay_ms=90_000))
    next_in_ms = store.promote(Q).next_in_ms
    assert next_in_ms is not None
    assert 30_000 - DRIFT_MS < next_in_ms <= 30_001
    clock.advance(60_000)
    moved, next_in_ms = store.promote(Q)
    assert moved == 1
    assert next_in_ms is not None
    assert 30_000 - DRIFT_MS < next_in_ms <= 30_001
    clock.advance(60_000)
    assert store.promote(Q) == Promoted(1, None)


def test_limit_moves_the_earliest_and_says_that_more_are_due(store: Store, clock: Ground) -> None:
    """A sweep is bounded; full, it is repeated at once."""
    now = store.now_ms()
    put(store, *(a_job(f"a{n}", fire_ms=now + 10_000 + n) for n in range(25)))
    clock.advance(60_000)
    for moved in (10, 10, 5):
        answer = store.promote(Q, 10)
        assert answer.moved == moved
        assert answer.next_in_ms is None or answer.next_in_ms <= 0
    assert listed(store, State.PENDING) == [f"a{n}" for n in range(25)]


def test_promoted_jobs_go_to_the_tail_of_their_priority(store: Store, clock: Ground) -> None:
    """Behind what was ready before, each at its own level, also where the limit cuts between them."""
    now = store.now_ms()
    levels = [0, 5, -5, 5, 0, -5, 0, 5]
    put(store, *(a_job(f"d{n}", priority=p, fire_ms=now + 10_000 + n) for n, p in enumerate(levels)))
    put(store, a_job("r5", priority=5), a_job("r0"), a_job("m5", priority=-5))
    clock.advance(60_000)
    while store.promote(Q, 3).moved:
        pass
    assert listed(store, State.PENDING) == ["r5", "d1", "d3", "d7", "r0", "d0", "d4", "d6", "m5", "d2", "d5"]


def test_default_limit_is_a_thousand(store: Store, clock: Ground) -> None:
    """More than one script's worth is moved by repeating the call, none lost, none twice."""
    ids = [f"a{n}" for n in range(1300)]
    for start in range(0, 1300, 480):
        put(store, *(a_job(id, delay_ms=10_000) for id in ids[start : start + 480]))
    clock.advance(20_000)
    assert [store.promote(Q).moved for _ in range(3)] == [1000, 300, 0]
    assert listed(store, State.PENDING) == ids


def test_paused_queue_is_promoted(store: Store, clock: Ground) -> None:
    """A pause stops claims only: what is due becomes ready."""
    put(store, a_job("a", delay_ms=10_000))
    store.pause(Q)
    clock.advance(20_000)
    assert store.promote(Q).moved == 1


def test_retries_and_schedules_are_promoted_alike(store: Store, clock: Ground) -> None:
    """Nothing distinguishes the two."""
    enlist(store)
    settled = [active(store, id) for id in ("r1", "r2")]
    store.retry(Q, "w1", [retried(settled[0], 10_000)])
    put(store, a_job("s1", delay_ms=20_000))
    store.retry(Q, "w1", [retried(settled[1], 30_000)])
    clock.advance(60_000)
    assert store.promote(Q).moved == 3
    assert listed(store, State.PENDING) == ["r1", "s1", "r2"]


def test_promote_forgets_given_ids_whose_time_is_over(ground: Ground) -> None:
    """The sweep keeps the memory of ids bounded: afterwards the id is as new."""
    store = ground.open(Limits(remember_ms=60_000))
    enlist(store)
    stand(store, State.PENDING, "a", given=True)
    assert store.purge(Q, State.PENDING, ["a"]) == 1
    ground.advance(120_000)
    store.promote(Q)
    put(store, a_job("a", given=True))


def test_other_queues_are_left_alone(store: Store, clock: Ground) -> None:
    """A sweep is of one queue."""
    put(store, a_job("a", delay_ms=10_000), queue="mail")
    put(store, a_job("a", delay_ms=10_000), queue="images")
    clock.advance(20_000)
    assert store.promote("mail").moved == 1
    assert listed(store, State.DELAYED, queue="images") == ["a"]
