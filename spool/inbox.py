"""The inbox: files that others drop, each taken exactly once. Producers need no SQLite, only a directory.

A file (a parcel) is whole or not there: it is written under tmp/, flushed, and renamed into new/ (P1-P6). The sweeper
renames it to work/ under a name of its own, reads it, enqueues all of it and a mark in one transaction, and unlinks
it (I1-I5). A crash between any two is mended by the next sweep: the mark tells that the parcel is in already.
What is no parcel goes to bad/ whole, with its reason beside it; it is never deleted, never run, and stops no other.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from batchq.clock import SYSTEM, Clock
from batchq.errors import StoreFull, StoreUnavailable
from batchq.job import Mark, NewJob
from batchq.lifecycle import Word
from batchq.spool import ballast, fs, wake
from batchq.spool.enqueue import enqueue, set_mark
from batchq.spool.layout import Layout, prepare
from batchq.spool.ledger import Flush, Ledger
from batchq.spool.parcel import MAX_FILE, Entry, Parcel, addressee, jobs_in, new_name, pack, read_parcel
from batchq.spool.schema import sql
from batchq.store import Ingested, Limits

#: What one sweep takes: it must not keep its caller from renewing leases.
_SWEEP_FILES, _SWEEP_JOBS = 500, 5000
#: What one transaction takes.
_STEP_FILES, _STEP_JOBS = 64, 1000
#: An unfinished file under tmp/ is rubbish after this time.
TMP_MS = 36 * 3_600_000
#: How often rubbish is looked for.
TIDY_S = 600.0

#: `<u>-<label>`; u is the ms of I1 in 12 hex digits, a place in 4, and 8 random ones.
_WORK_NAME = re.compile(r"([0-9a-f]{12})([0-9a-f]{12})-[A-Za-z0-9._-]{1,120}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_TAKEN = sql("DELETE FROM mark WHERE queue=? AND lane=?")


class Census(NamedTuple):
    """What lies in an inbox: files not yet taken, their jobs as far as the names tell, files moved aside, and files
    that a server has taken and is to confirm."""

    files: int
    jobs: int
    bad: int
    sent: int = 0


# -- dropping --------------------------------------------------------------------------------------------------------


def drop(
    path: str | os.PathLike[str],
    jobs: Sequence[tuple[str, NewJob]],
    *,
    mark: Mark | None = None,
    maybe: bool = False,
    to: str = "",
    room: int = 0,
    clock: Clock = SYSTEM,
) -> list[str]:
    """Writes (queue, job) pairs as parcels into the inbox of a spool, and returns when they outlive a power cut.

    `mark`, `maybe`: see Entry. `to`: the address (see `address_of`) of the server for which they wait; "" for whoever
    serves the spool. `room`: so many bytes must stay free. Delays count from now, by this host's clock. Answers the
    names of the files; where more than one is needed and a later one fails, the earlier ones are dropped.
    Raises StoreFull, StoreUnavailable.
    """
    layout = prepare(os.fspath(path), ledger=False)
    dropped = []
    try:
        for lines in pack(jobs, mark, maybe, clock):
            if room and fs.free_bytes(layout.new) < room + sum(map(len, lines)):
                raise StoreFull(
                    f"spool: {layout.new}: less than {room >> 20} MiB would stay free; make room on its disk"
                )
            name = new_name(len(lines), to, clock)
            fs.write_whole(os.path.join(layout.tmp, name), os.path.join(layout.new, name), b"".join(lines))
            dropped.append(name)
    except OSError as error:
        kind = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreUnavailable
        raise kind(
            f"spool: {layout.new}: can't drop a parcel ({error}); check the disk, the owner and the mode"
        ) from error
    return dropped


# -- files -----------------------------------------------------------------------------------------------------------


class Box:
    """The files of an inbox, for whoever holds the lock `sweep`. Says nothing about where the jobs go."""

    def __init__(
        self,
        layout: Layout,
        clock: Clock,
        limits: Limits,
        *,
        is_ours: Callable[[str], bool] = lambda name: not addressee(name),
    ) -> None:
        self.layout = layout
        #: Says of a file's name whether it is for the one who takes it.
        self.is_ours = is_ours
        self._clock = clock
        self._limits = limits

    def take(self, most: int) -> list[str]:
        """What stands under work/ already, then what is new, moved there (I1). Answers the working names."""
        taken = [name for name in fs.names(self.layout.work) if self.is_ours(name)][:most]
        for name in _new(self.layout):
            if len(taken) >= most:
                break
            if not self.is_ours(name):
                continue
            # The place within this call: what stays under work/ for a while keeps its order.
            u = f"{self._clock.now_us() // 1000:012x}{len(taken):04x}{os.urandom(4).hex()}"
            label = _UNSAFE.sub("_", name)[:120] or "_"
            path = os.path.join(self.layout.new, name)
            try:
                fs.move(path, os.path.join(self.layout.work, f"{u}-{label}"))
            except FileNotFoundError:
                # Race: its producer took it back.
                continue
            except OSError:
                self._hide(path, f".{u}-{label}")
                continue
            taken.append(f"{u}-{label}")
        if taken:
            # Crash: without this a power cut could put a file back to new/ whose jobs are in: it would come in twice,
            # under another u. test_ingest_flushes_the_move_before_the_jobs
            fs.flush_dir(self.layout.work)
            fs.flush_dir(self.layout.new)
        fs.passed("I1")
        return taken

    def _hide(self, path: str, name: str) -> None:
        """A directory of another user, or of another layer, can't be moved away. Under a name with a dot it no longer
        looks like something that waits, and `check` tells of it. A file stays as it is: the disk may be full."""
        with suppress(OSError):
            if fs.is_dir(path):
                fs.move(path, os.path.join(self.layout.new, name))

    def read(self, name: str) -> Parcel | None:
        """A parcel (I2), or None where the file was moved aside. Raises OSError where this machine is at fault."""
        named = _WORK_NAME.fullmatch(name)
        if named is None:
            self.set_aside(name, "expected a name that the sweeper gave, found another; drop files into new/")
            return None
        u = named[1] + named[2]
        read = fs.read_foreign(
            os.path.join(self.layout.work, name), limit=MAX_FILE, owners=fs.owners_of(self.layout.new)
        )
        fault = read.fault
        taken_ms = int(named[1], 16)
        if not fault and taken_ms + self._limits.mark_ttl_ms <= self._clock.now_us() // 1000:
            # Its mark may be forgotten by now: nobody knows whether the jobs are in.
            fault = "expected to be taken sooner, found it under work/ for longer than marks are kept; drop it again"
        if not fault:
            try:
                parcel = Parcel(name, u, len(read.data), read_parcel(read.data, u, taken_ms))
            except ValueError as error:
                fault = str(error)
            else:
                fault = self._fault_of(parcel)
                if not fault:
                    return parcel
        self.set_aside(name, fault)
        return None

    def _fault_of(self, parcel: Parcel) -> str:
        """A mark that may be forgotten tells nothing: the call may have been done, and nobody knows any more."""
        oldest = self._clock.now_us() // 1000 - self._limits.mark_ttl_ms
        for entry in parcel.entries:
            if entry.mark is not None and entry.since_ms <= oldest:
                return (
                    f"job {entry.job.id}: expected a copy of a call that is younger than marks are kept, found one of "
                    f"{entry.since_ms} ms since 1970; look whether the job is done, and drop it again without its mark"
                )
        return ""

    def set_aside(self, name: str, why: str) -> None:
        """To bad/, with the reason beside it."""
        target = os.path.join(self.layout.bad, name)
        fs.move(os.path.join(self.layout.work, name), target)
        # The file is what counts: a full disk may cost the reason.
        with suppress(OSError):
            reason = why.encode("utf-8", "backslashreplace")[:4000] + b"\n"
            fs.write_whole(os.path.join(self.layout.tmp, f"why-{os.urandom(8).hex()}"), f"{target}.why", reason)

    def done(self, name: str) -> None:
        """The jobs of this file are where they belong (I5)."""
        fs.remove(os.path.join(self.layout.work, name))

    def has_any(self) -> bool:
        """Something lies there for us."""
        return any(map(self.is_ours, waiting(self.layout)))

    def tidy(self) -> None:
        """Removes what producers that died left under tmp/."""
        old = self._clock.now_us() // 1000 - TMP_MS
        for name in fs.names(self.layout.tmp):
            path = os.path.join(self.layout.tmp, name)
            with suppress(OSError):
                if fs.facts(path).st_mtime_ns // 1_000_000 < old:
                    fs.remove(path)

    def census(self) -> Census:
        """What lies there, by the names of the files."""
        names = waiting(self.layout)
        jobs = sum(map(jobs_in, names))
        bad = sum(1 for name in fs.names(self.layout.bad) if not name.endswith(".why"))
        return Census(len(names), jobs, bad, len(fs.names(self.layout.sent)))


def _new(layout: Layout) -> list[str]:
    """What lies under new/: what begins with a dot is nobody's."""
    return [name for name in fs.names(layout.new) if not name.startswith(".")]


def waiting(layout: Layout) -> list[str]:
    """The names under new/ and work/."""
    # In this order: what moves on meanwhile is seen in work/.
    return _new(layout) + fs.names(layout.work)


def census(path: str | os.PathLike[str]) -> Census:
    """What lies in the inbox of a spool; nothing where there is no spool."""
    layout = Layout(fs.real_path(os.fspath(path)))
    try:
        fs.facts(layout.new)
    except FileNotFoundError:
        return Census(0, 0, 0)
    return Box(layout, SYSTEM, Limits()).census()


# -- into the ledger -------------------------------------------------------------------------------------------------


class Sweeper:
    """Empties the inbox into the ledger beside it."""

    def __init__(self, ledger: Ledger, limits: Limits) -> None:
        self._ledger = ledger
        self._limits = limits
        self._box = Box(ledger.layout, ledger.clock, limits)
        #: Marks of parcels that were unlinked: the next step, which flushes work/ first, takes them away.
        self._over: list[tuple[str, str]] = []
        self._tidy_at = 0.0

    def sweep(self) -> Ingested:
        """Raises StoreFull and the like of the ledger; the files stay where they are then."""
        ledger = self._ledger
        with ledger.lock:
            try:
                self._tidy()
                # A look without the lock: mostly there is nothing.
                if not self._box.has_any():
                    return Ingested(0, 0, 0)
                lock = fs.open_lock(ledger.layout.sweep)
                try:
                    return self._sweep() if fs.try_lock(lock) else Ingested(0, 0, 0)
                finally:
                    fs.close(lock)
            except OSError as error:
                raise StoreUnavailable(
                    f"spool: {ledger.layout.at('inbox')}: {error}; check the disk and the owner"
                ) from error

    def _tidy(self) -> None:
        now = self._ledger.clock.monotonic()
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY_S
            self._box.tidy()
            wake.tidy(self._ledger.layout, self._ledger.clock.now_us() / 1e6)
            ballast.keep(self._ledger.layout)

    def _sweep(self) -> Ingested:
        files = jobs = bad = 0
        names = self._box.take(_SWEEP_FILES)
        self._ledger.check_room()
        step: list[Parcel] = []
        for name in names:
            try:
                parcel = self._box.read(name)
            except FileNotFoundError:
                # Race: somebody took it away by hand.
                continue
            if parcel is None:
                bad += 1
                continue
            step.append(parcel)
            files += 1
            if self._is_full(step):
                jobs += self._ingest(step)
                step = []
                if jobs >= _SWEEP_JOBS:
                    break
        fs.passed("I2")
        if step:
            jobs += self._ingest(step)
        return Ingested(files, jobs, bad)

    def _is_full(self, step: Sequence[Parcel]) -> bool:
        return (
            len(step) >= _STEP_FILES
            or sum(len(parcel.entries) for parcel in step) >= _STEP_JOBS
            or sum(parcel.size for parcel in step) >= MAX_FILE
        )

    def _ingest(self, parcels: Sequence[Parcel]) -> int:
        """Jobs and marks of some parcels in one transaction (I3), flushed in every mode (I4), then the unlinks (I5)."""
        fresh = 0
        with self._ledger.write(Flush.ALWAYS) as tx:
            for queue, u in self._over:
                tx.db.execute(_TAKEN, (queue, u))
            for parcel in parcels:
                groups = _grouped(parcel.entries)
                # The parcel's own mark, one a queue. It needs no end here: Box.read looks after that.
                first = {queue for queue, _ in groups if set_mark(tx.book(queue), Mark(parcel.u, 1), 2**62)}
                for (queue, mark), jobs in groups.items():
                    if queue in first:
                        fresh += enqueue(tx.book(queue), jobs, mark, self._limits).count(Word.OK)
        fs.passed("I4")
        self._over = []
        for parcel in parcels:
            self._box.done(parcel.name)
            self._over += {(entry.queue, parcel.u) for entry in parcel.entries}
            fs.passed("I5")
        return fresh


def _grouped(entries: Iterable[Entry]) -> dict[tuple[str, Mark | None], list[NewJob]]:
    groups: dict[tuple[str, Mark | None], list[NewJob]] = {}
    for entry in entries:
        groups.setdefault((entry.queue, entry.mark), []).append(entry.job)
    return groups
