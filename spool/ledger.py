"""The ledger: one SQLite database behind a gate. Opening, closing, transactions, flushes, forks; no job, no move.

Every write transaction, open, close and checkpoint of every process happens under a lock on the file `gate`: writers
queue in the kernel instead of polling, and the precondition of SQLite's WAL-reset bug (3.7.0 to 3.51.2: a checkpoint
beside a write) never comes up. Reads need no gate. Flushes happen outside of it, so that one flush serves many.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import Any, Literal, NoReturn, TypeVar

from batchq import log
from batchq.clock import Clock
from batchq.errors import InternalError, StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from batchq.spool import ballast, fs, opening, wake, wal, writelock
from batchq.spool.layout import Layout, find, prepare
from batchq.spool.schema import TALLY, USER_VERSION, sql
from batchq.spool.seats import Seats
from batchq.spool.wal import Wal
from batchq.spool.writelock import WriteLock

Durability = Literal["power", "strict", "process"]
Row = tuple[Any, ...]
T = TypeVar("T")


class Flush(IntEnum):
    """Who waits until a transaction outlives a power cut."""

    #: Settling and claiming: in `strict` only. After a power cut such a job runs again.
    STRICT = 0
    #: What was accepted from a caller: in `power` too.
    ACCEPTED = 1
    #: What was promised by a file that goes away now: always.
    ALWAYS = 2


_LEAST = {"strict": Flush.STRICT, "power": Flush.ACCEPTED, "process": Flush.ALWAYS}

#: One queue's tally, its columns in the order of TALLY.
TALLY_OF = sql(f"SELECT {','.join(TALLY)} FROM tally WHERE queue=?")
_BEGIN_BOOK = sql("INSERT INTO tally(queue) VALUES(?)")
_SAVE = sql(f"UPDATE tally SET {','.join(f'{name}=?' for name in TALLY)} WHERE queue=?")


class Book:
    """One queue inside one write transaction: its tally, and the hints to give once it is committed.

    `n` holds the columns of the tally; moves count there, and commit writes it back once.
    """

    __slots__ = ("_was", "batched", "db", "n", "now", "now_us", "queue", "ready", "timer")

    def __init__(self, db: sqlite3.Connection, queue: str, now_us: int) -> None:
        self.db = db
        self.queue = queue
        self.now_us = now_us
        #: In ms, rounded down: what is due by then is due.
        self.now = now_us // 1000
        row = db.execute(TALLY_OF, (queue,)).fetchone()
        if row is None:
            db.execute(_BEGIN_BOOK, (queue,))
            row = (0,) * len(TALLY)
        self._was = row
        self.n: dict[str, int] = dict(zip(TALLY, row, strict=True))
        #: Jobs of batches that the move under way has counted: batch, out of which column, into which.
        self.batched: list[tuple[str, str, str]] = []
        #: Work became ready, or is left: rouse a worker.
        self.ready = False
        #: The earliest fire-time changed: rouse the masters.
        self.timer = False

    def save(self) -> None:
        now = tuple(self.n.values())
        if now != self._was:
            self.db.execute(_SAVE, (*now, self.queue))


class Tx:
    """One write transaction. Its time stands still."""

    __slots__ = ("books", "db", "now_us")

    def __init__(self, db: sqlite3.Connection, now_us: int) -> None:
        self.db = db
        self.now_us = now_us
        self.books: dict[str, Book] = {}

    def book(self, queue: str) -> Book:
        book = self.books.get(queue)
        if book is None:
            book = self.books[queue] = Book(self.db, queue, self.now_us)
        return book


class Ledger:
    """A handle on the ledger. Threads may share it; a forked child opens its own."""

    def __init__(self, path: str, *, clock: Clock, durability: Durability, make: bool = True) -> None:
        """`make=False`: a spool that is not there reads as an empty one, and is not made."""
        opening.check_sqlite()
        #: There is none to be read: an empty one in memory stands for it.
        found = prepare(path, ledger=True) if make else find(path)
        self.is_absent = found is None
        self.layout: Layout = found or Layout(fs.real_path(path))
        self.clock = clock
        self._least = _LEAST[durability]
        self.lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._gate = WriteLock(self.layout.gate)
        self.seats = Seats(self.layout.seats, self._gate, self.lock, self._gate_is_free)
        self._pid = os.getpid()
        self._writing = False
        self._wal = Wal(self.layout, clock)
        self._broken = False
        self._room_until = 0.0
        with self.lock:
            self._opened()
        _LEDGERS.add(self)

    # -- transactions ----------------------------------------------------------------------------------------------

    @contextmanager
    def write(self, flush: Flush) -> Iterator[Tx]:
        """A write transaction, whole or not at all; hints and the flush follow when it is committed.

        Raises StoreFull, StoreUnavailable (a foreign lock), StoreCorrupt, StoreError.
        """
        with self.lock:
            db = self._opened()
            if self._writing:
                raise StoreError("spool: called inside its own transaction (by a signal handler?); call it outside")
            self._check_is_there()
            self._writing = True
            try:
                # Inside: an exception of a signal handler must not leave the gate locked behind it.
                self._gate.lock()
                self._check_still_there()
                db.execute("BEGIN IMMEDIATE")
                self._check_version(db)
                tx = Tx(db, self.clock.now_us())
                yield tx
                for book in tx.books.values():
                    book.save()
                fs.passed("T3")
                db.execute("COMMIT")
                fs.passed("T4")
                commit = self._wal.committed()
                rows = db.total_changes
            except sqlite3.Error as error:
                self._failed(db, error)
            except (TypeError, AttributeError) as error:
                # A number that is text, say. Nobody may die of it: what a worker has run and not settled runs again.
                raise StoreCorrupt(
                    f"spool: {self.layout.db}: a value in it is none that can stand there ({type(error).__name__}: "
                    f"{error}); stop everything, copy the directory, then check it"
                ) from error
            finally:
                if db.in_transaction:
                    with suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                self._writing = False
                if self._gate.is_open:
                    self._gate.unlock()
        for book in tx.books.values():
            if book.ready and not book.n["paused"]:
                wake.push(self.layout, "wake", book.queue)
            if book.timer:
                wake.push(self.layout, "timer", book.queue)
        if flush >= self._least:
            self._harden(commit)
        if self._wal.claim(commit, rows):
            self._move_log(commit)

    def run(self, flush: Flush, move: Callable[[Tx], T]) -> T:
        """A move that must go on when the disk is full: it may use the ballast."""
        try:
            with self.write(flush) as tx:
                return move(tx)
        except StoreFull:
            if ballast.drop(self.layout):
                with self.alone() as db:
                    # While there is room for it: what is left would be too little later.
                    wal.empty(db)
        with self.write(flush) as tx:
            return move(tx)

    def _gate_is_free(self) -> bool:
        # Under `lock`: to another thread of this process the gate that one of them has would seem free.
        return self._db is not None and not self._writing and self._gate.is_free()

    def _check_is_there(self) -> None:
        if self.is_absent:
            raise StoreUnavailable(f"spool: {self.layout.root}: expected a spool, found none; enqueue a job to make it")

    def _check_version(self, db: sqlite3.Connection) -> None:
        """A newer batchq has brought the ledger up to date while this one was at work: it must write no more."""
        [[version]] = db.execute("PRAGMA user_version")
        if version != USER_VERSION:
            self._broken = True
            raise opening.newer(self.layout, version)

    def _check_still_there(self) -> None:
        """SQLite goes on writing to files that somebody has removed: what it accepted then would be lost."""
        if not self._gate.stands():
            self._broken = True
            raise StoreUnavailable(
                f"spool: {self.layout.root}: was removed or replaced while it was open; "
                "open it anew, and never remove a spool that is in use"
            )

    @contextmanager
    def alone(self) -> Iterator[sqlite3.Connection]:
        """The connection behind the gate, outside of any transaction: for VACUUM and its kin. Nobody writes meanwhile.

        Raises what `write` raises.
        """
        with self.lock:
            db = self._opened()
            self._check_is_there()
            self._gate.lock()
            try:
                self._check_still_there()
                self._check_version(db)
                yield db
            except sqlite3.Error as error:
                self._failed(db, error)
            finally:
                if self._gate.is_open:
                    self._gate.unlock()

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Several looks at one instant. Keep it short: a long reader keeps the log from being used again."""
        with self.lock:
            db = self._opened()
            if self._writing:
                raise StoreError("spool: called inside its own transaction (by a signal handler?); call it outside")
            try:
                db.execute("BEGIN")
                yield db
            except sqlite3.Error as error:
                self._failed(db, error)
            finally:
                if db.in_transaction:
                    with suppress(sqlite3.Error):
                        db.execute("COMMIT")

    def look(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """One statement that reads."""
        with self.lock:
            db = self._opened()
            try:
                return db.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                self._failed(db, error)

    def check_room(self) -> None:
        """Raises StoreFull when the disk is nearly full, or the log can't begin anew: before jobs are accepted. Looks
        at most once a second."""
        now = self.clock.monotonic()
        if now < self._room_until:
            return
        self._check_is_there()
        free, least = fs.free_bytes(self.layout.root), ballast.RESERVE_BYTES
        if free < least:
            raise StoreFull(
                f"spool: {self.layout.root}: expected at least {least >> 20} MiB free, found {free >> 20}; "
                "make room or work the queue off: claims go on"
            )
        self._wal.check_room()
        self._room_until = now + 1.0

    def _failed(self, db: sqlite3.Connection, error: sqlite3.Error) -> NoReturn:
        """Turns SQLite's error into ours, and makes what room or distance can be made."""
        where = self.layout.db
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if db.in_transaction:
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
        if code == sqlite3.SQLITE_FULL or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHMSIZE:
            # What the log holds twice over is given back: the next attempt may find room.
            if self._writing:
                wal.empty(db)
            raise StoreFull(f"spool: {where}: the disk is full ({error}); make room, then call again") from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StoreUnavailable(
                f"spool: {where}: locked for more than {opening.BUSY_S:.0f} s by something that is not behind the gate "
                f"({error}); end that shell or backup"
            ) from error
        # Text that is no UTF-8 any more has no code.
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or "Could not decode to UTF-8" in str(error):
            self._broken = True
            raise StoreCorrupt(
                f"spool: {where}: damaged ({error}); stop everything, copy the directory, then check it"
            ) from error
        if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            # After an I/O error nothing is known of the cache: the next call begins with a new connection.
            self._broken = True
            raise StoreUnavailable(f"spool: {where}: {error}; check the disk, the owner and the mode") from error
        raise InternalError(f"spool: {where}: {type(error).__name__}: {error}") from error

    # -- the log ---------------------------------------------------------------------------------------------------

    def _harden(self, commit: int) -> None:
        try:
            self._wal.harden(commit)
        except StoreError:
            self._broken = True
            raise

    def _move_log(self, commit: int) -> None:
        """Of a long log that was claimed: flushed, then moved into the database behind the gate."""
        try:
            self._harden(commit)
            with self.lock:
                db = self._db
                if db is None or self._writing or self._broken:
                    return
                try:
                    self._gate.lock()
                    if self._gate.stands():
                        self._wal.move(db)
                finally:
                    if self._gate.is_open:
                        self._gate.unlock()
        except StoreError as error:
            # The move itself is done, and promised no flush, or had its own.
            log.event("error", "flush_failed", error=str(error))
        finally:
            self._wal.release()

    # -- the connection --------------------------------------------------------------------------------------------

    def _opened(self) -> sqlite3.Connection:
        """The connection of this process, under `lock`."""
        if self._pid != os.getpid():
            self.drop_inherited()
        if self.layout.db in _POISONED:
            raise StoreError(
                f"spool: {self.layout.db}: this process was forked from inside a call of the store, and SQLite's locks "
                "do not cross a fork; fork outside of it, or exec"
            )
        if self._broken:
            self._broken = False
            self._shut()
        if self._db is None and self.is_absent:
            self._db = opening.nothing()
        if self._db is None:
            try:
                self._gate.open()
                self._gate.lock_within(writelock.OPEN_S)
                self._db = opening.connect(self.layout)
                self._gate.unlock()
            except BaseException as error:
                self._gate.close()
                if isinstance(error, OSError):
                    where = self.layout.gate
                    raise StoreUnavailable(f"spool: {where}: {error}; check the path and its owner") from error
                raise
        return self._db

    def _shut(self) -> None:
        """Closes the connection under the gate: the last one to close empties the log and removes it."""
        db, self._db = self._db, None
        if db is not None:
            if self._gate.is_open:
                self._gate.lock()
                self._wal.move(db)
            with suppress(sqlite3.Error):
                db.close()
            self._gate.close()
        self.seats.close()
        self._wal.close()

    def close(self) -> None:
        """Closes. The next call opens again."""
        if self._pid != os.getpid():
            self.drop_inherited()
            return
        with self.lock:
            if not self._writing:
                self._shut()

    def drop_inherited(self) -> None:
        """In a forked child: lets go of the parent's handles without touching SQLite."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self._writing = self._broken = False
        if self._db is not None:
            _abandon(self._db)
            self._db = None
            # SQLite keeps its locks on a file a process: the child would believe in those of its parent.
            _POISONED.add(self.layout.db)
        # Closed, not unlocked: the lock is shared with the parent, who may hold it.
        self._gate.close()
        self.seats.close()
        self._wal.drop_inherited()


# -- forks ---------------------------------------------------------------------------------------------------------

_LEDGERS: weakref.WeakSet[Ledger] = weakref.WeakSet()
_parted: list[Ledger] = []
#: Databases that a child inherited open, because the fork came from inside a transaction: it must not use them.
_POISONED: set[str] = set()


def _abandon(db: sqlite3.Connection) -> None:
    """Makes an inherited connection immortal: its closing would work on the parent's files."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))


def before_fork() -> None:
    """A connection carried over a fork corrupts databases. Whoever forks, all ledgers of the process close first.
    It can be called twice for one fork."""
    for ledger in list(_LEDGERS):
        ledger.lock.acquire()
        ledger._wal.lock.acquire()
        _parted.append(ledger)
        with suppress(Exception):
            ledger.close()
    writelock.before_fork()


def _after_fork() -> None:
    while _parted:
        ledger = _parted.pop()
        ledger._wal.lock.release()
        ledger.lock.release()


os.register_at_fork(before=before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
