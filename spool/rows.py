"""What the moves share: the claims of a worker, putting a row into another state, notes, and taking rows away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from batchq.clock import MAX_FIRE_MS, fire_ms
from batchq.job import ERRORS_KEPT, Claim
from batchq.lifecycle import State
from batchq.spool.hall import gone
from batchq.spool.ledger import Book
from batchq.spool.schema import COUNTS, STATE, sql


class Standing(NamedTuple):
    """A row without what is only carried along."""

    seq: int
    id: str
    attempts: int
    forgiven: int
    crashes: int
    lost: int
    cancel: int
    given: int
    noted: int
    rank: int
    place: int
    #: Active: since when it was ready.
    at: int
    #: The batch that it is in.
    batch: str | None

    def claim(self, queue: str, row: bytes = b"") -> Claim:
        return Claim(queue, self.id, self.attempts, row, self.forgiven, self.crashes, self.lost)


#: The columns of a Standing.
COLUMNS = ",".join(Standing._fields)

_HELD = sql(f"SELECT {COLUMNS} FROM job WHERE state=2 AND queue=? AND owner=?")
_ROW = sql("SELECT row FROM job WHERE seq=?")
_PUT = sql("UPDATE job SET state=?,place=?,at=?,forgiven=?,crashes=?,lost=?,cancel=?,noted=?,owner=NULL WHERE seq=?")
_DELETE = sql("DELETE FROM job WHERE seq=?")
_ERRORS = sql("SELECT errors FROM note WHERE seq=?")
_NOTE = sql(
    "INSERT INTO note(seq,reason,errors,result) VALUES(?,?,?,?) "
    "ON CONFLICT(seq) DO UPDATE SET reason=excluded.reason,errors=excluded.errors,result=excluded.result"
)
_UNNOTE = sql("DELETE FROM note WHERE seq=?")
_REMEMBER = sql(
    "INSERT INTO gone(queue,id,until) VALUES(?,?,?) ON CONFLICT(queue,id) DO UPDATE SET until=excluded.until"
)
_LEASE = sql("SELECT until FROM lease WHERE queue=? AND worker=?")
_EARLIEST = sql("SELECT at FROM job WHERE state=1 AND queue=? ORDER BY at,place LIMIT 1")


def held(book: Book, worker: str) -> dict[str, Standing]:
    """What a worker holds, by id, in the order of the claims."""
    rows = [Standing._make(row) for row in book.db.execute(_HELD, (book.queue, worker))]
    rows.sort(key=lambda s: (s.rank, s.place))
    return {standing.id: standing for standing in rows}


def row_of(book: Book, standing: Standing) -> bytes:
    [[row]] = book.db.execute(_ROW, (standing.seq,))
    return bytes(row)


def lease_of(book: Book, worker: str) -> int | None:
    """The end of a worker's lease in ms, 0 where it is sealed, None where there is none."""
    row = book.db.execute(_LEASE, (book.queue, worker)).fetchone()
    return None if row is None else int(row[0])


def earliest(book: Book) -> int | None:
    """The next fire-time."""
    row = book.db.execute(_EARLIEST, (book.queue,)).fetchone()
    return None if row is None else int(row[0])


def note(book: Book, standing: Standing, *, error: bytes = b"", reason: str = "", result: bytes = b"") -> int:
    """Writes down what an attempt left behind; the errors stand a line each, newest first. Answers `noted`."""
    if not (standing.noted or error or reason or result):
        return 0
    lines = [error] if error else []
    if standing.noted:
        for [errors] in book.db.execute(_ERRORS, (standing.seq,)):
            lines += [line for line in errors.split(b"\n") if line]
    book.db.execute(_NOTE, (standing.seq, reason, b"\n".join(lines[:ERRORS_KEPT]), result))
    return 1


def remember(book: Book, ids: Iterable[str], remember_ms: int) -> None:
    """Ids given by callers whose jobs end now: they stay known for a while."""
    until = book.now + remember_ms
    book.db.executemany(_REMEMBER, [(book.queue, job_id, until) for job_id in ids])


def delete(book: Book, rows: Iterable[tuple[str, int, int]]) -> None:
    """Takes rows away, given as (id, seq, noted), their notes, and what they left at gates."""
    rows = list(rows)
    book.db.executemany(_DELETE, [(seq,) for _, seq, _ in rows])
    if notes := [(seq,) for _, seq, noted in rows if noted]:
        book.db.executemany(_UNNOTE, notes)
    gone(book, (id for id, _, _ in rows))


def remove(book: Book, standings: Sequence[Standing], remember_ms: int) -> None:
    """The end of some jobs: their rows go, ids that callers gave are remembered."""
    delete(book, ((s.id, s.seq, s.noted) for s in standings))
    if given := [s.id for s in standings if s.given]:
        remember(book, given, remember_ms)


class Puts:
    """Rows that go to another state, gathered and written as one batch. Keeps the counts of the states they go to."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._rows: list[tuple[Any, ...]] = []
        self._first_fire: int | None = None

    def _add(self, state: State, place: int, at: int, s: Standing, cancel: int, noted: int) -> None:
        self._book.n[COUNTS[state]] += 1
        self._rows.append((STATE[state], place, at, s.forgiven, s.crashes, s.lost, cancel, noted, s.seq))

    def pending(self, standing: Standing, noted: int) -> None:
        """At the tail of its priority."""
        self._book.n["tail"] += 1
        self._add(State.PENDING, self._book.n["tail"], self._book.now, standing, 0, noted)
        self._book.ready = True

    def heads(self, standings: Sequence[tuple[Standing, int]]) -> None:
        """At the head of their priorities, in this order: ready since they first were."""
        self._book.n["head"] -= len(standings)
        for place, (standing, noted) in enumerate(standings, self._book.n["head"]):
            self._add(State.PENDING, place, standing.at, standing, 0, noted)
        self._book.ready = True

    def delayed(self, standing: Standing, delay_ms: int, noted: int) -> None:
        """Due in so many ms. An outcome must never be refused: a delay past the last fire-time ends there."""
        fire = min(fire_ms(self._book.now_us, max(0, delay_ms)), MAX_FIRE_MS)
        if self._first_fire is None or fire < self._first_fire:
            self._first_fire = fire
        self._book.n["tail"] += 1
        self._add(State.DELAYED, self._book.n["tail"], fire, standing, 0, noted)

    def dead(self, standing: Standing, noted: int) -> None:
        self._book.n["dead"] += 1
        self._add(State.DEAD, standing.place, self._book.now, standing, 0, noted)

    def completed(self, standing: Standing, keep_ms: int, noted: int) -> None:
        self._add(State.COMPLETED, standing.place, self._book.now + keep_ms, standing, 0, noted)

    def write(self) -> None:
        if self._first_fire is not None:
            before = earliest(self._book)
            self._book.timer |= before is None or self._first_fire < before
        if self._rows:
            self._book.db.executemany(_PUT, self._rows)
