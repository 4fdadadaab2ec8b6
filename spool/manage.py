"""What people do with jobs and queues: cancel, requeue, purge, pause, resume."""

from __future__ import annotations

from collections.abc import Sequence

from batchq.lifecycle import State, Word
from batchq.spool import batches
from batchq.spool.ledger import Book
from batchq.spool.rows import COLUMNS, Puts, Standing, note, remove
from batchq.spool.schema import COUNTS, STATE_OF, sql
from batchq.store import Limits

_FIND = sql(f"SELECT state,{COLUMNS} FROM job WHERE queue=? AND id=?")
_CANCEL = sql("UPDATE job SET cancel=1 WHERE seq=?")

#: What may be purged: active jobs are their holder's, cancel them.
_PURGED = (State.PENDING, State.DELAYED, State.COMPLETED, State.DEAD)


def _find(book: Book, job_id: str) -> tuple[State, Standing] | None:
    row = book.db.execute(_FIND, (book.queue, job_id)).fetchone()
    return None if row is None else (STATE_OF[row[0]], Standing._make(row[1:]))


def cancel(book: Book, ids: Sequence[str], limits: Limits) -> list[Word]:
    words = [_cancel(book, job_id, limits) for job_id in ids]
    batches.write(book)
    return words


def _cancel(book: Book, job_id: str, limits: Limits) -> Word:
    match _find(book, job_id):
        case None:
            return Word.UNKNOWN
        case (State.ACTIVE, standing):
            book.db.execute(_CANCEL, (standing.seq,))
            return Word.MARKED
        case (State.PENDING | State.DELAYED as state, standing):
            remove(book, [standing], limits.remember_ms)
            book.n[COUNTS[state]] -= 1
            book.n["cancelled"] += 1
            batches.count(book, standing.batch, "", "cancelled")
            return Word.CANCELLED
        case _:
            return Word.FINISHED


def requeue(book: Book, ids: Sequence[str]) -> list[Word]:
    puts = Puts(book)
    words: list[Word] = []
    seen: set[int] = set()
    for job_id in ids:
        found = _find(book, job_id)
        if found is None:
            words.append(Word.UNKNOWN)
            continue
        state, standing = found
        if state not in (State.DEAD, State.COMPLETED) or standing.seq in seen:
            words.append(Word.REFUSED)
            continue
        seen.add(standing.seq)
        # The token keeps counting; what was spent is forgiven, what went wrong can still be read.
        puts.pending(standing._replace(forgiven=standing.attempts, crashes=0, lost=0), note(book, standing))
        book.n[COUNTS[state]] -= 1
        book.n["requeued"] += 1
        batches.count(book, standing.batch, state.value, "")
        words.append(Word.OK)
    puts.write()
    batches.write(book)
    return words


def purge(book: Book, state: State, ids: Sequence[str], limits: Limits) -> int:
    if state not in _PURGED:
        return 0
    found = {}
    for job_id in ids:
        match _find(book, job_id):
            case (stands, standing) if stands is state:
                found[standing.seq] = standing
    remove(book, list(found.values()), limits.remember_ms)
    book.n[COUNTS[state]] -= len(found)
    if state in (State.PENDING, State.DELAYED):
        book.n["purged"] += len(found)
        for standing in found.values():
            batches.count(book, standing.batch, "", "cancelled")
        batches.write(book)
    return len(found)


def pause(book: Book) -> None:
    book.n["paused"] = 1


def resume(book: Book) -> None:
    book.n["paused"] = 0
    book.ready = True
