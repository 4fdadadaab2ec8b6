"""The ledger's write-ahead log: flushed, so that commits outlive a power cut, and moved into the database when long.

A flush needs no gate, and one serves all that committed before it. SQLite flushes the log too before it moves it; so it
is flushed once more before the gate is taken for that, where nobody waits.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import suppress
from typing import Final

from batchq import log
from batchq.clock import Clock
from batchq.errors import StoreError, StoreFull
from batchq.spool import fs, opening, writelock
from batchq.spool.layout import Layout

#: It is moved into the database when more of it is in use: half of the ballast, so that on a full disk the room which
#: that gives takes it. It is looked at after so many commits, or changed rows.
MOVE_BYTES: Final = 4 << 20
LOOK_EVERY: Final = 16
_LOOK_ROWS: Final = 500
#: Somebody reads in one transaction for so long that it can't begin anew: said, and then enqueue is refused.
LONG_BYTES: Final = 64 << 20
MOST_BYTES: Final = 1 << 30
_TELL_S: Final = 60.0


class Wal:
    """What one handle on the ledger knows of the log. Threads may share it."""

    def __init__(self, layout: Layout, clock: Clock) -> None:
        self._layout = layout
        self._clock = clock
        #: Guards what follows. Taken after the ledger's own, never before it.
        self.lock = threading.RLock()
        self._file = fs.Log(layout.wal)
        #: Commits of this handle so far, those of them that were flushed, and the rows it had changed at the last look.
        self._commits = self._flushed = self._looked = 0
        self._tell_at = 0.0

    def committed(self) -> int:
        """Counts a commit; answers its number. Under the ledger's lock."""
        self._commits += 1
        return self._commits

    def harden(self, commit: int) -> None:
        """Returns when that commit outlives a power cut. One flush serves all threads that came before it began.

        Raises StoreError: nothing is known then, and the connection must not be used any more.
        """
        with self.lock:
            if self._flushed >= commit:
                return
            covers = self._commits
            try:
                self._file.flush()
            except OSError as error:
                # A second fsync would succeed and lie: the pages are marked clean.
                self._file.close()
                raise StoreError(
                    f"spool: {self._layout.wal}: could not be flushed ({error}); what was just enqueued may be lost "
                    "by a power cut: enqueue it again under the same ids"
                ) from error
            self._flushed = covers

    def claim(self, commit: int, rows: int) -> bool:
        """Whether the caller is to move it into the database now; `rows`: as many as its connection has changed."""
        if commit % LOOK_EVERY and 0 <= rows - self._looked < _LOOK_ROWS:
            return False
        self._looked = rows
        with self.lock:
            try:
                # One process is enough for that; but it may be stopped.
                return self._file.is_longer(MOVE_BYTES) and (self._file.claim() or self._file.is_longer(2 * MOVE_BYTES))
            except OSError:
                return False

    def release(self) -> None:
        """The end of a claim."""
        with self.lock:
            self._file.release()

    def move(self, db: sqlite3.Connection) -> None:
        """Under the gate: moves a long log into the database. Committed is committed: what can't be done now, a later
        one does."""
        with suppress(OSError), self.lock:
            # Race: another was first.
            if not self._file.is_longer(MOVE_BYTES):
                return
        with suppress(sqlite3.Error):
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        now = self._clock.monotonic()
        if fs.size_of(self._layout.wal) > LONG_BYTES and now >= self._tell_at:
            self._tell_at = now + _TELL_S
            log.event("warning", "log_grows", path=self._layout.wal, readers=self._readers())

    def check_room(self) -> None:
        """Raises StoreFull when it has grown too far, for it can't begin anew."""
        size = fs.size_of(self._layout.wal)
        if size > MOST_BYTES:
            raise StoreFull(
                f"spool: {self._layout.wal}: expected at most {MOST_BYTES >> 20} MiB, found {size >> 20}, for "
                f"somebody reads in one transaction: {self._readers()}; end that, claims go on"
            )

    def _readers(self) -> str:
        """Who has the database open besides this process, most likely in a long transaction."""
        found = [one for one in writelock.holders(self._layout.at("queue.db-shm"), "POSIX") if one.pid != os.getpid()]
        return ", ".join(map(str, found)) or "nobody that can be seen"

    def close(self) -> None:
        """Lets go of the file; the next call opens it again."""
        with self.lock:
            self._file.close()

    def drop_inherited(self) -> None:
        """The same in a forked child, where another thread of the parent may have had the lock."""
        self._file.close()


def empty(db: sqlite3.Connection) -> None:
    """Under the gate: moves the log into the database and gives its room back, as far as there is room for that and
    readers allow. They are not waited for: all writers would wait too."""
    with suppress(sqlite3.Error):
        db.execute("PRAGMA busy_timeout=0")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    with suppress(sqlite3.Error):
        db.execute(f"PRAGMA busy_timeout={1000 * opening.BUSY_S:.0f}")
