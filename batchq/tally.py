"""What stores know of a batch: a group of jobs of one queue that are counted together. Values only, no I/O.

A job is in at most one batch, from its enqueue on and as long as its row stands. Each of its ends is counted in the
step in which it happens; a requeue takes the count back. In the step in which nothing of a concluded batch is pending
any more its callbacks are enqueued, each once for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from batchq.jsons import orjson

#: The end of a batch that has not ended: the last of all ends.
UNENDED: Final = 2**53 - 1


class NewBatch(NamedTuple):
    """What `begin` takes."""

    id: str
    #: For people.
    name: str = ""
    #: The beginnings of the callbacks' rows, see `callback`; b"" for none.
    on_complete: bytes = b""
    on_success: bytes = b""


@dataclass(slots=True)
class Tally:
    """The numbers of a batch, as a store that keeps them in Python has them."""

    total: int = 0
    completed: int = 0
    dead: int = 0
    cancelled: int = 0
    closed: bool = False
    #: Which callbacks were enqueued.
    told_complete: bool = False
    told_success: bool = False
    began: int = 0
    ended: int = UNENDED

    @property
    def is_over(self) -> bool:
        """Nothing is pending in it, and nobody may add anything."""
        return self.closed and self.ended != UNENDED

    def count(self, column: str, n: int) -> None:
        """Adds to total, completed, dead or cancelled; "" is what is pending, which is no column of its own."""
        if column:
            setattr(self, column, getattr(self, column) + n)

    def look(self, now: int) -> Iterable[str]:
        """Called when its numbers have changed: which callbacks are due now, in their order."""
        if self.total > self.completed + self.dead + self.cancelled:
            self.ended = UNENDED
            return
        if self.ended == UNENDED:
            self.ended = now
        if self.closed and not self.told_complete:
            self.told_complete = True
            yield "complete"
        if self.closed and not self.told_success and self.completed == self.total:
            self.told_success = True
            yield "success"

    def row(self, head: bytes, now: int) -> bytes:
        """The row of a callback, with its time in front."""
        numbers = (self.total, self.completed, self.dead, self.cancelled)
        return b'{"t":%d,' % now + head + b',"total":%d,"completed":%d,"dead":%d,"cancelled":%d}]}' % numbers


def callback(row: bytes, batch_id: str, name: str) -> bytes:
    """The beginning of a callback's row, from the row of a job without arguments: its one argument is an object with
    id, name and the counts, which the store adds."""
    about = orjson.dumps({"id": batch_id, "name": name})
    return row[1:-1] + b',"args":[' + about[:-1]


@dataclass(frozen=True, slots=True)
class BatchStats:
    """A batch at one instant."""

    id: str
    queue: str
    name: str
    #: Jobs that were added to it. Ids that were known already are none of them.
    total: int
    completed: int
    dead: int
    #: Cancelled, and purged before they had ended.
    cancelled: int
    #: Its producer has said that no more will come.
    closed: bool
    began_ms: int
    #: Since when nothing is pending in it; None: something is.
    ended_ms: int | None

    @property
    def pending(self) -> int:
        """Jobs that are still to end: waiting, delayed or running."""
        return self.total - self.completed - self.dead - self.cancelled

    @property
    def finished(self) -> bool:
        """Closed, and nothing is pending. A requeue of one of its dead opens it once more."""
        return self.closed and self.pending == 0

    def as_dict(self) -> dict[str, Any]:
        """The batch as one JSON object; keys are stable."""
        return {
            "id": self.id,
            "queue": self.queue,
            "name": self.name,
            "total": self.total,
            "pending": self.pending,
            "completed": self.completed,
            "dead": self.dead,
            "cancelled": self.cancelled,
            "closed": self.closed,
            "finished": self.finished,
            "began_ms": self.began_ms,
            "ended_ms": self.ended_ms,
        }


def stats_of(batch_id: str, queue: str, name: str, tally: Tally) -> BatchStats:
    """A tally as people and programs see it."""
    ended = None if tally.ended == UNENDED else tally.ended
    return BatchStats(
        batch_id,
        queue,
        name,
        tally.total,
        tally.completed,
        tally.dead,
        tally.cancelled,
        tally.closed,
        tally.began,
        ended,
    )


def over(batch_id: str, queue: str) -> str:
    """What is wrong with a job for a batch that takes none."""
    return (
        f"batch {batch_id}: expected one that is open in queue {queue}, found none: it has ended, is forgotten, or is "
        "another queue's; begin a new one"
    )


def full(queue: str, pending: int, most: int) -> str:
    """What is wrong with a call for a queue that is full."""
    return (
        f"queue {queue}: {pending} jobs are pending, max_pending is {most}: nothing was enqueued; wait until they are "
        "worked off, or raise max_pending"
    )


def unpack(batch_id: str, queue: str, packed: bytes) -> BatchStats:
    """A batch from what lua/include/batch.lua writes."""
    numbers, name, _ = packed.split(b"\n", 2)
    total, completed, dead, cancelled, closed, _, _, began, ended = map(int, numbers.split())
    tally = Tally(total, completed, dead, cancelled, bool(closed), began=began, ended=ended)
    return stats_of(batch_id, queue, orjson.loads(name), tally)
