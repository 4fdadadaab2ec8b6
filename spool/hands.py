"""What people do with a spool by hand: look inside, take a mended file back, ask the database, give back its space."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from batchq.clock import SYSTEM
from batchq.errors import ConfigError, SpoolError, StoreFull
from batchq.job import Job
from batchq.jsons import orjson
from batchq.spool import fs
from batchq.spool.layout import Layout
from batchq.spool.ledger import Flush, Ledger
from batchq.spool.parcel import MAX_FILE, read_parcel

#: Folders of the inbox that can be looked into.
FOLDERS = ("new", "work", "sent", "bad", "tmp")


class File(NamedTuple):
    """One file of the inbox, as `ls` shows it."""

    path: str
    size: int
    modified_ms: int


def files(layout: Layout, folder: str) -> Iterator[File]:
    """What lies in a folder of the inbox, in the order in which it is taken."""
    for name in fs.names(layout.at("inbox", folder)):
        try:
            fact = fs.facts(layout.at("inbox", folder, name))
        except FileNotFoundError:
            # Race: it was taken.
            continue
        yield File(f"inbox/{folder}/{name}", fact.st_size, fact.st_mtime_ns // 1_000_000)


def content(layout: Layout, path: str) -> bytes:
    """A file of the inbox. Raises SpoolError for what is none, or can't be read."""
    parts = path.split("/")
    if len(parts) != 3 or parts[0] != "inbox" or parts[1] not in FOLDERS or parts[2] in ("", ".", ".."):
        raise SpoolError(f"{path!r:.200}: expected inbox/<folder>/<file>, the folder one of {', '.join(FOLDERS)}")
    try:
        read = fs.read_foreign(layout.at(*parts), limit=MAX_FILE, owners=fs.owners_of(layout.new))
    except OSError as error:
        raise SpoolError(f"{path!r:.200}: can't be read ({error.strerror})") from error
    if read.fault:
        raise SpoolError(f"{path!r:.200}: {read.fault}")
    return read.data


def parcel_line(job: Job) -> bytes:
    """A job of the ledger as the line that would make it anew."""
    line: dict[str, Any] = {"v": 1, "id": job.id, "queue": job.queue, "job": job.job}
    line |= {name: value for name in ("args", "kwargs", "priority") if (value := getattr(job, name))}
    if job.state == "delayed":
        line["at"] = job.since_ms
    own = {"max": job.max_attempts, "timeout": job.timeout_ms, "keep": job.keep_ms}
    line |= {name: value for name, value in own.items() if value is not None}
    return orjson.dumps(line)


def accept(layout: Layout, name: str) -> int:
    """Puts a file that was moved aside back into new/, when it is a parcel now; answers how many jobs are in it.

    Raises SpoolError with the fault that it still has.
    """
    name = name.removeprefix("inbox/").removeprefix("bad/")
    if not name or "/" in name or name.endswith(".why"):
        raise SpoolError(f"{name!r:.200}: expected the name of a file in inbox/bad")
    data = content(layout, f"inbox/bad/{name}")
    try:
        entries = read_parcel(data, "0" * 24, SYSTEM.now_us() // 1000)
    except ValueError as error:
        raise SpoolError(f"bad/{name:.200}: still is no parcel: {error}") from error
    if any(entry.mark is not None for entry in entries):
        raise SpoolError(
            f"bad/{name:.200}: a line has a mark: it is a copy of a call that may have been done; "
            "look whether it was, and take `mark` and `maybe` out of the line"
        )
    # Its label, as the producer named it, behind the identity that the sweeper gave.
    _, dash, label = name.partition("-")
    source, target = os.path.join(layout.bad, name), os.path.join(layout.new, label if dash and label else name)
    if fs.is_there(target):
        target = f"{target}.{os.urandom(4).hex()}"
    fs.move(source, target)
    fs.flush_dir(layout.new)
    fs.flush_dir(layout.bad)
    # Crash: the reason stays behind. `check` takes it away.
    fs.remove(f"{source}.why")
    return len(entries)


class Table(NamedTuple):
    """What a statement answers."""

    columns: Sequence[str]
    rows: list[tuple[Any, ...]]
    changed: int


def ask(ledger: Ledger, statement: str, *, write: bool) -> Table:
    """One statement of SQL: reading, or with `write` in a transaction behind the gate.

    Raises ConfigError for one that SQLite refuses, and for one that would write without `write`.
    """
    if write:
        return ledger.run(Flush.ALWAYS, lambda tx: _answer(tx.db, statement))
    with ledger.read() as db:
        db.execute("PRAGMA query_only=1")
        try:
            return _answer(db, statement)
        finally:
            db.execute("PRAGMA query_only=0")


def _answer(db: sqlite3.Connection, statement: str) -> Table:
    try:
        cursor = db.execute(statement)
        return Table([one[0] for one in cursor.description or ()], cursor.fetchall(), max(0, cursor.rowcount))
    except (sqlite3.OperationalError, sqlite3.ProgrammingError, sqlite3.IntegrityError, sqlite3.Warning) as error:
        hint = "; to write say --write" if "readonly" in str(error) else ""
        raise ConfigError(f"sql: {error}{hint}") from error


class Vacuumed(NamedTuple):
    """Bytes of the database."""

    before: int
    after: int


def vacuum(ledger: Ledger) -> Vacuumed:
    """Gives back the room that done jobs have left. All writers wait meanwhile: some seconds for a million jobs.

    Raises StoreFull where there is no room to write it anew: twice its size.
    """
    layout = ledger.layout
    before = fs.size_of(layout.db)
    with ledger.alone() as db:
        [[pages]], [[free]], [[size]] = (
            db.execute(f"PRAGMA {name}") for name in ("page_count", "freelist_count", "page_size")
        )
        needed = 2 * (pages - free) * size
        if fs.free_bytes(layout.root) < needed:
            raise StoreFull(
                f"spool: {layout.root}: vacuum needs {needed >> 20} MiB free; make room, or dump and load elsewhere"
            )
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return Vacuumed(before, fs.size_of(layout.db))
