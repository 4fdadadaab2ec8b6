"""Looks whether a spool is as it should be, and mends what a program may mend. See `faults` for the ledger's rows.

A note is nothing to worry about. What is mendable is mended where that is asked for; a fault needs a person.
What a crash leaves (see FORMAT.md) is at most a note: the next master takes it from there.
"""

from __future__ import annotations

import os
import re
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

from batchq.clock import SYSTEM, Clock
from batchq.errors import BatchqError, StoreCorrupt, StoreUnavailable
from batchq.spool import ballast, faults, fs, wake, wal, writelock
from batchq.spool.inbox import TMP_MS, Box
from batchq.spool.layout import Layout, find, is_ours
from batchq.spool.ledger import Flush, Ledger
from batchq.spool.schema import sql, whole
from batchq.spool.share import open_modes
from batchq.store import Limits


class Level(StrEnum):
    """What a finding asks for."""

    NOTE = "note"
    MENDED = "mended"
    #: --repair would mend it.
    MENDABLE = "mendable"
    #: A person must look.
    FAULT = "fault"


class Finding(NamedTuple):
    level: Level
    text: str


#: The WAL-reset bug of SQLite is mended in these, and from 3.51.3 on.
_MENDED_SQLITE = ((3, 44, 6), (3, 50, 7))
_SAFE_SQLITE = (3, 51, 3)
#: A half-made FORMAT that is older is nobody's any more.
_STAMP_S = 60.0
_PARCEL = re.compile(r"[0-9a-f]{24}")

_MARKS = whole("SELECT queue,lane FROM mark WHERE n=1 AND length(lane)=24")
_UNMARK = sql("DELETE FROM mark WHERE queue=? AND lane=? AND n=1")
_OVER = whole(
    "SELECT count(*) FROM job JOIN lease ON lease.queue=job.queue AND worker=owner WHERE state=2 AND until<=?"
)
_DROP_ROW = sql("DELETE FROM job WHERE seq=? AND queue=? AND id=?")


class Checker:
    """One look at one spool."""

    def __init__(self, path: str, *, repair: bool, quick: bool = False, clock: Clock = SYSTEM) -> None:
        self._path = path
        self._repair = repair
        self._quick = quick
        self._clock = clock
        self.layout = Layout(fs.real_path(path))
        self.found: list[Finding] = []
        #: Folders that are open on purpose, and their modes.
        self._open: dict[str, int] = {}

    def run(self) -> list[Finding]:
        """All findings. Raises StoreUnavailable where there is no spool, or it can't be read."""
        if not fs.is_there(self.layout.root):
            raise StoreUnavailable(f"spool: {self.layout.root}: expected a spool, found nothing there")
        try:
            if not fs.names(self.layout.root):
                raise StoreUnavailable(f"spool: {self.layout.root}: expected a spool, found an empty directory")
            self._place()
            layout = None
            try:
                layout = find(self._path)
            except BatchqError as error:
                self._say(Level.FAULT, str(error))
                return self.found
            self._files()
            if layout is None:
                self._say(Level.NOTE, "no ledger: an outbox, or a spool that was never used")
                self._inbox()
            else:
                self._ledger()
            self._room()
        except OSError as error:
            raise StoreUnavailable(
                f"spool: {self.layout.root}: can't be read ({error}); check its owner and yours"
            ) from error
        return self.found

    def _say(self, level: Level, text: str) -> None:
        self.found.append(Finding(level, text))

    def _may_mend(self, text: str) -> bool:
        """Notes what is mendable, and answers whether it is to be mended now."""
        self._say(Level.MENDED if self._repair else Level.MENDABLE, text)
        return self._repair

    # -- the place and its files ---------------------------------------------------------------------------------------

    def _place(self) -> None:
        if fs.is_remote(kind := fs.kind_of_fs(self.layout.root)):
            level = Level.FAULT if fs.is_there(self.layout.db) else Level.NOTE
            self._say(level, f"lies on {kind}, where a ledger is not safe; only the inbox may be used there")
        version = sqlite3.sqlite_version_info
        if version < _SAFE_SQLITE and not any(version[:2] == one[:2] and version >= one for one in _MENDED_SQLITE):
            self._say(
                Level.NOTE,
                f"SQLite {sqlite3.sqlite_version} can damage a log when writers do not queue: batchq's do; "
                "write with `batchq spool sql`, not with another shell, while it is in use",
            )

    def _files(self) -> None:
        self._open = open_modes(self.layout)
        now_s = self._clock.now_us() / 1e6
        for name in fs.names(self.layout.root):
            path = self.layout.at(name)
            if name.startswith("FORMAT."):
                if now_s - fs.changed_s(path, now_s) > _STAMP_S and self._may_mend(f"{name}: left by one that died"):
                    fs.remove(path)
            elif not is_ours(name):
                self._say(Level.NOTE, f"{name!r:.100}: is none of the spool's files; it is left alone")
            else:
                self._mode(path)
                if name.startswith("queue.db.v"):
                    self._say(
                        Level.NOTE, f"{name}: the ledger before it was brought up to date; remove it when all is well"
                    )
        for folder in (self.layout.tmp, self.layout.new, self.layout.work, self.layout.sent, self.layout.bad):
            self._mode(folder)
        dead = wake.rubbish(self.layout, now_s)
        if dead:
            self._say(Level.MENDED if self._repair else Level.NOTE, f"{len(dead)} hints of waiters that died")
            if self._repair:
                wake.tidy(self.layout, now_s)

    def _mode(self, path: str) -> None:
        try:
            fact = fs.facts(path)
        except FileNotFoundError:
            return
        name = os.path.relpath(path, self.layout.root)
        if fact.st_uid not in (os.geteuid(), 0):
            self._say(Level.FAULT, f"{name}: belongs to uid {fact.st_uid}; chown it, or run as that user")
        elif name != "lost+found" and (mode := stat.S_IMODE(fact.st_mode)) & 0o077 & ~self._open.get(path, 0):
            wanted = mode & (0o700 | self._open.get(path, 0))
            if self._may_mend(f"{name}: mode {mode:04o} lets others in (mended: {wanted:04o})"):
                fs.set_mode(path, wanted)

    def _room(self) -> None:
        free = fs.free_bytes(self.layout.root)
        if free < (least := ballast.RESERVE_BYTES):
            self._say(Level.FAULT, f"{free >> 20} MiB free: enqueue is refused below {least >> 20}; make room")
        inodes = fs.free_inodes(self.layout.root)
        if inodes is not None and inodes < ballast.FILES:
            self._say(Level.FAULT, f"{inodes} inodes free: no file can be dropped soon; make room")
        if self._repair and ballast.missing(self.layout) and fs.is_there(self.layout.db) and ballast.keep(self.layout):
            self._say(Level.MENDED, "the ballast was not whole; it is there again")

    # -- the inbox -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _sweeping(self) -> Iterator[bool]:
        """Holds the lock of whoever takes files; False where a master is at it right now."""
        lock = fs.open_lock(self.layout.sweep)
        try:
            yield fs.try_lock(lock)
        finally:
            fs.close(lock)

    def _inbox(self) -> None:
        layout, box = self.layout, Box(self.layout, self._clock, Limits())
        now_s = self._clock.now_us() / 1e6
        ages = [now_s - fs.changed_s(os.path.join(layout.tmp, name), now_s) for name in fs.names(layout.tmp)]
        old = [age for age in ages if age * 1000 > TMP_MS]
        if old and self._may_mend(f"inbox/tmp: {len(old)} files that no producer can be at any more"):
            box.tidy()
        here = box.census()
        if here.files:
            self._say(Level.NOTE, f"inbox: {here.files} files wait, {here.jobs} jobs by their names")
        if here.sent:
            self._say(Level.NOTE, f"inbox/sent: {here.sent} files wait for the server to confirm them")
        hidden = [name for name in fs.names(layout.new) if name.startswith(".")]
        if hidden:
            self._say(Level.NOTE, f"inbox/new: {len(hidden)} files begin with a dot; nobody takes them")
        bad = fs.names(layout.bad)
        files = [name for name in bad if not name.endswith(".why")]
        if files:
            self._say(
                Level.FAULT,
                f"inbox/bad: {len(files)} files were moved aside; `batchq spool status` says why: mend and "
                "`batchq spool accept` them, or remove them",
            )
        lost = [name for name in bad if name.endswith(".why") and name.removesuffix(".why") not in files]
        if lost and self._may_mend(f"inbox/bad: {len(lost)} reasons of files that are gone"):
            for name in lost:
                fs.remove(os.path.join(layout.bad, name))

    # -- the ledger ----------------------------------------------------------------------------------------------------

    def _ledger(self) -> None:
        log_bytes = fs.size_of(self.layout.wal)
        if log_bytes > wal.LONG_BYTES:
            found = writelock.holders(self.layout.at("queue.db-shm"), "POSIX")
            readers = ", ".join(map(str, found)) or "nobody to be seen"
            self._say(Level.FAULT, f"queue.db-wal: {log_bytes >> 20} MiB, somebody reads for long: {readers}; end that")
        try:
            ledger = Ledger(self._path, clock=self._clock, durability="power")
        except BatchqError as error:
            hint = "; `batchq spool salvage` saves what can be read" if isinstance(error, StoreCorrupt) else ""
            self._say(Level.FAULT, f"{error}{hint}")
            self._inbox()
            return
        try:
            if self._database(ledger):
                self._rows(ledger)
                with self._sweeping() as is_ours:
                    if is_ours:
                        self._parcel_marks(ledger)
                self._inbox()
        except StoreCorrupt as error:
            self._say(Level.FAULT, f"{error}; `batchq spool salvage` saves what can be read")
        finally:
            ledger.close()

    def _database(self, ledger: Ledger) -> bool:
        """Whether SQLite finds it whole, or whole again."""
        with ledger.read() as db:
            found, by_index = faults.damage(db, quick=self._quick)
        if not found:
            return True
        text = f"queue.db: SQLite finds {len(found)} faults, the first: {found[0]:.300}"
        if not by_index:
            self._say(Level.FAULT, f"{text}; stop everything, and run `batchq spool salvage`")
            return False
        if not self._may_mend(f"{text} (mended: indexes built anew)"):
            return False
        with ledger.alone() as db:
            db.execute("REINDEX")
            found, _ = faults.damage(db, quick=self._quick)
        if found:
            self._say(Level.FAULT, f"queue.db: still damaged: {found[0]:.300}; run `batchq spool salvage`")
        return not found

    def _rows(self, ledger: Ledger) -> None:
        with ledger.read() as db:
            rows = faults.bad_rows(db)
            found = list(faults.count(db))
            odd = list(faults.odd(db))
            [[over]] = db.execute(_OVER, (self._clock.now_us() // 1000,))
        if over:
            self._say(Level.NOTE, f"{over} active jobs of workers whose lease is over: the next master reaps them")
        if rows and self._may_mend(f"{len(rows)} jobs whose rows are no jobs (mended: moved to inbox/bad)"):
            self._move_aside(ledger, rows)
        for table, n in odd:
            self._say(
                Level.FAULT,
                f"{n} rows of the table {table} hold what it can't: `batchq spool dump` shows them, "
                "`batchq spool sql --write` mends them",
            )
        for fault, n in found:
            text = fault.text.format(n=n)
            if fault.mend:
                self._may_mend(text)
            else:
                self._say(Level.FAULT, text)
        if self._repair and (rows or any(fault.mend for fault, _ in found)):
            ledger.run(Flush.ALWAYS, lambda tx: faults.mend(tx.db, tx.now_us // 1000))
            with ledger.read() as db:
                for fault, n in faults.count(db):
                    if fault.mend:
                        self._say(Level.FAULT, f"still there: {fault.text.format(n=n)}")

    def _move_aside(self, ledger: Ledger, rows: list[faults.BadRow]) -> None:
        """First the file, then the row goes: a crash between leaves both, and the next look moves it again."""
        for one in rows:
            name = f"row-{one.seq}-{os.urandom(4).hex()}"
            why = (
                f"job {one.id!r:.200} of queue {one.queue!r:.100}: expected a JSON object with job and t, found this\n"
            )
            temporary = os.path.join(self.layout.tmp, name)
            fs.write_whole(temporary, os.path.join(self.layout.bad, name), one.row)
            fs.write_whole(temporary, os.path.join(self.layout.bad, f"{name}.why"), why.encode("utf-8", "replace"))
        ledger.run(Flush.ALWAYS, lambda tx: tx.db.executemany(_DROP_ROW, [one[:3] for one in rows]))

    def _parcel_marks(self, ledger: Ledger) -> None:
        """Marks of parcels whose files are gone (I6). The unlinks are made durable before: see FORMAT.md."""
        fs.flush_dir(self.layout.work)
        working = {name.partition("-")[0] for name in fs.names(self.layout.work)}
        over = [(queue, lane) for queue, lane in ledger.look(_MARKS) if _PARCEL.fullmatch(lane) and lane not in working]
        if over:
            self._say(Level.MENDED if self._repair else Level.NOTE, f"{len(over)} marks of parcels that were taken")
            if self._repair:
                ledger.run(Flush.STRICT, lambda tx: tx.db.executemany(_UNMARK, over))


def check(path: str, *, repair: bool = False, quick: bool = False, clock: Clock = SYSTEM) -> list[Finding]:
    """Looks at a spool, and with `repair` mends what can be mended."""
    return Checker(path, repair=repair, quick=quick, clock=clock).run()


def is_well(found: list[Finding]) -> bool:
    """Nothing is left that somebody has to look at."""
    return not any(one.level in (Level.FAULT, Level.MENDABLE) for one in found)
