"""A server that comes and goes, forgets, evicts, refuses, hangs, or whose clock jumps: the pool goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from batchq import App
from batchq.lifecycle import State
from tests.cases.helpers import app_on, call, server_of, stays
from tests.faults.proxy import Proxy
from tests.faults.wallclock import WallClock
from tests.outage.conftest import DURABLE
from tests.outage.test_refusals import documented_rights, url_of
from tests.process.rig import Pool, Rig
from tests.servers import Server

Serve = Callable[..., Server]
RigOn = Callable[[Server], Rig]

APP = """
@app.job
def work(seconds=0.0, **more):
    note("S")
    time.sleep(seconds)
    note("E")


@app.job(max_attempts=3, backoff=fixed(0.1))
def fails_first():
    note("S")
    if current_job().attempt == 1:
        raise ValueError("first")
    note("E")


@app.job
def stands():
    note("S")
    while not os.path.exists("gate"):
        time.sleep(0.01)
    note("E")
"""


def all_ended(rig: Rig, ids: list[str], within: float = 30.0) -> None:
    """Each of them has run to its end, once."""
    rig.until(lambda: {entry.job for entry in rig.ledger.ends()} >= set(ids), "all have run", within)
    assert sorted(entry.job for entry in rig.ledger.starts()) == sorted(ids)


# -- eviction ----------------------------------------------------------------------------------------------------------


def test_every_policy_that_evicts_is_warned_of(serve: Serve, rig_on: RigOn) -> None:
    """At the start, by name; noeviction is not; what this user may not look at is a note, and no end."""
    server = serve(*DURABLE, "--maxmemory", "64mb")
    rig = rig_on(server)
    for policy in ("allkeys-lru", "volatile-lru", "volatile-ttl", "noeviction"):
        server.client.config_set("maxmemory-policy", policy)
        pool = rig.start()
        assert pool.stop() == 0
        assert (f"maxmemory-policy is {policy}" in "".join(pool.lines("store_warning"))) == (policy != "noeviction")
    rights = [rule.replace("~bq:", f"~{rig.prefix}:") for rule in documented_rights()]
    server.client.execute_command("ACL", "SETUSER", "batchq", *rights, "-info")
    pool = rig.start(BATCHQ_URL=url_of(server, "batchq:change-me"))
    rig.until_started(rig.enqueue("work"))
    assert "INFO is forbidden" in "".join(pool.lines("store_warning"))
    assert pool.stop() == 0


@pytest.mark.parametrize("size", [1000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_eviction_of_what_has_a_lifetime_costs_no_job(serve: Serve, rig_on: RigOn, size: int) -> None:
    """The server is full and evicts all the while, by volatile-lru: no key that a job needs has a lifetime."""
    server = serve("--maxmemory-policy", "volatile-lru")
    rig = rig_on(server)
    rig.app(APP)
    client = server.client
    used = int(client.info("memory")["used_memory"])
    client.config_set("maxmemory", used + (8 << 20) + size * 1000)
    filler = "x" * 50_000

    def fill() -> None:
        """Somebody else's keys, which may go."""
        for n in range(100):
            client.set(f"other-{n}-{time.monotonic_ns()}", filler, ex=1000)

    fill()
    ids = []
    for first in range(0, size, 250):
        ids += rig.enqueue_many("work" if first % 500 else "fails_first", [()] * 250)
    ids += rig.enqueue_many("work", [()] * 50, delay_ms=500)
    pool = rig.start(n=2, ready=False)

    def done() -> bool:
        fill()
        return rig.stats().totals["completed"] == len(ids)

    rig.until(done, "all are done, while others' keys come and go", within=90)
    while client.info("stats")["evicted_keys"] < 100:
        fill()
    rig.until_started(rig.enqueue("work"))
    rig.until_counts(done=len(ids) + 1, pending=0, delayed=0, active=0, dead=0)
    assert {entry.job for entry in rig.ledger.ends()} >= set(ids)
    mine = [name.decode().removeprefix(f"{rig.prefix}:") for name in client.scan_iter(f"{rig.prefix}:*")]
    mortal = [name for name in mine if client.pttl(f"{rig.prefix}:{name}") >= 0]
    assert all(":mark:" in name or name.startswith("master:") for name in mortal), mortal
    assert pool.stop() == 0


# -- it goes, and comes back -------------------------------------------------------------------------------------------


def _killed(server: Server, proxy: Proxy, pool: Pool) -> None:
    server.kill()
    server.start()


def _shut_down(server: Server, proxy: Proxy, pool: Pool) -> None:
    server.client.shutdown(nosave=True)
    server.process.wait(10)
    server.start()


def _clients_killed(server: Server, proxy: Proxy, pool: Pool) -> None:
    for _ in range(3):
        server.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(0.05)


def _unreachable(server: Server, proxy: Proxy, pool: Pool) -> None:
    seen = len(pool.lines("store_unavailable"))
    proxy.refusing = True
    proxy.cut_all()
    deadline = time.monotonic() + 10
    while len(pool.lines("store_unavailable")) == seen and time.monotonic() < deadline:
        time.sleep(0.02)
    proxy.refusing = False


@pytest.mark.parametrize("rounds", [1, pytest.param(7, marks=pytest.mark.slow)])
def test_a_pool_takes_jobs_again_however_its_server_went(serve: Serve, rig_on: RigOn, rounds: int) -> None:
    """Killed, shut down, connections ended, unreachable, one after the other: no restart, no job lost or run twice, no
    connection left over, two lines an outage."""
    server = serve(*DURABLE)
    rig = rig_on(server)
    rig.app(APP)
    with Proxy(server.port) as proxy:
        pool = rig.start("--lease", "60s", n=2, BATCHQ_URL=proxy.url)
        rig.until_started(rig.enqueue("work"))
        ids = [entry.job for entry in rig.ledger.starts()]
        workers, connections = pool.workers(), len(server.client.client_list())
        ways = (_killed, _shut_down, _clients_killed, _unreachable) * rounds
        for way in ways:
            ids += rig.enqueue_many("work", [(0.005,)] * 40)
            rig.until(lambda: len(rig.ledger.ends()) > len(ids) - 38, "they run")  # noqa: B023
            way(server, proxy, pool)
            ids.append(rig.enqueue("work"))
            rig.until_started(ids[-1], within=20)
        all_ended(rig, ids)
        stats = rig.until_counts(done=len(ids), active=0, pending=0, delayed=0)
        assert (stats.totals["fenced"], stats.totals["lost"], stats.totals["dead"]) == (0, 0, 0)
        assert (pool.workers(), pool.process.poll()) == (workers, None)
        # The test's own client may have one more.
        rig.until(lambda: len(server.client.client_list()) <= connections + 1, "no connection is left over")
        assert len(pool.log().splitlines()) < 10 + 4 * len(ways)
        assert pool.stop() == 0


def test_a_script_cache_that_is_emptied_all_the_while_costs_speed_alone(serve: Serve, rig_on: RigOn) -> None:
    """Under a pool and under a bulk import at once: no error, no second attempt, no line."""
    server = serve()
    rig = rig_on(server)
    rig.app(APP)
    pool = rig.start(n=2)
    (rig.folder / "rows.ndjson").write_text("".join(f'{{"n": {n}}}\n' for n in range(4000)))
    command = [sys.executable, "-m", "batchq", "import", "rows.ndjson", "--job", "work"]
    bulk = subprocess.Popen(command, cwd=rig.folder, env=rig.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    flushes = 0
    while bulk.poll() is None or rig.stats().totals["completed"] < 4000:
        server.client.script_flush("ASYNC" if flushes % 2 else "SYNC")
        flushes += 1
        assert pool.process.poll() is None
        time.sleep(0.01)
    assert bulk.returncode == 0, bulk.communicate()
    bulk.communicate()
    assert flushes > 10
    starts = rig.ledger.starts()
    assert len({entry.job for entry in starts}) == len(starts) == 4000
    assert {entry.attempt for entry in starts} == {1}
    assert "NOSCRIPT" not in pool.log()
    assert pool.stop() == 0


def test_scripts_that_are_flushed_between_their_loading_and_the_call_are_loaded_once_more(
    serve: Serve, rig_on: RigOn
) -> None:
    """Both are on their way when somebody flushes: the call is done all the same, once."""
    server = serve()
    rig = rig_on(server)
    with Proxy(server.port) as proxy, App(proxy.url, prefix=rig.prefix, fallback=None, enqueue_timeout=20) as app:
        server.client.script_flush()
        loaded = False

        def is_behind_a_load(frame: bytes, n: int) -> bool:
            nonlocal loaded
            loaded = loaded or b"LOAD" in frame
            return loaded and b"EVALSHA" in frame

        held = proxy.hold(is_behind_a_load)

        def flush() -> None:
            assert held.caught.wait(20)
            server.client.script_flush()
            held.release()

        flusher = threading.Thread(target=flush)
        flusher.start()
        assert app.enqueue("work").created
        flusher.join()
    assert held.caught.is_set()
    assert rig.stats().counts["pending"] == 1


def test_what_a_replica_refuses_waits_in_the_spool(serve: Serve, rig_on: RigOn) -> None:
    """READONLY for a while, under producers and a pool: nothing is lost, nobody is restarted."""
    server = serve()
    rig = rig_on(server)
    rig.app(APP)
    terms = {"BATCHQ_FALLBACK_EPHEMERAL": "1"}
    pool = rig.start(n=2, **terms)
    with app_on(rig, fallback_ephemeral=True) as app:
        refs = [app.enqueue("work") for _ in range(10)]
        server.client.replicaof("127.0.0.1", 1)
        while not refs[-1].spooled:
            refs.append(app.enqueue("work"))
        spooled = call(rig, "enqueue", "work", **terms).ended(0).out.strip()
        rig.until(lambda: pool.lines("store_unavailable"), "the outage is seen")
        server.client.replicaof("NO", "ONE")
        all_ended(rig, [*(ref.id for ref in refs), spooled])
    rig.until_counts(done=len(refs) + 1, active=0, pending=0)
    assert len(pool.lines("store_unavailable")) == len(pool.lines("store_back")) == 1
    assert pool.stop() == 0


# -- it hangs, and its clock jumps -------------------------------------------------------------------------------------


def test_jobs_that_end_while_the_server_hangs_past_their_lease_end_once(serve: Serve, rig_on: RigOn) -> None:
    """It stands still for longer than a lease; whoever ran what meanwhile, each job has one end, and none is active."""
    server = serve("--enable-debug-command", "local")
    rig = rig_on(server)
    rig.app(APP)
    pool = rig.start("--lease", "400ms", "--socket-timeout", "300ms", "--fallback-ephemeral", n=4)
    ids = rig.enqueue_many("work", [(0.2,)] * 28)
    rig.until(lambda: len(rig.ledger.ends()) >= 4, "some have ended")
    os.kill(server.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    # A producer is not held up for long: its job waits on this host's disk.
    waits = call(rig, "enqueue", "work", within=20, BATCHQ_FALLBACK_EPHEMERAL="1").ended(0).out.strip()
    rig.until(lambda: time.monotonic() > stopped + 1.2, "three leases have passed")
    os.kill(server.pid, signal.SIGCONT)
    rig.until(lambda: len(rig.ledger.ends()) >= 14, "it goes on")
    server.client.execute_command("DEBUG", "SLEEP", "0.9")
    stats = rig.until_counts(done=len(ids) + 1, active=0, pending=0, delayed=0)
    assert stats.totals["dead"] == 0
    assert {entry.job for entry in rig.ledger.ends()} == {*ids, waits}
    assert pool.stop() == 0


#: Pools on Redis go by a clock that the test moves, as all scripts of such a store do.
SERVERS_CLOCK = """
from functools import partialmethod
from batchq.redis.store import RedisStore

RedisStore.__init__ = partialmethod(RedisStore.__init__, clock_offset=True)
"""


def test_jumps_of_the_stores_clock_take_no_job_from_the_living(rig: Rig) -> None:
    """Ten minutes back and forth under a pool: delayed jobs come once, what runs is not run again nor refused."""
    rig.app((SERVERS_CLOCK if rig.kind != "spool" else "") + APP)
    clock = WallClock(rig.folder)
    pool = rig.start("--lease", "500ms", n=3, **clock.env())

    def jump_to(seconds: int) -> None:
        if rig.kind == "spool":
            clock.move(seconds)
        else:
            server_of(rig).set(f"{rig.prefix}:clock-offset", seconds * 1_000_000)

    held = [rig.enqueue("stands") for _ in range(2)]
    for job in held:
        rig.until_started(job)
    delayed = rig.enqueue_many("work", [()] * 30, delay_ms=2500)
    for seconds in (-600, 0):
        jump_to(seconds)
        stays(lambda: rig.stats().totals["lost"] == 0 and len(rig.ledger.starts()) == 2, "both keep their jobs", 0.9)
    jump_to(600)
    rig.until(lambda: len(rig.ledger.ends()) == len(delayed), "what is due by that clock has run")
    stays(lambda: rig.stats().totals["lost"] == 0, "both keep their jobs", 0.9)
    jump_to(0)
    stays(lambda: rig.stats().totals["lost"] == 0, "both keep their jobs", 0.9)
    (rig.folder / "gate").touch()
    stats = rig.until_counts(done=len(delayed) + 2, active=0, pending=0, delayed=0)
    assert (stats.totals["lost"], stats.totals["fenced"], stats.totals["dead"]) == (0, 0, 0)
    assert sorted(entry.job for entry in rig.ledger.starts()) == sorted([*held, *delayed])
    # It looks at the leases as often as before: no storm.
    rig.until_started(rig.enqueue("work", delay_ms=200))
    assert rig.store.jobs("default", State.DEAD).jobs == ()
    assert pool.stop() == 0
