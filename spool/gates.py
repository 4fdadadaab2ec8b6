"""admit, trip, mend: past the gates of a queue, and gates by hand."""

from __future__ import annotations

from collections.abc import Sequence

from batchq import gates
from batchq.gates import Admission, GateState
from batchq.jsons import orjson
from batchq.lifecycle import Word
from batchq.spool.hall import Hall
from batchq.spool.ledger import Book, Ledger
from batchq.spool.rows import Standing, held
from batchq.spool.schema import sql
from batchq.spool.settle import Settling, park
from batchq.store import Limits

#: How many gates one promote looks after.
_VISITS = 500

_ALL = sql("SELECT state FROM gate WHERE queue=? ORDER BY name")
_WAITING = sql("SELECT gate,count(*) FROM waiter WHERE queue=? GROUP BY gate")


def admit(book: Book, worker: str, admissions: Sequence[Admission], again: bool, limits: Limits) -> list[Word]:
    hall, holds, settling = Hall(book), held(book, worker), Settling(book, limits)
    words, touched = [], set[str]()
    for claim, doors in admissions:
        standing: Standing | None = holds.get(claim.id)
        if standing is None or standing.attempts != claim.token:
            words.append(Word.SETTLED if again else Word.STALE)
            continue
        fire = gates.admit(hall, claim.id, claim.token, doors, touched)
        words.append(Word.OK if fire is None else park(settling, standing, fire))
    book.n["n_active"] -= words.count(Word.PARKED) + words.count(Word.CANCELLED)
    settling.write()
    for name in sorted(touched):
        gates.tend(hall, name)
    # New gates come as fast as jobs: old ones go as fast.
    gates.look_after(hall, 10 + 2 * len(words))
    return words


def look_after(book: Book) -> None:
    """Some of those whose time has come."""
    gates.look_after(Hall(book), _VISITS)


def trip(book: Book, name: str, for_ms: int) -> None:
    gates.trip(Hall(book), name, for_ms)


def mend(book: Book, name: str) -> None:
    gates.mend(Hall(book), name)


def states(ledger: Ledger, queue: str) -> list[GateState]:
    waiting: dict[str, int] = dict(ledger.look(_WAITING, (queue,)))
    doors = (gates.Door(**orjson.loads(state)) for (state,) in ledger.look(_ALL, (queue,)))
    return [gates.state_of(door, waiting.get(door.name, 0)) for door in doors]
