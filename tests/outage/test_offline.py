"""Handlers that run while the server is away: from the fallback spool, each job once; the rest goes to the server."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from batchq import App, ConfigError
from batchq.fallback.offline import Shelf
from batchq.job import Mark, NewJob, new_id, pack_row
from batchq.redis.store import RedisStore
from batchq.spool import drop, inbox
from batchq.spool.parcel import address_of
from tests.faults.proxy import Proxy
from tests.outage.conftest import DURABLE
from tests.process.rig import Pool, Rig, let_pass
from tests.servers import Server

Serve = Callable[..., Server]
RigOn = Callable[[Server], Rig]

APP = """
@app.job(offline=True, backoff=fixed(0.1))
def spare(seconds=0.0):
    note("S")
    time.sleep(seconds)
    note("E")


@app.job(offline=True, max_attempts=9, backoff=fixed(600))
def stumbles():
    note("S")
    raise ValueError("no")


@app.job
def online():
    note("S")
    note("E")
"""


@pytest.fixture
def away(serve: Serve, rig_on: RigOn) -> Iterator[tuple[Server, Rig, Pool, App]]:
    """A pool whose server was killed, and a producer."""
    server = serve(*DURABLE)
    rig = rig_on(server)
    rig.app(APP)
    spool = str(rig.folder / "fallback")
    with App(server.url, prefix=rig.prefix, spool=spool, fallback_ephemeral=True, enqueue_timeout=0.2) as app:
        pool = rig.start("--lease", "2s", n=2)
        rig.enqueue("online")
        rig.until_counts(done=1)
        server.kill()
        yield server, rig, pool, app


def test_jobs_of_such_handlers_run_meanwhile_and_never_again(away: tuple[Server, Rig, Pool, App]) -> None:
    """All others wait: other handlers, ids of callers, and what may have reached the server."""
    server, rig, pool, app = away
    mine = [app.enqueue("spare").id for _ in range(20)]
    others = [app.enqueue("online").id for _ in range(3)]
    others.append(app.enqueue("spare", job_id="given").id)
    maybe = NewJob(new_id(), pack_row("spare"))
    to = address_of(f"localhost:{server.port}/0 {rig.prefix}")
    drop(rig.folder / "fallback", [("default", maybe)], mark=Mark("lane", 1), maybe=True, to=to)
    others.append(maybe.id)
    rig.until(lambda: len(rig.ledger.ends()) == 21, "they have run", within=20)
    assert {entry.job for entry in rig.ledger.ends()} >= set(mine)
    assert inbox.census(rig.folder / "fallback").files == 5
    server.start()
    rig.until_counts(done=6, pending=0, active=0, delayed=0, within=20)
    starts = sorted(entry.job for entry in rig.ledger.starts())
    assert len(starts) == len(set(starts)) == 26
    assert set(starts) >= {*mine, *others}
    assert rig.stats().totals["forwarded"] == 5
    rig.until(lambda: len(psutil.Process(pool.pid).children()) == 2, "the second pool has ended")
    assert pool.stop() == 0


def test_what_has_not_ended_there_goes_to_the_server_with_what_is_behind_it(
    away: tuple[Server, Rig, Pool, App],
) -> None:
    """An attempt that failed is one of the budget; a job that was not begun is as new; one that runs may end."""
    server, rig, _, app = away
    failed = app.enqueue("stumbles").id
    rig.until_started(failed, within=20)
    # Both places are taken until the server is back, and that is noticed.
    long = [app.enqueue("spare", args=[4.0]).id for _ in range(2)]
    for job in long:
        rig.until_started(job)
    waiting = [app.enqueue("spare", args=[0.01]).id for _ in range(10)]
    server.start()
    rig.until_counts(done=11, pending=0, active=0, delayed=1, within=20)
    job = rig.job(failed)
    assert (job.attempts, job.attempt, job.errors[0]["error"]) == (1, 1, "no")
    starts = [entry.job for entry in rig.ledger.starts()]
    assert sorted(starts) == sorted(set(starts)), "one ran twice"
    assert set(starts) >= {*waiting, *long}


def test_second_pool_that_is_killed_loses_nothing(away: tuple[Server, Rig, Pool, App]) -> None:
    """kill -9 of its master: only what ran runs again, there or at the server."""
    server, rig, pool, app = away
    jobs = [app.enqueue("spare", args=[0.3]).id for _ in range(12)]
    rig.until(lambda: len(rig.ledger.starts()) >= 5, "some run", within=20)
    [line] = pool.lines("offline")
    os.kill(int(line.split("pid=")[1].split()[0]), signal.SIGKILL)
    running = len(rig.ledger.starts()) - len(rig.ledger.ends())
    server.start()
    rig.until(lambda: {e.job for e in rig.ledger.ends()} >= set(jobs), "all have run", within=40)
    starts = [entry.job for entry in rig.ledger.starts()]
    assert len(starts) - len(set(starts)) <= running + 2
    rig.until_counts(pending=0, active=0, delayed=0, within=20)


def test_what_the_server_may_have_taken_does_not_run_here_again(serve: Serve, rig_on: RigOn) -> None:
    """It is away once more before it has answered what it was given back: that waits for it, and runs once."""
    server = serve(*DURABLE)
    rig = rig_on(server)
    rig.app(APP)
    given_back: list[bytes] = []

    def sees(request: bytes, _: int) -> bool:
        given_back.extend([request] * (b"ledger-" in request))
        return False

    def away(reply: bytes) -> bool:
        proxy.refusing = True
        return True

    spool = str(rig.folder / "fallback")
    with (
        Proxy(server.port) as proxy,
        App(proxy.url, prefix=rig.prefix, spool=spool, fallback_ephemeral=True, enqueue_timeout=0.2) as app,
    ):
        pool = rig.start("--lease", "2s", n=2, BATCHQ_URL=proxy.url)
        proxy.cut = away
        rig.until(lambda: pool.lines("store_unavailable"), "the pool knows that its store is away")
        # What comes after this one was surely not sent.
        online = app.enqueue("online").id
        # Both places are taken until the server is back, and that is noticed.
        long = [app.enqueue("spare", args=[3.0]).id for _ in range(2)]
        for job in long:
            rig.until_started(job)
        waiting = [app.enqueue("spare").id for _ in range(10)]
        rig.until(lambda: inbox.census(spool).files == 1, "they are moved to where they may run")
        proxy.hold(sees)
        proxy.cut = lambda reply: proxy.refusing or (bool(given_back) and reply.endswith(b"ok\r\n") and away(reply))
        proxy.refusing = False
        rig.until(lambda: proxy.refusing, "they are given back, and nobody hears that it was done")
        rig.until(lambda: len(pool.lines("offline")) == 2, "the spool is served again")
        # Long enough for them to run there, if they would.
        let_pass(1.5)
        proxy.cut, proxy.refusing = None, False
        rig.until_counts(done=11, pending=0, active=0, delayed=0)
        starts = [entry.job for entry in rig.ledger.starts()]
        assert sorted(starts) == sorted([online, *long, *waiting])
        rig.until(lambda: pool.lines("offline_returned"), "the spool is emptied")
        outages = len(pool.lines("store_unavailable"))
        proxy.cut = away
        rig.until(lambda: len(pool.lines("store_unavailable")) > outages, "it knows")
        app.enqueue("online")
        rig.until_started(app.enqueue("spare").id)


def test_only_whole_parcels_of_this_server_and_pool_are_taken(
    redis_server: Server, prefix: str, tmp_path: Path
) -> None:
    """One line that may not run here keeps the file where it is; other servers' and hand-made files stay too."""
    store = RedisStore(redis_server.url, prefix=prefix)
    app = App("memory:")
    app.job(name="spare", offline=True)(lambda: None)
    app.job(name="online")(lambda: None)
    path, to = tmp_path / "spool", address_of(store.destination)
    shelf = Shelf(str(path), store, app.registry, ["default"])

    def a_job(name: str = "spare", **row: object) -> NewJob:
        return NewJob(new_id(), pack_row(name, **row))  # type: ignore[arg-type]

    drop(path, [("default", a_job()), ("default", a_job("online"))], to=to)
    drop(path, [("other", a_job())], to=to)
    drop(path, [("default", a_job(keep_ms=1000))], to=to)
    drop(path, [("default", a_job())], to=address_of("elsewhere"))
    drop(path, [("default", a_job())])
    assert shelf.fill() == 0
    assert not shelf.exists
    drop(path, [("default", a_job()), ("default", a_job())], to=to)
    assert shelf.fill() == 1
    assert inbox.census(path).files == 5
    assert inbox.census(shelf.path) == inbox.Census(1, 2, 0)
    spool = shelf.open()
    assert spool.sweep_inbox().jobs == 2
    spool.close()
    store.close()


def test_result_can_not_be_kept_of_a_job_that_runs_elsewhere() -> None:
    """Callers look for it at the server."""
    with pytest.raises(ConfigError, match="offline: a result is kept by the server alone"):
        App("memory:").job(name="spare", offline=True, result=True)(lambda: None)
