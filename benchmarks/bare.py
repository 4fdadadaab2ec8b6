"""The bare loops: the same work with everything taken away that makes a job queue. Yardsticks, not designs.

No tokens, no leases, no retries, no totals; but what is claimed stands somewhere until it is finished, or a crash would
lose it. A batch is finished and the next one claimed in one round trip, or one transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import orjson
from rig import PAD, client

#: Jobs a round trip: as many as batchq takes at most.
BATCH = 128

_TURN = """
local pending, rows, active = KEYS[1], KEYS[2], KEYS[3]
if #ARGV > 1 then
  redis.call('SREM', active, unpack(ARGV, 2))
  redis.call('HDEL', rows, unpack(ARGV, 2))
end
local ids = redis.call('LPOP', pending, ARGV[1])
if not ids then return {{}, {}} end
redis.call('SADD', active, unpack(ids))
return {ids, redis.call('HMGET', rows, unpack(ids))}
"""

HANDLERS: dict[str, Callable[..., None]] = {"noop": lambda n, pad: None}


def row_of(n: int) -> bytes:
    return orjson.dumps({"job": "noop", "args": [n, PAD]})


def _run(row: bytes) -> None:
    job = orjson.loads(row)
    HANDLERS[job["job"]](*job["args"])


def fill_redis(url: str, jobs: int) -> None:
    connection = client(url)
    for start in range(0, jobs, 1000):
        numbers = range(start, min(jobs, start + 1000))
        pipe = connection.pipeline(transaction=False)
        pipe.hset("bare:rows", mapping={f"{n:026d}": row_of(n) for n in numbers})
        pipe.rpush("bare:pending", *[f"{n:026d}" for n in numbers])
        pipe.execute()


def drain_redis(url: str) -> Callable[[], None]:
    """A process' loop: until nothing is pending."""

    def loop() -> None:
        connection = client(url)
        turn = connection.register_script(_TURN)
        done: list[bytes] = []
        while True:
            ids, rows = turn(keys=["bare:pending", "bare:rows", "bare:active"], args=[BATCH, *done])
            if not ids:
                return
            for row in rows:
                _run(row)
            done = ids

    return loop


def _ledger(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("CREATE TABLE IF NOT EXISTS job (seq INTEGER PRIMARY KEY, state INTEGER NOT NULL, row BLOB NOT NULL)")
    db.execute("CREATE INDEX IF NOT EXISTS pending ON job (seq) WHERE state = 0")
    return db


def fill_sqlite(path: str, jobs: int) -> None:
    db = _ledger(path)
    db.execute("BEGIN IMMEDIATE")
    db.executemany("INSERT INTO job (state, row) VALUES (0, ?)", ((row_of(n),) for n in range(jobs)))
    db.execute("COMMIT")
    db.close()


def drain_sqlite(path: str) -> Callable[[], None]:
    """A process' loop: until nothing is pending."""

    def loop() -> None:
        db = _ledger(path)
        done: list[tuple[int]] = []
        while True:
            db.execute("BEGIN IMMEDIATE")
            db.executemany("DELETE FROM job WHERE seq = ?", done)
            found = db.execute("SELECT seq, row FROM job WHERE state = 0 ORDER BY seq LIMIT ?", (BATCH,)).fetchall()
            done = [(seq,) for seq, _ in found]
            db.executemany("UPDATE job SET state = 1 WHERE seq = ?", done)
            db.execute("COMMIT")
            if not found:
                return
            for _, row in found:
                _run(row)

    return loop
