"""The standard streams of a pool. What can't be written to them is dropped and counted: a log reader that is gone or
hangs, or a full disk, costs lines, never a job, a fork or the exit code.
"""

from __future__ import annotations

import io
import os
import select
import stat
import sys
from typing import NamedTuple, TextIO

from batchq.clock import monotonic

#: So long a line waits for the slow reader of a pipe. One that took longer is not waited for until there is room again.
PATIENCE_S = 1.0


class Loss(NamedTuple):
    """Output that is gone."""

    bytes: int
    why: str


class _Lenient(io.FileIO):
    """A descriptor to which writing never fails."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)
        #: The same pipe, opened anew: others who write to it may wait.
        self._quick = _without_waiting(fd)
        self._is_patient = True
        self._lost = 0
        self._why = ""
        self._regained = False
        #: What was written last is no whole line.
        self._torn = False

    def write(self, data: object) -> int:
        """All of it, or what there is room for."""
        wanted = bytes(memoryview(data))  # type: ignore[arg-type]
        left = b"\n" + wanted if self._torn and self._lost and not self._regained else wanted
        try:
            while left:
                done = self._write_some(left)
                self._torn, left = not left[:done].endswith(b"\n"), left[done:]
        except OSError as error:
            self._lost += len(left)
            self._why, self._regained = error.strerror or str(error), False
        else:
            self._regained = self._lost > 0
        return len(wanted)

    def _write_some(self, data: bytes) -> int:
        """As many bytes as there is room for. Raises BlockingIOError where the reader makes none in time."""
        if self._quick is None:
            done = super().write(data)
            if done is None:  # It does not wait, and its reader is slow.
                raise _too_slow()
            return done
        until = monotonic() + PATIENCE_S
        while True:
            try:
                done = os.write(self._quick, data)
            except BlockingIOError:
                room = select.poll()
                room.register(self._quick, select.POLLOUT)
                left_s = until - monotonic()
                self._is_patient = self._is_patient and left_s > 0 and bool(room.poll(left_s * 1000))
                if not self._is_patient:
                    raise _too_slow() from None
            else:
                self._is_patient = True
                return done

    def take_loss(self) -> Loss | None:
        """What was lost, once writing goes on; told once."""
        if not self._regained:
            return None
        loss, self._lost, self._regained = Loss(self._lost, self._why), 0, False
        return loss


def _too_slow() -> BlockingIOError:
    return BlockingIOError(0, "its reader is too slow")


def _without_waiting(fd: int) -> int | None:
    """A descriptor of its own of that pipe, which does not wait for room; None where it is no pipe, or can't be had."""
    try:
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            return None
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        # No Linux, another user's pipe, or nobody reads from it any more.
        return None


_lenient: dict[int, _Lenient] = {}


def secure() -> None:
    """Called once, before anything is opened. Closed ones become /dev/null, or the next file that is opened would get
    their number, and what is printed, or read by a handler's program, would be that file."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest number that is free: this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for good
    sys.stdout, sys.stderr = _writer(1, sys.stdout), _writer(2, sys.stderr)


def _writer(fd: int, before: TextIO | None) -> TextIO:
    """As the stream before, which is None where its descriptor was closed."""
    _lenient[fd] = raw = _Lenient(fd)
    return io.TextIOWrapper(
        # No BufferedWriter: it has a lock, which a thread of the app may hold when a worker is forked, for ever.
        raw,
        encoding=getattr(before, "encoding", None) or "utf-8",
        errors="backslashreplace",
        line_buffering=bool(getattr(before, "line_buffering", False)) or fd == 2,
        write_through=bool(getattr(before, "write_through", False)),
    )


def take_loss() -> Loss | None:
    """What the log has lost, once there is a log again."""
    return _lenient[2].take_loss() if 2 in _lenient else None
