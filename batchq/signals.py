"""The signals of a master: recorded by a handler that does nothing else, read by the loop, lost never.

Across an exec all are blocked; what comes meanwhile is pending, and recorded by the next image as soon as it listens.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from types import FrameType

#: What a master has an answer to. USR2 it passes over: by default it would end it.
HANDLED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGCHLD,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGTSTP,
    signal.SIGCONT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


class Signals:
    """Listens from its making to `close`. `fd` is readable when a signal has come."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self.fd, self._write = pipe()
        self._before = {number: signal.signal(number, self._record) for number in HANDLED}
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        # After an exec they are blocked.
        unblock()

    def _record(self, signum: int, frame: FrameType | None) -> None:
        self._came.append(signum)

    def came(self) -> Iterator[int]:
        """Those that came since the last look, in order; those that come meanwhile as well."""
        while self._came:
            yield self._came.pop(0)

    def again(self, numbers: Iterable[int]) -> None:
        """As if these had come."""
        self._came += numbers

    def waiting(self) -> list[int]:
        """Those that came, left where they are."""
        return list(self._came)

    def let_go(self) -> None:
        """In a child, which has handlers of its own."""
        signal.set_wakeup_fd(-1)
        os.close(self.fd)
        os.close(self._write)

    def close(self) -> None:
        """Handlers are as before."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.fd)
        os.close(self._write)


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Signals wait until the end of the block."""
    block()
    try:
        yield
    finally:
        unblock()


def block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())


def pipe() -> tuple[int, int]:
    """Both ends non-blocking, and closed by an exec."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write


def drain(fd: int) -> bytes:
    """Empties a non-blocking pipe."""
    try:
        return os.read(fd, 4096)
    except BlockingIOError:
        return b""
