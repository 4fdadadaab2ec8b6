"""begin: a batch, and the jobs that join it."""

from __future__ import annotations

import orjson
import pytest

from batchq.errors import ConfigError
from batchq.job import Mark
from batchq.lifecycle import State, Word
from batchq.store import Store
from batchq.tally import BatchStats, NewBatch
from tests.contract.conftest import Ground
from tests.contract.helpers import (
    DAY_MS,
    DRIFT_MS,
    OUTCOMES,
    Q,
    a_job,
    enlist,
    listed,
    put,
    read,
    settle,
    snapshot,
    take,
)


def seen(store: Store, id: str = "b") -> BatchStats:
    batch = store.batch(Q, id)
    assert batch is not None, f"{id} is gone"
    return batch


def test_a_new_batch_counts_nothing_and_is_open(store: Store) -> None:
    """It stands from its beginning on, by the store's clock, and makes its queue known."""
    before = store.now_ms()
    assert store.begin(Q, NewBatch("b", 'night"ly\n\u00e9')) is Word.OK
    batch = seen(store)
    assert (batch.total, batch.pending, batch.closed, batch.finished) == (0, 0, False, False)
    assert batch.name == 'night"ly\n\u00e9'
    assert before <= batch.began_ms <= before + DRIFT_MS
    assert store.batches(Q) == [batch]
    assert store.batch(Q, "other") is None
    assert store.batch("other", "b") is None
    assert store.queues() == [Q]


def test_a_batch_that_stands_is_left_as_it_is(store: Store) -> None:
    """A call that is repeated changes nothing, whatever it says."""
    store.begin(Q, NewBatch("b", "first"))
    put(store, a_job("a", batch="b"))
    assert store.begin(Q, NewBatch("b", "second")) is Word.KNOWN
    assert (seen(store).name, seen(store).total) == ("first", 1)


def test_only_new_jobs_join(store: Store) -> None:
    """A known id, a call that was done before and the second of a call are not counted."""
    store.begin(Q, NewBatch("b"))
    put(store, "a")
    jobs = [a_job("a", batch="b"), a_job("c", batch="b"), a_job("c", batch="b"), a_job("d", batch="b", delay_ms=60_000)]
    assert store.enqueue(Q, jobs, Mark("lane", 1)) == [Word.KNOWN, Word.OK, Word.KNOWN, Word.OK]
    assert store.enqueue(Q, jobs, Mark("lane", 1)) == [Word.AGAIN] * 4
    assert (seen(store).total, seen(store).pending) == (2, 2)
    assert [read(store, id).batch for id in ("a", "c", "d")] == ["", "b", "b"]
    assert read(store, "c").as_dict()["batch"] == "b"
    assert "batch" not in read(store, "a").as_dict()


def test_a_batch_that_is_not_there_refuses_the_call(store: Store) -> None:
    """Nothing of it is written: not the other jobs, not the mark."""
    store.begin("other", NewBatch("b"))
    before = snapshot(store)
    with pytest.raises(ConfigError, match=f"batch b: expected one that is open in queue {Q}"):
        store.enqueue(Q, [a_job("a"), a_job("c", batch="b")], Mark("lane", 1))
    assert snapshot(store) == before
    assert store.enqueue(Q, [a_job("a")], Mark("lane", 1)) == [Word.OK]


def test_batches_are_forgotten_some_days_after_their_end(store: Store, clock: Ground) -> None:
    """Those in which something is pending stay; a dead job of a forgotten one can still be sent round."""
    for id in ("empty", "waits", "dead"):
        store.begin(Q, NewBatch(id))
    put(store, a_job("a", batch="dead"), a_job("c", batch="waits", delay_ms=30 * DAY_MS))
    enlist(store)
    [claim] = take(store)
    settle(store, OUTCOMES["bury"](claim))
    clock.advance(6.9 * DAY_MS)
    store.promote(Q)
    assert len(store.batches(Q)) == 3
    clock.advance(0.2 * DAY_MS)
    store.promote(Q)
    assert [batch.id for batch in store.batches(Q)] == ["waits"]
    assert store.requeue(Q, ["a"]) == [Word.OK]
    assert listed(store, State.PENDING) == ["a"]
    assert store.batch(Q, "dead") is None


def test_batches_are_listed_with_those_under_way_first(store: Store, clock: Ground) -> None:
    """Then by their end, the latest first; a part of them on request."""
    for n, id in enumerate(("b1", "b2", "b3", "b4")):
        clock.advance(5_000)
        store.begin(Q, NewBatch(id))
        if n % 2:
            put(store, a_job(f"a{n}", batch=id))
    assert [batch.id for batch in store.batches(Q)] == ["b4", "b2", "b3", "b1"]
    assert [batch.id for batch in store.batches(Q, skip=1, limit=2)] == ["b2", "b3"]


def test_many_jobs_of_many_batches_join_in_one_call(store: Store) -> None:
    """A full step, each job in another batch than its neighbour."""
    for n in range(7):
        store.begin(Q, NewBatch(f"b{n}"))
    put(store, *(a_job(f"a{n}", batch=f"b{n % 7}") for n in range(480)))
    counts = {batch.id: batch.total for batch in store.batches(Q)}
    assert counts == {f"b{n}": 480 // 7 + (n < 480 % 7) for n in range(7)}
    assert orjson.loads(orjson.dumps(seen(store, "b0").as_dict()))["pending"] == 69
