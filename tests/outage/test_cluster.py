"""Redis Cluster: every move, wake-ups, slots that move and nodes that fail while a pool works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchq import App, ConfigError
from batchq.errors import StoreError
from batchq.redis.dial import dialer_for
from batchq.redis.store import RedisStore
from batchq.spool import inbox
from tests.faults.drive import check, drive
from tests.outage.conftest import APP, documented_rights
from tests.process.rig import Rig, opened, until
from tests.servers import Server
from tests.topology import Cluster

RigOn = Callable[[Cluster], Rig]


@pytest.fixture(scope="module")
def clusters() -> Iterator[dict[str, Cluster]]:
    """One a flavour, made when it is first asked for."""
    made: dict[str, Cluster] = {}
    yield made
    for cluster in made.values():
        cluster.stop()


@pytest.fixture
def cluster(clusters: dict[str, Cluster], flavour: str) -> Cluster:
    """Shared: its nodes stay up."""
    if flavour not in clusters:
        clusters[flavour] = Cluster(flavour)
    return clusters[flavour]


@contextmanager
def pool_on(cluster: Cluster, folder: Path, prefix: str) -> Iterator[Rig]:
    with opened(folder, "redis", cluster.url, prefix) as rig:
        rig.app(APP)
        yield rig


def queues_apart(cluster: Cluster, prefix: str) -> list[str]:
    """A queue on each node."""
    found: dict[int, str] = {}
    for n in range(100):
        found.setdefault(cluster.owner(f"{prefix}:{{q{n}}}:rows").port, f"q{n}")
    assert len(found) == 3
    return list(found.values())


@contextmanager
def producing(rig: Rig, url: str) -> Iterator[list[str]]:
    """A producer at work meanwhile; the ids that it was given."""
    ids: list[str] = []
    done = threading.Event()

    def produce() -> None:
        spool = str(rig.folder / "fallback")
        with App(url, prefix=rig.prefix, spool=spool, fallback_ephemeral=True) as app:
            while not done.is_set():
                ids.append(app.enqueue("work").id)
                time.sleep(0.002)
            # What was spooled is forwarded by the calls that follow, and by the pool.

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        yield ids
    finally:
        done.set()
        producer.join(30)


def test_every_move_is_done_on_a_cluster(cluster: Cluster, prefix: str) -> None:
    """All that a queue has is in one slot; the registries are elsewhere."""
    store = RedisStore(cluster.url, prefix=prefix, patience_s=None)
    drive(store)
    check(store, "a cluster")
    assert store.queues() == ["mail"]
    store.publish("m1", {"id": "m1"}, 60_000)
    store.publish("m2", {"id": "m2"}, 60_000)
    assert {one["id"] for one in store.masters()} == {"m1", "m2"}
    store.close()


def test_documented_rights_are_enough_on_a_cluster(cluster: Cluster) -> None:
    """Those for one server, and the two that the docs name for a cluster."""
    for node in cluster.nodes:
        node.client.execute_command("ACL", "SETUSER", "batchq", *documented_rights(), "+cluster|slots", "+asking")
    store = RedisStore(cluster.url.replace("://", "://batchq:change-me@"), prefix="bq", patience_s=1.0)
    drive(store)
    check(store, "a cluster with the least rights")
    store.close()
    for node in cluster.nodes:
        node.client.flushall()


def test_idle_pool_is_roused_by_any_of_its_queues(cluster: Cluster, tmp_path: Path, prefix: str) -> None:
    """No blocking call spans the nodes: a job on each of three is begun at once, a delayed one on time."""
    queues = queues_apart(cluster, prefix)
    with pool_on(cluster, tmp_path, prefix) as rig:
        rig.start(*(arg for queue in queues for arg in ("-q", queue)), n=2, queue=queues[-1])
        late = []
        for turn in range(4):
            for queue in queues:
                began = time.monotonic_ns()
                job = rig.enqueue("work", queue=queue, delay_ms=200 if turn == 3 else 0)
                rig.until_started(job)
                rig.until_counts(queue, pending=0, active=0, delayed=0)
                late.append((rig.ledger.starts(job)[0].at_ns - began) / 1e6 - (200 if turn == 3 else 0))
        # The sweep that mends a lost hint comes once a second.
        assert sorted(late)[len(late) // 2] < 100, late
        assert min(late) >= 0, late


def until_refused(cluster: Cluster) -> None:
    """Until a call has met the slot on its way."""

    def refusals() -> int:
        found = [node.client.info("errorstats").get("errorstat_TRYAGAIN", {"count": 0}) for node in cluster.nodes]
        return sum(one["count"] for one in found)

    before = refusals()
    until(lambda: refusals() > before, "a call was refused while keys stand on two nodes")


def test_slot_that_moves_under_load_loses_and_doubles_nothing(cluster: Cluster, tmp_path: Path, prefix: str) -> None:
    """MOVED, ASK and TRYAGAIN while keys stand on both nodes; there and back again."""
    key = f"{prefix}:{{default}}:rows"
    with pool_on(cluster, tmp_path, prefix) as rig:
        pool = rig.start(n=2)
        home = cluster.owner(key)
        other = next(node for node in cluster.nodes if node is not home)
        with producing(rig, cluster.url) as ids:
            for to in (other, home):
                seen = len(ids) + 30
                rig.until(lambda seen=seen: len(ids) >= seen, "jobs are enqueued")
                cluster.move(key, to, lambda: until_refused(cluster))
        rig.until(lambda: len(rig.ledger.ends()) >= len(ids), "all have run", within=20)
        rig.until_counts(done=len(ids), pending=0, active=0)
        assert sorted(entry.job for entry in rig.ledger.starts()) == sorted(ids)
        assert rig.stats().totals["fenced"] == 0
        assert not pool.lines("worker_died")
        met = {name for node in cluster.nodes for name in node.client.info("errorstats")}
        assert {"errorstat_MOVED", "errorstat_ASK", "errorstat_TRYAGAIN"} <= met, met


@pytest.mark.slow
def test_node_that_fails_under_load_is_followed_to_its_replica(flavour: str, tmp_path: Path, prefix: str) -> None:
    """kill -9 of the primary of the pool's queue: nobody hangs, and the work goes on at its replica."""
    cluster = Cluster(flavour, replicas=1)
    try:
        with pool_on(cluster, tmp_path, prefix) as rig:
            pool = rig.start("--lease", "5s", n=2)
            with producing(rig, cluster.url) as ids:
                rig.until(lambda: len(rig.ledger.ends()) >= 50, "jobs ran")
                cluster.owner(f"{prefix}:{{default}}:rows").kill()
                rig.until(lambda: pool.lines("store_unavailable"), "the outage is seen")
                rig.until(lambda: pool.lines("store_back"), "it is over", within=20)
            rig.until(lambda: inbox_is_empty(rig), "the spool is empty")
            last = rig.enqueue("work")
            rig.until(lambda: rig.ledger.ends(last), "new jobs run")
            rig.until_counts(pending=0, active=0, delayed=0, within=30)
            starts = [entry.job for entry in rig.ledger.starts()]
            lost = set(ids) - set(starts)
            again = len(starts) - len(set(starts))
            # Replication is asynchronous: what was acknowledged in the last instants may be gone or run again.
            assert len(lost) <= 10, lost
            assert again <= 10
            assert len(pool.lines("store_unavailable")) == len(pool.lines("store_back"))
    finally:
        cluster.stop()


def inbox_is_empty(rig: Rig) -> bool:
    return inbox.census(rig.folder / "fallback").files == 0


def test_node_that_is_gone_is_passed_by(cluster: Cluster, prefix: str) -> None:
    """A node of the url that does not answer: the next one says who has which slot."""
    store = RedisStore(f"redis+cluster://127.0.0.1:1,127.0.0.1:{cluster.nodes[0].port}", prefix=prefix)
    assert store.queues() == []
    store.close()


def test_wrong_urls_of_clusters_are_refused() -> None:
    """A cluster has one database; a host must be there."""
    for url in ("redis+cluster://h:1/3", "redis+cluster://", "redis+cluster://h:port"):
        with pytest.raises(ConfigError, match="url: expected"):
            dialer_for(url, socket_timeout_s=1)


def test_server_that_is_a_node_says_how_to_name_a_cluster(cluster: Cluster, prefix: str) -> None:
    """A plain url at a node of a cluster."""
    store = RedisStore(other_than_owner(cluster, f"{prefix}:queues").url, prefix=prefix)
    with pytest.raises(StoreError, match=r"write redis\+cluster://HOST:PORT"):
        store.queues()
    store.close()


def other_than_owner(cluster: Cluster, key: str) -> Server:
    owner = cluster.owner(key)
    return next(node for node in cluster.nodes if node is not owner)
