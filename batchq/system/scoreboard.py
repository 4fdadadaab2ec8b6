"""Shared memory between a master and its workers: who runs what, since when. One writer a part, no lock.

It is a file: beside the pid file, so that the next start finds what a killed master left; without a pid file one that
has no name. Its descriptor can be handed over an exec. A header names the master, slots follow.

A slot has two parts: what the worker writes (who it is, the job under way) and the one order that the master writes.
The worker writes the start of a run before the handler begins, with a sequence number in front and behind; where they
differ after a kill, the write was cut off. A worker of many jobs at once has an entry for each in an area of its own
behind the slots, which takes room only where there is such a worker. Behind that stand notices of deaths: see
`notices`.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import sys
from typing import TYPE_CHECKING, NamedTuple, Self

from batchq.clock import SYSTEM, monotonic_ns
from batchq.errors import ConfigError
from batchq.job import Claim
from batchq.system.notices import Notices

if TYPE_CHECKING:
    from batchq.system.meters import Meter

#: What a board begins with. The last two digits are the version of the layout: of header and slots.
MAGIC = b"batchq03"
#: Bytes of the header, and of one slot.
HEADER, SLOT = 4096, 1024
#: Room for workers: twice as many as a pool has, for while a reload replaces them.
MOST = 512
#: The jobs of one worker at most, and the bytes of each.
MOST_ENTRIES, ENTRY = 1024, 448
#: Where the entries of the first slot begin. It and the room of each slot are whole pages, also of 64 KiB.
_AT_ENTRIES = 1 << 20
#: The notices of each worker, behind all entries.
_NOTICES = 1 << 17
_AT_NOTICES = _AT_ENTRIES + MOST * MOST_ENTRIES * ENTRY

_HEAD = struct.Struct("<8sIIQQQ40p")
_QUIET = struct.Struct("<B")
_ERRAND = struct.Struct("<QI65p201pQ")
_DONE = struct.Struct("<Q")
_AT_QUIET, _AT_ERRAND, _AT_DONE, _AT_TAKEN = 256, 512, 1024, 1032

_WHO = struct.Struct("<128p")
_COUNTS = struct.Struct("<BQ")
_RUN = struct.Struct("<QBQQQ65p201p121pQ")
_BEGUN, _BEHIND = struct.Struct("<QB"), struct.Struct("<Q")
_OVER = struct.Struct("<B")
_ORDER = struct.Struct("<QB")
_HEARD = struct.Struct("<Q")
_PROCESS = struct.Struct("<IQ")
_ANEW = struct.Struct("<Q")
_BREADTH = struct.Struct("<H")
_AT_WHO, _AT_COUNTS, _AT_PROCESS, _AT_RUN, _AT_ORDER, _AT_HEARD, _AT_ANEW, _AT_BREADTH = (
    *(0, 128, 144, 160, 800, 832, 848),
    856,
)

#: What a worker does.
BOOTING, IDLE, BUSY, STOPPING, QUIET = range(5)
STATES = ("booting", "idle", "busy", "stopping", "quiet")

#: How a run can be met: by an order, or on a thread, where nothing can be raised; and one by an order that is of many
#: jobs.
_OVER_NOW, _OPEN, _ON_THREAD, _WHOLE = range(4)

#: What the master can order for one run.
NOTHING, TIMED_OUT, CANCEL, INTERRUPT = range(4)


class Run(NamedTuple):
    """One handler call, as the scoreboard knows it."""

    number: int
    #: False: it has ended.
    under_way: bool
    token: int
    #: CLOCK_MONOTONIC, which all processes of a host share.
    started_ns: int
    #: 0: none.
    timeout_ms: int
    queue: str
    id: str
    handler: str
    #: The writer stands in the middle of the record, or was killed there: the other fields may be of two runs.
    torn: bool = False
    #: It runs on a thread: no order reaches it, only the end of the whole worker.
    on_thread: bool = False
    #: One call for many jobs: all that its worker holds on that queue. The id is that of the first.
    whole: bool = False

    @property
    def started_ms(self) -> int:
        """When it began, since the epoch; 1 where nobody knows."""
        if self.torn or self.whole:
            return 1
        return SYSTEM.now_us() // 1000 - (monotonic_ns() - self.started_ns) // 1_000_000

    def is_of(self, claim: Claim) -> bool:
        """Whether this run is that claim's, one of those that its worker holds."""
        if self.whole:
            return self.queue == claim.queue
        return (self.queue, self.id, self.token) == (claim.queue, claim.id, claim.token)


class Errand(NamedTuple):
    """A dead job whose `on_dead` hooks a worker is to call: the master runs no code of the user's."""

    number: int
    #: Of the worker that is asked.
    place: int
    queue: str
    id: str


class Owner(NamedTuple):
    """The master of a board."""

    pid: int
    #: When that process began, by the system: see `parent.birth_of`.
    birth: int
    #: Its session: that of the workers and of what they start as well.
    session: int
    #: Names the run of the host's kernel, in which pids and births mean something.
    boot: str


class Scoreboard:
    """All slots. Made by the master before it forks; children share the memory."""

    def __init__(self, slots: int = MOST, *, fd: int | None = None) -> None:
        """`fd`: a file of the right size, whose content stays."""
        size = HEADER + SLOT * slots
        if fd is None:
            fd = unnamed_file("board")
            _wipe(fd, size)
        self.fd = fd
        self.slots = slots
        self._memory = mmap.mmap(fd, size)

    @classmethod
    def at(cls, path: str) -> Self:
        """The board in that file, made where there is none. What is no board of this layout is wiped.

        Raises ConfigError where it can't be opened, is another user's, or finds no room.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                if os.fstat(fd).st_uid != os.geteuid():
                    raise PermissionError(1, "it belongs to another user")
                os.fchmod(fd, 0o600)
                size = HEADER + SLOT * MOST
                known = os.pread(fd, len(MAGIC), 0) == MAGIC and os.fstat(fd).st_size >= size
                if not known:
                    _wipe(fd, size)
                return cls(fd=fd)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            raise ConfigError(
                f"pid_file: the scoreboard {path} beside it can't be opened ({error.strerror}); "
                "name another path, or move that file away"
            ) from None

    def own(self, owner: Owner) -> None:
        """This master's from now on, and empty but for its own notices."""
        # Of the entries and of workers' notices nothing is left.
        os.ftruncate(self.fd, _AT_ENTRIES)
        if self.owner is not None:
            # Not through the mapping, whose pages would be this process's from then on.
            _fill(self.fd, 0, len(self._memory))
        _HEAD.pack_into(
            self._memory, 0, MAGIC, self.slots, SLOT, owner.pid, owner.birth, owner.session, owner.boot.encode()
        )

    @property
    def owner(self) -> Owner | None:
        """Whose it is; None of an empty one."""
        magic, _, _, pid, birth, session, boot = _HEAD.unpack_from(self._memory, 0)
        return Owner(pid, birth, session, boot.decode(errors="replace")) if magic == MAGIC else None

    @property
    def quiet(self) -> bool:
        """Workers claim nothing more."""
        return bool(_QUIET.unpack_from(self._memory, _AT_QUIET)[0])

    @quiet.setter
    def quiet(self, value: bool) -> None:
        _QUIET.pack_into(self._memory, _AT_QUIET, value)

    def give_errand(self, errand: Errand) -> None:
        """One at a time: the last one is forgotten."""
        number, place, queue, job_id = errand
        _ERRAND.pack_into(self._memory, _AT_ERRAND, number, place, queue.encode(), job_id.encode(), number)

    @property
    def errand_done(self) -> int:
        """The number of the errand that was done last."""
        return int(_DONE.unpack_from(self._memory, _AT_DONE)[0])

    @property
    def errand_taken(self) -> int:
        """The number of the errand that was begun last."""
        return int(_DONE.unpack_from(self._memory, _AT_TAKEN)[0])

    def notices(self, place: int | None = None) -> Notices:
        """The master's, or those of the worker at that place."""
        if place is None:
            at = HEADER + SLOT * MOST
            return Notices(self.fd, at, _AT_ENTRIES - at)
        return _notices_of(self.fd, place)

    def slot(self, number: int) -> Slot:
        return Slot(self._memory, HEADER + number * SLOT, number, self.fd)


def _wipe(fd: int, size: int) -> None:
    """All zero, and of that size. One without a name costs no memory until it is written to."""
    os.ftruncate(fd, 0)
    os.ftruncate(fd, size)
    if os.fstat(fd).st_nlink:
        _fill(fd, 0, size)


def _fill(fd: int, at: int, size: int) -> None:
    """Writes zeros, so that there is room: a write into a hole, through a mapping, would kill the process on a full
    disk. Not every system and file system can promise room in another way."""
    zeros = memoryview(bytes(size))
    while zeros:
        done = os.pwrite(fd, zeros, at)
        at, zeros = at + done, zeros[done:]


def _notices_of(fd: int, place: int) -> Notices:
    return Notices(fd, _AT_NOTICES + place * _NOTICES, _NOTICES)


def unnamed_file(name: str) -> int:
    """The descriptor of a file that has no name and goes with the last one who holds it. Closed by an exec."""
    if sys.platform == "linux" and hasattr(os, "memfd_create"):
        try:
            return os.memfd_create(f"batchq-{name}", os.MFD_CLOEXEC)
        except OSError as error:
            # Where that call is not allowed a file does as well; where nothing can be opened, no file can.
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
    import tempfile

    with tempfile.TemporaryFile() as file:
        fd = os.dup(file.fileno())
        os.set_inheritable(fd, False)
        return fd


class Entry:
    """One handler call and the one order for it. `first` and `step` number the calls."""

    def __init__(
        self, memory: mmap.mmap, at_run: int, at_order: int, at_heard: int, *, first: int = 0, step: int = 1
    ) -> None:
        self._memory = memory
        self._at_run = at_run
        self._at_order = at_order
        self._at_heard = at_heard
        self._number = first
        self._step = step

    # -- the worker writes

    def begin(
        self,
        claim: Claim,
        handler: str,
        started_ns: int,
        timeout_ms: int,
        *,
        on_thread: bool = False,
        whole: bool = False,
    ) -> int:
        """The handler is about to be called; see Run for `whole`. Answers the number of the run."""
        self._number += self._step
        n = self._number
        _RUN.pack_into(
            self._memory,
            self._at_run,
            n,
            _WHOLE if whole else _ON_THREAD if on_thread else _OPEN,
            claim.token,
            started_ns,
            timeout_ms,
            claim.queue.encode(),
            claim.id.encode(),
            handler.encode()[:120],
            n,
        )
        return n

    def end(self) -> None:
        """The handler has ended: one byte, which can't tear."""
        _OVER.pack_into(self._memory, self._at_run + 8, _OVER_NOW)

    def hear(self, run: int) -> None:
        """The order for this run is being obeyed: it need not be repeated."""
        _HEARD.pack_into(self._memory, self._at_heard, run)

    def order(self) -> tuple[int, int]:
        """The number of the run that the master's last order is for, and the order."""
        number, order = _ORDER.unpack_from(self._memory, self._at_order)
        return number, order

    # -- the master writes

    def give_order(self, run: int, order: int) -> None:
        _ORDER.pack_into(self._memory, self._at_order, run, order)

    # -- anyone reads

    @property
    def heard(self) -> int:
        """The number of the run whose order was heard last."""
        return int(_HEARD.unpack_from(self._memory, self._at_heard)[0])

    @property
    def is_under_way(self) -> bool:
        """A quick look. A record that was cut off counts as a start, as in `run`."""
        before, under_way = _BEGUN.unpack_from(self._memory, self._at_run)
        return bool(under_way or before != _BEHIND.unpack_from(self._memory, self._at_run + _RUN.size - 8)[0])

    def run(self) -> Run | None:
        """The last run; None before the first. A write that was cut off counts as a start: to be on the safe side."""
        # Race: the worker writes while this reads. Two equal readings are no mixture of two runs, or they are torn.
        # test_reading_while_the_worker_writes_mixes_no_two_runs
        record = _RUN.unpack_from(self._memory, self._at_run)
        for _ in range(8):
            last, record = record, _RUN.unpack_from(self._memory, self._at_run)
            if record == last:
                break
        before, under_way, token, started, timeout, queue, job_id, handler, after = record
        if before == 0:
            return None
        torn = before != after or record != last
        queue, job_id, handler = (part.decode(errors="replace") for part in (queue, job_id, handler))
        return Run(
            *(before, bool(under_way) or torn, token, started, timeout, queue, job_id, handler, torn),
            on_thread=under_way == _ON_THREAD,
            whole=under_way == _WHOLE,
        )


class Slot(Entry):
    """One worker's place. It is an entry itself: that of a worker which runs one job at a time."""

    def __init__(self, memory: mmap.mmap, at: int, place: int, fd: int) -> None:
        super().__init__(memory, at + _AT_RUN, at + _AT_ORDER, at + _AT_HEARD)
        self._at = at
        self._place = place
        self._fd = fd
        #: Of a worker of many jobs at once.
        self._entries: list[Entry] = []
        #: Counts what the handlers here do, where somebody wants to know.
        self.meter: Meter | None = None
        #: Jobs that this worker is about to settle as dead.
        self.notices = _notices_of(fd, place)

    # -- the worker writes

    def be(self, pid: int, birth: int) -> None:
        """The process that writes here: the first that a worker says."""
        _PROCESS.pack_into(self._memory, self._at + _AT_PROCESS, pid, birth)

    def enter(self, worker: str) -> None:
        """Says who writes here from now on: before the id is known to any store."""
        _WHO.pack_into(self._memory, self._at + _AT_WHO, worker.encode())

    def say(self, state: int, claimed: int) -> None:
        """What the worker does, and how many jobs it has claimed so far."""
        _COUNTS.pack_into(self._memory, self._at + _AT_COUNTS, state, claimed)

    def widen(self, breadth: int) -> list[Entry]:
        """Makes room for so many jobs at once, and answers their entries, all of them empty."""
        # The file grows where it is too short; other workers do the same beside. And the worker that was here before
        # gave its runs the same numbers: an order for one of them would be obeyed by the one that has its number now.
        _fill(self._fd, *_entries_of(self._place, breadth))
        _BREADTH.pack_into(self._memory, self._at + _AT_BREADTH, breadth)
        return self.entries()

    def errand(self) -> Errand | None:
        """What this worker is asked to do, and has not done."""
        number, place, queue, job_id, again = _ERRAND.unpack_from(self._memory, _AT_ERRAND)
        done = int(_DONE.unpack_from(self._memory, _AT_DONE)[0])
        if place != self._place or number in (0, done) or number != again:
            return None
        return Errand(number, place, queue.decode(), job_id.decode())

    def take(self, errand: Errand) -> None:
        """It is being done."""
        _DONE.pack_into(self._memory, _AT_TAKEN, errand.number)

    def did(self, errand: Errand) -> None:
        _DONE.pack_into(self._memory, _AT_DONE, errand.number)

    # -- the master writes

    def want_anew(self) -> None:
        """The worker is to connect anew."""
        _ANEW.pack_into(self._memory, self._at + _AT_ANEW, self.anew + 1)

    @property
    def anew(self) -> int:
        """How often the worker was told to connect anew."""
        return int(_ANEW.unpack_from(self._memory, self._at + _AT_ANEW)[0])

    def clear(self) -> None:
        """For the next worker."""
        self._entries = []
        self._memory[self._at : self._at + SLOT] = bytes(SLOT)

    # -- anyone reads

    @property
    def pool_is_quiet(self) -> bool:
        """The master wants nothing to be claimed. Looked at before each job."""
        return self._memory[_AT_QUIET] != 0

    def entries(self) -> list[Entry]:
        """Of a worker of many jobs at once; of others none."""
        breadth = int(_BREADTH.unpack_from(self._memory, self._at + _AT_BREADTH)[0])
        if len(self._entries) != breadth:
            start, size = _entries_of(self._place, breadth)
            memory = mmap.mmap(self._fd, size, offset=start)
            self._entries = [_entry(memory, number) for number in range(breadth)]
        return self._entries

    def under_way(self) -> list[tuple[Entry, Run]]:
        """Every job that runs there now, with its entry."""
        entries = self.entries() or [self]
        runs = ((entry, entry.run()) for entry in entries if entry.is_under_way)
        return [(entry, run) for entry, run in runs if run is not None and run.under_way]

    @property
    def process(self) -> tuple[int, int]:
        """(pid, birth) of the worker; (0, 0) where there is none."""
        pid, birth = _PROCESS.unpack_from(self._memory, self._at + _AT_PROCESS)
        return pid, birth

    @property
    def worker(self) -> str:
        return str(_WHO.unpack_from(self._memory, self._at + _AT_WHO)[0].decode(errors="replace"))

    @property
    def state(self) -> int:
        return int(_COUNTS.unpack_from(self._memory, self._at + _AT_COUNTS)[0])

    @property
    def claimed(self) -> int:
        return int(_COUNTS.unpack_from(self._memory, self._at + _AT_COUNTS)[1])


def _entries_of(place: int, breadth: int) -> tuple[int, int]:
    """Where the entries of a slot begin in the file, and how long they are."""
    return _AT_ENTRIES + place * MOST_ENTRIES * ENTRY, breadth * ENTRY


def _entry(memory: mmap.mmap, number: int) -> Entry:
    at = number * ENTRY
    # No two runs of a worker have the same number.
    return Entry(memory, at, at + _RUN.size, at + _RUN.size + _ORDER.size, first=number, step=MOST_ENTRIES)
