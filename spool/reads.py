"""What is asked of the ledger without changing it: stats, one job, pages of jobs."""

from __future__ import annotations

import sqlite3
from typing import Any, NoReturn

from batchq.errors import ConfigError, StoreCorrupt
from batchq.job import Job, Page, QueueStats
from batchq.jsons import orjson
from batchq.lifecycle import TOTALS, State
from batchq.spool.ledger import TALLY_OF, Ledger
from batchq.spool.schema import COUNTS, STATE_OF, TALLY, sql

_JOB = (
    "seq,id,state,rank,place,at,attempts,forgiven,crashes,lost,cancel,owner,row,batch,"
    "CASE WHEN noted THEN (SELECT reason FROM note WHERE note.seq=job.seq) END,"
    "CASE WHEN noted THEN (SELECT errors FROM note WHERE note.seq=job.seq) END,"
    "CASE WHEN noted THEN (SELECT result FROM note WHERE note.seq=job.seq) END"
)
_QUEUES = sql(
    "SELECT queue FROM tally WHERE enqueued>0 OR EXISTS(SELECT 1 FROM batch WHERE batch.queue=tally.queue) "
    "ORDER BY queue"
)
_TOP = sql("SELECT rank,at FROM job WHERE state=0 AND queue=? AND rank>? ORDER BY rank,place LIMIT 1")
_GET = sql(f"SELECT {_JOB} FROM job WHERE queue=? AND id=?")

#: The list of each state: its order as columns, and the statement that reads on after a place in it.
_ORDER: dict[State, tuple[str, ...]] = {
    State.PENDING: ("rank", "place"),
    State.DELAYED: ("at", "place"),
    State.ACTIVE: ("owner", "seq"),
    State.DEAD: ("at", "seq"),
    State.COMPLETED: ("at", "seq"),
}
_LISTS = {
    State.PENDING: sql(
        f"SELECT {_JOB} FROM job WHERE state=0 AND queue=? AND (rank,place)>(?,?) ORDER BY rank,place LIMIT ?"
    ),
    State.DELAYED: sql(
        f"SELECT {_JOB} FROM job WHERE state=1 AND queue=? AND (at,place)>(?,?) ORDER BY at,place LIMIT ?"
    ),
    State.ACTIVE: sql(
        f"SELECT {_JOB} FROM job WHERE state=2 AND queue=? AND (owner,seq)>(?,?) ORDER BY owner,seq LIMIT ?"
    ),
    State.DEAD: sql(f"SELECT {_JOB} FROM job WHERE state=3 AND queue=? AND (at,seq)>(?,?) ORDER BY at,seq LIMIT ?"),
    State.COMPLETED: sql(
        f"SELECT {_JOB} FROM job WHERE state=4 AND queue=? AND (at,seq)>(?,?) ORDER BY at,seq LIMIT ?"
    ),
}
_LEAST = -(2**62)


def queues(ledger: Ledger) -> list[str]:
    return [name for (name,) in ledger.look(_QUEUES)]


def stats(ledger: Ledger, queue: str) -> QueueStats:
    """One instant: the tally is kept by every move in its own transaction."""
    with ledger.read() as db:
        row = db.execute(TALLY_OF, (queue,)).fetchone()
        since = _oldest(db, queue) if row is not None else None
    n = dict(zip(TALLY, row or (0,) * len(TALLY), strict=True))
    return QueueStats(
        paused=bool(n["paused"]),
        counts={state.value: n[column] for state, column in COUNTS.items()},
        totals={name: n[name] for name in TOTALS},
        oldest_pending_age_ms=0 if since is None else max(0, ledger.clock.now_us() // 1000 - since),
    )


def _oldest(db: sqlite3.Connection, queue: str) -> int | None:
    """Since when the first of any priority is ready: each priority is a line of its own, mostly there is one."""
    since: int | None = None
    rank = _LEAST
    while row := db.execute(_TOP, (queue, rank)).fetchone():
        rank, at = row
        since = at if since is None else min(since, at)
    return since


def get(ledger: Ledger, queue: str, job_id: str) -> Job | None:
    rows = ledger.look(_GET, (queue, job_id))
    return _job(queue, rows[0]) if rows else None


def jobs(ledger: Ledger, queue: str, state: State, cursor: str, limit: int) -> Page:
    if state not in _LISTS:
        return Page((), "")
    limit = max(1, limit)
    rows = ledger.look(_LISTS[state], (queue, *_place_of(cursor, state), limit + 1))
    page = tuple(_job(queue, row) for row in rows[:limit])
    return Page(page, _cursor_of(rows[limit - 1], state) if len(rows) > limit else "")


def _cursor_of(row: tuple[Any, ...], state: State) -> str:
    columns = dict(zip(("seq", "id", "state", "rank", "place", "at"), row[:6], strict=True)) | {"owner": row[11]}
    first, second = (columns[name] for name in _ORDER[state])
    # The number first: a worker's name may hold anything.
    return f"{state.value}:{second}:{first}"


def _place_of(cursor: str, state: State) -> tuple[Any, int]:
    """The place after which a page begins. Raises ConfigError for a cursor of another list or store."""
    if not cursor:
        return ("" if state is State.ACTIVE else _LEAST), _LEAST
    name, _, rest = cursor.partition(":")
    second, _, first = rest.partition(":")
    if name != state.value:
        _refuse(cursor, state)
    try:
        numbers = int(second), 0 if state is State.ACTIVE else int(first)
    except ValueError:
        _refuse(cursor, state)
    if not all(-(2**63) <= number < 2**63 for number in numbers):
        _refuse(cursor, state)
    return (first if state is State.ACTIVE else numbers[1]), numbers[0]


def _refuse(cursor: str, state: State) -> NoReturn:
    raise ConfigError(
        f"cursor: {cursor!r:.100} is none of the {state.value} list of this store; pass on the one of the last page, "
        'or "" to begin'
    )


def _job(queue: str, columns: tuple[Any, ...]) -> Job:
    _, job_id, state, rank, _, at, attempts, forgiven, crashes, lost, cancel, owner, raw, batch, *told = columns
    reason, errors, result = told
    try:
        row = orjson.loads(raw)
        entries = tuple(orjson.loads(line) for line in (errors or b"").split(b"\n") if line)
        value = orjson.loads(result) if result else None
        return Job(
            id=job_id,
            queue=queue,
            job=row["job"],
            state=STATE_OF[state],
            attempts=attempts,
            priority=-rank,
            enqueued_ms=row["t"],
            args=row.get("args", []),
            kwargs=row.get("kwargs", {}),
            since_ms=at,
            forgiven=forgiven,
            crashes=crashes,
            lost=lost,
            reason=reason or "",
            errors=entries,
            worker=owner or "",
            cancel=bool(cancel),
            result=value,
            max_attempts=row.get("max"),
            timeout_ms=row.get("timeout"),
            keep_ms=row.get("keep"),
            batch=batch or "",
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise StoreCorrupt(
            f"job {job_id}: its row, errors or result are not what batchq wrote ({error!r}); purge it"
        ) from error
