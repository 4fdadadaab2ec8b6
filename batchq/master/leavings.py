"""What a killed master left on this host: processes that may live on, and claims that nobody will settle.

The scoreboard tells. Its master is gone: the next start holds the lock of the pid file while it reads, the guardian has
seen the end. Its workers die with it (see `parent`), and what still lives is ended here: only what surely is theirs,
never a stranger that has got an old pid. The claims are the sweeps' part.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import NamedTuple

import psutil

from batchq import log
from batchq.clock import SYSTEM
from batchq.errors import ConfigError
from batchq.system.parent import birth_of
from batchq.system.scoreboard import Owner, Run, Scoreboard

#: A process that was killed is gone within this, or it hangs in the kernel.
GONE_S = 5.0


class Left(NamedTuple):
    """A worker that stood on the scoreboard: its id, and what it ran."""

    worker: str
    runs: tuple[Run, ...]


def clear_away(board: Scoreboard, me: Owner, where: str) -> list[Left]:
    """Ends the processes that the board's last master left, and answers the workers whose claims are to be reaped. The
    board stays as it is.

    Raises ConfigError where that master still runs.
    """
    owner = board.owner
    if owner is None:
        return []
    here = owner.boot == me.boot
    if here and owner.pid != me.pid and owner.birth and birth_of(owner.pid) == owner.birth:
        raise ConfigError(
            f"pid_file: the scoreboard {where} belongs to a master that runs (pid {owner.pid}), though its pid file "
            "is gone; stop that master, or name another file"
        )
    slots = [board.slot(number) for number in range(board.slots)]
    if here:
        _end(_workers(board), owner)
    return [Left(slot.worker, tuple(run for _, run in slot.under_way())) for slot in slots if slot.worker]


def end_left(board: Scoreboard, pid: int, birth: int) -> None:
    """The guardian's part: ends the processes that the master of that pid and birth left. Where the board is another's
    by now, that one has done so."""
    owner = board.owner
    if owner is None or (owner.pid, owner.birth) != (pid, birth):
        return
    workers = _workers(board)
    # Race: the next start takes the board. It empties it from its beginning before it says that it has it, so what was
    # read between two looks at the same owner is that one's.
    if board.owner == owner:
        _end(workers, owner)


def _workers(board: Scoreboard) -> list[tuple[int, int]]:
    """(pid, birth) of each."""
    slots = (board.slot(number) for number in range(board.slots))
    return [process for process in (slot.process for slot in slots) if process[0]]


def _end(workers: list[tuple[int, int]], owner: Owner) -> None:
    """Looks again until nobody is left: who was killed may have started another just before."""
    killed: set[tuple[int, int]] = set()
    until = SYSTEM.monotonic() + GONE_S
    while True:
        there = []
        # Each is killed as soon as it is known to be the one.
        for one in _alive(workers, owner):
            there.append(one[0])
            if one not in killed:
                killed.add(one)
                log.event("warning", "killed", pid=one[0], why="left by a master that was killed")
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one[0], signal.SIGKILL)
        if not there:
            return
        if SYSTEM.monotonic() > until:
            log.event("error", "not_gone", pids=",".join(map(str, there)), why="killed, and still there")
            return
        time.sleep(0.005)


def _alive(workers: list[tuple[int, int]], owner: Owner) -> Iterator[tuple[int, int]]:
    """(pid, birth) of the workers that live, and of the members of their process groups. None where the system tells of
    no process (Linux without /proc): nobody is surely theirs."""
    if not workers or not birth_of(os.getpid()):
        return
    births = dict(workers)
    for pid in psutil.pids():
        birth = birth_of(pid)
        if not birth:
            continue
        if births.get(pid) == birth:
            yield pid, birth
            continue
        with contextlib.suppress(OSError, psutil.Error):
            group = os.getpgid(pid)
            # A group keeps its number from being given to others while it has members. One that formed anew under it
            # since then is in another session, or another user's.
            if (
                group in births
                and birth_of(group) in (0, births[group])
                and os.getsid(pid) == owner.session
                and birth >= births[group]
                and psutil.Process(pid).uids().effective == os.geteuid()
            ):
                yield pid, birth
