"""The reads: get, jobs, stats, leases, queues, info, and what masters publish."""

from __future__ import annotations

import pytest

from batchq.errors import ConfigError
from batchq.job import Completed, Page, Released
from batchq.lifecycle import COUNTED, TOTALS, State, Word
from batchq.store import Store
from tests.contract.conftest import Ground
from tests.contract.helpers import (
    DRIFT_MS,
    OUTCOMES,
    Q,
    a_job,
    active,
    enlist,
    listed,
    pages,
    put,
    read,
    settle,
    stand,
    state_of,
    take,
    wait_for,
)


def filled(store: Store, state: State, count: int) -> list[str]:
    """So many jobs in that state; returns the ids in the order of its list (active: in any)."""
    ids = [f"j{n:03}" for n in range(count)]
    if state is State.DELAYED:
        put(store, *(a_job(id, delay_ms=60_000 + n // 3) for n, id in enumerate(ids)))
        return ids
    put(store, *(a_job(id, priority=(n % 3) - 1) for n, id in enumerate(ids)))
    order = listed(store, State.PENDING)
    if state is State.PENDING:
        return order
    claims = {claim.id: claim for claim in take(store, want=count)}
    for n, id in enumerate(order):
        if state is State.DEAD:
            settle(store, OUTCOMES["bury"](claims[id]))
        elif state is State.COMPLETED:
            settle(store, Completed(claims[id], b"1", 600_000 + 1000 * n))
    return order


@pytest.mark.parametrize("state", COUNTED)
@pytest.mark.parametrize("limit", [1, 2, 7, 19, 20, 100])
def test_pages_hold_every_job_once(store: Store, state: State, limit: int) -> None:
    """Whatever the size of a page: no job twice, none missed, the order of the list, "" at the end."""
    enlist(store)
    ids = filled(store, state, 20)
    seen = [job.id for job in pages(store, state, limit=limit)]
    if state in (State.ACTIVE, State.DEAD):  # No order is promised within a worker, or within one millisecond.
        assert sorted(seen) == sorted(ids)
    else:
        assert seen == ids
    first = store.jobs(Q, state, limit=limit)
    assert len(first.jobs) <= max(limit, 1)
    assert all(job.state is state for job in first.jobs)


@pytest.mark.parametrize("state", COUNTED)
def test_empty_list_is_one_empty_page(store: Store, state: State) -> None:
    """Also of a queue that nobody has seen."""
    assert store.jobs("unseen", state) == Page((), "")


def test_jobs_that_stay_are_seen_while_others_move(store: Store, clock: Ground) -> None:
    """Between the pages jobs are claimed, released, cancelled and enqueued: none of those that stay is missed."""
    enlist(store)
    put(store, *(a_job(f"j{n:02}", priority=(n % 3) - 1) for n in range(40)))
    order = listed(store, State.PENDING)
    gone: list[str] = []

    def between() -> None:
        gone.extend(claim.id for claim in take(store, want=2))
        late = [id for id in order[-9:] if id not in gone][-1]
        store.cancel(Q, [late])
        gone.append(late)
        put(store, a_job(f"new{len(gone)}", priority=1), a_job(f"new{len(gone)}b", priority=-1))

    seen = [job.id for job in pages(store, State.PENDING, limit=5, between=between)]
    assert set(order) - set(gone) <= set(seen)


def test_delayed_that_stay_are_seen_while_others_are_promoted(store: Store, clock: Ground) -> None:
    """The head of the list is worked off under the reader's eyes."""
    now = store.now_ms()
    put(store, *(a_job(f"j{n:02}", fire_ms=now + 1_000_000 + n * 100_000) for n in range(30)))
    clock.advance(900_000)

    def between() -> None:
        clock.advance(100_000)
        store.promote(Q)

    seen = [job.id for job in pages(store, State.DELAYED, limit=4, between=between)]
    stayed = listed(store, State.DELAYED)
    assert stayed
    assert set(stayed) <= set(seen)


def test_dead_that_stay_are_seen_while_others_are_requeued(store: Store) -> None:
    """A requeue of what was read so far does not make the reader skip."""
    enlist(store)
    filled(store, State.DEAD, 30)
    read_so_far: list[str] = []
    cursor, rounds = "", 0
    while True:
        page = store.jobs(Q, State.DEAD, cursor=cursor, limit=4)
        ids = [job.id for job in page.jobs]
        read_so_far += ids
        assert set(store.requeue(Q, ids)) <= {Word.OK}
        cursor, rounds = page.cursor, rounds + 1
        if not cursor:
            break
        assert rounds < 100
    assert sorted(set(read_so_far)) == sorted(f"j{n:03}" for n in range(30))


@pytest.mark.parametrize("state", COUNTED)
@pytest.mark.parametrize("cursor", ["nonsense", "☃", "{}", "[1,2"])
def test_foreign_cursor_is_refused(store: Store, state: State, cursor: str) -> None:
    """A cursor is the store's own word, taken from the last page."""
    enlist(store)
    filled(store, state, 3)
    with pytest.raises(ConfigError):
        store.jobs(Q, state, cursor=cursor)


def test_active_jobs_name_their_worker(store: Store) -> None:
    """Who holds what, with its token; listed by worker."""
    for worker in ("w2", "w1", "w3"):
        enlist(store, worker)
    put(store, *(f"a{n}" for n in range(6)))
    for worker in ("w2", "w1", "w3"):
        take(store, worker, 2)
    jobs = list(pages(store, State.ACTIVE, limit=2))
    workers = [job.worker for job in jobs]
    assert sorted(workers) == ["w1", "w1", "w2", "w2", "w3", "w3"]
    assert len({tuple(workers[n : n + 2]) for n in (0, 2, 4)}) == 3
    assert {(job.id, job.worker) for job in jobs} >= {("a0", "w2"), ("a2", "w1"), ("a4", "w3")}


@pytest.mark.parametrize("state", COUNTED)
def test_get_and_jobs_say_the_same(store: Store, state: State) -> None:
    """One reading of a job, by id or by list."""
    enlist(store)
    stand(store, state)
    [job] = store.jobs(Q, state).jobs
    assert store.get(Q, "a") == job
    assert job.as_dict()["state"] == state.value


def test_unknown_job_is_none(store: Store) -> None:
    """Also on a queue where another job of that id stands elsewhere."""
    put(store, "a", queue="images")
    assert store.get(Q, "a") is None
    assert store.get("unseen", "a") is None


def test_queues_are_those_ever_enqueued_to(store: Store) -> None:
    """Sorted; registering, pausing or reading makes none; an empty queue stays."""
    assert store.queues() == []
    enlist(store, queue="only-a-worker")
    store.stats("only-read")
    for queue in ("b", "a-1", "A", "b"):
        store.enqueue(queue, [a_job()])
    assert store.queues() == ["A", "a-1", "b"]
    enlist(store, queue="A")
    settle(store, Completed(take(store, queue="A")[0]), queue="A")
    assert store.queues() == ["A", "a-1", "b"]


def test_stats_of_an_unseen_queue_are_zero(store: Store) -> None:
    """Every count and total is there, and 0."""
    stats = store.stats("unseen")
    assert stats.paused is False
    assert stats.counts == {state.value: 0 for state in COUNTED}
    assert stats.totals == dict.fromkeys(TOTALS, 0)
    assert stats.oldest_pending_age_ms == 0


def test_counts_follow_the_jobs(store: Store) -> None:
    """Jobs in each state now, priorities included."""
    enlist(store)
    stand(store, State.DEAD, "dead")
    stand(store, State.COMPLETED, "completed")
    stand(store, State.ACTIVE, "active")
    put(store, "p0", a_job("p5", priority=5), a_job("m5", priority=-5), a_job("d", delay_ms=60_000))
    assert store.stats(Q).counts == {"pending": 3, "delayed": 1, "active": 1, "completed": 1, "dead": 1}


def test_age_of_the_oldest_pending_job_grows(store: Store, clock: Ground) -> None:
    """How far the queue lags: 0 when nothing waits."""
    enlist(store)
    put(store, "a", a_job("later", delay_ms=900_000))
    clock.advance(30_000)
    put(store, "b")
    assert 30_000 <= store.stats(Q).oldest_pending_age_ms < 35_000
    claims = take(store, want=2)
    assert store.stats(Q).oldest_pending_age_ms == 0
    assert state_of(store, "later") is State.DELAYED
    store.complete(Q, "w1", [Completed(claim) for claim in claims])


def test_age_counts_from_when_a_job_was_first_ready(store: Store, clock: Ground) -> None:
    """Given back it is as old as before, also after a while in a worker's hands; a delayed one counts from its time."""
    enlist(store, lease_ms=900_000)
    put(store, "a")
    clock.advance(30_000)
    [claim] = take(store)
    clock.advance(60_000)
    assert settle(store, Released(claim)) is Word.OK
    assert 90_000 <= store.stats(Q).oldest_pending_age_ms < 90_000 + DRIFT_MS
    [claim] = take(store)
    settle(store, Completed(claim))
    put(store, a_job("b", delay_ms=10_000))
    clock.advance(30_000)
    store.promote(Q, 10)
    assert 20_000 - 10 <= store.stats(Q).oldest_pending_age_ms < 20_000 + DRIFT_MS
    store.complete(Q, "w1", [Completed(one) for one in take(store)])


def test_age_is_that_of_the_oldest_of_any_priority(store: Store, clock: Ground) -> None:
    """Young jobs that go first do not hide an old one that they keep waiting."""
    for place, priority in enumerate((-3, -2, 0, 4)):
        put(store, a_job(f"old{place}", priority=priority))
        clock.advance(50_000)
        put(store, *(a_job(f"young{place}.{level}", priority=level) for level in (-100, 3, 5, 100)))
        assert 50_000 <= store.stats(Q).oldest_pending_age_ms < 50_000 + DRIFT_MS
        store.purge(Q, State.PENDING, [job.id for job in store.jobs(Q, State.PENDING).jobs])


def test_clock_is_the_store_s(store: Store, clock: Ground) -> None:
    """It moves on, never back by itself, and enqueue stamps with it."""
    before = store.now_ms()
    clock.advance(3_600_000)
    after = store.now_ms()
    assert after - before >= 3_600_000
    put(store, "a")
    assert after <= read(store, "a").enqueued_ms <= store.now_ms()
    assert abs(store.leases(Q).now_ms - store.now_ms()) < 2_000


def test_info_names_the_store_without_a_password(store: Store, ground: Ground) -> None:
    """For status and logs."""
    info = store.info()
    assert info.kind == store.traits.kind
    assert info.url.startswith({"memory": "memory:", "spool": "spool:"}.get(ground.kind, "redis://"))
    assert info.version


def test_traits_tell_where_stores_differ(store: Store, ground: Ground) -> None:
    """The differences are declared, not found out."""
    expected = {"memory": ("memory", False, False), "spool": ("spool", True, True)}
    assert (store.traits.kind, store.traits.shared, store.traits.durable) == expected.get(
        ground.kind, ("redis", True, store.traits.durable)
    )
    assert 0 < store.traits.idle_wait_s <= 60


# -- masters -------------------------------------------------------------------------------------------------------


def test_masters_are_read_back_as_they_published(store: Store) -> None:
    """The last word of each master counts."""
    assert store.masters() == []
    store.publish("m1", {"pid": 1, "workers": [{"id": "ü", "running_ms": None}]}, 60_000)
    store.publish("m2", {"pid": 2}, 60_000)
    store.publish("m1", {"pid": 1, "workers": []}, 60_000)
    assert sorted(store.masters(), key=lambda status: int(status["pid"])) == [{"pid": 1, "workers": []}, {"pid": 2}]


def test_empty_status_takes_a_master_back(store: Store) -> None:
    """A master that ends well is not listed for the rest of its ttl."""
    store.publish("m1", {"pid": 1}, 60_000)
    store.publish("m2", {"pid": 2}, 60_000)
    store.publish("m1", {}, 60_000)
    assert store.masters() == [{"pid": 2}]
    store.publish("m1", {"pid": 1}, 60_000)
    assert len(store.masters()) == 2


def test_silent_master_is_forgotten(store: Store, clock: Ground) -> None:
    """Without a new word within its ttl a master is gone; the others stay."""
    store.publish("silent", {"pid": 1}, 50)
    store.publish("alive", {"pid": 2}, 3_600_000)
    clock.advance(60_000)
    wait_for(lambda: store.masters() == [{"pid": 2}], "the silent master is forgotten")


def test_fork_hooks_leave_the_store_usable(store: Store) -> None:
    """What a fork needs let go is opened again by itself."""
    enlist(store)
    claim = active(store, "a")
    store.before_fork()
    assert settle(store, Completed(claim)) is Word.OK
    store.before_fork()
    store.after_fork()
    put(store, "b")
    assert listed(store, State.PENDING) == ["b"]
