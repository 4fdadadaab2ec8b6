"""Batches while their workers are killed: every job is counted once, every callback comes once."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import pytest

from batchq import App, Batch
from tests.process.conftest import STORES, url_of
from tests.process.rig import Rig, opened
from tests.servers import Servers

APP = """
_told = os.open("told", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@app.job(max_attempts=20, backoff=fixed(0.05))
def work(n):
    job = current_job()
    if n % 10 == 3 and job.attempt == 1:
        raise ValueError("the first attempt fails")
    if n % 10 == 7:
        raise Dead("never")
    if n % 10 == 5 and job.token == 1:
        raise Snooze(0.1)
    time.sleep(0.002)


@app.job
def tell(batch):
    os.write(_told, (current_job().id + " " + __import__("json").dumps(batch) + "\\n").encode())
"""


@pytest.mark.parametrize("kind", STORES)
def test_batches_under_kills(kind: str, tmp_path: Path, prefix: str, servers: Servers) -> None:
    """A few hundred jobs of two batches and of none, and a worker killed every now and then."""
    with opened(tmp_path, kind, url_of(kind, tmp_path, servers), prefix) as rig:
        run(rig, jobs=600, kills=6, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORES)
def test_a_batch_of_ten_thousand_under_kills(kind: str, tmp_path: Path, prefix: str, servers: Servers) -> None:
    """The same at length."""
    with opened(tmp_path, kind, url_of(kind, tmp_path, servers), prefix) as rig:
        run(rig, jobs=10_000, kills=60, seed=2)


def run(rig: Rig, *, jobs: int, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    rig.app(APP)
    app = App(rig.url, prefix=rig.prefix, fallback=None)
    work = app.call("work")
    pool = rig.start("--max-crashes", "1000", "--max-lost", "1000", n=2)
    try:
        with app.batch("mixed", on_complete="tell", on_success="tell") as mixed:
            work.enqueue_many((n,) for n in range(jobs))
        # Of those some end before their batch is concluded.
        with app.batch("good", on_complete="tell", on_success="tell") as good:
            for n in range(jobs // 10):
                work.enqueue(n * 10)
        work.enqueue_many((n * 10,) for n in range(jobs // 10))

        def at_work() -> list[int]:
            """Not those that only begin: a pool whose workers can't start ends."""
            names = rig.store.leases("default").ends
            return [pid for pid in pool.workers() if any(f".{pid}." in name for name in names)]

        # At moments of the work, not of the clock: the machine may be slow.
        for left in sorted(rng.sample(range(jobs // 5, jobs), kills), reverse=True):
            rig.until(lambda left=left: mixed.progress().pending <= left, f"{left} are left", within=120)  # type: ignore[misc]
            os.kill(rng.choice(rig.until(at_work, "a worker claims")), signal.SIGKILL)
        requeued = requeue_some(rig, mixed, app)
        check(rig, mixed, good, jobs, requeued)
    finally:
        app.close()


def requeue_some(rig: Rig, mixed: Batch, app: App) -> int:
    """While the batch is under way: a dead one goes round again, and dies once more. Answers how many."""
    rig.until(lambda: mixed.progress().dead > 0, "some are dead")
    [first] = list(app.jobs(state="dead", limit=1))
    assert app.requeue(first.id) == "ok"
    return 1


def check(rig: Rig, mixed: Batch, good: Batch, jobs: int, requeued: int) -> None:
    """The numbers add up, in the batches and in the queue, and nothing is told twice."""
    dead = jobs // 10
    numbers = mixed.wait(90)
    assert (numbers.total, numbers.completed, numbers.dead, numbers.cancelled) == (jobs, jobs - dead, dead, 0)
    assert good.wait(90).completed == jobs // 10
    stats = rig.until_counts(pending=0, active=0, delayed=0, within=30)
    # The jobs of both batches and of none, and three callbacks.
    assert stats.totals["enqueued"] == jobs + 2 * (jobs // 10) + 3
    assert stats.totals["dead"] == dead + requeued
    told = [line.split(" ", 1) for line in (rig.folder / "told").read_text().splitlines()]
    names = {mixed.id: "mixed", good.id: "good"}
    heard = sorted(f"{names[id.partition('.')[0]]} {id.partition('.')[2]}" for id, _ in told)
    assert heard == ["good complete", "good success", "mixed complete"]
    [said] = [json.loads(text) for id, text in told if id == f"{mixed.id}.complete"]
    assert (said["total"], said["completed"], said["dead"]) == (jobs, jobs - dead, dead)
