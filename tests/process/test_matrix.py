"""Every signal and every death in every phase of a pool's life. The ledger that the handlers write is the judge."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from batchq.master.control import ask
from tests.faults.proxy import Proxy
from tests.process.conftest import STORES, url_of
from tests.process.rig import opened
from tests.process.stage import EXIT, PHASES, Stage
from tests.servers import Servers

#: To the master; it goes on.
LIVES = {
    "HUP": signal.SIGHUP,
    "TTIN": signal.SIGTTIN,
    "TTOU": signal.SIGTTOU,
    "TSTP": signal.SIGTSTP,
    "CONT": signal.SIGCONT,
    "USR1": signal.SIGUSR1,
}
#: To the master; it ends.
ENDS = {
    "TERM": [signal.SIGTERM],
    "INT": [signal.SIGINT],
    "INT-INT": [signal.SIGINT, signal.SIGINT],
    "QUIT": [signal.SIGQUIT],
}
#: To a worker.
DEATHS = {"worker-SIGKILL": signal.SIGKILL, "worker-SIGSEGV": signal.SIGSEGV, "worker-exit": EXIT}
MASTER_DEATH = "master-SIGKILL"
EVENTS = (*LIVES, *ENDS, *DEATHS, MASTER_DEATH)

#: Those that run by default: each event and each phase, on either store, where the two meet in the most telling way.
TELLING = {
    ("idle", "worker-SIGKILL", "spool"),
    ("in_job", "INT", "spool"),
    ("in_job", "HUP", "redis"),
    ("in_job", "worker-SIGSEGV", "redis"),
    ("in_job", MASTER_DEATH, "spool"),
    ("in_batch", "TERM", "spool"),
    ("in_batch", "worker-exit", "redis"),
    ("in_batch", MASTER_DEATH, "redis"),
    ("settling", "QUIT", "redis"),
    ("settling", "worker-SIGKILL", "redis"),
    ("settling", "TSTP", "redis"),
    ("starting", "HUP", "redis"),
    ("starting", "worker-SIGKILL", "redis"),
    ("reloading", "INT-INT", "redis"),
    ("reloading", "TTOU", "spool"),
    ("replacing", "TTIN", "redis"),
    ("replacing", "worker-exit", "spool"),
    ("stopping", "USR1", "redis"),
    ("stopping", "CONT", "spool"),
}


def cells() -> Iterator[object]:
    for kind in STORES:
        for phase in PHASES:
            if kind == "spool" and phase == "settling":
                continue  # Nothing stands between a spool and its worker that could hold one call of many.
            for event in EVENTS:
                told = (phase, event, "spool" if kind == "spool" else "redis")
                marks = [] if told in TELLING else [pytest.mark.slow]
                yield pytest.param(kind, phase, event, marks=marks, id=f"{phase}-{event}-{kind}")


@pytest.mark.parametrize(("kind", "phase", "event"), list(cells()))
def test_nothing_is_lost_or_run_twice(
    kind: str, phase: str, event: str, tmp_path: Path, prefix: str, servers: Servers
) -> None:
    """Each job ends once; again begins only what was cut off; only the death of a worker spends an attempt."""
    url = url_of(kind, tmp_path, servers)
    with opened(tmp_path, kind, url, prefix) as rig:
        proxy = None if kind == "spool" else Proxy(urlsplit(url).port or 0)
        stage = Stage(rig, proxy)
        try:
            stage.enter(phase)
            code = happen(stage, phase, event)
            finish(stage)
            judge(stage, phase, event, code)
        finally:
            stage.close()
            if proxy is not None:
                proxy.close()


def is_at_once(phase: str, event: str) -> bool:
    """The master kills its workers."""
    return event in ("QUIT", "INT-INT") or (phase == "stopping" and event in ENDS)


def happen(stage: Stage, phase: str, event: str) -> int | None:
    """Lets it happen, and then opens all gates. Answers the exit code of a pool that ends by it."""
    rig, pool = stage.rig, stage.pool
    if event == MASTER_DEATH:
        pool.send(signal.SIGKILL)
        code = pool.wait()
        rig.until_clean()
        stage.open_all()
        return code
    if is_at_once(phase, event):
        for number in ENDS[event]:
            pool.send(number)
            rig.until(lambda: pool.lines("stopping") or pool.process.poll() is not None, "it is stopping")
        code = pool.wait()
        stage.open_all()
        return code
    if event in ENDS:
        pool.send(*ENDS[event])
        rig.until(lambda: pool.lines("stopping"), "it is stopping")
        let_go_on(stage)
        return pool.wait()
    if event in DEATHS:
        os.kill(stage.worker, DEATHS[event])
        rig.until(lambda: pool.lines("worker_died") or send_again(stage, event), "it is seen")
        # What was on its way when it died comes late: see `finish`.
        stage.open_all()
    else:
        seen = len(pool.lines("scoreboard"))
        pool.send(LIVES[event])
        # Signals are acted on in their order: with this answer the one before has been.
        pool.send(signal.SIGUSR1)
        rig.until(lambda: len(pool.lines("scoreboard")) > seen, "it has acted", within=20)
        let_go_on(stage)
    if phase == "stopping":
        return pool.wait()
    look_at_effect(stage, phase, event)
    return None


def send_again(stage: Stage, event: str) -> None:
    """The interpreter may have looked for signals just before the one came, and then have begun to wait in a call."""
    if DEATHS[event] == EXIT:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stage.worker, EXIT)


def let_go_on(stage: Stage) -> None:
    stage.open_all()
    if stage.held is not None:
        stage.held.release()


def look_at_effect(stage: Stage, phase: str, event: str) -> None:
    """The pool is what the event makes of it, and goes on."""
    rig, pool = stage.rig, stage.pool

    def status() -> dict[str, object]:
        return ask(stage.socket, {"do": "status"}, 20)

    if event == "TSTP":
        rig.until(lambda: status()["state"] == "quiet", "it is quiet", within=20)
        pool.send(signal.SIGCONT)
    rig.until(lambda: status()["state"] == "running", "it is as ever", within=20)
    reloads = (event == "HUP") + (phase in ("reloading", "replacing"))
    # Two that come together are one.
    assert min(1, reloads) <= int(str(status()["reloads"])) <= reloads
    want = max(1, stage.processes + {"TTIN": 1, "TTOU": -1}.get(event, 0))
    rig.until(lambda: len(pool.registered("default")) == len(pool.workers()) == want, f"{want} workers", within=20)


def finish(stage: Stage) -> None:
    """All jobs and some more are run to their end: by the pool, where it lives, else by the next one."""
    rig = stage.rig
    stage.others += rig.enqueue_many("gated", [()] * 3)
    if stage.pool.process.poll() is not None:
        stage.start()
    rig.until_counts(done=len(stage.jobs), pending=0, delayed=0, active=0, within=20)
    if stage.held is not None:
        # A late copy of what a dead worker had to say.
        stage.held.release()
    assert stage.pool.stop() == 0
    rig.until_clean()


def judge(stage: Stage, phase: str, event: str, code: int | None) -> None:
    rig = stage.rig
    died, killed, at_once = event in DEATHS, event == MASTER_DEATH, is_at_once(phase, event)
    attempts = {job: [entry.attempt for entry in rig.ledger.starts(job)] for job in stage.jobs}
    for job in stage.others:
        assert attempts[job] == [1], "neither had it begun, nor was it cut off"
    for job in stage.running:
        assert attempts[job] == ([1, 2] if died else [1, 1] if killed or at_once else [1])
    for job in stage.finished:
        assert attempts[job] == [1] or (attempts[job] == [1, 1] and (died or killed or at_once))
    for job in stage.jobs:
        tokens = [entry.token for entry in rig.ledger.starts(job)]
        assert tokens == sorted(set(tokens))
        assert rig.ledger.ends(job)[-1].token == tokens[-1]
        assert len(rig.ledger.ends(job)) == (len(tokens) if job in stage.finished else 1)
    totals = rig.stats().totals
    cut = len(stage.running)
    assert (totals["completed"], totals["enqueued"]) == (len(stage.jobs), len(stage.jobs))
    assert (totals["crashed"], totals["retried"]) == ((cut, cut) if died else (0, 0))
    assert totals["lost"] == (cut if killed else 0)
    assert (totals["dead"], totals["cancelled"], totals["dropped"], totals["fenced"]) == (0, 0, 0, 0)
    assert code == (-signal.SIGKILL if killed else 0 if event in ENDS or phase == "stopping" else None)
    assert not rig.store.leases("default").ends
    assert not list(rig.folder.glob("pool.pid*"))
