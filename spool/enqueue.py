"""enqueue: - -> pending or delayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batchq.clock import MAX_FIRE_MS, fire_ms
from batchq.errors import ConfigError, QueueFull
from batchq.job import Mark, NewJob, stamp_row
from batchq.lifecycle import Word
from batchq.spool import batches
from batchq.spool.ledger import Book
from batchq.spool.rows import earliest
from batchq.spool.schema import sql
from batchq.store import MAX_BYTES, MAX_JOBS, Limits
from batchq.tally import full

#: What one transaction carries where no mark limits it: about 15 ms of the gate.
_STEP_JOBS = 1000
_STEP_BYTES = 8 << 20

# A call that was done before changes nothing: the row count tells.
_MARK = sql(
    "INSERT INTO mark(queue,lane,n,at) VALUES(?1,?2,?3,?4) "
    "ON CONFLICT(queue,lane) DO UPDATE SET n=excluded.n,at=excluded.at WHERE n<?3 OR at<=?5"
)
_TOP = sql("SELECT max(seq) FROM job")
_INSERT = sql(
    "INSERT INTO job(queue,id,state,rank,place,at,given,row,batch) SELECT ?1,?2,?3,?4,?5,?6,?7,?8,?10 "
    "WHERE NOT EXISTS(SELECT 1 FROM gone WHERE queue=?1 AND id=?2 AND until>?9) ON CONFLICT DO NOTHING"
)
_FRESH = sql("SELECT id,state FROM job WHERE seq>?")


def steps(jobs: Sequence[NewJob], mark: Mark | None) -> Iterator[Sequence[NewJob]]:
    """Splits a call into transactions. One mark is one transaction: raises ValueError for what does not fit."""
    if mark is not None:
        size = sum(len(job.row) for job in jobs)
        if len(jobs) > MAX_JOBS or (len(jobs) > 1 and size > MAX_BYTES):
            raise ValueError(
                f"enqueue: one mark covers at most {MAX_JOBS} jobs or {MAX_BYTES} bytes, found {len(jobs)} jobs of "
                f"{size} bytes; split them and give each part a mark"
            )
        yield jobs
        return
    begin = size = 0
    for end, job in enumerate(jobs):
        if end > begin and (end - begin >= _STEP_JOBS or size + len(job.row) > _STEP_BYTES):
            yield jobs[begin:end]
            begin, size = end, 0
        size += len(job.row)
    yield jobs[begin:]


def enqueue(
    book: Book, jobs: Sequence[NewJob], mark: Mark | None, limits: Limits, *, max_pending: int = 0
) -> list[Word]:
    """Raises ConfigError for a fire-time beyond the last one and for a batch that takes no jobs, and QueueFull. The
    transaction is to be given up then."""
    fires = [_fire_of(job, book.now_us) for job in jobs]
    if mark is not None and not set_mark(book, mark, limits.mark_ttl_ms):
        return [Word.AGAIN] * len(jobs)
    queue, now, place = book.queue, book.now, book.n["tail"]
    first_fire = 0
    before = None
    delayed = 0
    rows = []
    for job, fire in zip(jobs, fires, strict=True):
        place += 1
        if fire > now:
            delayed += 1
            first_fire = min(first_fire or fire, fire)
            state, at, row = 1, fire, stamp_row(job.row, now, fire)
        else:
            state, at, row = 0, now, stamp_row(job.row, now, None)
        rows.append((queue, job.id, state, -job.priority, place, at, job.given, row, now, job.batch or None))
    if delayed and book.n["n_delayed"]:
        before = earliest(book)
    book.n["tail"] = place
    fresh = book.db.executemany(_INSERT, rows).rowcount
    if fresh == len(jobs):
        words = [Word.OK] * fresh
    else:
        # Row ids follow one another: the last ones are this call's.
        [[top]] = book.db.execute(_TOP)
        states = dict(book.db.execute(_FRESH, ((top or 0) - fresh,)).fetchall())
        delayed = sum(states.values())
        # Of an id that stands twice in a call the first is taken.
        words = [Word.KNOWN if states.pop(job.id, None) is None else Word.OK for job in jobs]
    stand = book.n["n_pending"]
    if max_pending and fresh > delayed and stand and stand + fresh - delayed > max_pending:
        raise QueueFull(full(queue, stand, max_pending))
    joining = [job.batch for job, word in zip(jobs, words, strict=True) if job.batch and word is Word.OK]
    if joining:
        batches.check(book, set(joining))
        for batch in joining:
            batches.count(book, batch, "", "total")
        batches.write(book)
    book.n["enqueued"] += fresh
    book.n["n_delayed"] += delayed
    book.n["n_pending"] += fresh - delayed
    book.ready |= fresh > delayed
    book.timer |= delayed > 0 and (before is None or first_fire < before)
    return words


def set_mark(book: Book, mark: Mark, ttl_ms: int) -> bool:
    """Notes that a call is done now; False where it was done before."""
    values = (book.queue, mark.lane, mark.call, book.now, book.now - ttl_ms)
    return book.db.execute(_MARK, values).rowcount > 0


def _fire_of(job: NewJob, now_us: int) -> int:
    """When a new job is due, by the store's clock."""
    fire = job.fire_ms
    if fire is None:
        if job.delay_ms <= 0:
            return 0
        fire = fire_ms(now_us, job.delay_ms)
    if fire > MAX_FIRE_MS:
        raise ConfigError(
            f"job {job.id}: fires at {fire} ms since 1970, the latest possible is {MAX_FIRE_MS} (7 September 2039); "
            "choose an earlier time"
        )
    return fire
