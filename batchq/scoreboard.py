"""Shared memory between a master and its workers: who runs what, since when. One writer a part, no lock.

A slot has two parts: what the worker writes (who it is, the job under way) and the one order that the master writes.
The worker writes the start of a run before the handler begins, with a sequence number in front and behind; where they
differ after a kill, the write was cut off.
"""

from __future__ import annotations

import mmap
import struct
from typing import NamedTuple

from batchq.job import Claim

#: Bytes of one slot.
SLOT = 1024
#: Room for workers.
MOST = 256

_WHO = struct.Struct("<128p")
_COUNTS = struct.Struct("<BQ")
_RUN = struct.Struct("<QBQQQ65p201p121pQ")
_OVER = struct.Struct("<B")
_ORDER = struct.Struct("<QB")
_HEARD = struct.Struct("<Q")
_AT_WHO, _AT_COUNTS, _AT_RUN, _AT_ORDER, _AT_HEARD = 0, 128, 160, 800, 832

#: What a worker does.
BOOTING, IDLE, BUSY, STOPPING = range(4)
STATES = ("booting", "idle", "busy", "stopping")

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

    def is_of(self, claim: Claim) -> bool:
        """Whether this run is that claim's."""
        return (self.queue, self.id, self.token) == (claim.queue, claim.id, claim.token)


class Scoreboard:
    """All slots. Made by the master before it forks; anonymous memory that children share."""

    def __init__(self, slots: int = MOST) -> None:
        self._memory = mmap.mmap(-1, SLOT * slots)

    def slot(self, number: int) -> Slot:
        return Slot(self._memory, number * SLOT)


class Slot:
    """One worker's place."""

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._memory = memory
        self._at = at
        self._sequence = 0

    # -- the worker writes

    def enter(self, worker: str) -> None:
        """Says who writes here from now on: before the id is known to any store."""
        _WHO.pack_into(self._memory, self._at + _AT_WHO, worker.encode())

    def say(self, state: int, claimed: int) -> None:
        """What the worker does, and how many jobs it has claimed so far."""
        _COUNTS.pack_into(self._memory, self._at + _AT_COUNTS, state, claimed)

    def begin(self, claim: Claim, handler: str, started_ns: int, timeout_ms: int) -> int:
        """The handler is about to be called. Answers the number of the run."""
        self._sequence += 1
        n = self._sequence
        _RUN.pack_into(
            self._memory,
            self._at + _AT_RUN,
            n,
            1,
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
        _OVER.pack_into(self._memory, self._at + _AT_RUN + 8, 0)

    def hear(self, run: int) -> None:
        """The order for this run is being obeyed: it need not be repeated."""
        _HEARD.pack_into(self._memory, self._at + _AT_HEARD, run)

    def order(self) -> tuple[int, int]:
        """The number of the run that the master's last order is for, and the order."""
        number, order = _ORDER.unpack_from(self._memory, self._at + _AT_ORDER)
        return number, order

    # -- the master writes

    def give_order(self, run: int, order: int) -> None:
        _ORDER.pack_into(self._memory, self._at + _AT_ORDER, run, order)

    @property
    def heard(self) -> int:
        """The number of the run whose order was heard last."""
        return int(_HEARD.unpack_from(self._memory, self._at + _AT_HEARD)[0])

    def clear(self) -> None:
        """For the next worker."""
        self._memory[self._at : self._at + SLOT] = bytes(SLOT)

    # -- anyone reads

    @property
    def worker(self) -> str:
        return str(_WHO.unpack_from(self._memory, self._at + _AT_WHO)[0].decode(errors="replace"))

    @property
    def state(self) -> int:
        return int(_COUNTS.unpack_from(self._memory, self._at + _AT_COUNTS)[0])

    @property
    def claimed(self) -> int:
        return int(_COUNTS.unpack_from(self._memory, self._at + _AT_COUNTS)[1])

    def run(self) -> Run | None:
        """The last run; None before the first. A write that was cut off counts as a start: to be on the safe side."""
        # Race: the worker writes while this reads. Two equal readings are no mixture of two runs, or they are torn.
        # test_reading_while_the_worker_writes_mixes_no_two_runs
        record = _RUN.unpack_from(self._memory, self._at + _AT_RUN)
        for _ in range(8):
            last, record = record, _RUN.unpack_from(self._memory, self._at + _AT_RUN)
            if record == last:
                break
        before, under_way, token, started, timeout, queue, job_id, handler, after = record
        if before == 0:
            return None
        torn = before != after or record != last
        queue, job_id, handler = (part.decode(errors="replace") for part in (queue, job_id, handler))
        return Run(before, bool(under_way) or torn, token, started, timeout, queue, job_id, handler, torn)
