"""Jobs that are about to die, noted in the scoreboard's file until their `on_dead` hooks have been called.

Noted before any store knows of the death: whoever finds the file after a kill has them called, at least once. Whether
a job is dead is asked of the store then. One writer a list: the master's is a part of the header, each worker has one
behind all entries, which takes room only where it is written to.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from batchq import log

_COUNTS = struct.Struct("<QQ")
_NOTICE = struct.Struct("<65p201p6x")


class Notice(NamedTuple):
    """A job that is dead, or about to be."""

    queue: str
    id: str


class Notices:
    """A ring of `size` bytes in the file `fd`: those up to the first number have been told, those up to the second
    are noted."""

    def __init__(self, fd: int, at: int, size: int) -> None:
        self._fd = fd
        self._at = at
        self._room = (size - _COUNTS.size) // _NOTICE.size
        self._failed = False

    def open(self) -> list[Notice]:
        """Those that have not been told, in the order in which they were noted."""
        told, noted = self._counts()
        if noted - told > self._room:
            # Rubbish.
            return []
        return [self._read(number) for number in range(told, noted)]

    def note(self, notice: Notice) -> bool:
        """One more. False where there is no room for it: it will be forgotten with this process."""
        told, noted = self._counts()
        if noted - told >= self._room:
            return False
        if told == noted:
            # From the beginning: the file takes no more room than it must.
            told = noted = 0
        record = _NOTICE.pack(notice.queue.encode(), notice.id.encode())
        try:
            os.pwrite(self._fd, record, self._place(noted))
            self._count(told, noted + 1)
        except OSError as error:
            if not self._failed:
                log.event("warning", "hooks_not_noted", hook="on_dead", why=error.strerror or str(error))
            self._failed = True
            return False
        self._failed = False
        return True

    def tell(self) -> None:
        """The hooks of the first have been called."""
        told, noted = self._counts()
        if told < noted:
            self._count(told + 1, noted)

    def clear(self) -> None:
        """Forgets all."""
        told, noted = self._counts()
        if told < noted:
            self._count(noted, noted)

    def _place(self, number: int) -> int:
        return self._at + _COUNTS.size + number % self._room * _NOTICE.size

    def _read(self, number: int) -> Notice:
        queue, job_id = _NOTICE.unpack(os.pread(self._fd, _NOTICE.size, self._place(number)).ljust(_NOTICE.size, b"\0"))
        return Notice(queue.decode(errors="replace"), job_id.decode(errors="replace"))

    def _counts(self) -> tuple[int, int]:
        # A file that does not reach so far has none.
        told, noted = _COUNTS.unpack(os.pread(self._fd, _COUNTS.size, self._at).ljust(_COUNTS.size, b"\0"))
        return told, noted

    def _count(self, told: int, noted: int) -> None:
        os.pwrite(self._fd, _COUNTS.pack(told, noted), self._at)
