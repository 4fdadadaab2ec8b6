"""A pid file that is also a lock: two masters never think that they are the one of this file."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from batchq.errors import ConfigError


class PidFile:
    """Written when the master starts, removed when it ends. A file left by a killed master is taken over."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        #: The scoreboard's place.
        self.board = f"{path}.board"
        #: The control socket's.
        self.socket = f"{path}.sock"
        #: Holds the lock.
        self.fd: int | None = None

    def take(self) -> None:
        """Raises ConfigError where a live master holds it, or where it can't be written."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise ConfigError(f"pid_file: {self.path} can't be written ({error.strerror}); name another path") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = os.read(fd, 20).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise ConfigError(
                f"pid_file: {self.path} is held by a master that runs (pid {pid}); stop it, or name another file"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self.fd = fd

    def holder(self) -> int | None:
        """The pid of the master that holds the lock; None where none runs."""
        try:
            with open(self.path, "rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    text = file.read(20).strip()
                    return int(text) if text.isdigit() else None
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                raise ConfigError(f"pid_file: {self.path} can't be read ({error.strerror})") from None
        return None

    def adopt(self, fd: int | None) -> None:
        """Goes on with the lock of the image before this one."""
        self.fd = fd

    def let_go(self) -> None:
        """In a child: closes its copy, which leaves the lock to the parent."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def remove(self, *, board: bool = True) -> None:
        """At the end. The files go before the lock: nobody finds them unlocked. `board`: that of the scoreboard too."""
        if self.fd is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            if board:
                with contextlib.suppress(OSError):
                    os.unlink(self.board)
            self.let_go()
