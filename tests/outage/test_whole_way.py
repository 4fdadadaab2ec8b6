"""Producers, a spool, a pool and the command line together: a server that comes and goes loses and doubles nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from batchq import App
from batchq.job import Mark, NewJob, new_id, pack_row, random_name
from batchq.redis.store import RedisStore
from batchq.spool import drop, inbox
from batchq.spool.parcel import address_of
from tests.outage.conftest import DURABLE
from tests.process.rig import Rig, until
from tests.servers import Server, free_port

Serve = Callable[..., Server]
RigOn = Callable[[Server], Rig]


ENQUEUEING = """
@app.job
def go():
    note("S")
    for n in range(5):
        last.enqueue()
        time.sleep(0.1)
    note("E")


@app.job(queue="last")
def last():
    note("S")
"""


def app_of(rig: Rig, url: str, **settings: object) -> App:
    """A producer on this host."""
    base = {"prefix": rig.prefix, "spool": str(rig.folder / "fallback"), "fallback_ephemeral": True}
    return App(url, **base, enqueue_timeout=0.2, **settings)


@pytest.mark.parametrize("is_sure", [False, True], ids=["replied", "confirmed"])
def test_each_job_of_a_producer_runs_once_while_the_server_comes_and_goes(
    serve: Serve, rig_on: RigOn, is_sure: bool
) -> None:
    """No enqueue fails, none waits long; the master forwards what was spooled, beside fresh work. `confirmed`: what was
    forwarded stands there until it is on the server's disk, and what is enqueued comes behind what waits."""
    server = serve(*DURABLE)
    rig = rig_on(server)
    confirm = ("waitaof" if server.flavour == "valkey" else "grace") if is_sure else "reply"
    pool = rig.start(n=2, BATCHQ_FORWARD_CONFIRM=confirm)
    accepted: list[str] = []
    slowest = 0.0

    def produce() -> None:
        nonlocal slowest
        with app_of(rig, server.url, forward_confirm=confirm, ordered=is_sure) as app:
            for _ in range(400):
                began = time.monotonic()
                accepted.append(app.enqueue("work").id)
                slowest = max(slowest, time.monotonic() - began)
                time.sleep(0.002)

    producer = threading.Thread(target=produce)
    producer.start()
    for n in (60, 200):
        rig.until(lambda n=n: len(accepted) >= n, f"{n} jobs are enqueued")
        server.kill()
        rig.until(lambda n=n: len(accepted) >= n + 60, "jobs are spooled")
        server.start()
    producer.join(30)
    rig.until(lambda: len(rig.ledger.ends()) >= 400, "all have run", within=20)
    rig.until_counts(done=400, active=0, pending=0)
    assert sorted(entry.job for entry in rig.ledger.starts()) == sorted(accepted)
    stats = rig.stats()
    assert stats.totals["forwarded"] > 0
    assert (stats.totals["enqueued"], stats.totals["fenced"]) == (400, 0)
    assert slowest < 2.0
    # A file is removed after its jobs are in, so they may have run before.
    rig.until(lambda: inbox.census(rig.folder / "fallback") == inbox.Census(0, 0, 0), "the spool is empty", within=20)
    assert pool.lines("ingested")


def test_outage_is_one_line_a_pool_when_it_begins_and_one_when_it_ends(serve: Serve, rig_on: RigOn) -> None:
    """Also where the handlers of all workers enqueue meanwhile; the end tells what waits here, and is counted."""
    server = serve(*DURABLE)
    rig = rig_on(server)
    rig.app(ENQUEUEING)
    pool = rig.start(n=3, BATCHQ_FALLBACK_EPHEMERAL="yes", BATCHQ_ENQUEUE_TIMEOUT="100ms")
    for job in [rig.enqueue("go") for _ in range(3)]:
        rig.until_started(job)
    server.kill()
    rig.until(lambda: inbox.census(rig.folder / "fallback").jobs >= 9, "jobs are spooled")
    rig.until(lambda: len(rig.ledger.ends()) == 3, "the handlers have ended")
    waiting = inbox.census(rig.folder / "fallback").jobs
    server.start()
    rig.until_counts("last", pending=0, active=0, done=15)
    assert len(pool.lines("store_unavailable")) == 1
    [back] = pool.lines("store_back")
    assert f"spooled={waiting} outages=1" in back
    rig.until(lambda: [one["outages"] for one in rig.store.masters()] == [1], "the counter is published")


def test_pool_that_starts_before_its_server_stands_ready(serve: Serve, rig_on: RigOn) -> None:
    """With a fallback jobs come in all the same: they run when the server is there."""
    server = serve()
    rig = rig_on(server)
    server.kill()
    pool = rig.start(n=1, ready=False)
    rig.until(lambda: pool.lines("store_unavailable"), "the master says that its store is away")
    with app_of(rig, server.url) as app:
        ref = app.enqueue("work")
    assert ref.spooled
    server.start()
    rig.until(lambda: rig.ledger.ends(), "the job runs")
    assert [entry.job for entry in rig.ledger.starts()] == [ref.id]
    assert pool.stop() == 0


def test_master_does_not_let_fresh_work_wait_for_what_is_forwarded(serve: Serve, rig_on: RigOn) -> None:
    """3000 files lie there; a job that is enqueued meanwhile runs at once."""
    server = serve()
    rig = rig_on(server)
    folder = rig.folder / "fallback"
    [name] = drop(folder, [("default", NewJob(new_id(), pack_row("work")))])
    first = folder / "inbox" / "new" / name
    for n in range(3000):
        # Made by hand, for speed: thousands of flushes are not what this is about.
        (folder / "inbox" / "new" / f"{name[:16]}-1-{n}.1.ndjson").write_text(
            json.dumps({"job": "work", "id": f"old-{n}", "queue": "other"})
        )
    assert first.exists()
    rig.start("-q", "default", n=1)
    began = time.monotonic()
    job = rig.enqueue("work")
    rig.until_started(job)
    assert time.monotonic() - began < 5
    assert inbox.census(folder).files > 0
    rig.until(lambda: inbox.census(folder).files == 0, "all are forwarded", within=20)
    assert rig.store.stats("other").totals["forwarded"] == 3000


def test_pool_without_fallback_leaves_the_spool_alone(serve: Serve, rig_on: RigOn) -> None:
    """--no-fallback."""
    server = serve()
    rig = rig_on(server)
    folder = rig.folder / "fallback"
    drop(folder, [("default", NewJob(new_id(), pack_row("work")))])
    rig.start("--no-fallback", n=1)
    rig.enqueue("work")
    rig.until_counts(done=1)
    assert inbox.census(folder).files == 1


# -- the command line ------------------------------------------------------------------------------------------------


def batchq(rig: Rig, *args: str, url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "batchq", *args],
        env=rig.env(BATCHQ_URL=url, BATCHQ_FALLBACK_EPHEMERAL="yes"),
        cwd=rig.folder,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_command_line_spools_and_forwards(serve: Serve, rig_on: RigOn) -> None:
    """`batchq enqueue` says where the job waits, `batchq spool forward` sends it; codes and JSON for programs."""
    server = serve()
    rig = rig_on(server)
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    strict = batchq(rig, "enqueue", "work", "--no-fallback", url=nowhere)
    assert strict.returncode == 4
    away = batchq(rig, "enqueue", "work", "--json", url=nowhere)
    assert away.returncode == 0
    assert "waits in this host's spool" in away.stderr
    told = json.loads(away.stdout)
    assert told["spooled"] is True
    assert batchq(rig, "spool", "forward", url=nowhere).returncode == 4
    # It waits for the server that could not be reached, not for any.
    assert json.loads(batchq(rig, "spool", "forward", "--json", url=server.url).stdout)["jobs"] == 0
    sent = batchq(rig, "spool", "forward", "--all", "--json", url=server.url)
    assert sent.returncode == 0, sent.stderr
    assert {"files": 1, "jobs": 1, "bad": 0}.items() <= json.loads(sent.stdout).items()
    assert rig.store.get("default", told["id"]) is not None
    (rig.folder / "fallback" / "inbox" / "new" / "bad.json").write_text("{")
    bad = batchq(rig, "spool", "forward", url=server.url)
    assert bad.returncode == 1
    assert "moved aside" in bad.stderr
    wrong = batchq(rig, "spool", "forward", url=f"spool:{rig.folder / 'store'}")
    assert wrong.returncode == 2


def test_watching_forwarder_waits_for_a_server_and_goes_on_after_a_kill(serve: Serve, rig_on: RigOn) -> None:
    """For hosts without a master; kill -9 leaves what another one finishes."""
    server = serve(*DURABLE)
    rig = rig_on(server)
    folder: Path = rig.folder / "fallback"
    store = RedisStore(server.url, prefix=rig.prefix)
    to = address_of(store.destination)
    ids = []

    def put(n: int) -> None:
        for _ in range(n):
            job = NewJob(new_id(), pack_row("work"))
            ids.append(job.id)
            drop(folder, [("default", job)], mark=Mark(random_name(), 1), maybe=True, to=to)

    put(20)
    server.kill()
    watch = [sys.executable, "-m", "batchq", "spool", "forward", "--watch"]
    env = rig.env(BATCHQ_URL=server.url)
    first = subprocess.Popen(watch, env=env, cwd=rig.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert first.stderr is not None
    assert b"is the server up" in first.stderr.readline()
    server.start()
    until(lambda: inbox.census(folder).files == 0, "all are forwarded")
    put(50)
    until(lambda: inbox.census(folder).files < 50, "some are forwarded")
    first.kill()
    first.wait()
    first.stderr.close()
    second = subprocess.Popen(watch, env=env, cwd=rig.folder, stdout=subprocess.DEVNULL)
    try:
        # The first one may have sent all: these are for the second, which is up when they are gone.
        put(10)
        until(lambda: inbox.census(folder).files == 0, "all are forwarded")
        os.kill(second.pid, signal.SIGINT)
        assert second.wait(10) == 130
    finally:
        second.kill()
        second.wait()
    rig.start(n=2)
    rig.until_counts(done=80, pending=0, active=0)
    assert sorted(entry.job for entry in rig.ledger.starts()) == sorted(ids)
    store.close()


def test_spool_that_can_not_be_used_is_told_once_and_stops_nothing(serve: Serve, rig_on: RigOn) -> None:
    """Everybody may write there: nothing of it is trusted, and the pool goes on."""
    server = serve()
    rig = rig_on(server)
    folder = rig.folder / "fallback"
    drop(folder, [("default", NewJob(new_id(), pack_row("work")))])
    folder.chmod(0o777)
    pool = rig.start("--sweep", "50ms", n=1)
    rig.until(lambda: pool.lines("spool_unusable"), "it is told")
    for n in range(1, 4):
        rig.enqueue("work", 0.1)
        rig.until_counts(done=n)
    assert len(pool.lines("spool_unusable")) == 1
    assert not pool.lines("store_unavailable")
    folder.chmod(0o700)
    rig.until_counts(done=4)
