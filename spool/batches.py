"""Batches: begin, conclude, and the counts that all moves of their jobs keep. See `tally` for what they mean."""

from __future__ import annotations

from typing import Any

from batchq.errors import ConfigError
from batchq.jsons import orjson
from batchq.lifecycle import Word
from batchq.spool.ledger import Book, Ledger
from batchq.spool.schema import sql
from batchq.tally import BatchStats, NewBatch, Tally, over, stats_of

#: How many batches that are over one promote takes away.
_OVER = 100

_COLUMNS = "total,completed,dead,cancelled,closed,told_complete,told_success,began,ended"
_BEGIN = sql(
    "INSERT INTO batch(queue,id,name,on_complete,on_success,began,ended) VALUES(?1,?2,?3,?4,?5,?6,?6) "
    "ON CONFLICT DO NOTHING"
)
_TALLY = sql(f"SELECT {_COLUMNS} FROM batch WHERE queue=? AND id=?")
_HEADS = sql("SELECT on_complete,on_success FROM batch WHERE queue=? AND id=?")
_SAVE = sql(
    "UPDATE batch SET total=?,completed=?,dead=?,cancelled=?,closed=?,told_complete=?,told_success=?,began=?,ended=? "
    "WHERE queue=? AND id=?"
)
_CALL_BACK = sql("INSERT INTO job(queue,id,state,rank,place,at,row) VALUES(?,?,0,0,?,?,?) ON CONFLICT DO NOTHING")
_OLD = sql(
    "DELETE FROM batch WHERE queue=?1 AND id IN "
    "(SELECT id FROM batch WHERE queue=?1 AND ended<=?2 ORDER BY ended,id LIMIT ?3)"
)
_GET = sql(f"SELECT id,name,{_COLUMNS} FROM batch WHERE queue=? AND id=?")
_LIST = sql(f"SELECT id,name,{_COLUMNS} FROM batch WHERE queue=? ORDER BY ended DESC,id DESC LIMIT ? OFFSET ?")


def begin(book: Book, batch: NewBatch) -> Word:
    # Nothing is pending in it: should nobody ever add a job, it is forgotten like one that has ended.
    name = orjson.dumps(batch.name).decode()
    values = (book.queue, batch.id, name, batch.on_complete, batch.on_success, book.now)
    return Word.OK if book.db.execute(_BEGIN, values).rowcount else Word.KNOWN


def conclude(book: Book, batch_id: str) -> Word:
    tally = _tally(book, batch_id)
    if tally is None:
        return Word.UNKNOWN
    tally.closed = True
    _save(book, batch_id, tally)
    return Word.OK


def check(book: Book, batch_ids: set[str]) -> None:
    """Raises ConfigError for a batch that takes no jobs."""
    for batch_id in batch_ids:
        tally = _tally(book, batch_id)
        if tally is None or tally.is_over:
            raise ConfigError(over(batch_id, book.queue))


def count(book: Book, batch_id: str | None, before: str, after: str) -> None:
    """Notes that a job went out of one column of its batch and into another; `write` puts it down."""
    if batch_id is not None:
        book.batched.append((batch_id, before, after))


def write(book: Book) -> None:
    """The end of a move: puts down what it has counted, and enqueues the callbacks that are due."""
    if not book.batched:
        return
    moved, book.batched = book.batched, []
    tallies: dict[str, Tally | None] = {}
    for batch_id, before, after in moved:
        if batch_id not in tallies:
            tallies[batch_id] = _tally(book, batch_id)
        # A batch is forgotten some days after its end, the dead are kept for longer.
        if (tally := tallies[batch_id]) is not None:
            tally.count(before, -1)
            tally.count(after, 1)
    for batch_id, tally in tallies.items():
        if tally is not None:
            _save(book, batch_id, tally)


def forget(book: Book, keep_ms: int) -> None:
    """Takes away some of those that ended too long ago."""
    book.db.execute(_OLD, (book.queue, book.now - keep_ms, _OVER))


def batch(ledger: Ledger, queue: str, batch_id: str) -> BatchStats | None:
    rows = ledger.look(_GET, (queue, batch_id))
    return _stats(queue, rows[0]) if rows else None


def batches(ledger: Ledger, queue: str, skip: int, limit: int) -> list[BatchStats]:
    return [_stats(queue, row) for row in ledger.look(_LIST, (queue, limit, skip))]


def _stats(queue: str, row: tuple[Any, ...]) -> BatchStats:
    return stats_of(row[0], queue, orjson.loads(row[1]), _made(row[2:]))


def _made(row: tuple[Any, ...]) -> Tally:
    total, completed, dead, cancelled, closed, complete, success, began, ended = row
    return Tally(total, completed, dead, cancelled, bool(closed), bool(complete), bool(success), began, ended)


def _tally(book: Book, batch_id: str) -> Tally | None:
    row = book.db.execute(_TALLY, (book.queue, batch_id)).fetchone()
    return None if row is None else _made(row)


def _save(book: Book, batch_id: str, tally: Tally) -> None:
    for kind in tally.look(book.now):
        [heads] = book.db.execute(_HEADS, (book.queue, batch_id))
        _call_back(book, f"{batch_id}.{kind}", heads[kind == "success"], tally)
    numbers = (tally.total, tally.completed, tally.dead, tally.cancelled, tally.closed)
    told = (tally.told_complete, tally.told_success, tally.began, tally.ended)
    book.db.execute(_SAVE, (*numbers, *told, book.queue, batch_id))


def _call_back(book: Book, id: str, head: bytes, tally: Tally) -> None:
    """One callback, as a job like any other at the tail."""
    if not head:
        return
    book.n["tail"] += 1
    values = (book.queue, id, book.n["tail"], book.now, tally.row(head, book.now))
    if book.db.execute(_CALL_BACK, values).rowcount:
        book.n["enqueued"] += 1
        book.n["n_pending"] += 1
        book.ready = True
