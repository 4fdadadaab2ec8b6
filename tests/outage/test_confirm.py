"""What was forwarded stands in the spool until the server is known to keep it. With `ordered` nothing overtakes it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchq import App
from batchq.clock import ManualClock
from batchq.config import load
from batchq.errors import SpoolError, StoreUnavailable
from batchq.fallback.forward import Forwarder
from batchq.job import NewJob, new_id, pack_row, random_name
from batchq.lifecycle import State
from batchq.redis.connect import PROBE_WAIT_S
from batchq.redis.store import RedisStore
from batchq.redis.sync import Confirm
from batchq.spool import drop, fs, inbox
from batchq.spool.parcel import address_of
from batchq.store import Concern, Ingested, Limits
from batchq.stores import attach_inbox
from tests.faults.proxy import Proxy
from tests.outage.test_cluster import queues_apart
from tests.outage.test_forward import work_off
from tests.process.rig import let_pass
from tests.servers import Server
from tests.topology import Cluster
from tests.unit.spool.helpers import Q, a_job, wait_for

AOF = ("--appendonly", "yes")
#: Written at once, and synced when the kernel likes: between the reply and the disk for as long as a test wants.
UNSYNCED = (*AOF, "--appendfsync", "no")
SYNCED = ("--appendfsync", "always")


@pytest.fixture
def valkey() -> Iterator[Callable[..., Server]]:
    """Starts a Valkey, which knows WAITAOF, with these options; it ends with the test."""
    running: list[Server] = []

    def start(*options: str) -> Server:
        running.append(Server("valkey", *options))
        return running[-1]

    yield start
    for server in running:
        server.stop()


def forwarder_to(server: Server, spool: Path, confirm: Confirm, stands_s: float = 0.0) -> Forwarder:
    return Forwarder(RedisStore(server.url, prefix="c"), spool, Limits(), confirm=confirm, stands_s=stands_s)


def drop_some(spool: Path, *ids: str) -> list[str]:
    for id in ids:
        drop(spool, [(Q, a_job(id, given=True))])
    return sorted(ids)


def sent(spool: Path) -> list[str]:
    return fs.names(str(spool / "inbox" / "sent"))


def forward_all(forwarder: Forwarder) -> None:
    def is_empty() -> bool:
        forwarder.sweep()
        return not forwarder.waiting() + forwarder.unconfirmed()

    wait_for(is_empty, "all is forwarded and confirmed")


def cut_power(server: Server, kept: int) -> None:
    """The server is gone, and of its log what was not synced; then it is there again, and syncs."""
    server.kill()
    [log] = Path(server.folder).glob("appendonlydir/*.incr.aof")
    assert log.stat().st_size > kept, "something was written that is lost now"
    os.truncate(log, kept)
    server.start(*SYNCED)


def written(server: Server) -> int:
    [log] = Path(server.folder).glob("appendonlydir/*.incr.aof")
    return log.stat().st_size


@pytest.mark.parametrize("confirm", ["waitaof", "grace", "reply"])
def test_what_a_server_lost_between_its_reply_and_its_disk_is_sent_again(
    valkey: Callable[..., Server], spool: Path, confirm: Confirm
) -> None:
    """With `reply` it is lost like all that the server had acknowledged."""
    server = valkey(*UNSYNCED)
    ids = drop_some(spool, "a", "b")
    before = written(server)
    assert forwarder_to(server, spool, confirm, stands_s=60.0).sweep() == Ingested(2, 2, 0)
    store = RedisStore(server.url, prefix="c")
    assert store.stats(Q).counts["pending"] == 2
    assert len(sent(spool)) == (0 if confirm == "reply" else 2)
    cut_power(server, before)
    assert store.stats(Q).counts["pending"] == 0
    forward_all(forwarder_to(server, spool, confirm))
    assert sorted(work_off(store)) == ([] if confirm == "reply" else ids)
    assert inbox.census(spool) == inbox.Census(0, 0, 0)


@pytest.mark.parametrize("confirm", ["waitaof", "grace"])
def test_what_a_server_lost_comes_before_what_waits(
    valkey: Callable[..., Server], spool: Path, confirm: Confirm
) -> None:
    """And before what is enqueued from then on, where that is to keep its order."""
    server = valkey(*UNSYNCED)
    drop_some(spool, "a", "b")
    before = written(server)
    forwarder = forwarder_to(server, spool, confirm, stands_s=60.0)
    forwarder.sweep()
    cut_power(server, before)
    server.client.config_set("appendfsync", "no")
    drop_some(spool, "c")
    forwarder.sweep()
    store = RedisStore(server.url, prefix="c")
    assert [job.id for job in store.jobs(Q, State.PENDING).jobs] == ["a", "b", "c"]


@pytest.mark.parametrize("confirm", ["waitaof", "grace"])
def test_what_a_restart_did_not_lose_is_not_run_again(
    valkey: Callable[..., Server], spool: Path, confirm: Confirm, caplog: pytest.LogCaptureFixture
) -> None:
    """It is sent again, for it is another run of the server; by then it has been run and forgotten."""
    server = valkey(*UNSYNCED)
    ids = drop_some(spool, "a", "b")
    forwarder_to(server, spool, confirm, stands_s=60.0).sweep()
    store = RedisStore(server.url, prefix="c")
    assert sorted(work_off(store)) == ids
    server.kill()
    server.start(*SYNCED)
    forward_all(forwarder_to(server, spool, confirm))
    assert "forwarding_again files=2" in caplog.text
    assert work_off(store) == []
    assert store.stats(Q).totals["enqueued"] == 2


def test_another_connection_that_wrote_nothing_confirms_nothing(valkey: Callable[..., Server], spool: Path) -> None:
    """A server says at once that it has synced all that a connection wrote, where that is nothing."""
    server = valkey(*UNSYNCED)
    drop_some(spool, "a")
    forwarder_to(server, spool, "waitaof").sweep()
    store = RedisStore(server.url, prefix="c")
    sync = store.sync()
    sync.begin(store.sync_keys(()))
    assert not sync.poll(0.3)
    sync.close()
    other = forwarder_to(server, spool, "waitaof")
    assert other.sweep() == Ingested()
    assert other.unconfirmed() == len(sent(spool)) == 1
    server.client.config_set("appendfsync", "always")
    forward_all(forwarder_to(server, spool, "waitaof"))
    assert work_off(store) == ["a"]


def test_what_comes_while_a_server_syncs_is_forwarded_at_once(valkey: Callable[..., Server], spool: Path) -> None:
    """By a master, which waits longer for an answer than the server for its disk."""
    server = valkey(*UNSYNCED)
    ids = drop_some(spool, "a")
    store = RedisStore(server.url, prefix="c", patience_s=0)
    forwarder = Forwarder(store, spool, Limits(), confirm="waitaof", stands_s=0.0)
    forwarder.sweep()
    for id in ("b", "c"):
        ids += drop_some(spool, id)
        assert forwarder.sweep() == Ingested(1, 1, 0)
    assert forwarder.unconfirmed() == 3
    server.client.config_set("appendfsync", "always")
    forward_all(forwarder)
    assert work_off(store) == ids


@pytest.mark.parametrize(("confirm", "stands_ms"), [("waitaof", 2000), ("grace", 5000)])
def test_nothing_is_confirmed_before_its_time(
    valkey: Callable[..., Server], spool: Path, confirm: Confirm, stands_ms: int
) -> None:
    """Also where the server says at once that it has synced: under everysec there are some that say so too soon."""
    store, clock = RedisStore(valkey(*AOF, *SYNCED).url, prefix="c"), ManualClock()
    drop_some(spool, "a")
    forwarder = Forwarder(store, spool, Limits(), confirm=confirm, clock=clock)
    forwarder.sweep()
    clock.advance(stands_ms - 1)
    forwarder.sweep()
    assert forwarder.waiting() == 0
    assert forwarder.unconfirmed() == 1
    clock.advance(1)
    forward_all(forwarder)
    assert forwarder.unconfirmed() == 0
    assert work_off(store) == ["a"]


@pytest.mark.parametrize("confirm", ["waitaof", "grace"])
def test_server_that_is_a_replica_now_confirms_nothing(
    valkey: Callable[..., Server], spool: Path, confirm: Confirm
) -> None:
    """It still runs, and another one has what counts."""
    server = valkey(*UNSYNCED)
    drop_some(spool, "a")
    forwarder_to(server, spool, confirm, stands_s=60.0).sweep()
    server.client.replicaof("127.0.0.1", 1)
    server.client.config_set("appendfsync", "always")
    with pytest.raises(StoreUnavailable, match="replica"):
        forwarder_to(server, spool, confirm).sweep()
    assert len(sent(spool)) == 1
    server.client.replicaof("NO", "ONE")
    forward_all(forwarder_to(server, spool, confirm))
    assert work_off(RedisStore(server.url, prefix="c")) == ["a"]


def test_what_stands_there_goes_on_when_the_reply_is_enough_again(store: RedisStore, spool: Path) -> None:
    """The setting was changed, or a forwarder by hand has none."""
    drop_some(spool, "a", "b")
    Forwarder(store, spool, Limits(), confirm="grace", stands_s=60.0).sweep()
    assert work_off(store) == ["a", "b"]
    plain = Forwarder(store, spool, Limits())
    assert plain.unconfirmed() == 2
    forward_all(plain)
    assert work_off(store) == []
    assert inbox.census(spool) == inbox.Census(0, 0, 0)


@pytest.mark.parametrize(
    ("options", "user", "confirm", "why"),
    [
        ((), "", "waitaof", "set appendonly yes there"),
        ((*AOF, "--rename-command", "WAITAOF", ""), "", "waitaof", "Redis 7.2 or newer, or Valkey"),
        (AOF, "-waitaof", "waitaof", r"\+waitaof"),
        ((), "-info", "grace", "info.*or set forward_confirm = reply"),
    ],
)
def test_server_that_can_not_confirm_is_sent_nothing_and_that_is_told(
    valkey: Callable[..., Server], spool: Path, options: tuple[str, ...], user: str, confirm: Confirm, why: str
) -> None:
    """At the start, and where it is tried; what waits, waits."""
    server = valkey(*options)
    url = server.url
    if user:
        server.client.acl_setuser("some", enabled=True, passwords=["+p"], keys=["*"], commands=["+@all", user])
        url = url.replace("//", "//some:p@")
    drop_some(spool, "a")
    store = RedisStore(url, prefix="c")
    with pytest.raises(SpoolError, match=why):
        Forwarder(store, spool, Limits(), confirm=confirm).sweep()
    assert store.stats(Q).totals["enqueued"] == 0
    assert inbox.census(spool).files == 1
    flags = {"url": url, "prefix": "c", "spool": str(spool), "forward_confirm": confirm}
    attach_inbox(store, load(flags, environ={}))
    [told] = [one for one in store.warnings() if "forward_confirm" in one]
    assert isinstance(told, Concern)
    assert told.grave


def test_server_far_away_that_can_not_confirm_is_sent_nothing(valkey: Callable[..., Server], spool: Path) -> None:
    """Its refusal is waited for as long as any other answer."""

    def is_late(reply: bytes) -> bool:
        if reply.startswith(b"-ERR"):
            time.sleep(0.2)
        return False

    server = valkey()
    drop_some(spool, "a")
    with Proxy(server.port) as proxy:
        proxy.cut = is_late
        with pytest.raises(SpoolError, match="set appendonly yes there"):
            Forwarder(RedisStore(proxy.url, prefix="c"), spool, Limits(), confirm="waitaof").sweep()
    assert RedisStore(server.url, prefix="c").stats(Q).totals["enqueued"] == 0


@pytest.mark.parametrize("confirm", ["waitaof", "grace"])
def test_full_server_is_waited_for(
    valkey: Callable[..., Server], spool: Path, confirm: Confirm, caplog: pytest.LogCaptureFixture
) -> None:
    """What it took before, and what it has no room for, waits there; a master can start, and nothing is told twice."""
    server = valkey(*AOF, "--maxmemory-policy", "noeviction")
    ids = drop_some(spool, "a", "b")
    store = RedisStore(server.url, prefix="c")
    patient = Forwarder(store, spool, Limits(), confirm="grace", stands_s=60.0)
    assert patient.sweep(files=1).files == 1
    server.client.config_set("maxmemory", 1)
    attach_inbox(store, load({"url": server.url, "spool": str(spool), "forward_confirm": confirm}, environ={}))
    assert [one for one in store.warnings() if "forward_confirm" in one] == []
    forwarder = forwarder_to(server, spool, confirm)
    for _ in range(3):
        assert forwarder.sweep() == Ingested()
    assert forwarder.waiting() == 1
    assert forwarder.unconfirmed() == 1
    assert caplog.text.count("forwarding_stands") == caplog.text.count(" unconfirmed ") == 1
    server.client.config_set("maxmemory", 0)
    forward_all(forwarder)
    assert work_off(store) == ids


def test_server_that_never_syncs_is_told_of(valkey: Callable[..., Server]) -> None:
    """`batchq doctor` waits for the answer."""
    store = RedisStore(valkey(*UNSYNCED).url)
    with pytest.raises(SpoolError, match="did not sync within 2 s; set appendfsync everysec"):
        store.check_confirm("waitaof", syncs=True)


def test_every_node_of_a_cluster_confirms(spool: Path) -> None:
    """Jobs of queues on three nodes, in one file."""
    cluster = Cluster("valkey")
    try:
        for node in cluster.nodes:
            node.client.config_set("appendonly", "yes")
        store = RedisStore(cluster.url, prefix="c", patience_s=10.0)
        queues = queues_apart(cluster, "c")
        hows: tuple[Confirm, ...] = ("waitaof", "grace")
        for confirm in hows:
            drop(spool, [(queue, a_job(f"{confirm}-{queue}", given=True)) for queue in queues])
            assert Forwarder(store, spool, Limits(), confirm=confirm, stands_s=60.0).sweep() == Ingested(1, 3, 0)
            forward_all(Forwarder(store, spool, Limits(), confirm=confirm, stands_s=0.0))
            assert sorted(id for queue in queues for id in work_off(store, queue)) == [
                f"{confirm}-{queue}" for queue in sorted(queues)
            ]
    finally:
        cluster.stop()


# -- ordered -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def app(redis_server: Server, prefix: str, spool: Path) -> Iterator[App]:
    # On a busy machine, too, nothing is spooled for want of an answer.
    made = App(
        redis_server.url, prefix=prefix, spool=str(spool), fallback_ephemeral=True, enqueue_timeout=30, ordered=True
    )
    yield made
    made.close()


def arguments(store: RedisStore) -> list[object]:
    return [job.args[0] for job in store.jobs("default", State.PENDING, limit=5000).jobs]


def test_no_direct_job_overtakes_those_that_wait(app: App, store: RedisStore, spool: Path) -> None:
    """While another forwarder is at it, calls go on spooling; then all that waits is sent before the next job is."""

    @app.job
    def note(n: int) -> None:
        """Never run here."""

    assert not note.enqueue(0).spooled
    # By another process, which could not reach the server.
    for n in (1, 2, 3):
        drop(spool, [("default", NewJob(new_id(), pack_row("note", [n])))])
    lock = fs.open_lock(str(spool / "sweep"))
    assert fs.try_lock(lock)
    assert note.enqueue(4).spooled
    assert note.enqueue_many((n,) for n in range(5, 1005)).spooled == 1000
    fs.close(lock)
    wait_for(lambda: not note.enqueue(-1).spooled, "nothing waits any more")
    found = arguments(store)
    assert found[:1005] == list(range(1005))
    assert set(found[1005:]) == {-1}


def test_ordered_spools_nothing_where_nothing_waits_for_this_server(app: App, store: RedisStore, spool: Path) -> None:
    """What waits for another one, or was confirmed by none yet, is in nobody's way."""

    @app.job
    def note(n: int) -> None:
        """Never run here."""

    drop(spool, [("default", a_job())], to=address_of("elsewhere.example:6379/0 bq"))
    drop_some(spool, "a")
    Forwarder(store, spool, Limits(), confirm="grace").sweep()
    assert len(sent(spool)) == 1
    assert not note.enqueue(1).spooled
    assert note.enqueue_many([(2,), (3,)]).spooled == 0
    assert arguments(store) == [1, 2, 3]


@pytest.mark.parametrize("confirm", ["waitaof", "grace"])
def test_ordered_call_comes_behind_what_a_server_lost(
    valkey: Callable[..., Server], spool: Path, confirm: Confirm
) -> None:
    """The producer has not called while the server was away, and nothing else waits."""
    server = valkey(*UNSYNCED)
    with App(
        server.url,
        prefix="c",
        spool=str(spool),
        fallback_ephemeral=True,
        enqueue_timeout=30,
        ordered=True,
        forward_confirm=confirm,
    ) as app:
        drop(spool, [("default", NewJob(new_id(), pack_row("note", [1])))])
        before = written(server)
        assert not app.enqueue("note", args=[2]).spooled
        assert len(sent(spool)) == 1
        cut_power(server, before)
        server.client.config_set("appendfsync", "no")
        app.enqueue("note", args=[3])
        wait_for(lambda: not app.enqueue("note", args=[4]).spooled, "nothing waits any more")
        found = arguments(RedisStore(server.url, prefix="c"))
    assert found[:2] == [1, 3], "what was enqueued directly is lost"
    assert set(found[2:]) == {4}


def test_ordered_call_sees_what_another_forwarder_puts_back_while_it_looks(
    valkey: Callable[..., Server], spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moves from where one look was to where the other one will be."""
    server = valkey(*UNSYNCED)
    base: dict[str, object] = {"prefix": "c", "spool": str(spool), "fallback_ephemeral": True, "enqueue_timeout": 30}
    names, put_back = fs.names, []

    def look(path: str) -> list[str]:
        found = names(path)
        if path.endswith("work") and not put_back:
            put_back.extend(sent(spool))
            for name in put_back:
                fs.move(str(spool / "inbox" / "sent" / name), str(spool / "inbox" / "work" / name.partition("-")[2]))
        return found

    with App(server.url, ordered=True, forward_confirm="grace", **base) as app:
        drop(spool, [("default", NewJob(new_id(), pack_row("note", [1])))])
        before = written(server)
        forwarder_to(server, spool, "grace", stands_s=60.0).sweep()
        cut_power(server, before)
        monkeypatch.setattr(fs, "names", look)
        app.enqueue("note", args=[2])
        wait_for(lambda: not app.enqueue("note", args=[3]).spooled, "nothing waits any more")
        assert put_back
        assert arguments(RedisStore(server.url, prefix="c"))[:2] == [1, 2]


@pytest.mark.parametrize("confirm", ["waitaof", "grace"])
def test_silent_server_holds_up_one_ordered_call_and_then_a_quarter_of_a_second_each_second(
    valkey: Callable[..., Server], spool: Path, confirm: Confirm
) -> None:
    """Also where it is asked whether it keeps what it took."""
    server = valkey(*UNSYNCED)
    base: dict[str, object] = {"prefix": "c", "spool": str(spool), "fallback_ephemeral": True, "enqueue_timeout": 1.5}
    with Proxy(server.port) as proxy, App(proxy.url, ordered=True, forward_confirm=confirm, **base) as app:
        to = address_of(app.store.destination)  # type: ignore[attr-defined]
        drop(spool, [("default", a_job())], to=to)
        assert not app.enqueue("note").spooled
        assert len(sent(spool)) == 1
        proxy.silent = True
        began = time.monotonic()
        assert app.enqueue("note").spooled
        assert 1.4 < time.monotonic() - began < 3
        for _ in range(5):
            let_pass(0.3)
            began = time.monotonic()
            assert app.enqueue("note").spooled
            assert time.monotonic() - began < PROBE_WAIT_S + 0.75
        proxy.silent = False


# -- random kills ------------------------------------------------------------------------------------------------------

GRACE_S = 0.6

FORWARD = """
import sys, time
from batchq.fallback.forward import Forwarder
from batchq.redis.store import RedisStore
from batchq.errors import StoreUnavailable
from batchq.store import Limits
store = RedisStore(sys.argv[1], prefix="c", patience_s=0.2)
forwarder = Forwarder(store, sys.argv[2], Limits(), confirm=sys.argv[3], stands_s=float(sys.argv[4]))
while True:
    try:
        forwarder.sweep(3, 3)
    except StoreUnavailable:
        time.sleep(0.02)
"""


@contextmanager
def two_forwarders(server: Server, spool: Path, confirm: Confirm) -> Iterator[None]:
    """They are killed at the end."""
    command = [sys.executable, "-c", FORWARD, server.url, str(spool), confirm, str(GRACE_S)]
    running = [subprocess.Popen(command) for _ in range(2)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


@pytest.mark.parametrize("confirm", ["waitaof", "grace"])
def test_servers_and_forwarders_that_are_killed_at_random_lose_and_double_nothing(
    valkey: Callable[..., Server], spool: Path, confirm: Confirm
) -> None:
    """The server loses what came since it was last synced, less than the grace; forwarders end at any instant."""
    server, dice = valkey(*UNSYNCED), random.Random(5)
    ids: list[str] = []

    def synced() -> int:
        """Syncs; answers how much of the log is on disk for sure."""
        server.client.config_set("appendfsync", "always")
        server.client.set("sync", 1)
        server.client.config_set("appendfsync", "no")
        return written(server)

    for _ in range(4):
        began, kept = time.monotonic(), written(server)
        with two_forwarders(server, spool, confirm):
            for _ in range(4):
                ids += drop_some(spool, *(random_name() for _ in range(5)))
                let_pass(dice.uniform(0.05, 0.15))
                began, kept = time.monotonic(), synced()
            ids += drop_some(spool, *(random_name() for _ in range(5)))
            let_pass(dice.uniform(0.02, 0.1))
        server.kill()
        [log] = Path(server.folder).glob("appendonlydir/*.incr.aof")
        if time.monotonic() - began < GRACE_S * 0.8:
            # Else this machine was too slow: the grace could be over.
            os.truncate(log, kept)
        server.start()
    server.client.config_set("appendfsync", "always")
    forward_all(forwarder_to(server, spool, confirm))
    assert sorted(work_off(RedisStore(server.url, prefix="c"))) == sorted(ids)
    assert inbox.census(spool) == inbox.Census(0, 0, 0)
