"""The standard streams of a pool. What can't be written to them is dropped and counted: a log reader that is gone, or a
full disk, costs lines, never a job, a fork or the exit code.
"""

from __future__ import annotations

import io
import os
import sys
from typing import NamedTuple, TextIO


class Loss(NamedTuple):
    """Output that is gone."""

    bytes: int
    why: str


class _Lenient(io.FileIO):
    """A descriptor to which writing never fails."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)
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
                done = super().write(left)
                if done is None:  # It does not wait, and its reader is slow.
                    raise BlockingIOError(0, "its reader is too slow")
                self._torn, left = not left[:done].endswith(b"\n"), left[done:]
        except OSError as error:
            self._lost += len(left)
            self._why, self._regained = error.strerror or str(error), False
        else:
            self._regained = self._lost > 0
        return len(wanted)

    def take_loss(self) -> Loss | None:
        """What was lost, once writing goes on; told once."""
        if not self._regained:
            return None
        loss, self._lost, self._regained = Loss(self._lost, self._why), 0, False
        return loss


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
