"""The ledger: one SQLite database behind a gate. Opening, closing, transactions, flushes, forks; no job, no move.

Every write transaction, open, close and checkpoint of every process happens under a lock on the file `gate`: writers
queue in the kernel instead of polling, and the precondition of SQLite's WAL-reset bug (3.7.0 to 3.51.2: a checkpoint
beside a write) never comes up. Reads need no gate. Flushes happen outside of it, so that one flush serves many.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import Any, Literal, NoReturn

from batchq.clock import Clock
from batchq.errors import InternalError, StoreCorrupt, StoreError, StoreFull, StoreUnavailable, StoreVersion
from batchq.spool import fs, wake
from batchq.spool.layout import Layout, prepare
from batchq.spool.schema import APPLICATION_ID, MIGRATIONS, SCHEMA, TALLY, USER_VERSION, sql

Durability = Literal["power", "strict", "process"]
Row = tuple[Any, ...]

#: Upserts came with it.
_OLDEST_SQLITE = (3, 24, 0)
#: A foreign shell is not behind the gate: how long its lock is waited for.
_BUSY_S = 30.0
#: The log is moved into the database when it is larger than this; it is looked at after so many commits.
_LOG_BYTES = 4 << 20
_LOOK_EVERY = 16
#: Enqueue is refused when less is free: finishing jobs needs room too.
_RESERVE_BYTES = 16 << 20


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

    def __init__(self, path: str, *, clock: Clock, durability: Durability) -> None:
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise StoreVersion(f"spool: needs SQLite 3.24 or newer, this Python has {sqlite3.sqlite_version}")
        self.layout: Layout = prepare(path, ledger=True)
        self.clock = clock
        self._least = _LEAST[durability]
        self.lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._gate = -1
        self._pid = os.getpid()
        self._writing = False
        self._commits = 0
        #: Guards what follows. Taken after `lock`, never before it.
        self._log_lock = threading.RLock()
        self._log = fs.Log(self.layout.wal)
        self._flushed = 0
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
            self._writing = True
            try:
                # Inside: an exception of a signal handler must not leave the gate locked behind it.
                fs.lock(self._gate)
                self._check_still_there()
                db.execute("BEGIN IMMEDIATE")
                tx = Tx(db, self.clock.now_us())
                yield tx
                for book in tx.books.values():
                    book.save()
                fs.passed("T3")
                db.execute("COMMIT")
                fs.passed("T4")
                self._commits = commit = self._commits + 1
                if not commit % _LOOK_EVERY:
                    self._checkpoint(db)
            except sqlite3.Error as error:
                self._failed(db, error)
            finally:
                if db.in_transaction:
                    with suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                self._writing = False
                if self._gate >= 0:
                    fs.unlock(self._gate)
        for book in tx.books.values():
            if book.ready and not book.n["paused"]:
                wake.push(self.layout, "wake", book.queue)
            if book.timer:
                wake.push(self.layout, "timer", book.queue)
        if flush >= self._least:
            self._harden(commit)

    def _check_still_there(self) -> None:
        """SQLite goes on writing to files that somebody has removed: what it accepted then would be lost."""
        if not fs.stands_at(self._gate, self.layout.gate):
            self._broken = True
            raise StoreUnavailable(
                f"spool: {self.layout.root}: was removed or replaced while it was open; "
                "open it anew, and never remove a spool that is in use"
            )

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
        """Raises StoreFull when the disk is nearly full, at most once a second: before jobs are accepted."""
        now = self.clock.monotonic()
        if now < self._room_until:
            return
        free = fs.free_bytes(self.layout.root)
        if free < _RESERVE_BYTES:
            raise StoreFull(
                f"spool: {self.layout.root}: expected at least {_RESERVE_BYTES >> 20} MiB free, found {free >> 20}; "
                "make room or work the queue off: claims go on"
            )
        self._room_until = now + 1.0

    def _failed(self, db: sqlite3.Connection, error: sqlite3.Error) -> NoReturn:
        """Turns SQLite's error into ours, and makes what room or distance can be made."""
        where = self.layout.db
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if db.in_transaction:
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
        if code == sqlite3.SQLITE_FULL:
            # What the log holds twice over is given back: the next attempt may find room.
            if self._writing:
                with suppress(sqlite3.Error):
                    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            raise StoreFull(f"spool: {where}: the disk is full ({error}); make room, then call again") from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StoreUnavailable(
                f"spool: {where}: locked for more than {_BUSY_S:.0f} s by something that is not behind the gate "
                f"({error}); end that shell or backup"
            ) from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            self._broken = True
            raise StoreCorrupt(
                f"spool: {where}: damaged ({error}); stop everything, copy the directory, then check it"
            ) from error
        if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            # After an I/O error nothing is known of the cache: the next call begins with a new connection.
            self._broken = True
            raise StoreUnavailable(f"spool: {where}: {error}; check the disk, the owner and the mode") from error
        raise InternalError(f"spool: {where}: {type(error).__name__}: {error}") from error

    # -- flushes ---------------------------------------------------------------------------------------------------

    def _harden(self, commit: int) -> None:
        """Returns when that commit outlives a power cut. One flush serves all threads that came before it began."""
        with self._log_lock:
            if self._flushed >= commit:
                return
            covers = self._commits
            try:
                self._log.flush()
            except OSError as error:
                # A second fsync would succeed and lie: the pages are marked clean.
                self._log.close()
                self._broken = True
                raise StoreError(
                    f"spool: {self.layout.wal}: could not be flushed ({error}); what was just enqueued may be lost "
                    "by a power cut: enqueue it again under the same ids"
                ) from error
            self._flushed = covers

    def _checkpoint(self, db: sqlite3.Connection) -> None:
        """Under the gate: moves a long log into the database."""
        if fs.size_of(self.layout.wal) > _LOG_BYTES:
            # Committed is committed: what a checkpoint can't do now, a later one does.
            with suppress(sqlite3.Error):
                db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

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
        if self._db is None:
            try:
                self._gate = fs.open_lock(self.layout.gate)
                fs.lock(self._gate)
                self._db = _connect(self.layout)
                fs.unlock(self._gate)
            except BaseException as error:
                gate, self._gate = self._gate, -1
                if gate >= 0:
                    fs.close(gate)
                if isinstance(error, OSError):
                    where = self.layout.gate
                    raise StoreUnavailable(f"spool: {where}: {error}; check the path and its owner") from error
                raise
        return self._db

    def _shut(self) -> None:
        """Closes the connection under the gate: the last one to close empties the log and removes it."""
        db, self._db = self._db, None
        gate, self._gate = self._gate, -1
        if db is not None:
            fs.lock(gate)
            with suppress(sqlite3.Error):
                self._checkpoint(db)
            with suppress(sqlite3.Error):
                db.close()
            fs.close(gate)
        with self._log_lock:
            self._log.close()

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
        if self._gate >= 0:
            # Closed, not unlocked: the lock is shared with the parent, who may hold it.
            fs.close(self._gate)
            self._gate = -1
        self._log.close()


def _connect(layout: Layout) -> sqlite3.Connection:
    """Opens the ledger, under the gate, and makes it where there is none."""
    # SQLite would make it with mode 0644 under the umask. Only a new file is touched: it has no locks to lose yet.
    try:
        fs.create_empty(layout.db)
    except OSError as error:
        raise StoreUnavailable(f"spool: {layout.db}: {error}; check the disk, the owner and the mode") from error
    db = None
    try:
        db = sqlite3.connect(
            layout.db, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        _check_whose(db, layout)
        [[mode]] = db.execute("PRAGMA journal_mode=WAL")
        if mode != "wal":
            raise StoreError(
                f"spool: {layout.db}: expected SQLite to keep a WAL here, it keeps {mode!r}; use another disk"
            )
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("PRAGMA wal_autocheckpoint=0")
        db.execute("PRAGMA journal_size_limit=16777216")
        db.execute("PRAGMA cache_size=-16000")
        if sys.platform == "darwin":
            db.execute("PRAGMA fullfsync=1")
            db.execute("PRAGMA checkpoint_fullfsync=1")
        [[version]] = db.execute("PRAGMA user_version")
        if not version:
            _create(db)
        elif version < USER_VERSION:
            _migrate(db, version)
    except BaseException as error:
        if db is not None:
            db.close()
        if isinstance(error, sqlite3.Error):
            kind = StoreCorrupt if isinstance(error, sqlite3.DatabaseError) and "not a database" in str(error) else None
            raise (kind or StoreUnavailable)(f"spool: {layout.db}: can't be opened ({error})") from error
        raise
    return db


def _check_whose(db: sqlite3.Connection, layout: Layout) -> None:
    [[whose]] = db.execute("PRAGMA application_id")
    [[version]] = db.execute("PRAGMA user_version")
    if whose == 0 and version == 0:
        [[tables]] = db.execute("SELECT count(*) FROM sqlite_master")
        if not tables:
            return
    if whose != APPLICATION_ID:
        raise StoreCorrupt(
            f"spool: {layout.db}: is a database, but not batchq's; give the spool a directory of its own"
        )
    if version > USER_VERSION:
        raise StoreVersion(
            f"spool: {layout.db}: has schema {version}, this batchq writes schema {USER_VERSION}; "
            "use the batchq that wrote it, or a new directory"
        )


def _create(db: sqlite3.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA:
        db.execute(statement)
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    db.execute(f"PRAGMA user_version={USER_VERSION}")
    db.execute("COMMIT")


def _migrate(db: sqlite3.Connection, version: int) -> None:
    """An older schema is brought to this one in place, whole or not at all."""
    db.execute("BEGIN IMMEDIATE")
    for older in range(version, USER_VERSION):
        for statement in MIGRATIONS[older]:
            db.execute(statement)
    db.execute(f"PRAGMA user_version={USER_VERSION}")
    db.execute("COMMIT")


# -- forks ---------------------------------------------------------------------------------------------------------

_LEDGERS: weakref.WeakSet[Ledger] = weakref.WeakSet()
_parted: list[Ledger] = []
#: Databases that a child inherited open, because the fork came from inside a transaction: it must not use them.
_POISONED: set[str] = set()


def _abandon(db: sqlite3.Connection) -> None:
    """Makes an inherited connection immortal: its closing would work on the parent's files."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))


def _before_fork() -> None:
    """A connection carried over a fork corrupts databases. Whoever forks, all ledgers of the process close first."""
    for ledger in list(_LEDGERS):
        ledger.lock.acquire()
        ledger._log_lock.acquire()
        _parted.append(ledger)
        with suppress(Exception):
            ledger.close()


def _after_fork() -> None:
    while _parted:
        ledger = _parted.pop()
        ledger._log_lock.release()
        ledger.lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
