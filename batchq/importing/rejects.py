"""The rows that became no job: each in a file that only its owner reads, with its line, its text and the reason."""

from __future__ import annotations

import os
from contextlib import suppress

from batchq.errors import ConfigError
from batchq.importing.rows import Bad
from batchq.importing.source import Source

#: What every line of such a file begins with.
_BEGIN = b'{"file":"'


class Rejects:
    """A rejects file, made with the first row that goes there. One that an earlier run left is replaced: an import that
    goes on reads its file from the beginning."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._is_ready = self._is_made = False
        self._fd: int | None = None

    def prepare(self) -> None:
        """Takes away what an earlier run left, and sees that there is a place. Does so once. Raises ConfigError."""
        if self._is_ready:
            return
        self._is_ready = True
        folder = os.path.dirname(self.path) or "."
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"--rejects: {self.path}: this user can't write to {folder}; name another path")
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"--rejects: {self.path}: {error.strerror}; name another path") from error
        with os.fdopen(fd, "rb") as file:
            try:
                begun = file.read(len(_BEGIN))
            except OSError as error:
                raise ConfigError(f"--rejects: {self.path}: {error.strerror}; name another path") from error
        if begun not in (b"", _BEGIN):
            raise ConfigError(
                f"--rejects: {self.path} is there and holds something else than rejected rows; move it, or name "
                "another path"
            )
        os.unlink(self.path)

    def add(self, source: Source, bad: Bad) -> None:
        """Raises ConfigError where it can't be kept."""
        try:
            if self._fd is None:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                # The first time it must be ours alone; a later file of the same call goes on in it.
                self._fd = os.open(self.path, flags | (0 if self._is_made else os.O_EXCL), 0o600)
                os.fchmod(self._fd, 0o600)
                self._is_made = True
            record = memoryview(bad.record(source.shown, source.encoding, source.errors))
            while record:
                record = record[os.write(self._fd, record) :]
        except OSError as error:
            raise ConfigError(f"--rejects: {self.path}: {error.strerror}; make room, or name another path") from error

    def close(self) -> None:
        """Until the next row."""
        if self._fd is not None:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = None
