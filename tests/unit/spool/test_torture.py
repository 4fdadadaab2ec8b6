"""Processes are killed at random while they enqueue, drop, sweep, claim and settle: at the end the books are exact."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from batchq.clock import SYSTEM
from batchq.job import Claim, Completed, Lost, Mark, NewJob, Outcome, Released, Retried, pack_error, pack_row
from batchq.lifecycle import State, Word
from batchq.spool import SpoolStore, drop
from tests.unit.spool.helpers import check_books, fork

QUEUE = "torture"
#: One file for each thing that a process promises or does, a line a job.
ACCEPTED, STARTED = "accepted", "started"


class Note:
    """Appends lines to a file that outlives the writer: one write a batch, so that none is torn."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def lines(self, lines: list[str]) -> None:
        os.write(self._fd, "".join(f"{line}\n" for line in lines).encode())


def producer(folder: Path, name: str) -> None:
    """Enqueues under marks, sends every third call twice, and drops every fifth batch as a file."""
    store = SpoolStore(folder / "s")
    note = Note(folder / ACCEPTED)
    rng = random.Random(name)
    for n in range(10**9):
        names = [f"{name}-{n}-{m}" for m in range(rng.choice((1, 3, 40)))]
        delay = rng.choice((0, 0, 0, 20))
        jobs = [NewJob(x, pack_row("t", [x]), priority=rng.choice((0, 0, 5)), delay_ms=delay) for x in names]
        if n % 5 == 0:
            drop(folder / "s", [(QUEUE, job) for job in jobs])
        else:
            words = store.enqueue(QUEUE, jobs, Mark(name, n))
            assert set(words) == {Word.OK}, words
            if n % 3 == 0:
                assert set(store.enqueue(QUEUE, jobs, Mark(name, n))) == {Word.AGAIN}
        note.lines(names)
        time.sleep(rng.random() * 0.002)


def worker(folder: Path, name: str) -> None:
    """Claims and settles in one transaction, each in its own batch size; some attempts fail, some are given back."""
    store = SpoolStore(folder / "s")
    note = Note(folder / STARTED)
    rng = random.Random(name)
    size = rng.choice((1, 8, 64))
    store.register(QUEUE, name, 60_000)
    outcomes: list[Outcome] = []
    while True:
        answer = store.exchange(QUEUE, name, outcomes, size, 0)
        assert set(answer.words) <= {Word.OK}, answer.words
        assert answer.claimed.word is Word.OK, answer
        outcomes = [_outcome(claim, rng) for claim in answer.claimed.claims]
        note.lines([out.claim.id for out in outcomes if isinstance(out, Completed)])
        if not outcomes:
            time.sleep(0.002)


def _outcome(claim: Claim, rng: random.Random) -> Outcome:
    dice = rng.random()
    if dice < 0.05:
        return Retried(claim, 10, 10**6, pack_error("E", "boom", attempt=claim.attempt, at_ms=1))
    return Released(claim) if dice < 0.08 else Completed(claim)


def sweeper(folder: Path, name: str) -> None:
    """What a master does: takes the inbox, promotes what is due, publishes."""
    store = SpoolStore(folder / "s")
    while True:
        store.sweep_inbox()
        store.promote(QUEUE)
        store.publish(name, {"name": name}, 1000)
        time.sleep(0.002)


def reap(store: SpoolStore, name: str, rng: random.Random) -> None:
    """What a master does for a dead worker: the first claim may have run, the others are given back."""
    sealed = store.seal(QUEUE, name)
    if sealed.word is Word.UNKNOWN:
        return
    if sealed.claims and rng.random() < 0.5:
        first, *rest = sealed.claims
        store.release(QUEUE, name, [Released(claim) for claim in rest])
        assert store.reap(QUEUE, name, [Lost(first, 10, 10**6, b"")]) == 0
    else:
        store.release(QUEUE, name, [Released(claim) for claim in sealed.claims])
        assert store.reap(QUEUE, name, []) == 0


def torture(folder: Path, kills: int, seed: int) -> None:
    """Runs all of them and kills so many, one after the other."""
    rng = random.Random(seed)
    kinds: list[Callable[[Path, str], None]] = [producer, producer, worker, worker, worker, sweeper]
    running: dict[int, tuple[Callable[[Path, str], None], str]] = {}
    started = 0
    store = SpoolStore(folder / "s")

    def start(kind: Callable[[Path, str], None]) -> None:
        nonlocal started
        started += 1
        name = f"{kind.__name__}-{seed}-{started}"
        running[fork(lambda: kind(folder, name))] = (kind, name)

    for kind in kinds:
        start(kind)
    try:
        for _ in range(kills):
            time.sleep(rng.random() * 0.06)
            pid = rng.choice(list(running))
            os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            kind, name = running.pop(pid)
            # One that ended by itself has found a fault.
            assert os.WIFSIGNALED(status), (name, os.waitstatus_to_exitcode(status))
            if kind is worker:
                reap(store, name, rng)
            start(kind)
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    for kind, name in running.values():
        if kind is worker:
            reap(store, name, rng)
    store.close()


def finish(folder: Path) -> None:
    """Works off what is left, as a last worker that nobody kills."""
    store = SpoolStore(folder / "s")
    note = Note(folder / STARTED)
    store.register(QUEUE, "last", 60_000)
    deadline = SYSTEM.monotonic() + 60
    while store.sweep_inbox().files:
        pass
    while True:
        assert SYSTEM.monotonic() < deadline
        store.promote(QUEUE)
        claims = store.claim(QUEUE, "last", 480, 0).claims
        note.lines([claim.id for claim in claims])
        store.complete(QUEUE, "last", [Completed(claim) for claim in claims])
        if not claims and not store.jobs(QUEUE, State.DELAYED, limit=1).jobs:
            break
    store.close()


@pytest.mark.parametrize("kills", [50, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_killed_processes_lose_nothing_and_finish_nothing_twice(tmp_path: Path, kills: int) -> None:
    """What was accepted has run, each job is completed once, and every count is exact."""
    SpoolStore(tmp_path / "s").close()
    torture(tmp_path, kills, seed=random.randrange(10**6))
    finish(tmp_path)
    check_books(tmp_path / "s")
    store = SpoolStore(tmp_path / "s")
    stats = store.stats(QUEUE)
    assert stats.counts == dict.fromkeys(stats.counts, 0)
    accepted = (tmp_path / ACCEPTED).read_text().split()
    started = (tmp_path / STARTED).read_text().split()
    assert len(accepted) == len(set(accepted))
    assert set(accepted) <= set(started), "accepted and lost"
    # A killed producer may have come through without a word; a killed worker runs a job again. No job completes twice.
    assert stats.totals["completed"] == stats.totals["enqueued"] == len(set(started))
    assert stats.totals["fenced"] == 0
    assert len(accepted) > 100
    assert store.leases(QUEUE).ends.keys() == {"last"}
    store.close()
    print(f"{kills} kills, {len(started)} runs of {stats.totals['enqueued']} jobs, {stats.totals['lost']} lost claims")
