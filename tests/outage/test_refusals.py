"""A server that is there and says no: full, too many clients, a wrong password, a missing right, too old."""

from __future__ import annotations

import re
import select
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

import pytest
import redis

from batchq.config import load
from batchq.doctor import rights_of
from batchq.errors import StoreDenied, StoreError, StoreFull, StoreUnavailable, StoreVersion
from batchq.job import Claims, Mark, NewJob, Released, new_id, pack_row
from batchq.lifecycle import COUNTED, Word
from batchq.redis.store import RedisStore
from tests.faults.drive import Q, check, drive
from tests.faults.proxy import Proxy
from tests.outage.conftest import documented_rights
from tests.process.rig import Rig, let_pass, until
from tests.servers import Server

Serve = Callable[..., Server]
RigOn = Callable[[Server], Rig]

T = TypeVar("T")


def a_job() -> NewJob:
    return NewJob(new_id(), pack_row("work"))


def url_of(server: Server, user: str) -> str:
    return f"redis://{user}@127.0.0.1:{server.port}/0"


# -- full ------------------------------------------------------------------------------------------------------------


def test_full_server_refuses_new_jobs_and_the_pool_works_the_others_off(serve: Serve, rig_on: RigOn) -> None:
    """maxmemory with noeviction: claims, outcomes, retries and promotions go on; no job stands in no state."""
    server = serve("--maxmemory-policy", "noeviction")
    rig = rig_on(server)
    rig.enqueue_many("work", [()] * 50)
    rig.enqueue_many("fails", [()] * 5)
    rig.enqueue_many("work", [()] * 5, delay_ms=300)
    server.client.config_set("maxmemory", 1)
    with pytest.raises(StoreFull, match=r"maxmemory.*nothing was enqueued"):
        rig.store.enqueue("default", [a_job()])
    pool = rig.start(n=2)
    rig.until_counts(done=55, dead=5, active=0, pending=0, delayed=0)
    assert rig.stats().totals["retried"] == 10
    assert not pool.lines("store_unavailable")
    assert not pool.lines("store_failed")
    server.client.config_set("maxmemory", 0)
    rig.enqueue("work")
    rig.until_counts(done=56)


def test_every_move_but_enqueue_is_done_by_a_full_server(serve: Serve, prefix: str) -> None:
    """Whatever stands in the scripts: memory is raised for the enqueues alone, and for the beginning of a batch."""
    server = serve("--maxmemory-policy", "noeviction")

    class Tight(RedisStore):
        """Has memory while something new comes."""

        def begin(self, *args: Any) -> Word:
            return roomy(super().begin, *args)

        def enqueue(self, *args: Any, **kwargs: Any) -> list[Word]:
            return roomy(super().enqueue, *args, **kwargs)

    def roomy(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        server.client.config_set("maxmemory", 0)
        try:
            return call(*args, **kwargs)
        finally:
            server.client.config_set("maxmemory", 1)

    store = Tight(server.url, prefix=prefix)
    drive(store)
    check(store, "full")
    store.close()


def test_full_server_passes_hints_on(serve: Serve, prefix: str) -> None:
    """Those of a claim that it refuses, and of a reaping that leaves something: what is ready waits for nobody."""
    server = serve("--maxmemory-policy", "noeviction")
    wake = f"{prefix}:{{{Q}}}:wake"
    store = RedisStore(server.url, prefix=prefix)
    store.register(Q, "w1", 60_000)
    store.enqueue(Q, [a_job(), a_job()])
    assert len(store.claim(Q, "w1", 1, 0).claims) == 1
    server.client.delete(wake)
    server.client.rpush(wake, "1")
    server.client.config_set("maxmemory", 1)
    standing = store.standing_claim(Q)
    standing.arm_for("unknown", 1, 60_000)
    assert select.select([standing], [], [], 10)[0]
    assert standing.take()
    assert standing.claims() == Claims(Word.UNKNOWN)
    assert server.client.llen(wake) == 1
    standing.close()
    store.seal(Q, "w1")
    assert store.reap(Q, "w1", []) == 1
    assert server.client.llen(wake) == 2
    store.close()


# -- too many --------------------------------------------------------------------------------------------------------


def test_pool_that_does_not_get_in_waits_and_says_so(serve: Serve, rig_on: RigOn) -> None:
    """Max clients: the workers wait until there is room, and name the reason."""
    server = serve("--maxclients", "12")
    rig = rig_on(server)
    rig.store.now_ms()
    others: list[redis.Connection] = []
    while True:
        other = redis.Connection(port=server.port)
        try:
            other.connect()
            other.send_command("PING")
            other.read_response()
        except redis.RedisError:
            break
        others.append(other)
    # Room for the master alone.
    for other in others[:2]:
        other.disconnect()
    pool = rig.start(n=2, ready=False)
    rig.until(lambda: "max number of clients" in pool.log(), "the reason is told")
    for other in others:
        other.disconnect()
    rig.enqueue("work")
    rig.until_counts(done=1)
    assert not pool.lines("worker_died")


# -- not ours --------------------------------------------------------------------------------------------------------


WAITS = """
@app.job
def waits():
    note("S")
    while not os.path.exists("go"):
        time.sleep(0.01)
"""


def test_worker_of_a_quiet_pool_keeps_an_outcome_that_the_server_refuses(serve: Serve, rig_on: RigOn) -> None:
    """A key of ours is of another type for a while: it is told once, and stored once that is mended."""
    server = serve()
    rig = rig_on(server)
    rig.app(WAITS)
    pool = rig.start(n=1)
    job = rig.enqueue("waits")
    worker = rig.until_started(job)
    attempts = f"{rig.prefix}:{{default}}:attempts"
    server.client.rename(attempts, "kept")
    server.client.set(attempts, "not ours")
    pool.send(signal.SIGTSTP)
    rig.until(lambda: pool.lines("quiet"), "it is quiet")
    (rig.folder / "go").touch()
    refused = "errorstat_WRONGTYPE"
    rig.until(lambda: server.client.info("errorstats").get(refused, {"count": 0})["count"] >= 3, "it has tried again")
    assert pool.workers() == [worker]
    assert len(pool.lines("store_failed")) == 1
    server.client.rename("kept", attempts)
    rig.until_counts(done=1)
    assert pool.workers() == [worker]
    assert pool.stop() == 0


def test_sweep_that_fails_each_second_is_told_once(serve: Serve, rig_on: RigOn) -> None:
    """A key is of another type until morning."""
    server = serve()
    rig = rig_on(server)
    pool = rig.start(n=1)
    server.client.set(f"{rig.prefix}:{{default}}:delayed", "not ours")
    rig.until(lambda: pool.lines("store_failed"), "it is told")
    refused = "errorstat_WRONGTYPE"
    rig.until(lambda: server.client.info("errorstats")[refused]["count"] >= 12, "it has tried again and again")
    told = [line.partition("error=")[2] for line in pool.lines("store_failed") if "worker=" not in line]
    assert told
    assert len(told) == len(set(told))


@pytest.mark.parametrize("places", [(), ("-c", "4", "--threads")], ids=["one", "many"])
@pytest.mark.parametrize("fault", ["wake", "timer", "blpop"])
def test_who_may_not_wait_looks_by_itself(serve: Serve, rig_on: RigOn, fault: str, places: tuple[str, ...]) -> None:
    """A list of hints is of another type, or the right to wait for one is missing: that is told, nobody spins, and
    what comes is run all the same."""
    server = serve()
    rig = rig_on(server)
    url = server.url
    if fault == "blpop":
        rights = [f"~{rig.prefix}:*" if rule == "~bq:*" else rule for rule in documented_rights()]
        server.client.execute_command("ACL", "SETUSER", "batchq", *rights, "-blpop")
        url = url_of(server, "batchq:change-me")
    else:
        server.client.set(f"{rig.prefix}:{{default}}:{fault}", "not ours")
    pool = rig.start(*places, n=2, BATCHQ_URL=url)
    rig.until(lambda: pool.lines("store_failed"), "it is told")

    def refused() -> int:
        errors = server.client.info("errorstats")
        return sum(errors.get(f"errorstat_{code}", {"count": 0})["count"] for code in ("WRONGTYPE", "NOPERM"))

    before = refused()
    let_pass(2.0)
    # Three processes, each some times a second. Who spins is refused a thousand times.
    assert refused() - before < 60
    if fault == "wake":
        # Nobody could enqueue.
        server.client.delete(f"{rig.prefix}:{{default}}:wake")
    rig.enqueue_many("work", [()] * 20)
    rig.until_counts(done=20)
    assert len(pool.lines("store_failed")) <= 3
    assert pool.stop() == 0


# -- who are you -----------------------------------------------------------------------------------------------------


def test_wrong_password_is_told_at_once_and_not_shown(serve: Serve, prefix: str) -> None:
    """No second try helps; the message says what to look at."""
    server = serve()
    server.client.config_set("requirepass", "right")
    for url in (server.url, url_of(server, ":wrong-one")):
        store = RedisStore(url, prefix=prefix, patience_s=5.0)
        with pytest.raises(StoreDenied, match=r"user and password") as denied:
            store.enqueue("mail", [a_job()])
        assert "wrong-one" not in str(denied.value)
        store.close()


def test_documented_rights_are_enough_and_each_of_them_is_needed(serve: Serve, prefix: str) -> None:
    """The ACL example of docs/redis.md: every move, every read and every wait is done with it."""
    server = serve()
    rights = documented_rights()
    server.client.execute_command("ACL", "SETUSER", "batchq", *rights)
    store = RedisStore(url_of(server, "batchq:change-me"), prefix="bq")
    drive(store)
    check(store, "with the least rights")
    assert store.info().version == "unknown"
    assert "INFO is forbidden" in store.warnings()[0]
    store.publish("m1", {"id": "m1"}, 5000)
    assert store.masters() == [{"id": "m1"}]
    store.publish("m1", {}, 0)
    for state in COUNTED:
        page = store.jobs("mail", state, limit=1)
        if page.cursor:
            store.jobs("mail", state, cursor=page.cursor)
    store.leases("mail")
    store.queues()
    waiter = store.wake_waiter(["mail"])
    waiter.arm()
    waiter.close()
    store.register("mail", "w9", 60_000)
    store.enqueue("mail", [a_job()])
    [claim] = store.claim("mail", "w9", 1, 0).claims
    assert store.release("mail", "w9", [Released(claim)]) == [Word.OK]
    assert store.cancel("mail", [claim.id]) == [Word.CANCELLED]
    store.close()
    used = {name.removeprefix("cmdstat_") for name in server.client.info("commandstats")}
    assert {right[1:] for right in rights if right.startswith("+")} - used == set()


def test_doctor_finds_each_right_that_is_missing(serve: Serve) -> None:
    """Its trial needs what anything of batchq needs: what it finds well is refused to nobody later. (PING alone can
    be missing; scripts were loaded by others.)"""
    server = serve()
    rights = documented_rights()
    settings = load({"url": url_of(server, "batchq:change-me")}, environ={})
    wrong = []
    for missing in ["", *(right[1:] for right in rights if right.startswith("+"))]:
        taken = [f"-{missing}"] if missing else []
        server.client.execute_command("ACL", "SETUSER", "batchq", "reset", *rights, *taken)
        finding = rights_of(settings)
        if (finding.level == "ok") != (missing in ("", "ping", "script|load")):
            wrong.append((missing, finding))
        if not missing:
            assert [key for key in server.client.keys("*") if b":mark:" not in key] == []
    assert not wrong


def test_pool_runs_with_the_documented_rights(serve: Serve, rig_on: RigOn) -> None:
    """From its start to its stop, under retries and delays, without one refusal."""
    server = serve()
    rig = rig_on(server)
    rights = [f"~{rig.prefix}:*" if rule == "~bq:*" else rule for rule in documented_rights()]
    server.client.execute_command("ACL", "SETUSER", "batchq", *rights)
    rig.enqueue_many("work", [()] * 20)
    rig.enqueue("fails")
    rig.enqueue("work", delay_ms=200)
    pool = rig.start(n=2, BATCHQ_URL=url_of(server, "batchq:change-me"))
    rig.until_counts(done=21, dead=1)
    assert pool.stop() == 0
    assert "NOPERM" not in pool.log()
    assert not pool.lines("store_failed")


@pytest.mark.parametrize(
    ("taken", "named"), [("-evalsha", "evalsha"), ("-script|load", "script"), ("-rpush", "rpush"), ("-hset", "hset")]
)
def test_missing_right_is_named(serve: Serve, taken: str, named: str) -> None:
    """The message says which command is refused, also when a script meets it; nothing is half done."""
    server = serve()
    server.client.execute_command("ACL", "SETUSER", "batchq", *documented_rights(), taken)
    store = RedisStore(url_of(server, "batchq:change-me"), prefix="bq")
    with pytest.raises(StoreDenied, match=rf"(?i){named}.*docs/redis\.md"):
        store.enqueue("mail", [a_job()])
    store.close()


@pytest.mark.parametrize("right", ["hincrby", "hset"])
def test_call_that_a_missing_right_refused_is_not_taken_for_done(serve: Serve, right: str) -> None:
    server = serve()
    job, mark = [a_job()], Mark("lane", 1)
    server.client.execute_command("ACL", "SETUSER", "batchq", *documented_rights(), f"-{right}")
    with closing(RedisStore(url_of(server, "batchq:change-me"), prefix="bq")) as store:
        with pytest.raises(StoreDenied):
            store.enqueue("mail", job, mark)
        server.client.execute_command("ACL", "SETUSER", "batchq", f"+{right}")
        assert store.enqueue("mail", job, mark) == [Word.OK]
        assert store.stats("mail").counts["pending"] == 1


@pytest.mark.parametrize(("right", "act"), [("time", RedisStore.now_ms), ("ping", RedisStore.ping)])
def test_missing_right_to_a_command_without_arguments_is_named(
    serve: Serve, right: str, act: Callable[[RedisStore], object]
) -> None:
    """There is no key that the message could name."""
    server = serve()
    server.client.execute_command("ACL", "SETUSER", "batchq", *documented_rights(), f"-{right}")
    store = RedisStore(url_of(server, "batchq:change-me"), prefix="bq")
    with pytest.raises(StoreDenied, match=rf"(?i){right}.*docs/redis\.md"):
        act(store)
    store.close()


def test_busy_server_is_one_that_is_away(serve: Serve, prefix: str) -> None:
    """Whatever it is asked; the message says what ends that."""
    server = serve("--busy-reply-threshold", "50")
    store = RedisStore(server.url, prefix=prefix, patience_s=0)

    def spin() -> None:
        with pytest.raises(redis.ResponseError):
            server.client.eval("while true do end", 0)

    def is_busy() -> bool:
        try:
            return not server.client.ping()
        except redis.ResponseError as error:
            return "BUSY" in str(error)

    spins = threading.Thread(target=spin)
    spins.start()
    try:
        until(is_busy, "its script runs", 20)
        for act in (store.now_ms, lambda: store.get("mail", "a"), lambda: store.enqueue("mail", [a_job()])):
            with pytest.raises(StoreUnavailable, match="SCRIPT KILL"):
                act()
    finally:
        server.client.script_kill()
        spins.join()
        store.close()


@pytest.mark.parametrize("right", ["zrevrangebyscore", "zadd", "hincrby"])
def test_worker_that_lacks_a_right_takes_no_job(serve: Serve, rig_on: RigOn, right: str) -> None:
    """One that only a failed attempt needs would be missed in the middle of its settling, and the job be in no list."""
    server = serve()
    rig = rig_on(server)
    rights = [f"~{rig.prefix}:*" if rule == "~bq:*" else rule for rule in documented_rights()]
    server.client.execute_command("ACL", "SETUSER", "batchq", *rights, f"-{right}")
    job = rig.enqueue("fails")
    pool = rig.start(n=1, ready=False, BATCHQ_URL=url_of(server, "batchq:change-me"))
    rig.until(lambda: re.search(rf"worker_failed.*'{right}'.*docs/redis\.md", pool.log()), "the right is named")
    assert rig.job(job).attempts == 0
    server.client.execute_command("ACL", "SETUSER", "batchq", f"+{right}")
    rig.until_counts(dead=1, pending=0, delayed=0)


def test_missing_key_right_is_named(serve: Serve) -> None:
    """Another prefix than the rights allow."""
    server = serve()
    server.client.execute_command("ACL", "SETUSER", "batchq", *documented_rights())
    store = RedisStore(url_of(server, "batchq:change-me"), prefix="other")
    with pytest.raises(StoreDenied, match=r"(?i)\bkeys?\b"):
        store.enqueue("mail", [a_job()])
    store.close()


def test_pool_with_a_wrong_password_does_not_start(serve: Serve, rig_on: RigOn) -> None:
    """Exit code 4, and one line that says why."""
    server = serve()
    rig = rig_on(server)
    server.client.config_set("requirepass", "right")
    pool = rig.start(n=1, ready=False)
    assert pool.wait() == 4
    assert len(pool.lines("store_unavailable")) == 1
    assert "password" in pool.lines("store_unavailable")[0]
    rig.store.close()
    redis.Redis(port=server.port, password="right").config_set("requirepass", "")


# -- what the server is ----------------------------------------------------------------------------------------------


def test_server_that_is_too_old_is_refused_with_its_version(serve: Serve, prefix: str, flavour: str) -> None:
    """A server of version 6 would fail in the middle of a move."""
    server = serve()
    found = server.client.info("server")["redis_version"]
    with Proxy(server.port) as proxy:
        proxy.rewrite = (f"redis_version:{found}".encode(), f"redis_version:6{found[1:]}".encode())
        store = RedisStore(proxy.url, prefix=prefix)
        with pytest.raises(StoreVersion, match=rf"expected version 7\.0 or newer, found 6{re.escape(found[1:])}"):
            store.info()
        store.close()


def test_master_warns_of_what_may_lose_jobs(serve: Serve, rig_on: RigOn) -> None:
    """Eviction and missing persistence, once at its start."""
    server = serve("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")
    pool = rig_on(server).start(n=1)
    warnings = "\n".join(pool.lines("store_warning"))
    assert "maxmemory-policy is allkeys-lru" in warnings
    assert "saves nothing" in warnings


def test_server_that_is_set_well_brings_no_warning(serve: Serve, rig_on: RigOn) -> None:
    """AOF and noeviction."""
    server = serve("--appendonly", "yes", "--maxmemory-policy", "noeviction")
    pool = rig_on(server).start(n=1)
    assert not pool.lines("store_warning")


def test_what_may_not_be_looked_at_is_a_note(serve: Serve, prefix: str) -> None:
    """CONFIG is forbidden, INFO is not; then a server that has renamed CONFIG away."""
    server = serve()
    server.client.execute_command("ACL", "SETUSER", "batchq", *documented_rights(), "+info")
    store = RedisStore(url_of(server, "batchq:change-me"), prefix="bq")
    assert [note for note in store.warnings() if "CONFIG GET is forbidden" in note]
    store.close()
    renamed = serve("--rename-command", "CONFIG", "")
    store = RedisStore(renamed.url, prefix=prefix)
    assert [note for note in store.warnings() if "CONFIG GET is forbidden" in note]
    store.close()


def test_errors_of_the_store_are_one_family() -> None:
    """A producer that catches StoreUnavailable also catches a refusal; one that catches StoreError catches all."""
    assert issubclass(StoreDenied, StoreUnavailable)
    assert issubclass(StoreFull, StoreError)
