"""Workers killed at random under load: no job is lost, none runs again without a reason, none dies of it."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from batchq.job import Job
from batchq.lifecycle import State
from tests.chaos.judge import Charge, Kill, extra_starts, kill_one, runs_of, unseen_starts
from tests.process.rig import Rig


class Size(NamedTuple):
    """How much of it."""

    jobs: int
    kill_every_s: float
    least_kills: int
    within_s: float


SHORT = Size(3_000, 0.3, 8, 100)
FULL = Size(20_000, 1.0, 20, 600)
SIZES = [
    pytest.param(SHORT, id="short"),
    pytest.param(FULL, id="full", marks=[pytest.mark.slow, pytest.mark.timeout(700)]),
]

APP = """
@app.job(backoff=fixed(0.2), max_attempts=50)
def work(number):
    note("S")
    time.sleep(0.005)
    if number % 100 == 7 or (number % 10 == 3 and current_job().attempt == 1):
        note("F")
        raise ValueError("as planned")
    note("E")


@app.job(max_attempts=1)
def single():
    note("S")
    time.sleep(0.0004)
    note("E")
"""


def sized(size: Size) -> Size:
    """CHAOS_SECONDS makes the short run longer."""
    seconds = float(os.environ.get("CHAOS_SECONDS") or 0)
    return size._replace(jobs=int(seconds * 600), within_s=60 + 5 * seconds) if seconds and size == SHORT else size


def kill_while_it_works(rig: Rig, rng: random.Random, size: Size, every_s: float) -> list[Kill]:
    """Kills a worker every so often until all jobs have ended. The law is looked at all the while."""
    pool = rig.pools[0]
    kills: list[Kill] = []
    began = last = time.monotonic()
    while True:
        stats = rig.stats()
        if stats.totals["completed"] + stats.totals["dead"] == size.jobs:
            return kills
        now = time.monotonic()
        assert now - began < size.within_s, f"not done after {size.within_s} s: {stats}\n{rig.logs()}"
        if now - last >= every_s:
            last = now
            killed = kill_one(pool, rng)
            if killed is not None:
                kills.append(killed)
        time.sleep(0.02)


@pytest.mark.parametrize("size", SIZES)
def test_no_job_is_lost_or_repeated_without_a_kill(rig: Rig, rng: random.Random, size: Size) -> None:
    """A tenth of the jobs fails once, a hundredth always: exactly these are dead, all others have an end."""
    size = sized(size)
    rig.app(APP)
    ids = []
    for first in range(0, size.jobs, 400):
        numbers = range(first, min(first + 400, size.jobs))
        ids += rig.enqueue_many("work", [(number,) for number in numbers if number % 100 != 7])
        ids += rig.enqueue_many("work", [(number,) for number in numbers if number % 100 == 7], max_attempts=4)
    failing = {job for job in ids if rig.job(job).max_attempts == 4}
    assert len(failing) == size.jobs // 100
    pool = rig.start("--max-crashes", "50", n=4)
    began = time.monotonic()
    kills = kill_while_it_works(rig, rng, size, size.kill_every_s)
    took = time.monotonic() - began

    stats = rig.stats()
    dead = {job.id for page in pages(rig) for job in page}
    assert dead == failing
    assert stats.totals["completed"] == size.jobs - len(failing)
    assert not any(stats.counts[state] for state in ("pending", "delayed", "active"))
    runs = runs_of(rig.ledger)
    assert set(runs) == set(ids)
    for job, of_job in runs.items():
        last = of_job[-1].end
        if job not in failing:
            assert last is not None, f"{job} completed without an end: {of_job}"
            assert last.kind == "E", f"{job} completed without an end: {of_job}"
    extra = extra_starts(runs, kills)
    assert stats.totals["crashed"] <= len(kills)
    assert len(kills) >= size.least_kills
    assert pool.stop() == 0
    rig.until_clean()
    print(
        f"{rig.kind}: {size.jobs} jobs, {len(kills)} kills, {extra} extra starts, {stats.totals['crashed']} charged, "
        f"{len(dead)} dead, {took:.1f} s"
    )


@pytest.mark.parametrize("size", SIZES)
def test_no_job_is_dead_that_never_began(rig: Rig, rng: random.Random, size: Size) -> None:
    """One attempt a job and full batches: a kill costs at most the one job that ran, never those behind it."""
    size = sized(size)._replace(kill_every_s=size.kill_every_s / 2)
    jobs = size.jobs * 5
    rig.app(APP)
    ids = [job for first in range(0, jobs, 400) for job in rig.enqueue_many("single", [()] * min(400, jobs - first))]
    pool = rig.start(n=4)
    kills = kill_while_it_works(rig, rng, size._replace(jobs=jobs), size.kill_every_s / 3)
    runs = runs_of(rig.ledger)
    dead = {job.id: job for page in pages(rig) for job in page}
    # The error of a crash names the worker: host.boot.pid.random.
    charges = [
        Charge(job.id, int(job.errors[0]["worker"].split(".")[-2]), job.errors[0].get("started_ms", 0))
        for job in dead.values()
    ]
    by_worker = Counter(charge.pid for charge in charges)
    assert set(by_worker) <= {one.pid for one in kills}
    assert set(by_worker.values()) <= {1}, f"one kill cost several jobs: {by_worker}"
    assert {(job.reason, job.attempt) for job in dead.values()} <= {("crashed", 1)}
    for job, of_job in ((job, runs.get(job, [])) for job in ids):
        if job not in dead:
            assert of_job, f"{job} completed and never began"
            assert of_job[-1].end is not None, f"{job} completed without an end"
    # Killed behind the mark on the scoreboard, before the handler's first line: some microseconds wide.
    unseen = unseen_starts(rig.ledger, charges, kills)
    extra = extra_starts(runs, kills)
    stats = rig.stats()
    assert stats.totals["completed"] == jobs - len(dead)
    assert kills
    assert pool.stop() == 0
    rig.until_clean()
    print(
        f"{rig.kind}: {jobs} jobs in batches, {len(kills)} kills, {extra} extra starts, {len(dead)} dead "
        f"({unseen} before their first line)"
    )


def pages(rig: Rig) -> Iterator[tuple[Job, ...]]:
    """The dead, page by page."""
    cursor = ""
    while True:
        page = rig.store.jobs("default", State.DEAD, cursor=cursor, limit=500)
        yield page.jobs
        if not (cursor := page.cursor):
            return
