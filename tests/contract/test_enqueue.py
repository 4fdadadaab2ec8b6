"""enqueue: - -> pending or delayed."""

from __future__ import annotations

import threading

import orjson
import pytest

from batchq.clock import MAX_FIRE_MS
from batchq.errors import ConfigError, QueueFull
from batchq.job import Completed, Mark, new_id, pack_row
from batchq.lifecycle import State, Word
from batchq.store import Limits, Store
from tests.contract.conftest import Ground
from tests.contract.helpers import (
    DAY_MS,
    DRIFT_MS,
    OUTCOMES,
    Q,
    a_job,
    active,
    enlist,
    expire,
    listed,
    nonzero,
    put,
    read,
    settle,
    snapshot,
    stand,
    state_of,
    take,
    take_all,
    totals,
    wait_for,
)


def test_new_job_is_pending_and_reads_back_as_it_was_sent(store: Store) -> None:
    """What was enqueued can be read: handler, arguments, options, and when it came."""
    before = store.now_ms()
    row = pack_row("send", ["a", 1.5, None], {"to": "ü", "n": [1, {"x": []}]}, max_attempts=7)
    assert store.enqueue(Q, [a_job("a", row=row, priority=3)], Mark("lane", 1)) == [Word.OK]
    job = read(store, "a")
    assert (job.id, job.queue, job.job, job.state) == ("a", Q, "send", State.PENDING)
    assert (list(job.args), job.kwargs) == (["a", 1.5, None], {"to": "ü", "n": [1, {"x": []}]})
    assert (job.attempts, job.priority, job.max_attempts) == (0, 3, 7)
    assert (job.errors, job.reason, job.result, job.cancel) == ((), "", None, False)
    assert before <= job.enqueued_ms <= store.now_ms()
    assert nonzero(store) == {"enqueued": 1}


def test_call_without_a_mark_is_done(store: Store) -> None:
    """A mark is what makes a call repeatable; without one it is done all the same."""
    assert store.enqueue(Q, [a_job("a"), a_job("b")]) == [Word.OK, Word.OK]
    assert listed(store, State.PENDING) == ["a", "b"]


def test_no_jobs_get_no_words(store: Store) -> None:
    """An empty call is answered by an empty list."""
    assert store.enqueue(Q, []) == []


def test_id_that_stands_twice_in_a_batch_is_known_the_second_time(store: Store) -> None:
    """Words come in the order of the jobs, and a batch can collide with itself."""
    words = store.enqueue(Q, [a_job("a", 1), a_job("b"), a_job("a", 2)], Mark("lane", 1))
    assert words == [Word.OK, Word.OK, Word.KNOWN]
    assert list(read(store, "a").args) == [1]
    assert totals(store)["enqueued"] == 2


@pytest.mark.parametrize("state", [State.PENDING, State.DELAYED, State.ACTIVE, State.COMPLETED, State.DEAD])
def test_known_id_changes_nothing(store: Store, state: State) -> None:
    """Wherever the job stands, a second one of its id is refused and leaves no trace."""
    enlist(store)
    stand(store, state)
    before = snapshot(store)
    assert store.enqueue(Q, [a_job("a", "other", priority=9, delay_ms=5)], Mark("lane", 1)) == [Word.KNOWN]
    assert snapshot(store) == before


def test_known_id_does_not_hinder_its_neighbours(store: Store) -> None:
    """The new jobs of a batch go in, whatever the others are."""
    put(store, "b")
    assert store.enqueue(Q, [a_job("a"), a_job("b"), a_job("c")], Mark("lane", 1)) == [Word.OK, Word.KNOWN, Word.OK]
    assert listed(store, State.PENDING) == ["b", "a", "c"]


def test_same_id_on_another_queue_is_another_job(store: Store) -> None:
    """Ids are known by queue."""
    put(store, "a", queue="mail")
    put(store, "a", queue="images")
    assert listed(store, State.PENDING, queue="images") == ["a"]


def test_higher_priority_runs_first_and_equals_by_arrival(store: Store) -> None:
    """Order within a queue: by priority, then by arrival, over calls and within them."""
    put(store, a_job("p0a"), a_job("m5", priority=-5), a_job("p9", priority=9), a_job("p0b"))
    put(store, a_job("p100", priority=100), a_job("m100", priority=-100), a_job("p9b", priority=9), a_job("p0c"))
    order = ["p100", "p9", "p9b", "p0a", "p0b", "p0c", "m5", "m100"]
    assert listed(store, State.PENDING) == order
    enlist(store)
    assert [claim.id for claim in take(store, want=20)] == order


# -- delays ------------------------------------------------------------------------------------------------------


def test_delayed_job_fires_at_the_store_s_now_plus_its_delay(store: Store) -> None:
    """The store adds its own clock to a delay, and never rounds it down."""
    before = store.now_ms()
    put(store, a_job("a", delay_ms=90_000))
    job = read(store, "a")
    assert job.state is State.DELAYED
    assert before + 90_000 <= job.since_ms <= store.now_ms() + 90_001
    assert job.as_dict()["fire_ms"] == job.since_ms


@pytest.mark.parametrize("delay_ms", [0, -1, -86_400_000])
def test_delay_of_nothing_or_less_is_pending_at_once(store: Store, clock: Ground, delay_ms: int) -> None:
    """A negative delay means now."""
    put(store, a_job("a", delay_ms=delay_ms))
    assert state_of(store, "a") is State.PENDING
    clock.advance(0.3)  # Within a begun millisecond a fire-time is rounded up; what has no delay has none.
    put(store, a_job("b", delay_ms=delay_ms))
    assert state_of(store, "b") is State.PENDING


@pytest.mark.parametrize("fire_ms", [0, 1, 1_600_000_000_000, -5])
def test_past_fire_time_is_pending_at_once(store: Store, fire_ms: int) -> None:
    """What was due before it came is due."""
    put(store, a_job("a", fire_ms=fire_ms))
    assert state_of(store, "a") is State.PENDING


def test_fire_time_of_now_is_pending_at_once(store: Store) -> None:
    """Due means fire-time <= now."""
    put(store, a_job("a", fire_ms=store.now_ms()))
    assert state_of(store, "a") is State.PENDING


def test_absolute_fire_time_is_kept_to_the_millisecond(store: Store) -> None:
    """No rounding, no drift on the way to the store and back."""
    fire = store.now_ms() + 123_457
    put(store, a_job("a", fire_ms=fire))
    assert read(store, "a").since_ms == fire


def test_row_carries_the_store_s_times(store: Store, clock: Ground) -> None:
    """The store puts its now in front of the row, and the fire-time of a delayed job."""
    before = store.now_ms()
    fire = before + 50_000
    put(store, a_job("later", fire_ms=fire), a_job("now"))
    clock.advance(60_000)
    store.promote(Q)
    enlist(store)
    rows = {claim.id: orjson.loads(claim.row) for claim in take(store, want=2)}
    assert rows["later"]["at"] == fire
    assert "at" not in rows["now"]
    assert before <= rows["now"]["t"] == rows["later"]["t"] < before + DRIFT_MS


def test_jobs_of_one_millisecond_keep_the_order_of_their_arrival(store: Store, clock: Ground) -> None:
    """Not by id: z comes before a where it arrived before."""
    fire = store.now_ms() + 50_000
    ids = [f"{chr(122 - n % 26)}{n}" for n in range(60)]
    for start in range(0, 60, 7):
        put(store, *(a_job(id, fire_ms=fire) for id in ids[start : start + 7]))
    put(store, a_job("before", fire_ms=fire - 1), a_job("after", fire_ms=fire + 1))
    assert listed(store, State.DELAYED) == ["before", *ids, "after"]
    clock.advance(60_000)
    store.promote(Q)
    assert listed(store, State.PENDING) == ["before", *ids, "after"]


def test_more_than_4096_jobs_of_one_millisecond_keep_their_order(store: Store) -> None:
    """Generated ids are time-ordered: where the sequence is saturated, they keep the order of creation."""
    fire = store.now_ms() + 50_000
    ids = [new_id() for _ in range(4300)]
    for start in range(0, len(ids), 480):
        put(store, *(a_job(id, fire_ms=fire) for id in ids[start : start + 480]))
    assert listed(store, State.DELAYED) == ids


def test_latest_fire_time_is_taken_and_the_next_one_refused(store: Store) -> None:
    """A double is exact to 2^53: beyond 7 September 2039 an order can't be kept, so it is not promised."""
    put(store, a_job("last", fire_ms=MAX_FIRE_MS), a_job("before", fire_ms=MAX_FIRE_MS - 1))
    assert read(store, "last").since_ms == MAX_FIRE_MS
    assert listed(store, State.DELAYED) == ["before", "last"]
    with pytest.raises(ConfigError):
        store.enqueue(Q, [a_job("beyond", fire_ms=MAX_FIRE_MS + 1)])
    with pytest.raises(ConfigError):
        store.enqueue(Q, [a_job("beyond", delay_ms=MAX_FIRE_MS)])
    assert state_of(store, "beyond") is None


def test_refused_batch_leaves_nothing_behind(store: Store) -> None:
    """One bad job refuses the call whole, before anything is written: the corrected call takes the same mark."""
    put(store, "other")
    before = snapshot(store)
    with pytest.raises(ConfigError):
        store.enqueue(Q, [a_job("a"), a_job("beyond", fire_ms=MAX_FIRE_MS + 1)], Mark("lane", 1))
    assert snapshot(store) == before
    assert store.enqueue(Q, [a_job("a"), a_job("b")], Mark("lane", 1)) == [Word.OK, Word.OK]


# -- marks: calls can be repeated ----------------------------------------------------------------------------------


def test_call_sent_again_is_done_once(store: Store) -> None:
    """After a lost answer the same (lane, call) is sent again: it writes nothing, whatever it carries."""
    assert store.enqueue(Q, [a_job("a"), a_job("b")], Mark("lane", 1)) == [Word.OK, Word.OK]
    before = snapshot(store)
    assert store.enqueue(Q, [a_job("a"), a_job("c")], Mark("lane", 1)) == [Word.AGAIN, Word.AGAIN]
    assert snapshot(store) == before


def test_late_copy_of_an_older_call_does_nothing(store: Store) -> None:
    """A call overtaken by later ones on its lane was done before them."""
    for call in (1, 2, 5):
        assert store.enqueue(Q, [a_job(f"a{call}")], Mark("lane", call)) == [Word.OK]
    for call in (1, 2, 3, 4, 5):
        assert store.enqueue(Q, [a_job(f"late{call}")], Mark("lane", call)) == [Word.AGAIN]
    assert store.enqueue(Q, [a_job("a6")], Mark("lane", 6)) == [Word.OK]
    assert listed(store, State.PENDING) == ["a1", "a2", "a5", "a6"]


def test_other_lanes_and_queues_have_marks_of_their_own(store: Store) -> None:
    """A lane is one producer's: its numbers say nothing of another's."""
    assert store.enqueue(Q, [a_job("a")], Mark("lane", 7)) == [Word.OK]
    assert store.enqueue(Q, [a_job("b")], Mark("other", 1)) == [Word.OK]
    assert store.enqueue("images", [a_job("a")], Mark("lane", 7)) == [Word.OK]
    assert store.enqueue(Q, [a_job("a")], Mark("other", 2)) == [Word.KNOWN]


def test_mark_is_set_where_all_ids_were_known(store: Store) -> None:
    """A call that found only known ids was done: sent again it says so."""
    put(store, "a")
    assert store.enqueue(Q, [a_job("a")], Mark("lane", 1)) == [Word.KNOWN]
    assert store.enqueue(Q, [a_job("a")], Mark("lane", 1)) == [Word.AGAIN]


def test_call_sent_again_after_its_job_is_done_and_gone_runs_nothing(store: Store) -> None:
    """The mark outlives the job: a generated id is not remembered, the call is."""
    enlist(store)
    assert store.enqueue(Q, [a_job("a")], Mark("lane", 1)) == [Word.OK]
    [claim] = take(store)
    assert settle(store, Completed(claim)) is Word.OK
    assert store.enqueue(Q, [a_job("a")], Mark("lane", 1)) == [Word.AGAIN]
    assert state_of(store, "a") is None


def test_mark_is_forgotten_after_its_time(ground: Ground) -> None:
    """Marks are kept for mark_ttl, not for ever."""
    store = ground.open(Limits(mark_ttl_ms=50))
    assert store.enqueue(Q, [a_job("a")], Mark("lane", 1)) == [Word.OK]
    ground.advance(60_000)
    wait_for(lambda: store.enqueue(Q, [a_job("b")], Mark("lane", 1)) != [Word.AGAIN], "the mark is forgotten")
    assert listed(store, State.PENDING) == ["a", "b"]


# -- ids -----------------------------------------------------------------------------------------------------------


def test_generated_id_is_forgotten_with_its_job(store: Store) -> None:
    """The next life of such an id is a new job: its token begins at 1."""
    enlist(store)
    for _ in range(2):
        claim = active(store, "a")
        assert (claim.token, claim.attempt) == (1, 1)
        assert settle(store, Completed(claim)) is Word.OK


def end_by_completion(store: Store) -> None:
    assert settle(store, Completed(active(store, "a", given=True))) is Word.OK


def end_by_cancel_of_pending(store: Store) -> None:
    put(store, a_job("a", given=True))
    assert store.cancel(Q, ["a"]) == [Word.CANCELLED]


def end_by_cancel_of_delayed(store: Store) -> None:
    put(store, a_job("a", given=True, delay_ms=60_000))
    assert store.cancel(Q, ["a"]) == [Word.CANCELLED]


def end_by_mark(store: Store) -> None:
    claim = active(store, "a", given=True)
    assert store.cancel(Q, ["a"]) == [Word.MARKED]
    assert settle(store, OUTCOMES["release"](claim)) is Word.CANCELLED


def end_by_purge_of_pending(store: Store) -> None:
    put(store, a_job("a", given=True))
    assert store.purge(Q, State.PENDING, ["a"]) == 1


def end_by_purge_of_dead(store: Store) -> None:
    stand(store, State.DEAD, "a", given=True)
    assert store.purge(Q, State.DEAD, ["a"]) == 1


def end_by_purge_of_completed(store: Store) -> None:
    stand(store, State.COMPLETED, "a", given=True)
    assert store.purge(Q, State.COMPLETED, ["a"]) == 1


@pytest.mark.parametrize(
    "end",
    [
        end_by_completion,
        end_by_cancel_of_pending,
        end_by_cancel_of_delayed,
        end_by_mark,
        end_by_purge_of_pending,
        end_by_purge_of_dead,
        end_by_purge_of_completed,
    ],
)
def test_given_id_is_remembered_for_a_day_after_the_end(store: Store, clock: Ground, end) -> None:  # type: ignore[no-untyped-def]
    """A caller who sends the same id again within `remember` gets no second run, however the first one ended."""
    enlist(store)
    end(store)
    assert state_of(store, "a") is None
    clock.advance(DAY_MS - 60_000)
    store.promote(Q)
    before = snapshot(store)
    assert store.enqueue(Q, [a_job("a", given=True)], Mark("lane", 1)) == [Word.KNOWN]
    assert snapshot(store) == before
    clock.advance(120_000)
    store.promote(Q)
    assert store.enqueue(Q, [a_job("a", given=True)], Mark("lane", 2)) == [Word.OK]


def test_remember_is_a_limit_of_the_store(ground: Ground) -> None:
    """`remember` is what the store was told, counted from the end of the job, not from its enqueue."""
    store = ground.open(Limits(remember_ms=600_000))
    enlist(store)
    claim = active(store, "a", given=True)
    ground.advance(3_600_000)
    assert settle(store, Completed(claim)) is Word.OK
    ground.advance(540_000)
    assert store.enqueue(Q, [a_job("a", given=True)]) == [Word.KNOWN]
    ground.advance(120_000)
    store.promote(Q)
    assert store.enqueue(Q, [a_job("a", given=True)]) == [Word.OK]


def test_given_id_of_a_dead_job_is_known_as_long_as_it_stands(store: Store, clock: Ground) -> None:
    """A dead job's row names its id long after `remember`; purged, the id is forgotten after its time."""
    enlist(store)
    stand(store, State.DEAD, "a", given=True)
    clock.advance(3 * DAY_MS)
    store.promote(Q)
    assert store.enqueue(Q, [a_job("a", given=True)]) == [Word.KNOWN]


def end_dead(store: Store) -> State:
    stand(store, State.DEAD, "a", given=True)
    return State.DEAD


def end_completed(store: Store) -> State:
    assert settle(store, Completed(active(store, "a", given=True), b"1", 3 * DAY_MS)) is Word.OK
    return State.COMPLETED


@pytest.mark.parametrize("end", [end_dead, end_completed])
def test_given_id_outlives_the_row_of_a_finished_job(store: Store, clock: Ground, end) -> None:  # type: ignore[no-untyped-def]
    """Purged within a day of its end it is known for the rest of that day at least, and not for ever."""
    enlist(store)
    state = end(store)
    clock.advance(DAY_MS - 120_000)
    assert store.purge(Q, state, ["a"]) == 1
    clock.advance(60_000)
    store.promote(Q)
    assert store.enqueue(Q, [a_job("a", given=True)]) == [Word.KNOWN]
    clock.advance(DAY_MS)
    store.promote(Q)
    assert store.enqueue(Q, [a_job("a", given=True)]) == [Word.OK]


def test_given_id_is_remembered_past_a_shorter_retention(store: Store, clock: Ground) -> None:
    """The result is gone after an hour, the id is known for a day."""
    enlist(store)
    assert settle(store, Completed(active(store, "a", given=True), b"1", 3_600_000)) is Word.OK
    clock.advance(7_200_000)
    expire(store)
    assert state_of(store, "a") is None
    assert store.enqueue(Q, [a_job("a", given=True)]) == [Word.KNOWN]


@pytest.mark.parametrize("end", [end_dead, end_completed])
def test_given_id_requeued_after_days_is_remembered_from_its_new_end(store: Store, clock: Ground, end) -> None:  # type: ignore[no-untyped-def]
    """The sweeps in between forget nothing that still stands."""
    enlist(store)
    end(store)
    clock.advance(2 * DAY_MS)
    store.promote(Q)
    assert store.requeue(Q, ["a"]) == [Word.OK]
    store.promote(Q)
    [claim] = take(store)
    assert settle(store, Completed(claim)) is Word.OK
    store.promote(Q)
    assert store.enqueue(Q, [a_job("a", given=True)]) == [Word.KNOWN]
    clock.advance(DAY_MS + 60_000)
    store.promote(Q)
    assert store.enqueue(Q, [a_job("a", given=True)]) == [Word.OK]


def test_given_id_lives_again_by_requeue(store: Store) -> None:
    """A requeued job's id is remembered from its new end."""
    enlist(store)
    stand(store, State.DEAD, "a", given=True)
    assert store.requeue(Q, ["a"]) == [Word.OK]
    [claim] = take(store)
    assert settle(store, Completed(claim)) is Word.OK
    assert store.enqueue(Q, [a_job("a", given=True)]) == [Word.KNOWN]


# -- rows are opaque -----------------------------------------------------------------------------------------------

OPAQUE = [
    b'{"job":"send","args":[1e400,-0.0,1.0,0.1,1E5,123456789012345678901234567890,18446744073709551615]}',
    b'{"job":"send","args":[[],{},[[]],"",null],"kwargs":{}}',
    '{"job":"send","args":["ü€\U0001f40d","a\\u0000b","\\ud800","\\n\\\\"]}'.encode(),
    b'{"job":"send","args":["' + bytes(range(256)) + b'"]}',
    b'{ "job" : "send" , "zz": 1, "zz": 2 }',
    b'{"job":"send",\n\n"args":[\n\n{"a":\n\n1}]}\n\n',
    b'{"job":"send","x":"' + b"'; DROP TABLE job; --" + b'%s %d {} \\1"}',
]


@pytest.mark.parametrize("row", OPAQUE, ids=["numbers", "empty", "unicode", "bytes", "spaces", "lines", "quotes"])
@pytest.mark.parametrize("delay_ms", [0, 50_000])
def test_row_passes_unchanged(store: Store, clock: Ground, row: bytes, delay_ms: int) -> None:
    """No store reads a row: what it hands out is what it got, but for the times in front."""
    enlist(store)
    put(store, a_job("a", row=row, delay_ms=delay_ms))
    clock.advance(60_000)
    store.promote(Q)
    [claim] = take(store)
    assert claim.row.endswith(row[1:])
    stamp = claim.row[: -len(row) + 1]
    assert set(orjson.loads(stamp[:-1] + b"}")) == ({"t", "at"} if delay_ms else {"t"})
    assert settle(store, OUTCOMES["release"](claim)) is Word.OK
    [again] = take_all(store)
    assert again.row == claim.row
    assert settle(store, Completed(again)) is Word.OK


# -- a full queue ----------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_the_whole_call(store: Store) -> None:
    """No job of it is in, its mark is free, and the message says what stands against which limit."""
    put(store, "a", "b", a_job("high", priority=5))
    before = snapshot(store)
    with pytest.raises(QueueFull, match=rf"queue {Q}: 3 jobs are pending, max_pending is 4") as refused:
        store.enqueue(Q, [a_job("c"), a_job("d")], Mark("lane", 1), max_pending=4)
    assert refused.value.mark is None
    assert snapshot(store) == before
    assert store.enqueue(Q, [a_job("c")], Mark("lane", 1), max_pending=4) == [Word.OK]
    with pytest.raises(QueueFull):
        store.enqueue(Q, [a_job("d")], Mark("lane", 2), max_pending=4)


def test_what_was_done_before_is_no_matter_of_room(store: Store) -> None:
    """A call that is repeated answers `again`, a known id is known, whatever the queue holds."""
    assert store.enqueue(Q, [a_job("a"), a_job("b")], Mark("lane", 1), max_pending=2) == [Word.OK] * 2
    assert store.enqueue(Q, [a_job("a"), a_job("b")], Mark("lane", 1), max_pending=2) == [Word.AGAIN] * 2
    assert store.enqueue(Q, [a_job("a")], Mark("lane", 2), max_pending=2) == [Word.KNOWN]


def test_only_what_is_ready_needs_room(store: Store) -> None:
    """Delayed jobs and those at work are not pending; when one is claimed there is room for one."""
    put(store, "a", "b")
    assert store.enqueue(Q, [a_job("later", delay_ms=60_000)], Mark("x", 1), max_pending=2) == [Word.OK]
    with pytest.raises(QueueFull):
        store.enqueue(Q, [a_job("c")], Mark("x", 2), max_pending=2)
    enlist(store)
    take(store)
    assert store.enqueue(Q, [a_job("c")], Mark("x", 2), max_pending=2) == [Word.OK]


def test_a_call_larger_than_the_limit_waits_for_an_empty_queue(store: Store) -> None:
    """Else it would wait for ever."""
    put(store, "a")
    jobs = [a_job(f"b{n}") for n in range(5)]
    with pytest.raises(QueueFull):
        store.enqueue(Q, jobs, Mark("x", 1), max_pending=3)
    enlist(store)
    take(store)
    assert store.enqueue(Q, jobs, Mark("x", 1), max_pending=3) == [Word.OK] * 5


def test_two_producers_do_not_pass_the_limit_together(ground: Ground, store: Store) -> None:
    """The look and the enqueue are one step."""
    handles = [store, ground.another(store)]
    refused = []

    def produce(handle: Store, name: str) -> None:
        for n in range(30):
            try:
                handle.enqueue(Q, [a_job(f"{name}{n}")], Mark(name, n + 1), max_pending=25)
            except QueueFull:
                refused.append(name)

    threads = [threading.Thread(target=produce, args=(handle, f"p{n}")) for n, handle in enumerate(handles)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(listed(store, State.PENDING)) == 25
    assert len(refused) == 35
