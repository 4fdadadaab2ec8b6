"""conclude: nothing more comes into a batch; what all moves count in it, and its callbacks."""

from __future__ import annotations

import pytest

from batchq.errors import ConfigError
from batchq.job import Buried, Claim, Completed, Lost, Released, pack_row
from batchq.lifecycle import State, Word
from batchq.store import Store
from batchq.tally import NewBatch, callback
from tests.contract.conftest import Ground
from tests.contract.helpers import (
    OUTCOMES,
    Q,
    a_job,
    an_error,
    enlist,
    hinted,
    listed,
    lost,
    nonzero,
    put,
    read,
    retried,
    settle,
    snapshot,
    take,
)
from tests.contract.test_begin import seen


def batch(store: Store, *ids: str, id: str = "b", name: str = "nightly", conclude: bool = True) -> list[Claim]:
    """A batch with both callbacks and these jobs, all claimed by w1."""
    heads = [callback(pack_row(word), id, name) for word in ("report", "cheer")]
    assert store.begin(Q, NewBatch(id, name, *heads)) is Word.OK
    if ids:
        put(store, *(a_job(job, batch=id) for job in ids))
    if conclude:
        assert store.conclude(Q, id) is Word.OK
    enlist(store)
    return take(store, want=len(ids)) if ids else []


def numbers(store: Store, id: str = "b") -> tuple[int, ...]:
    """total, pending, completed, dead, cancelled."""
    one = seen(store, id)
    return one.total, one.pending, one.completed, one.dead, one.cancelled


def test_both_callbacks_come_with_the_last_end(store: Store) -> None:
    """Once each, as jobs at the tail, with the counts of that instant."""
    first, second = batch(store, "a", "c")
    put(store, "other")
    settle(store, Completed(first))
    assert listed(store, State.PENDING) == ["other"]
    assert not seen(store).finished
    settle(store, Completed(second))
    assert listed(store, State.PENDING) == ["other", "b.complete", "b.success"]
    counts = {"id": "b", "name": "nightly", "total": 2, "completed": 2, "dead": 0, "cancelled": 0}
    job = read(store, "b.complete")
    assert (job.job, list(job.args), job.batch) == ("report", [counts], "")
    assert read(store, "b.success").job == "cheer"
    assert seen(store).finished
    assert seen(store).ended_ms is not None
    assert nonzero(store) == {"enqueued": 5, "completed": 2}


def test_a_callback_can_be_claimed_and_settled(store: Store) -> None:
    """It is a job like any other: its row can be read by a worker, and its end is counted in no batch."""
    [claim] = batch(store, "a")
    settle(store, Completed(claim))
    called = take(store, want=2)
    assert [one.id for one in called] == ["b.complete", "b.success"]
    assert all(settle(store, Completed(one)) is Word.OK for one in called)
    assert numbers(store) == (1, 0, 1, 0, 0)


def test_the_last_end_rouses_a_worker(store: Store) -> None:
    """The callbacks are work that became ready."""
    [claim] = batch(store, "a")
    waiter = store.wake_waiter([Q])
    try:
        waiter.arm()
        while hinted(waiter, 0.2):
            # Of the enqueue before.
            waiter.arm()
        settle(store, Completed(claim))
        assert hinted(waiter)
    finally:
        waiter.close()


def test_nothing_is_called_before_the_batch_is_concluded(store: Store) -> None:
    """While it is open more may come; with the conclusion it is due at once where all has ended."""
    [claim] = batch(store, "a", conclude=False)
    settle(store, Completed(claim))
    assert seen(store).pending == 0
    assert listed(store, State.PENDING) == []
    assert store.conclude(Q, "b") is Word.OK
    assert listed(store, State.PENDING) == ["b.complete", "b.success"]


def test_concluding_twice_changes_nothing(store: Store) -> None:
    """The call can be repeated, before and after the end."""
    [claim] = batch(store, "a")
    assert store.conclude(Q, "b") is Word.OK
    settle(store, Completed(claim))
    before = snapshot(store)
    assert store.conclude(Q, "b") is Word.OK
    assert snapshot(store) == before
    assert store.conclude(Q, "nobody's") is Word.UNKNOWN


def test_an_empty_batch_ends_with_its_conclusion(store: Store) -> None:
    """All of its jobs are completed: there are none."""
    batch(store)
    assert listed(store, State.PENDING) == ["b.complete", "b.success"]


@pytest.mark.parametrize("way", ["bury", "spent", "lost", "cancel", "marked", "purge"])
def test_without_success_there_is_no_success(store: Store, way: str) -> None:
    """The dead, the cancelled and the purged end a batch, but do not let it succeed."""
    good, bad = batch(store, "a", "c")
    settle(store, Completed(good))
    match way:
        case "bury":
            settle(store, Buried(bad, "buried", an_error()))
        case "spent":
            assert settle(store, retried(bad, max_attempts=1)) is Word.DEAD
        case "lost":
            store.seal(Q, "w1")
            assert store.reap(Q, "w1", [lost(bad, max_lost=1)]) == 0
        case "cancel":
            settle(store, Released(bad))
            assert store.cancel(Q, ["c"]) == [Word.CANCELLED]
        case "marked":
            store.cancel(Q, ["c"])
            assert settle(store, retried(bad)) is Word.CANCELLED
        case _:
            settle(store, retried(bad))
            assert store.purge(Q, State.DELAYED, ["c"]) == 1
    dead = way in ("bury", "spent", "lost")
    assert numbers(store) == (2, 0, 1, int(dead), int(not dead))
    assert listed(store, State.PENDING) == ["b.complete"]


@pytest.mark.parametrize("verb", ["retry", "snooze", "release"])
def test_what_comes_back_is_still_pending(store: Store, clock: Ground, verb: str) -> None:
    """However often an attempt ends without the job's end, nothing is counted."""
    [claim] = batch(store, "a")
    for _ in range(3):
        assert settle(store, OUTCOMES[verb](claim)) is Word.OK
        assert numbers(store) == (1, 1, 0, 0, 0)
        clock.advance(20_000)
        store.promote(Q)
        [claim] = take(store)
    assert settle(store, Completed(claim)) is Word.OK
    assert settle(store, Completed(claim), again=True) is Word.SETTLED
    assert settle(store, Completed(claim)) is Word.STALE
    assert numbers(store) == (1, 0, 1, 0, 0)
    assert listed(store, State.PENDING) == ["b.complete", "b.success"]


def test_a_reaped_job_counts_where_it_ends(store: Store, clock: Ground) -> None:
    """A claim that was lost with its worker leaves the job pending; the late outcome of it changes nothing."""
    [claim] = batch(store, "a")
    store.seal(Q, "w1")
    store.reap(Q, "w1", [Lost(claim, 10_000, 10, an_error())])
    assert numbers(store) == (1, 1, 0, 0, 0)
    assert settle(store, Completed(claim)) is Word.STALE
    clock.advance(20_000)
    store.promote(Q)
    enlist(store, "w2")
    [newer] = take(store, "w2")
    settle(store, Completed(newer), "w2")
    assert numbers(store) == (1, 0, 1, 0, 0)
    assert listed(store, State.PENDING) == ["b.complete", "b.success"]


def test_a_requeued_job_is_pending_once_more(store: Store) -> None:
    """Its count goes back. on_complete was called and is not called again; on_success comes when all are completed."""
    good, bad = batch(store, "a", "c")
    settle(store, Buried(bad, "buried", an_error()))
    settle(store, Completed(good))
    assert listed(store, State.PENDING) == ["b.complete"]
    ended = seen(store).ended_ms
    assert ended is not None
    assert store.requeue(Q, ["c"]) == [Word.OK]
    assert numbers(store) == (2, 1, 1, 0, 0)
    assert seen(store).ended_ms is None
    [called, again] = take(store, want=2)
    assert called.id == "b.complete"
    settle(store, Completed(called))
    settle(store, Completed(again))
    assert numbers(store) == (2, 0, 2, 0, 0)
    assert listed(store, State.PENDING) == ["b.success"]


def test_a_kept_job_that_is_requeued_calls_nothing_twice(store: Store) -> None:
    """A completed job runs again: the batch is under way once more, its callbacks have been."""
    [claim] = batch(store, "a")
    settle(store, Completed(claim, b"1", 3_600_000))
    called = take(store, want=2)
    for one in called:
        settle(store, Completed(one))
    assert read(store, "a").batch == "b"
    assert store.requeue(Q, ["a"]) == [Word.OK]
    assert numbers(store) == (1, 1, 0, 0, 0)
    [again] = take(store)
    settle(store, Completed(again, b"1", 3_600_000))
    assert numbers(store) == (1, 0, 1, 0, 0)
    assert listed(store, State.PENDING) == []


def test_purging_what_has_ended_counts_nothing(store: Store) -> None:
    """The dead and the kept stay counted when their rows go; the id is free then, and in no batch."""
    good, bad = batch(store, "a", "c")
    settle(store, Completed(good, b"1", 3_600_000))
    settle(store, Buried(bad, "buried", an_error()))
    store.purge(Q, State.COMPLETED, ["a"])
    store.purge(Q, State.DEAD, ["c"])
    assert numbers(store) == (2, 0, 1, 1, 0)
    put(store, "a", "c")
    assert [read(store, id).batch for id in ("a", "c")] == ["", ""]
    assert store.cancel(Q, ["a", "c"]) == [Word.CANCELLED] * 2
    assert numbers(store) == (2, 0, 1, 1, 0)


def test_a_row_that_is_gone_is_counted_as_cancelled(ground: Ground) -> None:
    """Damage from outside: the claim drops the id, and the batch does not wait for it for ever."""
    store = ground.open()
    batch(store, conclude=False)
    put(store, a_job("a", batch="b"))
    store.conclude(Q, "b")
    ground.lose_row(store, Q, "a")
    # The same claim may find the callback already.
    claims = take(store) or take(store)
    assert numbers(store) == (1, 0, 0, 0, 1)
    assert [claim.id for claim in claims] == ["b.complete"]


def test_jobs_of_a_concluded_batch_may_add_more(store: Store) -> None:
    """As long as something is pending in it; after its end nobody may."""
    [claim] = batch(store, "a")
    put(store, a_job("c", batch="b"))
    settle(store, Completed(claim))
    assert numbers(store) == (2, 1, 1, 0, 0)
    [claim] = take(store)
    settle(store, Completed(claim))
    with pytest.raises(ConfigError, match="it has ended"):
        store.enqueue(Q, [a_job("d", batch="b")])


def test_batches_that_end_in_one_call_are_all_called(store: Store) -> None:
    """Jobs of three batches and of none, ended in one exchange in several ways."""
    for name in ("x", "y", "z"):
        store.begin(Q, NewBatch(name, "", callback(pack_row("report"), name, "")))
        put(store, a_job(f"{name}1", batch=name), a_job(f"{name}2", batch=name))
        store.conclude(Q, name)
    put(store, "alone")
    enlist(store)
    claims = {claim.id: claim for claim in take(store, want=7)}
    outcomes = [
        Completed(claims["x1"]),
        Completed(claims["y1"]),
        Completed(claims["alone"]),
        Buried(claims["z1"], "buried", an_error()),
        Completed(claims["x2"]),
        retried(claims["z2"], max_attempts=1),
        Completed(claims["y2"], b"1", 60_000),
    ]
    answer = store.exchange(Q, "w1", outcomes, 0, 0)
    assert Word.STALE not in answer.words
    assert sorted(listed(store, State.PENDING)) == ["x.complete", "y.complete", "z.complete"]
    assert [numbers(store, name)[1:] for name in ("x", "y", "z")] == [(0, 2, 0, 0), (0, 2, 0, 0), (0, 0, 2, 0)]
