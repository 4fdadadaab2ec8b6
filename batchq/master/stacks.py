"""The Python stacks of workers, on demand: also of one whose handler is stuck in C or in a lock.

A worker writes them into a file of its own that its master holds; the master asks through a pipe, waits a moment, and
puts them into the log, one line a thread, the innermost call first. A thread of the worker answers, which has the
interpreter's lock meanwhile: no stack moves while it is read. Only where it can't get that lock, because a handler
keeps it in C, a signal is sent, and a C-level handler (faulthandler) writes what stands. Among threads that run it
would read what they change, and end one worker in thousands by SIGSEGV.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from batchq import log
from batchq.clock import SYSTEM
from batchq.master.children import Child, is_stopped, named, signal_one
from batchq.system.scoreboard import unnamed_file

#: Asks a worker that is stuck. Not the signal of orders: this one is handled below Python.
STACKS_SIGNAL = signal.SIGUSR2

#: A worker answers within this, or it is stuck: the interpreter's lock goes round each 5 ms.
STUCK_S = 1.0
#: A worker writes within this, or nothing is said for it.
WAIT_S = 2.0
#: Between two looks; what has not grown in between is complete.
LOOK_S = 0.05

_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+).*:")
_CALL = re.compile(r'  File "(.*)", line (\d+) in (.*)')
#: The thread that answers.
_OWN = re.compile(r"_answer [^<]*\bstacks\.py:")


def new_file() -> int:
    """For one worker, before it is forked."""
    fd = unnamed_file("stacks")
    # After it was emptied, the next writing begins at its start.
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd


def listen(fd: int, asks: int) -> None:
    """In the worker, with signals blocked: stacks go to `fd` when something comes through the pipe `asks`."""
    faulthandler.register(STACKS_SIGNAL, file=fd, all_threads=True)
    threading.Thread(target=_answer, args=(fd, asks), name="batchq-stacks", daemon=True).start()


def _answer(fd: int, asks: int) -> None:
    while os.read(asks, 4096):
        faulthandler.dump_traceback(file=fd, all_threads=True)


@dataclass(slots=True)
class _Asked:
    """A worker that has not answered yet."""

    at: float = field(default_factory=SYSTEM.monotonic)
    #: What it had written at the last look.
    size: int = 0
    signalled: bool = False


class Dumps:
    """Requests to the workers of a pool. `due`: when to look next; None while nothing is outstanding."""

    def __init__(self) -> None:
        self.due: float | None = None
        self._asked: dict[int, _Asked] = {}

    def ask(self, children: Iterable[Child]) -> None:
        """All of them. For one that has not answered the last request time goes on."""
        if self.due is None:
            self.due = SYSTEM.monotonic() + LOOK_S
        for child in children:
            if child.pid not in self._asked:
                os.ftruncate(child.stacks_fd, 0)
                self._asked[child.pid] = _Asked()
            # A full pipe asks as well; where there is none, or nobody at its end, the signal follows.
            with suppress(OSError):
                os.write(child.asks_fd, b"?")

    def look(self, children: Iterable[Child]) -> None:
        """When it is time, and logs what is complete."""
        now = SYSTEM.monotonic()
        if self.due is None or now < self.due:
            return
        there = {child.pid: child for child in children}
        for pid, asked in list(self._asked.items()):
            child = there.get(pid)
            if child is None or self._is_answered(child, asked, now - asked.at):
                del self._asked[pid]
        self.due = now + LOOK_S if self._asked else None

    def _is_answered(self, child: Child, asked: _Asked, waited_s: float) -> bool:
        """Or given up."""
        before, asked.size = asked.size, os.fstat(child.stacks_fd).st_size
        if asked.size and asked.size == before:
            _tell(child)
            return True
        if waited_s < STUCK_S:
            return False
        stopped = is_stopped(child.pid)
        if waited_s >= WAIT_S:
            why = "it is stopped" if stopped else "it does not answer"
            log.event("warning", "no_stack", pid=child.pid, worker=child.slot.worker, why=why)
            return True
        if not asked.signalled and not asked.size and not stopped:
            asked.signalled = True
            signal_one(child.pid, STACKS_SIGNAL)
        return False


def _tell(child: Child) -> None:
    text = os.pread(child.stacks_fd, 1 << 20, 0).decode(errors="replace")
    for thread, calls in threads_of(text):
        if _OWN.match(calls):
            continue
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
