"""A pool that hangs past its lease: its jobs run elsewhere, and its late outcomes change nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from batchq.system.scoreboard import IDLE, Scoreboard
from tests.process.rig import Rig, opened
from tests.servers import Server, flavours

APP = """
@app.job(backoff=fixed(0.1))
def gated():
    note("S")
    while current_job().token == 1 and not os.path.exists("gate"):
        time.sleep(0.01)
    note("E")


@app.job
def short():
    note("S")
    note("E")


@app.job
def brief():
    note("S")
    time.sleep(0.002)
    note("E")
"""


def test_late_outcome_of_a_frozen_pool_is_refused(rig: Rig) -> None:
    """Its job was run by another under a newer token; it is fenced, and its workers go on under new ids."""
    rig.app(APP)
    job = rig.enqueue("gated")
    pool = rig.start("--lease", "600ms", n=2)
    late = rig.until_started(job)
    before = set(rig.store.leases("default").ends)
    frozen = pool.freeze()
    # It has time enough to take what its standing claim brings.
    other = rig.start("--lease", "3s")
    assert rig.until_started(job, times=2) != late
    stats = rig.until_counts(done=1, active=0)
    assert stats.totals["lost"] == 1
    os.close(os.open(rig.folder / "gate", os.O_CREAT))
    pool.thaw(frozen)

    rig.until(lambda: len(rig.ledger.ends(job)) == 2, "the late handler has ended")
    rig.until(lambda: rig.stats().totals["fenced"], "the late outcome is refused")
    stats = rig.stats()
    assert (stats.totals["completed"], stats.counts["completed"], stats.counts["active"]) == (1, 0, 0)
    assert [(entry.attempt, entry.token) for entry in rig.ledger.starts(job)] == [(1, 1), (1, 2)]
    rig.until(lambda: pool.lines("fenced"), "it is told")

    assert other.stop() == 0
    pool.wait_ready(2)
    after = set(rig.store.leases("default").ends)
    assert len(after) == 2
    assert not after & before, "a sealed id was used again"
    jobs = rig.enqueue_many("short", [()] * 50)
    rig.until_counts(done=51)
    assert {entry.pid for entry in rig.ledger.starts() if entry.job in jobs} <= set(frozen[1:])
    assert pool.stop() == 0
    assert rig.stats().totals["fenced"] == stats.totals["fenced"]


def test_frozen_pool_that_was_idle_begins_nothing_that_others_have_done(rig: Rig) -> None:
    """A claim that stood at the store may have been made for it meanwhile: it learns first that it is not its own."""
    rig.app(APP)
    pool = rig.start("--lease", "1s", "--pid-file", str(rig.folder / "pool.pid"), n=2)
    before = set(rig.store.leases("default").ends)
    board = Scoreboard.at(str(rig.folder / "pool.pid.board"))
    rig.until(lambda: [board.slot(place).state for place in (0, 1)] == [IDLE, IDLE], "both are idle")
    frozen = pool.freeze()
    job = rig.enqueue("short")
    other = rig.start("--lease", "1s")
    rig.until_counts(done=1)
    rig.until(lambda: not before & set(rig.store.leases("default").ends), "its leases are over")
    pool.thaw(frozen)
    rig.until(lambda: len(rig.store.leases("default").ends) == 3, "its workers have new ids")
    assert len(rig.ledger.starts(job)) == 1
    assert rig.stats().totals["fenced"] == 0
    assert [pool.stop(), other.stop()] == [0, 0]


def test_frozen_worker_of_a_living_master_loses_its_job(rig: Rig) -> None:
    """A worker that is stopped is not renewed; its own master reaps it after the lease, and it comes back fenced."""
    rig.app(APP)
    job = rig.enqueue("gated")
    pool = rig.start("--lease", "600ms", n=2)
    worker = rig.until_started(job)
    os.kill(worker, signal.SIGSTOP)
    assert rig.until_started(job, times=2) != worker
    rig.until_counts(done=1)
    os.close(os.open(rig.folder / "gate", os.O_CREAT))
    os.kill(worker, signal.SIGCONT)
    rig.until(lambda: rig.stats().totals["fenced"] == 1, "the late outcome is refused")
    rig.until(lambda: worker in pool.registered("default"), "it works under a new id")
    assert rig.stats().totals["completed"] == 1
    assert pool.stop() == 0


def test_frozen_worker_begins_nothing_of_its_batch_that_others_have_done(rig: Rig) -> None:
    """What stands behind the job that it runs is no more its own when it goes on."""
    rig.app(APP)
    pool = rig.start("--lease", "600ms", n=2)
    # So that many are claimed in one call.
    rig.enqueue_many("brief", [()] * 100)
    rig.until_counts(done=100, active=0)
    jobs = rig.enqueue_many("brief", [()] * 100)
    worker = rig.until_started(jobs[0])
    os.kill(worker, signal.SIGSTOP)
    rig.until_counts(done=200, active=0)
    begun = [entry.job for entry in rig.ledger.starts() if entry.pid == worker]
    os.kill(worker, signal.SIGCONT)
    rig.until(lambda: worker in pool.registered("default"), "it works under a new id")
    assert [entry.job for entry in rig.ledger.starts() if entry.pid == worker] == begun
    assert pool.stop() == 0


def test_idle_worker_that_goes_on_before_it_is_reaped_keeps_its_jobs(tmp_path: Path, prefix: str) -> None:
    """It was stopped for a moment while the store hung: what it has claimed since is its own."""
    server = Server(flavours()[0])
    try:
        with opened(tmp_path, server.flavour, server.url, prefix) as rig:
            rig.app(APP)
            pool = rig.start("--lease", "60s", "--pid-file", str(rig.folder / "pool.pid"), n=2)
            board = Scoreboard.at(str(rig.folder / "pool.pid.board"))
            rig.until(lambda: [board.slot(place).state for place in (0, 1)] == [IDLE, IDLE], "both are idle")
            rig.store.pause("default")
            jobs = rig.enqueue_many("gated", [()] * 2)
            os.kill(server.pid, signal.SIGSTOP)
            worker = pool.workers()[0]
            os.kill(worker, signal.SIGSTOP)
            rig.until(lambda: pool.lines("worker_stopped"), "the master has seen it")
            os.kill(worker, signal.SIGCONT)
            rig.until(lambda: pool.lines("store_unavailable"), "the master has tried to reap it")
            os.kill(server.pid, signal.SIGCONT)
            rig.store.resume("default")
            for job in jobs:
                rig.until_started(job)
            rig.until(lambda: pool.lines("store_back"), "the master does what was left")
            pool.send(signal.SIGUSR1)
            rig.until(lambda: pool.lines("scoreboard"), "that round is over")
            os.close(os.open(rig.folder / "gate", os.O_CREAT))
            stats = rig.until_counts(done=2, active=0)
            assert [len(rig.ledger.starts(job)) for job in jobs] == [1, 1]
            assert (stats.totals["released"], stats.totals["fenced"]) == (0, 0)
            assert pool.stop() == 0
    finally:
        os.kill(server.pid, signal.SIGCONT)
        server.stop()


#: Seals a worker that is gone, gives back the first of its claims, and is killed before the second.
REAPER = """
import os, signal, sys
from batchq.config import load
from batchq.job import Released
from batchq.stores import open_store

url, prefix, worker = sys.argv[1:]
store = open_store(url, load({"url": url, "prefix": prefix}, environ={}))
sealed = store.seal("default", worker)
assert len(sealed.claims) == 2
store.release("default", worker, [Released(sealed.claims[0])], again=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_work_of_a_reaper_that_was_killed_is_finished_by_a_sweep(rig: Rig) -> None:
    """Between the seal and the last move: what it had not moved is lost by the lease, and nothing is left over."""
    rig.app(APP)
    gone = "gone.host.1.x"
    rig.store.register("default", gone, 600_000)
    jobs = rig.enqueue_many("short", [()] * 2)
    assert len(rig.store.claim("default", gone, 2, 0).claims) == 2
    reaper = subprocess.run([sys.executable, "-c", REAPER, rig.url, rig.prefix, gone], timeout=30, check=False)
    assert reaper.returncode == -signal.SIGKILL
    assert rig.store.leases("default").ends[gone] == 0
    assert (rig.stats().counts["active"], rig.stats().counts["pending"]) == (1, 1)
    pool = rig.start("--lease", "600ms")
    stats = rig.until_counts(done=2, active=0)
    assert (stats.totals["lost"], stats.totals["released"], stats.totals["retried"]) == (1, 1, 0)
    assert [entry.attempt for job in jobs for entry in rig.ledger.starts(job)] == [1, 1]
    rig.until(lambda: gone not in rig.store.leases("default").ends, "nothing of it is left")
    assert pool.stop() == 0
