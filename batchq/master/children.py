"""Worker processes as their master sees them: who they are, how they ended, how they are signalled. Decides nothing."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import psutil

from batchq.master.sweeps import Death
from batchq.system import scoreboard
from batchq.system.memory import hint
from batchq.system.scoreboard import Run, Slot


@dataclass(slots=True)
class Child:
    """One worker process."""

    pid: int
    place: int
    slot: Slot
    #: On the monotonic clock.
    born: float
    #: Why this master ended it, where it did; None: its own death.
    ended_by: Death | None = None
    #: The runs that were given an order, and when.
    orders: dict[int, float] = field(default_factory=dict)
    #: The number of the run for whose sake this master ended it; 0: none.
    culprit: int = 0
    #: It was told to end when its job is done.
    retiring: bool = False
    #: When it is killed if it has not ended and runs nothing; inf: never.
    doomed_at: float = inf
    #: It was forked before the last reload, and runs the code of then.
    old: bool = False
    #: The id under which it was reaped while it was stopped; "": none.
    laid_off: str = ""
    #: Where it writes its stacks when asked; see `stacks`.
    stacks_fd: int = -1
    #: The pipe by which it is asked; -1: an older image forked it, and asked by a signal.
    asks_fd: int = -1

    def let_go(self) -> None:
        """What this process has open of it."""
        for fd in (self.stacks_fd, self.asks_fd):
            if fd >= 0:
                os.close(fd)

    @property
    def is_up(self) -> bool:
        """It is known to the store, and has begun to claim."""
        return self.slot.state != scoreboard.BOOTING

    @property
    def makes_room(self) -> bool:
        """It claims no more, of its own accord, and ends when its jobs are done."""
        return self.slot.state == scoreboard.STOPPING

    @property
    def is_leaving(self) -> bool:
        """Another is to be in its place."""
        return self.retiring or self.makes_room

    def runs(self) -> list[Run]:
        """What it runs now."""
        return [run for _, run in self.slot.under_way()]

    def charged(self) -> tuple[Run, ...]:
        """Whom its end concerns: the run that it was ended for, or all that were under way."""
        return tuple(run for run in self.runs() if self.culprit in (0, run.number))


@dataclass(slots=True)
class Unreaped:
    """A dead worker whose claims could not be moved yet: the store was away, or can't do it."""

    worker: str
    death: Death
    #: What it ran, and is to be charged.
    runs: tuple[Run, ...]
    #: When it is tried again where it failed, on the monotonic clock.
    try_at: float = 0.0
    #: How often it failed in a row.
    failures: int = 0


def death_of(code: int, peak_bytes: int = 0, by_kernel: bool | None = None) -> Death:
    """Names the death of a worker for people. `by_kernel`: a SIGKILL for want of memory; None: nobody knows."""
    peak = f"; peak memory {peak_bytes >> 20} MiB" if peak_bytes else ""
    if code >= 0:
        return Death("crashed", f"the worker ended with exit code {code}{peak}")
    name = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
    if -code == signal.SIGKILL:
        name += hint(by_kernel)
    return Death("crashed", f"the worker was killed by {name}{peak}")


def named(runs: Sequence[Run]) -> dict[str, Any]:
    """The keys of a log line that name the job under way, or say how many there are."""
    if len(runs) != 1:
        return {"running": len(runs)} if runs else {}
    [run] = runs
    return {"queue": run.queue, "job": run.id, "token": run.token, "handler": run.handler}


def signal_one(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def signal_group(pid: int, number: int) -> None:
    """The worker and what its handlers spawned. A child that is not yet a leader is met by its own pid."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        signal_one(pid, number)
    except PermissionError:
        # macOS says so of a group of zombies.
        signal_one(pid, number)


def is_stopped(pid: int) -> bool:
    """The process is stopped by a signal."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
