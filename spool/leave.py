"""What stands in the ledger and may leave it for another store: pending and delayed jobs, with all that is behind them.

Reads only; `manage.purge` takes them away once they are elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

from batchq.lifecycle import State
from batchq.spool.ledger import Ledger
from batchq.spool.schema import sql

_LEAVING = (
    "id,-rank,at,attempts,forgiven,crashes,lost,given,row,"
    "CASE WHEN noted THEN (SELECT errors FROM note WHERE note.seq=job.seq) END"
)
_LISTS = {
    State.PENDING: sql(f"SELECT {_LEAVING} FROM job WHERE state=0 AND queue=? ORDER BY rank,place LIMIT ?"),
    State.DELAYED: sql(f"SELECT {_LEAVING} FROM job WHERE state=1 AND queue=? ORDER BY at,place LIMIT ?"),
}


class Leaving(NamedTuple):
    """One job, as the ledger has it."""

    id: str
    priority: int
    #: Delayed: the fire-time by this host's clock.
    at_ms: int
    attempts: int
    forgiven: int
    crashes: int
    lost: int
    given: bool
    #: With the times of its enqueue in front, as every store keeps it.
    row: bytes
    #: JSON objects, a line each, the newest first.
    errors: bytes


def leaving(ledger: Ledger, queue: str, state: State, limit: int) -> list[Leaving]:
    """The first of a list, in its order: pending as they would be claimed, delayed by fire-time."""
    return [
        Leaving(id, priority, at, attempts, forgiven, crashes, lost, bool(given), bytes(row), bytes(errors or b""))
        for id, priority, at, attempts, forgiven, crashes, lost, given, row, errors in ledger.look(
            _LISTS[state], (queue, limit)
        )
    ]
