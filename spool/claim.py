"""claim: pending -> active, under a token. promote: delayed -> pending, what is due; a claim does some of it too."""

from __future__ import annotations

from collections.abc import Sequence

from batchq.job import Claim, Claims, Promoted
from batchq.lifecycle import Word
from batchq.spool import batches, gates
from batchq.spool.ledger import Book, Ledger
from batchq.spool.rows import delete, earliest, held, lease_of
from batchq.spool.schema import sql
from batchq.store import MAX_BYTES, MAX_JOBS, Limits

#: A claim as its row stands: id, token, row, forgiven, crashes, lost.
Taken = tuple[str, int, bytes, int, int, int]

#: What a claim promotes on its way: a busy queue promotes itself.
_ON_THE_WAY = 100
#: How many given ids, kept jobs and marks that are over one promote takes away.
_OVER = 1000

_COUNT = sql("SELECT count(*) FROM job WHERE state=2 AND queue=? AND owner=?")
_PENDING = sql(
    "SELECT id,attempts,row,forgiven,crashes,lost FROM job WHERE state=0 AND queue=? ORDER BY rank,place LIMIT ?"
)
# The same ones again, in one statement: half the price of one each. ROLLBACK, for a journal of the statement would be
# a file each time, and a move that fails is undone whole anyway.
_TAKE = sql(
    "UPDATE OR ROLLBACK job SET state=2,attempts=attempts+1,owner=? WHERE seq IN "
    "(SELECT seq FROM job WHERE state=0 AND queue=? ORDER BY rank,place LIMIT ?)"
)
_PROBE = sql(
    "SELECT n_pending,paused,"
    "(SELECT until FROM lease WHERE queue=?1 AND worker=?2),"
    "(SELECT count(*) FROM job WHERE state=2 AND queue=?1 AND owner=?2),"
    "(SELECT at FROM job WHERE state=1 AND queue=?1 ORDER BY at,place LIMIT 1) "
    "FROM tally WHERE queue=?1"
)
_DUE = sql("SELECT seq FROM job WHERE state=1 AND queue=? AND at<=? ORDER BY at,place LIMIT ?")
_READY = sql("UPDATE job SET state=0,place=? WHERE seq=?")
_STIRS = sql(
    "SELECT n_pending,paused,"
    "(SELECT at FROM job WHERE state=1 AND queue=?1 ORDER BY at,place LIMIT 1),"
    "EXISTS(SELECT 1 FROM gone WHERE queue=?1 AND until<=?2),"
    "EXISTS(SELECT 1 FROM job WHERE state=4 AND queue=?1 AND at<=?2),"
    "EXISTS(SELECT 1 FROM batch WHERE queue=?1 AND ended<=?3),"
    "EXISTS(SELECT 1 FROM visit WHERE queue=?1 AND at<=?2) "
    "FROM tally WHERE queue=?1"
)
_FORGET = sql(
    "DELETE FROM gone WHERE queue=?1 AND id IN "
    "(SELECT id FROM gone WHERE queue=?1 AND until<=?2 ORDER BY until LIMIT ?3)"
)
_MARKS = sql("SELECT lane,at FROM mark WHERE queue=? AND lane>? ORDER BY lane LIMIT ?")
_UNMARK = sql("DELETE FROM mark WHERE queue=? AND lane=? AND at<=?")
_EXPIRED = sql("SELECT id,seq,noted FROM job WHERE state=4 AND queue=? AND at<=? ORDER BY at LIMIT ?")


def nothing_there(ledger: Ledger, queue: str, worker: str, held_count: int) -> Claims | None:
    """A look without the gate: the answer to a claim that would find nothing, None where it may find something."""
    rows = ledger.look(_PROBE, (queue, worker))
    if not rows:
        return None
    pending, paused, lease, holds, fire = rows[0]
    if not lease or holds != held_count:
        return None
    if paused:
        return Claims(Word.PAUSED)
    if pending or (fire is not None and fire <= ledger.clock.now_us() // 1000):
        return None
    return Claims(Word.OK)


def claim(book: Book, worker: str, want: int, held_count: int, *, holds: int | None = None) -> tuple[Word, list[Taken]]:
    """`holds`: how many claims the worker has, where that was just counted. With HELD, those it has follow."""
    lease = lease_of(book, worker)
    if not lease:
        return (Word.UNKNOWN if lease is None else Word.SEALED), []
    if holds is None:
        [[holds]] = book.db.execute(_COUNT, (book.queue, worker))
    if holds != held_count:
        return Word.HELD, [(s.id, s.attempts, b"", s.forgiven, s.crashes, s.lost) for s in held(book, worker).values()]
    if book.n["paused"]:
        return Word.PAUSED, []
    if book.n["n_delayed"]:
        promote_due(book, _ON_THE_WAY)
    if not book.n["n_pending"]:
        return Word.OK, []
    taken = _take(book, worker, min(want, MAX_JOBS))
    # One hint rouses one worker; each passes it on while there is more.
    book.ready |= book.n["n_pending"] > 0
    return Word.OK, taken


def _take(book: Book, worker: str, want: int) -> list[Taken]:
    taken: list[Taken] = []
    size = 0
    cursor = book.db.execute(_PENDING, (book.queue, want))
    for id, attempts, row, forgiven, crashes, lost in cursor:
        size += len(row)
        if size > MAX_BYTES and taken:
            break
        taken.append((id, attempts + 1, row, forgiven, crashes, lost))
    cursor.close()
    book.db.execute(_TAKE, (worker, book.queue, len(taken)))
    book.n["n_pending"] -= len(taken)
    book.n["n_active"] += len(taken)
    return taken


def claims_of(queue: str, word: Word, taken: Sequence[Taken]) -> Claims:
    """The answer in the words of all stores: put together when the gate is open again."""
    return Claims(word, tuple(Claim(queue, *one) for one in taken))


def promote_due(book: Book, limit: int) -> int:
    """First-time schedules and retries alike, in the order of their fire-times."""
    due = book.db.execute(_DUE, (book.queue, book.now, limit)).fetchall()
    if due:
        place = book.n["tail"] + 1
        book.db.executemany(_READY, [(at, seq) for at, (seq,) in enumerate(due, place)])
        book.n["tail"] += len(due)
        book.n["n_delayed"] -= len(due)
        book.n["n_pending"] += len(due)
        book.n["promoted"] += len(due)
    return len(due)


def quiet(ledger: Ledger, queue: str, limits: Limits) -> tuple[Promoted, bool] | None:
    """A look without the gate: the answer to a promote that would do nothing, and whether work is ready all the same.

    None where there is something to do.
    """
    now_us = ledger.clock.now_us()
    rows = ledger.look(_STIRS, (queue, now_us // 1000, now_us // 1000 - limits.batch_keep_ms))
    if not rows:
        return Promoted(0, None), False
    pending, paused, fire, forget, expired, batch, visit = rows[0]
    if forget or expired or batch or visit or (fire is not None and fire <= now_us // 1000):
        return None
    return Promoted(0, None if fire is None else fire - now_us / 1000), bool(pending and not paused)


def promote(book: Book, limit: int, limits: Limits) -> Promoted:
    gates.look_after(book)
    moved = promote_due(book, limit)
    book.db.execute(_FORGET, (book.queue, book.now, _OVER))
    _expire(book)
    batches.forget(book, limits.batch_keep_ms)
    book.ready |= book.n["n_pending"] > 0
    fire = earliest(book)
    return Promoted(moved, None if fire is None else fire - book.now_us / 1000)


def _expire(book: Book) -> None:
    """Kept jobs whose retention is over. Their given ids are remembered since they were completed."""
    over = book.db.execute(_EXPIRED, (book.queue, book.now, _OVER)).fetchall()
    if over:
        delete(book, over)
        book.n["n_completed"] -= len(over)


def old_marks(ledger: Ledger, queue: str, after: str, limits: Limits) -> tuple[list[str], str]:
    """Marks that are over, among the next ones after a lane, and where to look on. A look without the gate.

    Marks carry no index by time: each enqueue would pay for it. Some are looked at with each promote instead.
    """
    rows = ledger.look(_MARKS, (queue, after, _OVER))
    over = ledger.clock.now_us() // 1000 - limits.mark_ttl_ms
    return [lane for lane, at in rows if at <= over], rows[-1][0] if len(rows) == _OVER else ""


def unmark(book: Book, lanes: list[str], limits: Limits) -> None:
    over = book.now - limits.mark_ttl_ms
    book.db.executemany(_UNMARK, [(book.queue, lane, over) for lane in lanes])
