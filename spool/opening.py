"""Opening the ledger's database: its pragmas, whose it is, its tables, and bringing older ones up to date."""

from __future__ import annotations

import sqlite3
import sys

from batchq.errors import StoreCorrupt, StoreError, StoreFull, StoreUnavailable, StoreVersion
from batchq.spool import ballast, fs
from batchq.spool.layout import Layout
from batchq.spool.schema import APPLICATION_ID, MIGRATIONS, SCHEMA, USER_VERSION

#: A foreign shell is not behind the gate: how long its lock is waited for.
BUSY_S = 30.0
#: Upserts came with it.
OLDEST_SQLITE = (3, 24, 0)
#: With less than this left, whatever fails fails for want of room.
_NO_BYTES, _NO_INODES = 1 << 20, 4


def check_sqlite() -> None:
    """Raises StoreVersion where this Python's SQLite can't do what is needed."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreVersion(f"spool: needs SQLite 3.24 or newer, this Python has {sqlite3.sqlite_version}")


def is_full(root: str) -> bool:
    """The disk has no room for a log, or for its name."""
    inodes = fs.free_inodes(root)
    return fs.free_bytes(root) < _NO_BYTES or (inodes is not None and inodes < _NO_INODES)


def connect(layout: Layout) -> sqlite3.Connection:
    """Opens the ledger, under the gate, and makes it where there is none."""
    try:
        return _connect(layout)
    except StoreUnavailable:
        # The log and its index need room, and two inodes: a pool must be able to start on a full disk.
        if is_full(layout.root) and ballast.drop(layout):
            return _connect(layout)
        raise


def _connect(layout: Layout) -> sqlite3.Connection:
    # SQLite would make it with mode 0644 under the umask. Only a new file is touched: it has no locks to lose yet.
    try:
        fs.create_empty(layout.db)
    except OSError as error:
        raise StoreUnavailable(f"spool: {layout.db}: {error}; check the disk, the owner and the mode") from error
    db = None
    try:
        db = sqlite3.connect(
            layout.db, timeout=BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=256
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
            create(db)
        elif version < USER_VERSION:
            _keep(db, layout, version)
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
    if version > USER_VERSION or version < min(MIGRATIONS, default=USER_VERSION):
        raise newer(layout, version)


def newer(layout: Layout, version: int) -> StoreVersion:
    """The error for a schema that this code can't work with."""
    return StoreVersion(
        f"spool: {layout.db}: has schema {version}, this batchq writes schema {USER_VERSION}; "
        "use the batchq that wrote it, or a new directory"
    )


def nothing() -> sqlite3.Connection:
    """An empty ledger in memory: what a spool that is not there reads like."""
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    create(db)
    return db


def create(db: sqlite3.Connection) -> None:
    """Makes the tables."""
    db.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA:
        db.execute(statement)
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    db.execute(f"PRAGMA user_version={USER_VERSION}")
    db.execute("COMMIT")


def _keep(db: sqlite3.Connection, layout: Layout, version: int) -> None:
    """A copy of the ledger as it is: the way back to the batchq that wrote it. Under the gate.

    Raises StoreFull where there is no room for it.
    """
    [[pages]], [[size]] = (db.execute(f"PRAGMA {name}") for name in ("page_count", "page_size"))
    free, needed = fs.free_bytes(layout.root), pages * size + ballast.RESERVE_BYTES
    if free < needed:
        raise StoreFull(
            f"spool: {layout.db}: expected {needed >> 20} MiB free for a copy of it, before it is brought from schema "
            f"{version} to {USER_VERSION}, found {free >> 20}; make room, or use the batchq that wrote it"
        )
    target = layout.kept(version)
    new = f"{target}.new"
    # Crash: half a copy is made anew by the next one who opens, as nothing was changed yet.
    for rest in (new, f"{new}-journal"):
        fs.remove(rest)
    fs.create_empty(new)
    copy = sqlite3.connect(new)
    try:
        db.backup(copy)
    finally:
        copy.close()
    fs.move(new, target)
    fs.flush_dir(layout.root)


def _migrate(db: sqlite3.Connection, version: int) -> None:
    """From an older schema to ours, in one transaction: a crash leaves the old one. Under the gate."""
    db.execute("BEGIN IMMEDIATE")
    try:
        for step in range(version, USER_VERSION):
            for statement in MIGRATIONS[step]:
                db.execute(statement)
        db.execute(f"PRAGMA user_version={USER_VERSION}")
        db.execute("COMMIT")
    except sqlite3.Error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
