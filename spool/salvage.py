"""Saves what can still be read of a damaged ledger into a new spool. The damaged one is left as it is.

Tables are read in the order of their keys, in ever smaller ranges where a page is damaged. Free pages are not looked
into: a job that stands there has been done. Where the rows of jobs are gone and an index still knows them, they are
named.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from batchq.clock import SYSTEM
from batchq.errors import StoreCorrupt, StoreError, StoreUnavailable
from batchq.spool import faults, fs
from batchq.spool.check import check
from batchq.spool.dump import TABLES, columns_of
from batchq.spool.layout import Layout
from batchq.spool.ledger import Flush, Ledger, Tx
from batchq.spool.schema import whole
from batchq.spool.writelock import WriteLock

#: More failing looks than this, and the rest of a table is given up.
_PATIENCE: Final = 200_000
#: Rows of one look.
_LOOK: Final = 500
#: A row id that no ledger comes to.
_MOST: Final = 1 << 40

#: The first or the last row id, by the table and by the index of jobs.
_END = (
    whole("SELECT {1}(seq) FROM {0}"),
    whole("SELECT {1}(seq) FROM (SELECT seq FROM job INDEXED BY job_id)"),
)
_KNOWN = (
    whole("SELECT seq,queue,id FROM job INDEXED BY job_id ORDER BY queue,id"),
    whole("SELECT seq,queue,id FROM job INDEXED BY job_id ORDER BY queue DESC,id DESC"),
)
_RANGE = whole("SELECT {1} FROM {0} NOT INDEXED WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT ?")
_ORDERED = whole("SELECT {1} FROM {0} ORDER BY {2}")
_KEYS = {
    "tally": "queue",
    "batch": "queue,id",
    "lease": "queue,worker",
    "mark": "queue,lane",
    "gone": "queue,id",
    "gate": "queue,name",
    "guest": "queue,id",
    "waiter": "queue,gate,place",
    "passed": "queue,gate,at,id,token",
    "visit": "queue,gate",
    "turn": "queue",
}


class Salvaged(NamedTuple):
    """What came of it."""

    jobs: int
    #: (queue, id) of jobs that an index still knows.
    lost: list[tuple[str, str]]
    #: Tables of which only a part could be read.
    torn: list[str]


def salvage(old: str, new: str) -> Salvaged:
    """Reads the spool at `old`, and makes one at `new`, which must be a new or empty directory.

    Raises StoreUnavailable (somebody works on it), StoreCorrupt where nothing can be read, StoreError, ConfigError.
    """
    source = Layout(fs.real_path(old))
    if not fs.size_of(source.db):
        raise StoreUnavailable(f"spool: {source.root}: expected a ledger, found none")
    target = Layout(fs.real_path(new))
    if fs.is_there(target.root) and fs.names(target.root):
        raise StoreError(f"spool: {target.root}: expected a new directory, found one with files in it")
    ledger = Ledger(new, clock=SYSTEM, durability="power")
    try:
        copy = target.at("damaged.db")
        gate = WriteLock(source.gate)
        gate.open()
        gate.lock_within()
        try:
            fs.copy(source.db, copy)
            if fs.size_of(source.wal):
                fs.copy(source.wal, f"{copy}-wal")
        finally:
            gate.close()
        try:
            found = _read(copy, ledger)
        finally:
            for tail in ("", "-wal", "-shm"):
                fs.remove(copy + tail)
        _take_inbox(source, target, marks_are_whole="mark" not in found.torn)
    finally:
        ledger.close()
    # Rows that were read and are rubbish all the same go to bad/.
    check(target.root, repair=True)
    return found


def _read(copy: str, ledger: Ledger) -> Salvaged:
    db = sqlite3.connect(copy, isolation_level=None)
    # A character that is damaged costs that character.
    db.text_factory = lambda text: text.decode("utf-8", "replace")
    try:
        try:
            db.execute("PRAGMA cell_size_check=1")
            # Without it SQLite opens no file that has lost its end. This is our copy, and only read.
            db.execute("PRAGMA writable_schema=1")
            columns = {table: columns_of(db, table) for table in (*TABLES, "note")}
        except sqlite3.DatabaseError as error:
            raise StoreCorrupt(
                f"spool: {copy}: not even its list of tables can be read ({error}); "
                "SQLite's own shell may save more: sqlite3 queue.db .recover"
            ) from error
        if not columns["job"]:
            raise StoreCorrupt("spool: the database has no table of jobs; SQLite's own shell may save more")
        return ledger.run(Flush.ALWAYS, lambda tx: _move(db, tx, columns))
    finally:
        db.close()


def _move(db: sqlite3.Connection, tx: Tx, columns: dict[str, list[str]]) -> Salvaged:
    torn: list[str] = []
    seqs: set[int] = set()
    for table, names in columns.items():
        # A column that a later schema has not, or that this one lacks, stays behind.
        known = set(columns_of(tx.db, table))
        kept = [name for name in names if name in known]
        if not kept:
            # An older schema had no such table.
            continue
        rows = _by_seq(db, table, kept, torn) if table in ("job", "note") else _by_key(db, table, kept, torn)
        insert = f"INSERT OR IGNORE INTO {table}({','.join(kept)}) VALUES({','.join('?' * len(kept))})"
        at = kept.index("seq") if table == "job" else -1
        for row in rows:
            with suppress(sqlite3.IntegrityError):
                if tx.db.execute(insert, row).rowcount > 0 and at >= 0:
                    seqs.add(row[at])
    lost = {}
    for statement in _KNOWN:
        with suppress(sqlite3.DatabaseError):
            for seq, queue, id in db.execute(statement):
                if seq not in seqs:
                    lost[seq] = (queue, id)
    faults.mend(tx.db, tx.now_us // 1000)
    return Salvaged(len(seqs), [lost[seq] for seq in sorted(lost)], sorted(set(torn)))


def _by_seq(db: sqlite3.Connection, table: str, names: list[str], torn: list[str]) -> Iterator[tuple[Any, ...]]:
    """The rows of a table with row ids. Raises nothing: what can't be read is left out."""
    least, most = _end(db, table, "min", 1), _end(db, table, "max", _MOST)
    if least is None or most is None:
        return
    statement = _RANGE.format(table, ",".join(names))
    ranges = [(least, most)]
    # Behind a last row that is hidden there is nothing but failing looks.
    failed, patience = 0, _PATIENCE // (10 if most == _MOST else 1)
    at = names.index("seq")
    while ranges and failed < patience:
        low, high = ranges.pop()
        while low <= high:
            try:
                rows = db.execute(statement, (low, high, _LOOK)).fetchall()
            except sqlite3.DatabaseError:
                failed += 1
                torn.append(table)
                if low < high:
                    middle = (low + high) // 2
                    ranges += [(middle + 1, high), (low, middle)]
                break
            yield from rows
            if len(rows) < _LOOK:
                break
            low = rows[-1][at] + 1


def _end(db: sqlite3.Connection, table: str, which: str, hidden: int) -> int | None:
    """The first or the last row id (min, max); `hidden` where the damage is in front of it, None where no row is."""
    found: list[int | None] = []
    for statement in _END if table == "job" else _END[:1]:
        with suppress(sqlite3.DatabaseError):
            [[value]] = db.execute(statement.format(table, which))
            found.append(value)
    known = [value for value in found if value is not None]
    if known:
        return min(known) if which == "min" else max(known)
    return None if found else hidden


def _by_key(db: sqlite3.Connection, table: str, names: list[str], torn: list[str]) -> Iterator[tuple[Any, ...]]:
    """The rows of a table without row ids: from its beginning to the damage, and from its end."""
    for order in ("", " DESC"):
        keys = ",".join(f"{key}{order}" for key in _KEYS[table].split(","))
        try:
            yield from db.execute(_ORDERED.format(table, ",".join(names), keys))
        except sqlite3.DatabaseError:
            torn.append(table)
        else:
            return


def _take_inbox(source: Layout, target: Layout, *, marks_are_whole: bool) -> None:
    """The files of the inbox, copied. Of what the sweeper had taken nobody knows without the marks."""
    for folder in ("new", "bad", "work", "sent"):
        for name in fs.names(source.at("inbox", folder)):
            path = source.at("inbox", folder, name)
            if not fs.is_regular(path):
                continue
            if folder != "work" or marks_are_whole:
                fs.make_dir(target.at("inbox", folder))
                fs.copy(path, target.at("inbox", folder, name))
                continue
            aside = os.path.join(target.bad, name)
            fs.copy(path, aside)
            why = b"expected a mark that tells whether its jobs are in, found damaged marks; look, then accept it\n"
            fs.write_whole(os.path.join(target.tmp, f"why-{os.urandom(8).hex()}"), f"{aside}.why", why)
