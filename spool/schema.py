"""The tables of the ledger, and the one way to write a statement down. FORMAT.md explains every column."""

from __future__ import annotations

from typing import Final

from batchq.lifecycle import TOTALS, State

#: "bqsp": SQLite's file header tells whose database this is.
APPLICATION_ID: Final = 0x62717370
#: The number of the schema. A newer one is refused, an older one is migrated.
USER_VERSION: Final = 3

#: States as they stand in the table. SQL texts carry the literal: a partial index is not used for a parameter.
STATE: Final = {State.PENDING: 0, State.DELAYED: 1, State.ACTIVE: 2, State.DEAD: 3, State.COMPLETED: 4}
STATE_OF: Final = {number: state for state, number in STATE.items()}

#: Jobs standing in each state now, by column of the tally.
COUNTS: Final = {
    State.PENDING: "n_pending",
    State.DELAYED: "n_delayed",
    State.ACTIVE: "n_active",
    State.COMPLETED: "n_completed",
    State.DEAD: "n_dead",
}
#: The columns of the tally that a move may change. `tail` and `head` are the last places given out at either end.
TALLY: Final = ("paused", "tail", "head", *COUNTS.values(), *TOTALS)

_BATCH = """CREATE TABLE batch(
 queue TEXT NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL, on_complete BLOB NOT NULL, on_success BLOB NOT NULL,
 total INTEGER NOT NULL DEFAULT 0, completed INTEGER NOT NULL DEFAULT 0, dead INTEGER NOT NULL DEFAULT 0,
 cancelled INTEGER NOT NULL DEFAULT 0, closed INTEGER NOT NULL DEFAULT 0, told_complete INTEGER NOT NULL DEFAULT 0,
 told_success INTEGER NOT NULL DEFAULT 0, began INTEGER NOT NULL, ended INTEGER NOT NULL,
 PRIMARY KEY(queue, id)) WITHOUT ROWID"""
_BATCH_ENDS = "CREATE INDEX batch_ended ON batch(queue, ended, id)"

_GATES = (
    """CREATE TABLE gate(
 queue TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL,
 PRIMARY KEY(queue, name)) WITHOUT ROWID""",
    """CREATE TABLE guest(
 queue TEXT NOT NULL, id TEXT NOT NULL, pass TEXT NOT NULL,
 PRIMARY KEY(queue, id)) WITHOUT ROWID""",
    """CREATE TABLE waiter(
 queue TEXT NOT NULL, gate TEXT NOT NULL, place INTEGER NOT NULL, token INTEGER NOT NULL, id TEXT NOT NULL,
 PRIMARY KEY(queue, gate, place)) WITHOUT ROWID""",
    """CREATE TABLE passed(
 queue TEXT NOT NULL, gate TEXT NOT NULL, at INTEGER NOT NULL, id TEXT NOT NULL, token INTEGER NOT NULL,
 PRIMARY KEY(queue, gate, at, id, token)) WITHOUT ROWID""",
    """CREATE TABLE visit(
 queue TEXT NOT NULL, gate TEXT NOT NULL, at INTEGER NOT NULL,
 PRIMARY KEY(queue, gate)) WITHOUT ROWID""",
    "CREATE INDEX visit_at ON visit(queue, at, gate)",
    "CREATE TABLE turn(queue TEXT PRIMARY KEY, place INTEGER NOT NULL) WITHOUT ROWID",
)

SCHEMA: Final = (
    """CREATE TABLE job(
 seq INTEGER PRIMARY KEY,
 queue TEXT NOT NULL,
 id TEXT NOT NULL,
 state INTEGER NOT NULL,
 rank INTEGER NOT NULL,
 place INTEGER NOT NULL,
 at INTEGER NOT NULL,
 attempts INTEGER NOT NULL DEFAULT 0,
 forgiven INTEGER NOT NULL DEFAULT 0,
 crashes INTEGER NOT NULL DEFAULT 0,
 lost INTEGER NOT NULL DEFAULT 0,
 cancel INTEGER NOT NULL DEFAULT 0,
 given INTEGER NOT NULL DEFAULT 0,
 noted INTEGER NOT NULL DEFAULT 0,
 owner TEXT,
 row BLOB NOT NULL,
 batch TEXT)""",
    "CREATE UNIQUE INDEX job_id ON job(queue, id)",
    "CREATE INDEX job_pending ON job(queue, rank, place) WHERE state=0",
    "CREATE INDEX job_delayed ON job(queue, at, place) WHERE state=1",
    "CREATE INDEX job_active ON job(queue, owner) WHERE state=2",
    "CREATE INDEX job_dead ON job(queue, at) WHERE state=3",
    "CREATE INDEX job_completed ON job(queue, at) WHERE state=4",
    """CREATE TABLE note(
 seq INTEGER PRIMARY KEY,
 reason TEXT NOT NULL DEFAULT '',
 errors BLOB NOT NULL DEFAULT x'',
 result BLOB NOT NULL DEFAULT x'')""",
    "CREATE TABLE tally(queue TEXT PRIMARY KEY, "
    + ", ".join(f"{name} INTEGER NOT NULL DEFAULT 0" for name in TALLY)
    + ") WITHOUT ROWID",
    """CREATE TABLE lease(
 queue TEXT NOT NULL, worker TEXT NOT NULL, until INTEGER NOT NULL, lease_ms INTEGER NOT NULL,
 PRIMARY KEY(queue, worker)) WITHOUT ROWID""",
    """CREATE TABLE mark(
 queue TEXT NOT NULL, lane TEXT NOT NULL, n INTEGER NOT NULL, at INTEGER NOT NULL,
 PRIMARY KEY(queue, lane)) WITHOUT ROWID""",
    """CREATE TABLE gone(
 queue TEXT NOT NULL, id TEXT NOT NULL, until INTEGER NOT NULL,
 PRIMARY KEY(queue, id)) WITHOUT ROWID""",
    "CREATE INDEX gone_until ON gone(queue, until)",
    _BATCH,
    _BATCH_ENDS,
    *_GATES,
    "CREATE TABLE master(id TEXT PRIMARY KEY, until INTEGER NOT NULL, status BLOB NOT NULL) WITHOUT ROWID",
)

#: What brings a schema to the next one, by the number that it has. Under the gate, in one transaction. Columns that are
#: added have defaults.
MIGRATIONS: Final[dict[int, tuple[str, ...]]] = {
    1: ("ALTER TABLE job ADD COLUMN batch TEXT", _BATCH, _BATCH_ENDS),
    2: _GATES,
}

#: Every statement that the engine sends, in the order of import. A test asks SQLite for the plan of each.
STATEMENTS: Final[list[str]] = []


def sql(text: str) -> str:
    """Writes a statement down. All SQL of the spool passes here."""
    STATEMENTS.append(text)
    return text


def whole(text: str) -> str:
    """Writes down a statement that may read all of the ledger: for check, dump and load, never for a move."""
    return text
