"""Which file of a spool is what, and how a directory becomes one. FORMAT.md is the text to this module."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from batchq.errors import ConfigError, StoreCorrupt, StoreError, StoreUnavailable, StoreVersion
from batchq.spool import fs

#: The major number of the format that this code reads and writes.
MAJOR = 1
_FORMAT = re.compile(rb"batchq-spool (\d{1,9})\n")
_DB = ("queue.db", "queue.db-wal", "queue.db-shm", "queue.db-journal")
_LOCKS = ("gate", "seats", "sweep")
_OURS = frozenset((*_DB, *_LOCKS, "FORMAT", "waiters", "waiting", "ballast", "inbox", "offline", "lost+found"))
#: Spools that serve while a server is away, and the ledger as it was before it was brought up to date.
_OURS_TOO = re.compile(r"offline-[0-9a-f]{12}|queue\.db\.v\d+(\.new(-journal)?)?")


@dataclass(frozen=True, slots=True)
class Layout:
    """The names inside one spool."""

    root: str

    def at(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    @property
    def format(self) -> str:
        return self.at("FORMAT")

    @property
    def db(self) -> str:
        """The ledger. Never opened by anything but SQLite."""
        return self.at("queue.db")

    @property
    def wal(self) -> str:
        return self.at("queue.db-wal")

    def kept(self, version: int) -> str:
        """The ledger as it was when it had that schema, before it was brought up to date."""
        return self.at(f"queue.db.v{version}")

    @property
    def gate(self) -> str:
        """Locked around every write transaction, open, close and checkpoint of the ledger."""
        return self.at("gate")

    @property
    def seats(self) -> str:
        """A byte of it is locked by each who comes to the gate by turns in a rush."""
        return self.at("seats")

    @property
    def sweep(self) -> str:
        """Locked by whoever empties the inbox."""
        return self.at("sweep")

    @property
    def waiters(self) -> str:
        """One FIFO a waiting process."""
        return self.at("waiters")

    @property
    def waiting(self) -> str:
        """Further names of those FIFOs, one for each hint that is waited for."""
        return self.at("waiting")

    @property
    def ballast(self) -> str:
        """Files that can be given up when there is no room."""
        return self.at("ballast")

    @property
    def tmp(self) -> str:
        return self.at("inbox", "tmp")

    @property
    def new(self) -> str:
        return self.at("inbox", "new")

    @property
    def work(self) -> str:
        return self.at("inbox", "work")

    @property
    def sent(self) -> str:
        """What a server has taken that is to confirm it. Made when it is first needed."""
        return self.at("inbox", "sent")

    @property
    def bad(self) -> str:
        return self.at("inbox", "bad")


def is_ours(name: str) -> bool:
    """Whether something of this name in a spool's directory is the spool's."""
    return name in _OURS or _OURS_TOO.fullmatch(name) is not None


def find(path: str) -> Layout | None:
    """The spool at a path where it has a ledger, None where there is none yet: nothing is made there.

    Raises what `prepare` raises for a directory that is none for a spool.
    """
    layout = Layout(fs.real_path(path))
    try:
        if not fs.is_there(layout.root):
            return None
        if fault := fs.fault_of_dir(layout.root):
            raise ConfigError(f"spool: {layout.root}: {fault}")
        present = fs.names(layout.root)
        if "queue.db" in present:
            return prepare(path, ledger=True)
        _check_present(layout, present)
    except OSError as error:
        raise _unusable(layout.root, error) from error
    return None


def prepare(path: str, *, ledger: bool) -> Layout:
    """Makes the directory a spool where it is none yet, and refuses one that can't be trusted or understood.

    `ledger=False` asks for the inbox alone: it may lie where a ledger may not.
    Raises ConfigError (not private, not empty and no spool), StoreError (file system), StoreVersion, StoreUnavailable.
    """
    root = fs.real_path(path)
    try:
        fs.make_dir(root)
        if fault := fs.fault_of_dir(root):
            raise ConfigError(f"spool: {root}: {fault}")
        if ledger and fs.is_remote(kind := fs.kind_of_fs(root)):
            raise StoreError(
                f"spool: {root}: lies on {kind}, where SQLite's locks and shared memory do not hold; "
                "use a local file system (ext4, xfs, btrfs, apfs, tmpfs)"
            )
        layout = Layout(root)
        _stamp(layout)
        for part in ("inbox", "inbox/tmp", "inbox/new", "inbox/work", "inbox/bad"):
            fs.make_dir(layout.at(part))
        if ledger:
            fs.make_dir(layout.waiters)
            fs.make_dir(layout.waiting)
    except OSError as error:
        raise _unusable(root, error) from error
    return layout


def _unusable(root: str, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(f"spool: {root}: can't be made or entered ({error}); check the path and its owner")


def _stamp(layout: Layout) -> None:
    """Writes FORMAT, or reads it and refuses what this code does not know."""
    if _check_present(layout, fs.names(layout.root)):
        return
    # Two may do this at once: both write the same.
    temporary = f"{layout.format}.{os.getpid()}.{os.urandom(4).hex()}"
    fs.write_whole(temporary, layout.format, b"batchq-spool %d\n" % MAJOR)


def _check_present(layout: Layout, present: Sequence[str]) -> bool:
    """Whether a directory with these names in it is a spool; False where it may become one."""
    if "FORMAT" in present:
        check_format(layout)
        return True
    foreign = [name for name in present if not is_ours(name) and not name.startswith("FORMAT.")]
    if foreign:
        raise ConfigError(
            f"spool: {layout.root}: expected an empty or new directory, found {foreign[0]!r:.60} and no FORMAT; "
            "give the spool a directory of its own"
        )
    if "queue.db" in present:
        raise StoreCorrupt(
            f"spool: {layout.root}: has a queue.db but no FORMAT; "
            f"if it is batchq's, write the line 'batchq-spool {MAJOR}' to FORMAT"
        )
    return False


def check_format(layout: Layout) -> None:
    """Raises StoreVersion for a format of another major number, StoreCorrupt for what is none."""
    text = fs.read_start(layout.format, 100)
    found = _FORMAT.fullmatch(text)
    if found is None:
        raise StoreCorrupt(f"spool: {layout.format}: expected the line 'batchq-spool {MAJOR}', found {text[:60]!r}")
    if int(found[1]) != MAJOR:
        raise StoreVersion(
            f"spool: {layout.root}: has format {int(found[1])}, this batchq reads format {MAJOR}; "
            "use the batchq that wrote it, or a new directory"
        )
