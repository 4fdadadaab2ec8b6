"""The ledger as lines of JSON, and back: for people who want to see all of it, edit it, or take it elsewhere.

    {"batchq_dump":1,"schema":2,"at":...}
    {"table":"tally","queue":"mail","n_pending":2,...}
    {"table":"job","queue":"mail","id":"...","state":"pending",...,"row":{"job":"deliver",...}}

A dump is one instant: nobody is hindered while it is read. Loading makes all of it in one transaction, in a spool that
has no jobs, and counts anew: a line may be changed or left out by hand.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, Final

from batchq.errors import ConfigError, StoreError
from batchq.jsons import orjson
from batchq.lifecycle import State
from batchq.spool import faults
from batchq.spool.ledger import Flush, Ledger
from batchq.spool.schema import STATE, STATE_OF, USER_VERSION, whole

VERSION: Final = 1
#: What is carried over. What the masters said of themselves is not: they say it again.
TABLES: Final = ("tally", "batch", "lease", "mark", "gone", "gate", "guest", "waiter", "passed", "visit", "turn", "job")
_NOTE: Final = ("reason", "errors", "result")

_ALL = {name: whole(f"SELECT * FROM {name}") for name in TABLES if name != "job"}
_JOBS = whole(
    "SELECT job.*,note.reason,note.errors,note.result FROM job LEFT JOIN note ON noted=1 AND note.seq=job.seq "
    "ORDER BY job.seq"
)
_STANDS = whole("SELECT (SELECT count(*) FROM job)+(SELECT count(*) FROM tally)")
_NOTES = whole("INSERT INTO note(seq,reason,errors,result) VALUES(?,?,?,?)")


def columns_of(db: sqlite3.Connection, table: str) -> list[str]:
    """The columns of a table, in their order."""
    return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]


def dump(ledger: Ledger) -> Iterator[bytes]:
    """The lines, each with its line feed. Keep at it: the log grows while it is read."""
    with ledger.read() as db:
        yield _line({"batchq_dump": VERSION, "schema": USER_VERSION, "at": ledger.clock.now_us() // 1000})
        for table, statement in _ALL.items():
            columns = columns_of(db, table)
            for row in db.execute(statement):
                yield _line({"table": table} | {name: _text(value) for name, value in zip(columns, row, strict=True)})
        columns = [*columns_of(db, "job"), *_NOTE]
        for row in db.execute(_JOBS):
            yield _line(_job(dict(zip(columns, row, strict=True))))


def _job(job: dict[str, Any]) -> dict[str, Any]:
    reason, errors, result = (job.pop(name) for name in _NOTE)
    row, state = job.pop("row"), job["state"]
    out: dict[str, Any] = {"table": "job"} | {name: _text(value) for name, value in job.items() if value is not None}
    out["state"] = STATE_OF[state].value if state in STATE_OF else state
    out["row"] = orjson.Fragment(row) if faults.is_json(row) else _text(row)
    if job["noted"]:
        lines = [line for line in bytes(errors or b"").split(b"\n") if line]
        out["note"] = {
            "reason": _text(reason or ""),
            "errors": [orjson.Fragment(line) if faults.is_json(line) else _text(line) for line in lines],
            "result": orjson.Fragment(result) if result and faults.is_json(result) else None,
        }
    return out


def _line(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def _text(value: object) -> object:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


# -- and back --------------------------------------------------------------------------------------------------------


def load(ledger: Ledger, lines: Iterable[bytes]) -> int:
    """Makes what the lines say, whole or not at all; answers how many jobs.

    Raises StoreError where the ledger has something in it, ConfigError that names the line which is wrong.
    """
    jobs = 0
    with ledger.write(Flush.ALWAYS) as tx:
        [[stands]] = tx.db.execute(_STANDS)
        if stands:
            raise StoreError(
                f"spool: {ledger.layout.root}: expected an empty spool to load into, found one that was used; "
                "give a new directory"
            )
        columns = {table: frozenset(columns_of(tx.db, table)) for table in TABLES}
        begun = False
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                fields = orjson.loads(line)
                if not begun:
                    _check_head(fields)
                    begun = True
                else:
                    jobs += _insert(tx.db, fields, columns)
            except (ValueError, TypeError, KeyError, AttributeError, sqlite3.Error) as error:
                raise ConfigError(f"dump: line {number}: {error}") from error
        if not begun:
            raise ConfigError("dump: expected a line with batchq_dump, found no line")
        faults.mend(tx.db, tx.now_us // 1000)
    return jobs


def _check_head(fields: dict[str, Any]) -> None:
    if fields.get("batchq_dump") != VERSION:
        raise ValueError(f"expected batchq_dump {VERSION}, found {fields.get('batchq_dump')!r:.40}; is that a dump?")
    if not isinstance(fields.get("schema"), int) or fields["schema"] > USER_VERSION:
        raise ValueError(f"expected schema {USER_VERSION} or older, found {fields.get('schema')!r:.40}")


def _insert(db: sqlite3.Connection, fields: dict[str, Any], columns: dict[str, frozenset[str]]) -> int:
    table = fields.pop("table")
    if table not in columns:
        raise ValueError(f"table: expected one of {', '.join(TABLES)}, found {table!r:.60}")
    note = fields.pop("note", None)
    if table == "job":
        fields["row"] = _row_of(fields["row"])
        fields["state"] = STATE[State(fields["state"])] if isinstance(fields["state"], str) else fields["state"]
        fields["noted"] = 0 if note is None else 1
    elif table == "batch":
        fields |= {name: fields[name].encode() for name in ("on_complete", "on_success")}
    unknown = sorted(set(fields) - columns[table])
    if unknown:
        raise ValueError(f"{table}: knows no {unknown[0]!r:.60}; it has {', '.join(sorted(columns[table]))}")
    names = list(fields)
    # The names are the table's own: they were just compared.
    statement = f"INSERT INTO {table}({','.join(names)}) VALUES({','.join('?' * len(names))})"
    seq = db.execute(statement, list(fields.values())).lastrowid
    if note is not None:
        errors = b"\n".join(orjson.dumps(one) for one in note["errors"])
        result = b"" if note["result"] is None else orjson.dumps(note["result"])
        db.execute(_NOTES, (seq, note["reason"], errors, result))
    return int(table == "job")


def _row_of(row: Any) -> bytes:
    if not isinstance(row, dict) or not isinstance(row.get("job"), str) or not isinstance(row.get("t"), int):
        raise ValueError(f"row: expected an object with job and t, found {row!r:.60}")
    return orjson.dumps(row)
