"""The server is killed and comes back: with its data, without, loading, or under a script of somebody else's."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
import redis

from batchq.errors import StoreUnavailable
from batchq.job import NewJob, new_id, pack_row
from batchq.redis.store import RedisStore
from tests.outage.conftest import DURABLE
from tests.process.rig import Rig
from tests.servers import Server

Serve = Callable[..., Server]
RigOn = Callable[[Server], Rig]


def one_line_each(rig: Rig) -> None:
    """The outage was told once, and its end once, whatever the number of workers."""
    [pool] = rig.pools
    rig.until(lambda: pool.lines("store_back"), "the end of the outage is told")
    assert len(pool.lines("store_unavailable")) == len(pool.lines("store_back")) == 1, pool.log()
    assert not pool.lines("worker_died"), pool.log()
    assert not pool.lines("fenced"), pool.log()


@pytest.mark.parametrize("fsync", ["everysec", "always"])
def test_server_killed_under_load_comes_back_and_each_job_runs_once(serve: Serve, rig_on: RigOn, fsync: str) -> None:
    """What ended while it was away is settled when it is back, not run again."""
    server = serve("--appendonly", "yes", "--appendfsync", fsync)
    rig = rig_on(server)
    ids = rig.enqueue_many("work", [(0.002,)] * 300)
    rig.start(n=2, ready=False)
    for done in (50, 150):
        rig.until(lambda done=done: len(rig.ledger.ends()) >= done, f"{done} jobs ran")
        server.kill()
        server.start()
    rig.until_counts(done=300, pending=0, active=0, within=20)
    assert sorted(entry.job for entry in rig.ledger.starts()) == sorted(ids)
    stats = rig.stats()
    assert (stats.totals["fenced"], stats.totals["dead"], stats.totals["lost"]) == (0, 0, 0)
    assert not rig.pools[0].lines("worker_died")


def test_job_that_ends_while_the_server_is_away_is_settled_when_it_is_back(serve: Serve, rig_on: RigOn) -> None:
    """The worker keeps the outcome; the outage costs one line at its beginning and one at its end."""
    server = serve(*DURABLE)
    rig = rig_on(server)
    rig.start(n=3)
    job = rig.enqueue("work", 0.3)
    rig.until_started(job)
    server.kill()
    rig.until(lambda: rig.pools[0].lines("store_unavailable"), "the outage is seen")
    rig.until(lambda: rig.ledger.ends(job), "the job has ended")
    server.start()
    rig.until_counts(done=1, active=0)
    assert len(rig.ledger.starts(job)) == 1
    one_line_each(rig)


def test_server_that_comes_back_empty_gets_the_pool_anew(serve: Serve, rig_on: RigOn) -> None:
    """All data is lost: the workers take new ids and go on, without a restart and without waiting for a lease."""
    server = serve()
    rig = rig_on(server)
    pool = rig.start(n=2)
    rig.enqueue("work")
    rig.until_counts(done=1)
    server.kill()
    server.start()
    ids = rig.enqueue_many("work", [()] * 20)
    rig.until_counts(done=20, active=0, within=12)
    assert {entry.job for entry in rig.ledger.ends()} >= set(ids)
    rig.until(lambda: len(pool.registered("default")) == 2, "both are registered again")
    assert not pool.lines("worker_died")


def test_flush_under_a_busy_pool_leaves_nobody_stuck(serve: Serve, rig_on: RigOn) -> None:
    """FLUSHALL while jobs run: their outcomes have no place any more, new jobs are worked off at once."""
    server = serve()
    rig = rig_on(server)
    pool = rig.start(n=2)
    for job in [rig.enqueue("work", 0.2) for _ in range(2)]:
        rig.until_started(job)
    server.client.flushall()
    ids = rig.enqueue_many("work", [()] * 20)
    rig.until_counts(done=20, active=0, within=12)
    assert {entry.job for entry in rig.ledger.ends()} >= set(ids)
    assert not pool.lines("worker_died")


def test_scripts_that_are_flushed_again_and_again_are_loaded_again(serve: Serve, rig_on: RigOn) -> None:
    """SCRIPT FLUSH under load: each job runs once."""
    server = serve()
    rig = rig_on(server)
    ids = rig.enqueue_many("work", [(0.001,)] * 300)
    rig.start(n=2, ready=False)
    for done in range(20, 300, 20):
        rig.until(lambda done=done: len(rig.ledger.ends()) >= done, f"{done} jobs ran")
        server.client.script_flush()
    rig.until_counts(done=300, active=0)
    assert sorted(entry.job for entry in rig.ledger.starts()) == sorted(ids)
    assert rig.stats().totals["fenced"] == 0


def test_master_that_becomes_a_replica_is_an_outage_until_it_is_none(serve: Serve, rig_on: RigOn) -> None:
    """READONLY: reads are answered all the while, and still it is one outage, with one line for its end."""
    server = serve()
    rig = rig_on(server)
    pool = rig.start(n=2)
    job = rig.enqueue("work", 0.3)
    rig.until_started(job)
    server.client.replicaof("127.0.0.1", 1)
    rig.until(lambda: pool.lines("store_unavailable"), "the outage is seen")
    with pytest.raises(StoreUnavailable, match="READONLY"):
        rig.store.enqueue("default", [NewJob(new_id(), pack_row("work"))])
    rig.until(lambda: rig.ledger.ends(job), "the job has ended")
    server.client.replicaof("NO", "ONE")
    rig.until_counts(done=1, active=0)
    later = rig.enqueue("work")
    rig.until_counts(done=2, active=0)
    assert len(rig.ledger.starts(job)) == len(rig.ledger.starts(later)) == 1
    one_line_each(rig)


def test_server_that_loads_for_a_while_is_waited_for(serve: Serve, rig_on: RigOn) -> None:
    """LOADING is an answer, and no reason to give up."""
    server = serve("--appendonly", "yes")
    rig = rig_on(server)
    rig.start(n=2)
    rig.enqueue_many("work", [(0.001,)] * 100)
    rig.until_counts(done=100)
    # A server that loads looks at its clients every 1024 commands.
    with server.client.pipeline(transaction=False) as pipe:
        for n in range(8000):
            pipe.set(f"ballast:{n}", "")
        pipe.execute()
    ids = rig.enqueue_many("work", [()] * 5, delay_ms=10)
    server.kill()
    server.start("--key-load-delay", "100")
    rig.until_counts(done=105, active=0)
    assert {entry.job for entry in rig.ledger.ends()} >= set(ids)
    met = server.client.info("errorstats").get("errorstat_LOADING")
    assert met, "nobody met the server while it loaded"
    one_line_each(rig)


def test_server_that_is_busy_with_a_script_is_waited_for(serve: Serve, rig_on: RigOn) -> None:
    """BUSY: the pool stands until the script is killed, and nothing is lost meanwhile."""
    server = serve("--busy-reply-threshold", "50")
    rig = rig_on(server)
    pool = rig.start(n=2)
    job = rig.enqueue("work", 0.3)
    rig.until_started(job)

    def loop() -> None:
        with pytest.raises(redis.ResponseError):
            redis.Redis.from_url(server.url).eval("while true do end", 0)

    script = threading.Thread(target=loop)
    script.start()
    rig.until(lambda: pool.lines("store_unavailable"), "the outage is seen")
    rig.until(lambda: rig.ledger.ends(job), "the job has ended")
    server.client.script_kill()
    script.join(10)
    rig.until_counts(done=1, active=0)
    assert len(rig.ledger.starts(job)) == 1
    one_line_each(rig)


def test_server_that_hangs_is_noticed_and_its_late_work_doubles_nothing(serve: Serve, rig_on: RigOn) -> None:
    """SIGSTOP: requests pile up in its sockets, and it does them all when it goes on, long after their senders."""
    server = serve()
    rig = rig_on(server)
    pool = rig.start("--socket-timeout", "300ms", n=3)
    ids = rig.enqueue_many("work", [(0.01,)] * 100)
    rig.until(lambda: len(rig.ledger.ends()) >= 20, "20 jobs ran")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        rig.until(lambda: pool.lines("store_unavailable"), "the outage is seen", within=12)
        producer = RedisStore(server.url, prefix=rig.prefix, patience_s=0.3)
        with pytest.raises(StoreUnavailable) as away:
            producer.enqueue("default", [NewJob(new_id(), pack_row("work"))])
        assert away.value.maybe is False, "the connection was not even made"
        producer.close()
    finally:
        os.kill(server.pid, signal.SIGCONT)
    rig.until_counts(done=100, active=0, pending=0, within=15)
    assert sorted(entry.job for entry in rig.ledger.starts()) == sorted(ids)
    assert rig.stats().totals["fenced"] == 0
    one_line_each(rig)
