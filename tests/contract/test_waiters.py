"""Waiters: hints without polling. A hint too many costs an empty look, one too few costs idle_wait_s."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from batchq.job import Completed
from batchq.store import Store, Waiter
from tests.contract.conftest import Ground
from tests.contract.helpers import DEADLINE_S, OUTCOMES, Q, a_job, active, enlist, hinted, put, settle, take


def drained(waiter: Waiter) -> Waiter:
    """Armed, and no hint from before is left to be taken."""
    waiter.arm()
    while hinted(waiter, 0.05):
        waiter.arm()
    return waiter


@pytest.fixture
def wake(store: Store) -> Iterator[Waiter]:
    waiter = store.wake_waiter([Q])
    yield waiter
    waiter.close()


@pytest.fixture
def timer(store: Store) -> Iterator[Waiter]:
    waiter = store.timer_waiter([Q])
    yield waiter
    waiter.close()


def test_enqueue_wakes(store: Store, wake: Waiter) -> None:
    """New work is hinted to whoever waits."""
    drained(wake)
    put(store, "a")
    assert hinted(wake)


def test_hint_between_the_look_and_the_wait_is_not_lost(store: Store, wake: Waiter) -> None:
    """Armed, then looked, then waited: what comes after the look ends the wait at once."""
    enlist(store)
    wake.arm()
    assert take(store) == []
    put(store, "a")
    assert hinted(wake)


@pytest.mark.parametrize("move", ["promote", "release", "requeue", "resume"])
def test_every_move_that_makes_work_ready_wakes(store: Store, clock: Ground, wake: Waiter, move: str) -> None:
    """Not only enqueues do."""
    enlist(store)
    if move == "promote":
        put(store, a_job("a", delay_ms=10_000))
        clock.advance(20_000)
        drained(wake)
        assert store.promote(Q).moved == 1
    elif move == "release":
        claim = active(store, "a")
        drained(wake)
        settle(store, OUTCOMES["release"](claim))
    elif move == "requeue":
        settle(store, OUTCOMES["bury"](active(store, "a")))
        drained(wake)
        store.requeue(Q, ["a"])
    else:
        put(store, "a")
        store.pause(Q)
        drained(wake)
        store.resume(Q)
    assert hinted(wake)


def test_claim_that_leaves_something_wakes_the_next(store: Store, wake: Waiter) -> None:
    """Wake-ups chain: one hint for a batch is enough to bring up all workers."""
    enlist(store)
    put(store, *(f"a{n}" for n in range(5)))
    for _ in range(2):
        drained(wake)
        take(store, want=2)
        assert hinted(wake)


def test_sweep_repairs_a_lost_hint(store: Store, wake: Waiter) -> None:
    """Work is ready and no hint is under way: the sweep pushes one."""
    put(store, "a")
    drained(wake)
    store.promote(Q)
    assert hinted(wake)


def test_waiter_hears_all_its_queues(store: Store) -> None:
    """One wait spans the queues of a worker."""
    waiter = store.wake_waiter(["mail", "images", "reports"])
    try:
        drained(waiter)
        for queue in ("reports", "mail", "images"):
            put(store, f"in-{queue}", queue=queue)
            assert hinted(waiter), queue
            drained(waiter)
    finally:
        waiter.close()


def test_new_earliest_fire_time_rings_the_timer(store: Store, clock: Ground, timer: Waiter) -> None:
    """The master sleeps to the next fire-time; a job or a retry due before it ends the sleep."""
    enlist(store)
    claim = active(store, "r")
    snoozed = active(store, "s")
    reaped = active(store, "l")
    drained(timer)
    put(store, a_job("a", delay_ms=900_000))
    assert hinted(timer)
    drained(timer)
    put(store, a_job("b", delay_ms=600_000))
    assert hinted(timer)
    drained(timer)
    settle(store, OUTCOMES["retry"](claim)._replace(delay_ms=300_000))  # type: ignore[call-arg]
    assert hinted(timer)
    drained(timer)
    settle(store, OUTCOMES["snooze"](snoozed)._replace(delay_ms=100_000))  # type: ignore[call-arg]
    assert hinted(timer)
    settle(store, Completed(reaped))


def test_timer_hint_between_the_look_and_the_wait_is_not_lost(store: Store, timer: Waiter) -> None:
    """The master arms it, sweeps, and sleeps: a job scheduled after the sweep ends the sleep."""
    timer.arm()
    assert store.promote(Q).next_in_ms is None
    put(store, a_job("a", delay_ms=60_000))
    assert hinted(timer)


def test_timer_hears_all_its_queues(store: Store) -> None:
    """One wait spans the queues of a master."""
    waiter = store.timer_waiter(["mail", "images"])
    try:
        drained(waiter)
        for queue in ("images", "mail"):
            put(store, a_job("a", delay_ms=60_000), queue=queue)
            assert hinted(waiter), queue
            drained(waiter)
    finally:
        waiter.close()


def test_arm_does_nothing_while_armed(store: Store, wake: Waiter) -> None:
    """Its descriptor stays in the selector: armed twice, it waits once."""
    drained(wake)
    number = wake.fileno()
    wake.arm()
    assert wake.fileno() == number
    put(store, "a")
    assert hinted(wake)


def test_hint_from_another_thread_ends_the_wait(store: Store, wake: Waiter) -> None:
    """A waiter sleeps in a selector until somebody else enqueues."""
    drained(wake)
    ready = threading.Event()

    def produce() -> None:
        ready.wait()
        put(store, "a")

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        ready.set()
        assert hinted(wake)
    finally:
        producer.join()


def test_idle_workers_are_woken_by_a_chain(store: Store, ground: Ground) -> None:
    """Four idle workers, one enqueue of four: as each takes one, the next is woken; nobody is left asleep."""
    handles = [ground.another(store) for _ in range(4)]
    waiters = [handle.wake_waiter([Q]) for handle in handles]
    got: list[str] = []

    def serve(number: int) -> None:
        if hinted(waiters[number]):
            got.extend(claim.id for claim in take(handles[number], f"w{number}"))

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(4)]
    try:
        for number, waiter in enumerate(waiters):
            enlist(store, f"w{number}")
            drained(waiter)
        for thread in threads:
            thread.start()
        put(store, "a", "b", "c", "d")
        for thread in threads:
            thread.join(2 * DEADLINE_S)
        assert sorted(got) == ["a", "b", "c", "d"]
    finally:
        for waiter in waiters:
            waiter.close()


def test_closed_waiter_leaves_the_store_as_it_is(store: Store) -> None:
    """A worker that ends while it waits hinders nobody; closing twice is once."""
    waiter, other = store.wake_waiter([Q]), store.wake_waiter([Q])
    waiter.arm()
    waiter.close()
    waiter.close()
    drained(other)
    put(store, "a")
    assert hinted(other)
    other.close()
    put(store, "b")
