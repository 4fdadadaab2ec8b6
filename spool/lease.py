"""The leases of workers: register, renew, seal. The row of a sealed worker stays until reap finds it empty-handed."""

from __future__ import annotations

from collections.abc import Sequence

from batchq.job import Leases, Renewal, Sealed
from batchq.lifecycle import Word
from batchq.spool.ledger import Book, Ledger
from batchq.spool.rows import held, lease_of, row_of
from batchq.spool.schema import sql

_LEASE = sql(
    "INSERT INTO lease(queue,worker,until,lease_ms) VALUES(?,?,?,?) "
    "ON CONFLICT(queue,worker) DO UPDATE SET until=excluded.until,lease_ms=excluded.lease_ms"
)
_RENEW = sql("UPDATE lease SET until=?,lease_ms=? WHERE queue=? AND worker=? AND until>0")
_LONGEST = sql("SELECT max(lease_ms) FROM lease WHERE queue=? AND until>0")
_CUT = sql("UPDATE lease SET until=?2 WHERE queue=?1 AND until>?2")
_CANCELLED = sql("SELECT id,attempts FROM job WHERE state=2 AND queue=? AND owner=? AND cancel=1")
_SEAL = sql("UPDATE lease SET until=0 WHERE queue=? AND worker=?")
_ALL = sql("SELECT worker,until FROM lease WHERE queue=?")


def register(book: Book, worker: str, lease_ms: int) -> Word:
    if lease_of(book, worker) == 0:
        return Word.SEALED
    book.db.execute(_LEASE, (book.queue, worker, book.now + lease_ms, lease_ms))
    return Word.OK


def renew(book: Book, workers: Sequence[str], lease_ms: int) -> Renewal:
    words = []
    marks = []
    for worker in workers:
        if book.db.execute(_RENEW, (book.now + lease_ms, lease_ms, book.queue, worker)).rowcount:
            words.append(Word.OK)
        else:
            words.append(Word.UNKNOWN if lease_of(book, worker) is None else Word.SEALED)
        marks += [(worker, id, token) for id, token in book.db.execute(_CANCELLED, (book.queue, worker))]
    # An end further away than any lease lasts was written before the clock went back.
    [[longest]] = book.db.execute(_LONGEST, (book.queue,))
    book.db.execute(_CUT, (book.queue, book.now + max(lease_ms, longest or 0)))
    return Renewal(tuple(words), tuple(marks))


def seal(book: Book, worker: str, expected_ms: int | None) -> Sealed:
    until = lease_of(book, worker)
    if until is None:
        return Sealed(Word.UNKNOWN)
    if until and expected_ms is not None and until != expected_ms:
        return Sealed(Word.RENEWED)
    holds = held(book, worker).values()
    if until:
        book.db.execute(_SEAL, (book.queue, worker))
        book.n["reaped"] += len(holds)
    return Sealed(
        Word.OK, tuple(standing.claim(book.queue, row_of(book, standing))._replace(gated=True) for standing in holds)
    )


def leases(ledger: Ledger, queue: str) -> Leases:
    ends: dict[str, int] = dict(ledger.look(_ALL, (queue,)))
    return Leases(ledger.clock.now_us() // 1000, ends)
