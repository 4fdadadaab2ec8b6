"""Who was killed when, and whether that explains what the ledger shows. Knows nothing of the store's answers, and
imports nothing of what is judged."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tests.process.ledger import Entry, Ledger

if TYPE_CHECKING:
    from tests.process.rig import Pool

#: A killed process may still write this long after kill(2) has returned.
LINGER_NS = 100_000_000
#: What a worker has finished and not yet settled is not older than this: some 50 ms of work, on a busy machine.
UNSETTLED_NS = 1_000_000_000
#: What the two clocks of a host, and roundings, may differ by in the time of a run.
CLOCKS_NS = 50_000_000


class Kill(NamedTuple):
    """One SIGKILL, with the time just before it and just after."""

    pid: int
    before_ns: int
    after_ns: int


def kill(pid: int) -> Kill | None:
    """Kills a process that is there."""
    before = time.monotonic_ns()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return Kill(pid, before, time.monotonic_ns())
    return None


def kill_one(pool: Pool, rng: random.Random) -> Kill | None:
    """Kills one of the pool's workers, while others work: a pool in which none comes to its first claim gives up."""
    workers = pool.workers()
    return kill(rng.choice(workers)) if len(pool.registered("default")) > 1 else None


class Run(NamedTuple):
    """One start of a handler, and how it ended: E, F for a failure as planned, or nothing."""

    start: Entry
    end: Entry | None

    @property
    def last_ns(self) -> int:
        return (self.end or self.start).at_ns


def runs_of(ledger: Ledger) -> dict[str, list[Run]]:
    """All runs of each job, in the order of their starts."""
    ends: dict[tuple[str, int, int], Entry] = {}
    starts: dict[str, list[Entry]] = defaultdict(list)
    for entry in ledger.entries():
        if entry.kind == "S":
            starts[entry.job].append(entry)
        else:
            ends[entry.job, entry.token, entry.pid] = entry
    return {
        job: [Run(entry, ends.get((job, entry.token, entry.pid))) for entry in entries]
        for job, entries in starts.items()
    }


def cut_by(run: Run, kills: Sequence[Kill]) -> Kill | None:
    """The kill that this run's worker met while it ran, or before it could settle what had ended."""
    for one in kills:
        if (
            one.pid == run.start.pid
            and one.after_ns + LINGER_NS >= run.start.at_ns
            and one.before_ns - UNSETTLED_NS <= run.last_ns
        ):
            return one
    return None


class Charge(NamedTuple):
    """A job that a dead worker is said to have run, and when its handler is said to have been called."""

    job: str
    pid: int
    #: Since the epoch; 0: that was not said.
    started_ms: int


def unseen_starts(ledger: Ledger, charges: Sequence[Charge], kills: Sequence[Kill]) -> int:
    """How many were charged whose handler did not come to its first line. Raises AssertionError for one that its worker
    can't have been at: it was in another's handler, or the call does not lie between its last line and the kill."""
    last = {entry.pid: entry for entry in ledger.entries()}
    killed = {one.pid: one for one in kills}
    epoch_ns = time.time_ns() - time.monotonic_ns()
    unseen = 0
    for charge in charges:
        line = last.get(charge.pid)
        if line is not None and line.job == charge.job:
            continue
        unseen += 1
        assert line is None or line.kind != "S", f"{charge} is charged, but its worker was in the handler of {line}"
        if charge.started_ms:
            after = (line.at_ns if line else 0) + epoch_ns - CLOCKS_NS
            before = killed[charge.pid].after_ns + epoch_ns + CLOCKS_NS
            assert after <= charge.started_ms * 1_000_000 <= before, f"{charge} did not begin behind {line}"
    return unseen


def extra_starts(runs: dict[str, list[Run]], kills: Sequence[Kill]) -> int:
    """How many starts there were that no planned failure asked for. Raises AssertionError for one that no kill of the
    worker before it explains."""
    extra = 0
    for job, of_job in runs.items():
        for run, following in pairwise(of_job):
            if run.end is not None and run.end.kind == "F":
                continue
            extra += 1
            cut = cut_by(run, kills)
            assert cut is not None, f"{job} began again, and nobody killed the worker before: {run}, then {following}"
            assert following.start.at_ns > cut.before_ns, f"{job} began again before the kill: {following}, {cut}"
            assert following.start.token > run.start.token
    return extra
