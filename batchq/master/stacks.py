"""The Python stacks of workers, on demand: also of one whose handler is stuck in C or in a lock.

A worker writes them in a C-level signal handler (faulthandler) into a file of its own that its master holds; the
master asks, waits a moment, and puts them into the log, one line a thread, the innermost call first.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import re
import signal
from collections.abc import Iterable, Iterator

from batchq import log
from batchq.clock import SYSTEM
from batchq.master.children import Child, is_stopped, named, signal_one
from batchq.system.scoreboard import unnamed_file

#: Asks a worker for its stacks. Not the signal of orders: this one is handled below Python.
STACKS_SIGNAL = signal.SIGUSR2

#: A worker writes within this, or nothing is said for it.
WAIT_S = 2.0
#: Between two looks; what has not grown in between is complete.
LOOK_S = 0.05

_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+).*:")
_CALL = re.compile(r'  File "(.*)", line (\d+) in (.*)')


def new_file() -> int:
    """For one worker, before it is forked."""
    fd = unnamed_file("stacks")
    # After it was emptied, the next writing begins at its start.
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd


def listen(fd: int) -> None:
    """In the worker: stacks go there when the signal comes."""
    faulthandler.register(STACKS_SIGNAL, file=fd, all_threads=True)


class Dump:
    """One request to all workers. `due`: when to look next."""

    def __init__(self, children: Iterable[Child]) -> None:
        #: pid -> the size of what it had written at the last look.
        self._sizes: dict[int, int] = {}
        self._until = SYSTEM.monotonic() + WAIT_S
        self.due = SYSTEM.monotonic() + LOOK_S
        for child in children:
            os.ftruncate(child.stacks_fd, 0)
            self._sizes[child.pid] = 0
            signal_one(child.pid, STACKS_SIGNAL)

    def is_done(self, children: Iterable[Child]) -> bool:
        """Looks, when it is time, and logs what is complete; True when nothing is outstanding."""
        now = SYSTEM.monotonic()
        if now < self.due:
            return False
        self.due = now + LOOK_S
        there = {child.pid: child for child in children}
        for pid, before in list(self._sizes.items()):
            child = there.get(pid)
            size = os.fstat(child.stacks_fd).st_size if child is not None else 0
            if child is None:
                del self._sizes[pid]
            elif size and size == before:
                del self._sizes[pid]
                _tell(child)
            elif now >= self._until:
                del self._sizes[pid]
                why = "it is stopped" if is_stopped(pid) else "it does not answer"
                log.event("warning", "no_stack", pid=pid, worker=child.slot.worker, why=why)
            else:
                self._sizes[pid] = size
        return not self._sizes


def _tell(child: Child) -> None:
    text = os.pread(child.stacks_fd, 1 << 20, 0).decode(errors="replace")
    for thread, calls in threads_of(text):
        log.event(
            "info",
            "stack",
            pid=child.pid,
            worker=child.slot.worker,
            **named(child.runs()),
            thread=thread,
            calls=calls,
        )


def threads_of(text: str) -> Iterator[tuple[str, str]]:
    """(thread, its calls, the innermost first) of what faulthandler writes."""
    thread, calls = "", list[str]()
    for line in text.splitlines():
        if match := _THREAD.match(line):
            if thread:
                yield thread, " < ".join(calls)
            thread, calls = match[1], []
        elif match := _CALL.match(line):
            calls.append(f"{match[3]} {match[1]}:{match[2]}")
    if thread:
        yield thread, " < ".join(calls)
