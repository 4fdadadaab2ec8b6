"""From a spool to Redis, each parcel exactly once: kills at every step, two at once, clocks, other people's files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from batchq.clock import ManualClock
from batchq.fallback.forward import Forwarder
from batchq.job import Completed, Mark, NewJob, new_id, pack_row, random_name
from batchq.lifecycle import State
from batchq.redis.store import RedisStore
from batchq.spool import SpoolStore, drop, inbox
from batchq.spool.parcel import address_of
from batchq.store import Ingested, Limits
from tests.servers import Server
from tests.unit.spool.helpers import a_job, end_at, fork, wait

Q = "mail"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

FORWARD = """
import sys
from batchq.fallback.forward import Forwarder
from batchq.redis.store import RedisStore
from batchq.store import Limits
Forwarder(RedisStore(sys.argv[1], prefix=sys.argv[2]), sys.argv[3], Limits()).sweep()
"""


def drain(store: RedisStore, spool: Path, **options: object) -> Ingested:
    """Forwards until nothing is left; answers the sum."""
    forwarder = Forwarder(store, spool, Limits(), **options)  # type: ignore[arg-type]
    files = jobs = bad = 0
    while (took := forwarder.sweep()).files or took.bad:
        files, jobs, bad = files + took.files, jobs + took.jobs, bad + took.bad
    return Ingested(files, jobs, bad)


def work_off(store: RedisStore, queue: str = Q) -> list[str]:
    """Claims and completes all that is pending, so that no trace of it is left."""
    worker = random_name()
    store.register(queue, worker, 60_000)
    done: list[str] = []
    while claims := store.claim(queue, worker, 100, 0).claims:
        store.complete(queue, worker, [Completed(claim) for claim in claims])
        done += [claim.id for claim in claims]
    return done


def put_three(spool: Path, store: RedisStore) -> list[str]:
    """Three parcels: a plain one, a large one of several calls, and one that may have been done (and was not)."""
    many = [(Q, a_job()) for _ in range(600)]
    drop(spool, [(Q, a_job("a")), ("other", a_job("b"))])
    drop(spool, many)
    drop(spool, [(Q, a_job("c"))], mark=Mark(random_name(), 4), maybe=True, to=address_of(store.destination))
    return ["a", "b", "c", *(job.id for _, job in many)]


@pytest.mark.parametrize("point", ["I1", "W1", "W2", "W3", "W5"])
@pytest.mark.parametrize("meanwhile", ["stands", "is gone"])
def test_forwarder_killed_at_any_point_forwards_each_job_once(
    redis_server: Server, prefix: str, store: RedisStore, spool: Path, point: str, meanwhile: str
) -> None:
    """The next one goes on; also where what was forwarded has been run and forgotten by then."""
    ids = put_three(spool, store)
    end_at(point, FORWARD, redis_server.url, prefix, str(spool))
    done = [*work_off(store), *work_off(store, "other")] if meanwhile == "is gone" else []
    drain(store, spool)
    assert inbox.census(spool) == inbox.Census(0, 0, 0)
    assert sorted([*done, *work_off(store), *work_off(store, "other")]) == sorted(ids)
    totals = [store.stats(queue).totals for queue in (Q, "other")]
    assert sum(one["forwarded"] for one in totals) == sum(one["enqueued"] for one in totals) == len(ids)


def test_two_forwarders_at_once_share_the_work(
    redis_server: Server, prefix: str, store: RedisStore, spool: Path
) -> None:
    """Masters of one host, and a producer: one at a time is at it, and none waits for another."""
    ids = {new_id() for _ in range(300)}
    for id in ids:
        drop(spool, [(Q, a_job(id))])

    def run() -> None:
        mine = RedisStore(redis_server.url, prefix=prefix)
        forwarder = Forwarder(mine, spool, Limits())
        while inbox.census(spool).files:
            forwarder.sweep(20, 20)

    children = [fork(run) for _ in range(3)]
    assert [wait(pid) for pid in children] == [0, 0, 0]
    assert store.stats(Q).totals["forwarded"] == 300
    assert set(work_off(store)) == ids


def test_forwarder_killed_by_signal_again_and_again_loses_and_doubles_nothing(
    redis_server: Server, prefix: str, store: RedisStore, spool: Path
) -> None:
    """kill -9 at instants that nobody chose."""
    import random
    import signal
    import time

    ids = []
    for _ in range(400):
        job = a_job()
        drop(spool, [(Q, job)])
        ids.append(job.id)
    dice = random.Random(7)

    def run() -> None:
        mine = RedisStore(redis_server.url, prefix=prefix)
        forwarder = Forwarder(mine, spool, Limits())
        while forwarder.sweep(7, 7).files:
            pass

    done: list[str] = []
    for _ in range(15):
        pid = fork(run)
        time.sleep(dice.uniform(0.005, 0.05))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        done += work_off(store)
    drain(store, spool)
    done += work_off(store)
    assert sorted(done) == sorted(ids)


def test_every_option_of_a_job_survives_the_way(store: RedisStore, spool: Path) -> None:
    """Priority, delays, dates, given ids; what is known already is not doubled."""
    row = pack_row("send", ["ä"], {"k": None}, max_attempts=9, timeout_ms=77, keep_ms=5)
    now = store.now_ms()
    store.enqueue(Q, [a_job("known", given=True)])
    drop(
        spool,
        [
            (Q, NewJob("plain", row)),
            (Q, NewJob("known", row, given=True)),
            (Q, NewJob("first", row, priority=100, given=True)),
            (Q, NewJob("late", row, delay_ms=HOUR_MS)),
            (Q, NewJob("dated", row, fire_ms=now + 2 * HOUR_MS)),
        ],
    )
    assert drain(store, spool) == Ingested(1, 5, 0)
    assert [job.id for job in store.jobs(Q, State.PENDING).jobs] == ["first", "known", "plain"]
    late, dated = store.jobs(Q, State.DELAYED).jobs
    assert (late.id, dated.id) == ("late", "dated")
    assert now + HOUR_MS <= late.since_ms < now + HOUR_MS + 5000
    assert dated.since_ms == now + 2 * HOUR_MS
    plain = store.get(Q, "plain")
    assert plain is not None
    assert (plain.args, plain.kwargs, plain.max_attempts) == (["ä"], {"k": None}, 9)
    assert store.stats(Q).totals["forwarded"] == 4


def test_delay_counts_from_the_call_and_goes_on_by_the_servers_clock(store: RedisStore, spool: Path) -> None:
    """This host's clock is two hours ahead of the server's. A delay does not care, a date is the server's."""
    host = ManualClock(store.now_ms() + 2 * HOUR_MS)
    now = store.now_ms()
    drop(spool, [(Q, a_job("in-an-hour", delay_ms=HOUR_MS)), (Q, a_job("dated", fire_ms=now + HOUR_MS))], clock=host)
    drop(spool, [(Q, a_job("in-ten", delay_ms=600_000))], clock=host)
    host.advance(1_800_000)
    drain(store, spool, clock=host)
    fires = {job.id: job.since_ms - now for job in store.jobs(Q, State.DELAYED).jobs}
    assert fires["in-an-hour"] == pytest.approx(HOUR_MS - 1_800_000, abs=5000)
    assert fires["dated"] == HOUR_MS
    assert [job.id for job in store.jobs(Q, State.PENDING).jobs] == ["in-ten"], "its time passed while it waited"


def test_copy_of_a_call_that_is_older_than_marks_goes_aside(store: RedisStore, spool: Path) -> None:
    """Nobody knows any more whether the call was done. A plain one may wait as long as it must."""
    clock = ManualClock(store.now_ms() - 8 * DAY_MS)
    drop(spool, [(Q, a_job("maybe"))], mark=Mark(random_name(), 1), maybe=True, clock=clock)
    drop(spool, [(Q, a_job("plain"))], clock=clock)
    drop(spool, [(Q, a_job("young"))], mark=Mark(random_name(), 1), maybe=True)
    assert drain(store, spool) == Ingested(2, 2, 1)
    assert {job.id for job in store.jobs(Q, State.PENDING).jobs} == {"plain", "young"}
    [why] = (spool / "inbox" / "bad").glob("*.why")
    assert "younger than marks are kept" in why.read_text()


def test_mark_on_more_lines_than_a_call_can_have_goes_aside(store: RedisStore, spool: Path) -> None:
    """The second step under the same mark would be taken for the first."""
    drop(spool, [(Q, a_job()) for _ in range(500)], mark=Mark("lane", 1))
    assert drain(store, spool) == Ingested(0, 0, 1)
    assert store.stats(Q).totals["enqueued"] == 0


def test_files_that_are_no_parcels_stop_nobody(store: RedisStore, spool: Path) -> None:
    """Moved aside with their reason, as in any spool."""
    drop(spool, [(Q, a_job("a"))])
    for name, text in (("x.json", "{"), ("y.json", '{"args":[]}')):
        path = spool / "inbox" / "new" / name
        path.write_text(text)
    drop(spool, [(Q, a_job("b"))])
    assert drain(store, spool) == Ingested(2, 2, 2)
    assert inbox.census(spool).bad == 2


def test_hand_made_file_is_forwarded(store: RedisStore, spool: Path) -> None:
    """Any program can enqueue by a file, whatever the store of this host."""
    drop(spool, [(Q, a_job())])
    line = {"job": "send", "queue": Q, "args": [1], "delay_ms": HOUR_MS}
    (spool / "inbox" / "new" / "job.json").write_text(json.dumps(line))
    assert drain(store, spool) == Ingested(2, 2, 0)
    [job] = store.jobs(Q, State.DELAYED).jobs
    assert job.args == [1]


def test_parcels_for_another_server_or_prefix_are_left_alone(
    redis_server: Server, store: RedisStore, spool: Path, prefix: str
) -> None:
    """Two programs that fall back to one spool: neither's jobs come to the other's server; by hand all can."""
    other = RedisStore(redis_server.url, prefix=f"{prefix}-other")
    drop(spool, [(Q, a_job("mine"))], to=address_of(store.destination))
    drop(spool, [(Q, a_job("theirs"))], to=address_of(other.destination))
    assert drain(store, spool) == Ingested(1, 1, 0)
    assert inbox.census(spool).files == 1
    assert drain(other, spool) == Ingested(1, 1, 0)
    drop(spool, [(Q, a_job("moved"))], to=address_of("old.example:6379/0 bq"))
    assert drain(store, spool) == Ingested()
    assert drain(store, spool, everything=True) == Ingested(1, 1, 0)
    other.close()


def test_spool_that_is_a_store_keeps_what_was_dropped_for_it(store: RedisStore, spool: Path) -> None:
    """One directory is the store of one program and the fallback of another."""
    ledger = SpoolStore(spool)
    ledger.enqueue(Q, [a_job("in-the-ledger")])
    drop(spool, [(Q, a_job("for-the-ledger"))])
    drop(spool, [(Q, a_job("for-redis"))], to=address_of(store.destination))
    assert drain(store, spool) == Ingested(1, 1, 0)
    assert ledger.sweep_inbox() == Ingested(1, 1, 0)
    assert [job.id for job in store.jobs(Q, State.PENDING).jobs] == ["for-redis"]
    assert {job.id for job in ledger.jobs(Q, State.PENDING).jobs} == {"in-the-ledger", "for-the-ledger"}
    ledger.close()


def test_nothing_overtakes_what_finds_its_queue_full(store: RedisStore, spool: Path) -> None:
    """Neither what would fit, nor what is for another queue; nor the rest of the same file."""
    store.enqueue(Q, [a_job(f"there-{n}") for n in range(3)])
    drop(spool, [("first", a_job("0"))])
    drop(spool, [(Q, a_job("1")), (Q, a_job("2")), ("other", a_job("x"))])
    drop(spool, [(Q, a_job("3"))])
    drop(spool, [("other", a_job("y"))])
    forwarder = Forwarder(store, spool, Limits(), max_pending=lambda queue: 4)
    assert forwarder.sweep() == Ingested(1, 1, 0)
    assert forwarder.sweep() == Ingested()
    assert work_off(store, "other") == []
    assert len(work_off(store)) == 3
    assert forwarder.sweep() == Ingested(3, 5, 0)
    assert work_off(store) == ["1", "2", "3"]
    assert work_off(store, "other") == ["x", "y"]
    assert inbox.census(spool) == inbox.Census(0, 0, 0)


def test_empty_or_missing_spool_is_left_as_it_is(store: RedisStore, spool: Path) -> None:
    """A master looks each second: it makes no directory that nobody needs."""
    assert drain(store, spool) == Ingested()
    assert not spool.exists()


def test_sweep_is_bounded(store: RedisStore, spool: Path) -> None:
    """Fresh work does not wait for a great heap."""
    for _ in range(30):
        drop(spool, [(Q, a_job())])
    forwarder = Forwarder(store, spool, Limits())
    assert forwarder.sweep(10, 1000) == Ingested(10, 10, 0)
    assert inbox.census(spool).files == 20
    assert drain(store, spool).files == 20
