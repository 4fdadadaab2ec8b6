"""A terminal for commands that behave otherwise on one: a pty, its screen as text, and keys."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

DEADLINE_S = 30.0

_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\^_]|\x1b\][^\x07]*\x07|\x1b[()][0-9A-Za-z]")


class Terminal:
    """A program on a terminal of that size. `text` is what it has written so far, without its escapes."""

    def __init__(
        self, args: Sequence[str], env: Mapping[str, str], cwd: Path, *, columns: int = 80, rows: int = 24
    ) -> None:
        self._fd, theirs = os.openpty()
        self._name = os.ttyname(theirs)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.raw = b""
        # These would go before the size of the terminal; pytest's workers have them.
        own = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            args,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env={**own, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._fd)

    @property
    def text(self) -> str:
        return _ESCAPES.sub(b"", self.raw).decode(errors="replace").replace("\r\n", "\n")

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        # Where the program looks: not every kernel shares a size between both ends.
        theirs = os.open(self._name, os.O_RDWR | os.O_NOCTTY)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.close(theirs)
        os.killpg(self.process.pid, signal.SIGWINCH)

    def read(self, within: float = 0.05) -> bytes:
        """What comes within that time; b"" where nothing does, or the program has ended."""
        ready, _, _ = select.select([self._fd], [], [], within)
        got = b""
        if ready:
            # Linux answers EIO when nobody holds the other end any more.
            with contextlib.suppress(OSError):
                got = os.read(self._fd, 65536)
        self.raw += got
        return got

    def until(self, words: str, within: float = DEADLINE_S) -> None:
        """Until that has been written since the last `forget`."""
        deadline = time.monotonic() + within
        while words not in self.text:
            assert time.monotonic() < deadline, f"{words!r} was not written:\n{self.text[-4000:]}"
            assert self.read() or self.process.poll() is None, f"ended without {words!r}:\n{self.text[-4000:]}"

    def forget(self) -> None:
        """What was written so far counts no more."""
        self.raw = b""

    def wait(self, within: float = DEADLINE_S) -> int:
        """The exit code."""
        deadline = time.monotonic() + within
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end:\n{self.text[-4000:]}"
            self.read()
        while self.read():
            pass
        assert self.process.returncode is not None
        return self.process.returncode
