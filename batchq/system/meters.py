"""What handlers did, counted in memory that a master shares with its workers: no lock, one writer a block.

A block belongs to a place on the scoreboard and outlives its worker: the next one there counts on. Rows are made for
every queue and handler beforehand; what fits none of them is counted in the last.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from batchq.clock import SYSTEM, monotonic_ns
from batchq.job import Buried, Completed, Outcome, Released, Retried, Snoozed
from batchq.system.scoreboard import unnamed_file

if TYPE_CHECKING:
    from batchq.worker.runner import Prepared

#: How an attempt can end, as it is counted.
ENDS = ("completed", "failed", "timed_out", "buried", "snoozed", "released")
#: Upper bounds of the histograms, in seconds; one more part is for what is beyond.
BOUNDS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0, 3600.0)
#: Rows that are made at most.
MOST_ROWS = 1024
#: What is counted where there is no row.
OTHER = ("other", "other")

_PARTS = len(BOUNDS_S) + 1
_RUN = len(ENDS)
_RUN_SUM = _RUN + _PARTS
_WAIT = _RUN_SUM + 1
_WAIT_SUM = _WAIT + _PARTS
_CELLS = _WAIT_SUM + 1
_BOUNDS_US = tuple(int(bound * 1e6) for bound in BOUNDS_S)


class Histogram(NamedTuple):
    """How many fell into each part (not summed up), and the sum in seconds."""

    parts: tuple[int, ...]
    sum_s: float


class Row(NamedTuple):
    """The counts of one handler on one queue."""

    queue: str
    handler: str
    #: By `ENDS`.
    ends: tuple[int, ...]
    run: Histogram
    wait: Histogram


def end_of(outcome: Outcome) -> int:
    """The place of an outcome in ENDS."""
    match outcome:
        case Completed():
            return 0
        case Retried(cause=cause):
            return 2 if cause == "timed_out" else 1
        case Buried():
            return 3
        case Snoozed():
            return 4
        case Released():
            return 5


def _part(us: int) -> int:
    for at, bound in enumerate(_BOUNDS_US):
        if us <= bound:
            return at
    return len(_BOUNDS_US)


class Meter:
    """One block: written by the worker of that place alone."""

    def __init__(self, cells: memoryview, rows: dict[tuple[str, str], int]) -> None:
        self._cells = cells
        self._rows = rows

    def ran(self, ready: Prepared, outcome: Outcome, started_ns: int) -> None:
        """A handler has come back, which was called then (CLOCK_MONOTONIC)."""
        claim = ready.claim
        run_us = (monotonic_ns() - started_ns) // 1000
        # A later claim waited for its backoff too; of a first one it is known since when it was ready.
        wait_us = max(0, SYSTEM.now_us() - run_us - ready.ready_ms * 1000) if claim.token == 1 else None
        self.add(claim.queue, ready.spec.name, end_of(outcome), run_us, wait_us)

    def add(self, queue: str, handler: str, end: int, run_us: int, wait_us: int | None) -> None:
        """An attempt has ended, in one of ENDS. `wait_us`: how long it had been ready before; None: nobody knows."""
        cells, at = self._cells, self._rows.get((queue, handler), self._rows[OTHER]) * _CELLS
        cells[at + end] += 1
        cells[at + _RUN + _part(run_us)] += 1
        cells[at + _RUN_SUM] += run_us
        if wait_us is not None:
            cells[at + _WAIT + _part(wait_us)] += 1
            cells[at + _WAIT_SUM] += wait_us


class Meters:
    """All blocks. Made by the master before it forks."""

    def __init__(self, queues: Sequence[str], handlers: Sequence[str], places: int) -> None:
        names = [(queue, handler) for queue in queues for handler in handlers][: MOST_ROWS - 1]
        self._rows = {name: at for at, name in enumerate([*names, OTHER])}
        self._size = len(self._rows) * _CELLS
        # Pages that nobody writes to take no memory.
        self._memory = mmap.mmap(_file(self._size * 8 * places), self._size * 8 * places)
        self._cells = memoryview(self._memory).cast("Q")
        self._used: set[int] = set()

    def of(self, place: int) -> Meter:
        """The block of that place on the scoreboard."""
        self._used.add(place)
        return Meter(self._cells[place * self._size : (place + 1) * self._size], self._rows)

    def rows(self) -> Iterable[Row]:
        """The sums over all places, without rows where nothing was counted."""
        for (queue, handler), row in self._rows.items():
            blocks = [self._cells[place * self._size + row * _CELLS :][:_CELLS] for place in self._used]
            cells = [sum(column) for column in zip(*blocks, strict=True)]
            if any(cells):
                run = Histogram(tuple(cells[_RUN:_RUN_SUM]), cells[_RUN_SUM] / 1e6)
                wait = Histogram(tuple(cells[_WAIT:_WAIT_SUM]), cells[_WAIT_SUM] / 1e6)
                yield Row(queue, handler, tuple(cells[:_RUN]), run, wait)


def _file(size: int) -> int:
    fd = unnamed_file("meters")
    os.ftruncate(fd, size)
    return fd
