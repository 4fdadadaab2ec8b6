"""The signals of a master: recorded by handlers that do nothing else, read by the loop in their order, lost never.

No handler interrupts another: the kernel would begin all that have waited at once, each on top of the last, and what
comes meanwhile on top of all. A pool that was told to be quiet and then to go on would stay quiet: of these two the
kernel keeps the later one only, as long as neither has begun.

Across an exec all are blocked; what comes meanwhile is pending, and recorded by the next image as soon as it listens.
The block is the main thread's: where the app has others, one of them may take a signal until the exec ends it. So the
pipe of the records goes on into the next image, with what stands in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType

from batchq.system.pipes import drain, pipe

_Handler = Callable[[int, FrameType | None], object] | int | None

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


_sigaction = ctypes.CDLL(None).sigaction

#: A pipe that holds so much may have been full, and lost some.
FULL = 60_000


class Signals:
    """Listens from its making to `close`. `fd` is readable when a signal has come. `left`: both ends of the pipe, from
    the image before this one.

    They are read from the pipe that the interpreter's own handler writes to. Python's handlers would be called in the
    order of the numbers instead of that of the arrival: quiet and go on would change places.
    """

    def __init__(self, left: tuple[int, int] | None = None) -> None:
        self._again: list[int] = []
        #: Kinds that came, for where the pipe was full.
        self._kinds: set[int] = set()
        self.fd, self._write = self.fds = left or pipe()
        self._before = {number: signal.signal(number, self._record) for number in HANDLED}
        for number in HANDLED:
            _let_nothing_interrupt(number)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        # After an exec they are blocked.
        unblock()

    def _record(self, signum: int, frame: FrameType | None) -> None:
        self._kinds.add(signum)

    def came(self) -> list[int]:
        """Those that came since the last look, in the order in which they came."""
        again, self._again = self._again, []
        kinds, self._kinds = self._kinds, set()
        read = b""
        while part := drain(self.fd):
            read += part
        lost = kinds - set(read) if len(read) > FULL else ()
        return [*again, *(number for number in read if number in HANDLED), *lost]

    def again(self, numbers: Iterable[int]) -> None:
        """As if these had come."""
        self._again += numbers

    def let_go(self) -> None:
        """In a child, which has handlers of its own."""
        signal.set_wakeup_fd(-1)
        os.close(self.fd)
        os.close(self._write)

    def close(self) -> None:
        """Handlers are as before."""
        self._end(self._before)

    def deafen(self) -> None:
        """The process ends by its own exit code now: what still comes, a second Ctrl-C say, changes nothing."""
        self._end(dict.fromkeys(set(HANDLED) - {signal.SIGCHLD}, signal.SIG_IGN))

    def _end(self, handlers: Mapping[signal.Signals, _Handler]) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(self.fd)
        os.close(self._write)


def _let_nothing_interrupt(number: int) -> None:
    """While the handler of that signal runs all others wait, for which Python has no call. `struct sigaction` begins
    with handler and mask in glibc, musl and macOS (sigaction(2), bits/sigaction.h); on a machine where that may be
    otherwise all stays as it is."""
    if sys.platform not in ("linux", "darwin") or platform.machine() not in ("x86_64", "aarch64", "arm64"):
        return
    action = ctypes.create_string_buffer(256)
    if _sigaction(number, None, action) == 0:
        mask = ctypes.addressof(action) + ctypes.sizeof(ctypes.c_void_p)
        ctypes.memset(mask, 0xFF, 128 if sys.platform == "linux" else 4)
        _sigaction(number, action, None)


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
