"""What can be wrong in a ledger that SQLite can read, and how each is mended. Counts and rows, no files.

None of these comes of a crash: a transaction is whole or not there. They come of bad memory, of a disk that lies, of
hands in the database, of what was salvaged; and of a bug, which is why tests ask for them after every torture.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final, NamedTuple

from batchq.jsons import orjson
from batchq.lifecycle import State
from batchq.spool.schema import COUNTS, STATE, whole

_DEAD = STATE[State.DEAD]
_STATES = ",".join(map(str, sorted(STATE.values())))
_UNLEASED = (
    "state=2 AND owner IS NOT NULL AND NOT EXISTS(SELECT 1 FROM lease WHERE lease.queue=job.queue AND worker=owner)"
)
_NOTELESS = "noted=1 AND NOT EXISTS(SELECT 1 FROM note WHERE note.seq=job.seq)"
_JOBLESS = "NOT EXISTS(SELECT 1 FROM job WHERE job.seq=note.seq AND noted=1)"
_RECOUNT = {
    column: f"(SELECT count(*) FROM job WHERE job.queue=tally.queue AND state={STATE[state]})"
    for state, column in COUNTS.items()
}
_LAST = "coalesce((SELECT max(place) FROM job WHERE job.queue=tally.queue),0)"
_FIRST = "coalesce((SELECT min(place) FROM job WHERE job.queue=tally.queue),0)"
#: The law of the totals: 0 where it holds.
_MISSING = "(enqueued+requeued-n_pending-n_delayed-n_active-completed-dead-cancelled-purged-dropped)"


class Fault(NamedTuple):
    """One thing that can be wrong: how it reads, how many there are, and the statements that mend it."""

    #: With {n} for how many.
    text: str
    counting: str
    #: They know :now. None of them: only a person can.
    mend: tuple[str, ...]


#: In the order in which they are mended: counts come last.
FAULTS: Final = (
    Fault(
        "{n} jobs in a state that is none (mended: dead)",
        whole(f"SELECT count(*) FROM job WHERE state NOT IN ({_STATES})"),
        (whole(f"UPDATE job SET state={_DEAD},at=:now,owner=NULL WHERE state NOT IN ({_STATES})"),),
    ),
    Fault(
        "{n} active jobs that no worker holds (mended: pending at their old place, forgiven)",
        whole("SELECT count(*) FROM job WHERE state=2 AND owner IS NULL"),
        (whole("UPDATE job SET state=0,forgiven=forgiven+1 WHERE state=2 AND owner IS NULL"),),
    ),
    Fault(
        "{n} jobs that have an owner and are not active",
        whole("SELECT count(*) FROM job WHERE state<>2 AND owner IS NOT NULL"),
        (whole("UPDATE job SET owner=NULL WHERE state<>2 AND owner IS NOT NULL"),),
    ),
    Fault(
        "{n} active jobs of workers without a lease: nobody would reap them (mended: the next master does)",
        whole(f"SELECT count(*) FROM job WHERE {_UNLEASED}"),
        (
            whole(
                "INSERT OR IGNORE INTO lease(queue,worker,until,lease_ms) "
                f"SELECT DISTINCT queue,owner,0,0 FROM job WHERE {_UNLEASED}"
            ),
        ),
    ),
    Fault(
        "{n} notes that belong to no job",
        whole(f"SELECT count(*) FROM note WHERE {_JOBLESS}"),
        (whole(f"DELETE FROM note WHERE {_JOBLESS}"),),
    ),
    Fault(
        "{n} jobs whose notes are missing: their errors are lost",
        whole(f"SELECT count(*) FROM job WHERE {_NOTELESS}"),
        (whole(f"UPDATE job SET noted=0 WHERE {_NOTELESS}"),),
    ),
    Fault(
        "{n} queues that have jobs and no tally",
        whole("SELECT count(DISTINCT queue) FROM job WHERE queue NOT IN (SELECT queue FROM tally)"),
        (whole("INSERT OR IGNORE INTO tally(queue) SELECT DISTINCT queue FROM job"),),
    ),
    Fault(
        "{n} queues with places beyond the last that was given out",
        whole(f"SELECT count(*) FROM tally WHERE tail<{_LAST} OR head>{_FIRST}"),
        (whole(f"UPDATE tally SET tail=max(tail,{_LAST}),head=min(head,{_FIRST})"),),
    ),
    Fault(
        "{n} queues whose counts are not what a recount gives",
        whole("SELECT count(*) FROM tally WHERE " + " OR ".join(f"{name}<>{n}" for name, n in _RECOUNT.items())),
        (whole("UPDATE tally SET " + ",".join(f"{name}={n}" for name, n in _RECOUNT.items())),),
    ),
    Fault(
        "{n} queues whose totals do not add up (mended: what is missing is dropped, what is too much was enqueued)",
        whole(f"SELECT count(*) FROM tally WHERE {_MISSING}<>0"),
        (whole(f"UPDATE tally SET dropped=dropped+max(0,{_MISSING}),enqueued=enqueued+max(0,-{_MISSING})"),),
    ),
    Fault(
        "{n} batches whose open jobs are not those that stand (`batchq batches` shows them; conclude them by hand)",
        whole(
            "SELECT count(*) FROM batch LEFT JOIN (SELECT queue AS q,batch AS b,count(*) AS n FROM job "
            "WHERE batch IS NOT NULL AND state<3 GROUP BY queue,batch) ON q=queue AND b=id "
            "WHERE total-completed-dead-cancelled<>coalesce(n,0)"
        ),
        (),
    ),
)

#: What the engine reads where a column is declared so.
_KINDS = {"INTEGER": "'integer'", "TEXT": "'text'", "BLOB": "'blob','text'"}
_TABLES = whole("SELECT name FROM sqlite_master WHERE type='table' AND name NOT LIKE 'sqlite%' ORDER BY name")
#: JSON that is read at each look, by its table.
_TEXTS = {
    "gate": whole("SELECT state FROM gate"),
    "guest": whole("SELECT pass FROM guest"),
    "batch": whole("SELECT name FROM batch"),
}

_ROWS = whole("SELECT seq,queue,id,row FROM job WHERE seq>? ORDER BY seq LIMIT 1000")
_INTEGRITY = {"integrity": "PRAGMA integrity_check(20)", "quick": "PRAGMA quick_check(20)"}
#: What only an index has wrong: its table is whole.
_OF_AN_INDEX = ("missing from index", "entries in index", "non-unique entry in index", "out of order")


def count(db: sqlite3.Connection) -> Iterator[tuple[Fault, int]]:
    """Each fault that there is, and how often."""
    for fault in FAULTS:
        [[n]] = db.execute(fault.counting)
        if n:
            yield fault, n


def mend(db: sqlite3.Connection, now_ms: int) -> None:
    """All that can be mended, inside a write transaction."""
    for fault in FAULTS:
        for statement in fault.mend:
            db.execute(statement, {"now": now_ms} if ":now" in statement else ())


class BadRow(NamedTuple):
    """A job whose row is not what any enqueue wrote."""

    seq: int
    queue: str
    id: str
    row: bytes


def bad_rows(db: sqlite3.Connection) -> list[BadRow]:
    """Jobs whose rows are no JSON objects with a handler's name. Reads all of them, some at a time."""
    found: list[BadRow] = []
    last = -(2**63)
    while rows := db.execute(_ROWS, (last,)).fetchall():
        for seq, queue, id, row in rows:
            if not _is_job(row):
                found.append(BadRow(seq, queue, id, row if isinstance(row, bytes) else str(row).encode()))
        last = rows[-1][0]
    return found


def _is_job(row: object) -> bool:
    try:
        value = orjson.loads(row) if isinstance(row, bytes | str) else None
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and isinstance(value.get("job"), str) and isinstance(value.get("t"), int)


def odd(db: sqlite3.Connection) -> Iterator[tuple[str, int]]:
    """Each table with values of another kind than its columns', or with text that is no JSON where it must be, and how
    many rows these are. SQLite takes any value anywhere."""
    for (table,) in db.execute(_TABLES).fetchall():
        if not table.isidentifier():
            # Somebody else's.
            continue
        wrong = []
        for _, name, kind, needed, _, key in db.execute(f"PRAGMA table_info({table})"):
            if kind in _KINDS:
                nothing = "" if needed or key else ",'null'"
                wrong.append(f'typeof("{name}") NOT IN ({_KINDS[kind]}{nothing})')
        [[n]] = db.execute(whole(f"SELECT count(*) FROM {table} WHERE {' OR '.join(wrong) or '0'}"))
        if not n and table in _TEXTS:
            n = sum(not is_json(text) for (text,) in db.execute(_TEXTS[table]))
        if n:
            yield table, n


def is_json(value: object) -> bool:
    """Whether a value is text that can be read as JSON."""
    try:
        orjson.loads(value)  # type: ignore[arg-type]
    except orjson.JSONDecodeError:
        return False
    return True


def damage(db: sqlite3.Connection, *, quick: bool) -> tuple[list[str], bool]:
    """What SQLite finds wrong with the database itself, and whether rebuilding the indexes would mend all of it."""
    try:
        found = [line for (line,) in db.execute(_INTEGRITY["quick" if quick else "integrity"]) if line != "ok"]
    except sqlite3.DatabaseError as error:
        return [str(error)], False
    return found, all(any(word in line for word in _OF_AN_INDEX) for line in found)
