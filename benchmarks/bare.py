"""The bare loops: the same work with everything taken away that makes a job queue. Yardsticks, not designs.

What is claimed stands under its worker with a token until it is finished under that token; else a crash would lose it,
or two would finish it. A batch is finished and the next one claimed in one round trip, or one transaction. That is all:
no leases, no wake-ups, no budgets, no errors, no time limits, no totals, and nobody who looks after it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import orjson
import rig
import work
from rig import PAD, client

#: Jobs a round trip: as many as batchq takes at most.
BATCH = 128

_TURN = """
local pending, rows, attempts, active = unpack(KEYS)
local ids, tokens, done = {}, {}, {}
for i = 2, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
  tokens[#tokens + 1] = ARGV[i + 1]
end
if #ids > 0 then
  local held, now = redis.call('SMISMEMBER', active, unpack(ids)), redis.call('HMGET', attempts, unpack(ids))
  for i, id in ipairs(ids) do
    if held[i] == 1 and now[i] == tokens[i] then done[#done + 1] = id end
  end
  redis.call('SREM', active, unpack(done))
  redis.call('HDEL', rows, unpack(done))
  redis.call('HDEL', attempts, unpack(done))
end
local claimed = redis.call('LPOP', pending, ARGV[1])
if not claimed then return {#done, {}, {}, {}} end
redis.call('SADD', active, unpack(claimed))
local minted = {}
for i, id in ipairs(claimed) do minted[i] = redis.call('HINCRBY', attempts, id, 1) end
return {#done, claimed, minted, redis.call('HMGET', rows, unpack(claimed))}
"""

HANDLERS: dict[str, Callable[..., object]] = {"noop": lambda n, pad: None, "burn": work.burn}


def row_of(n: int, job: str = "noop") -> bytes:
    return orjson.dumps({"job": job, "args": [n, PAD]})


def _run(row: bytes) -> None:
    job = orjson.loads(row)
    HANDLERS[job["job"]](*job["args"])


def fill_redis(url: str, jobs: int, job: str = "noop") -> None:
    connection = client(url)
    for start in range(0, jobs, 1000):
        numbers = range(start, min(jobs, start + 1000))
        pipe = connection.pipeline(transaction=False)
        pipe.hset("bare:rows", mapping={f"{n:026d}": row_of(n, job) for n in numbers})
        pipe.rpush("bare:pending", *[f"{n:026d}" for n in numbers])
        pipe.execute()


def drain_redis(url: str, batch: int = BATCH) -> Callable[[], int]:
    """A process' loop: until nothing is pending. Answers how many jobs it finished."""

    def loop() -> int:
        connection = client(url)
        turn = connection.register_script(_TURN)
        keys = ["bare:pending", "bare:rows", "bare:attempts", f"bare:active:{os.getpid()}"]
        outcomes: list[bytes | int] = []
        finished = 0
        done: int
        while True:
            done, ids, tokens, rows = turn(keys=keys, args=[batch, *outcomes])
            finished += done
            if not ids:
                return finished
            outcomes = []
            for job_id, token, row in zip(ids, tokens, rows, strict=True):
                _run(row)
                outcomes += (job_id, token)

    return loop


def _ledger(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute(
        "CREATE TABLE IF NOT EXISTS job (seq INTEGER PRIMARY KEY, state INTEGER NOT NULL,"
        " attempts INTEGER NOT NULL DEFAULT 0, owner INTEGER, row BLOB NOT NULL)"
    )
    db.execute("CREATE INDEX IF NOT EXISTS pending ON job (seq) WHERE state = 0")
    return db


def fill_sqlite(path: str, jobs: int, job: str = "noop") -> None:
    db = _ledger(path)
    db.execute("BEGIN IMMEDIATE")
    db.executemany("INSERT INTO job (state, row) VALUES (0, ?)", ((row_of(n, job),) for n in range(jobs)))
    db.execute("COMMIT")
    db.close()


def drain_sqlite(path: str, batch: int = BATCH) -> Callable[[], int]:
    """A process' loop: until nothing is pending. Answers how many jobs it finished."""

    def loop() -> int:
        db = _ledger(path)
        outcomes: list[tuple[int, int]] = []
        finished = 0
        while True:
            db.execute("BEGIN IMMEDIATE")
            if outcomes:
                finished += db.executemany("DELETE FROM job WHERE seq = ? AND attempts = ?", outcomes).rowcount
            found = db.execute(
                "SELECT seq, attempts + 1, row FROM job WHERE state = 0 ORDER BY seq LIMIT ?", (batch,)
            ).fetchall()
            outcomes = [(seq, token) for seq, token, _ in found]
            db.executemany(
                "UPDATE job SET state = 1, owner = ?, attempts = ? WHERE seq = ?",
                [(os.getpid(), token, seq) for seq, token in outcomes],
            )
            db.execute("COMMIT")
            if not found:
                return finished
            for _, _, row in found:
                _run(row)

    return loop


def race(store: str, url: str, jobs: int, workers: int, job: str = "noop", batch: int = BATCH) -> float:
    """Seconds that so many processes take for a filled queue."""
    if store == "redis":
        fill_redis(url, jobs, job)
        seconds, done = rig.race(workers, drain_redis(url, batch))
    else:
        path = Path(url.removeprefix("spool:"))
        path.mkdir()
        fill_sqlite(str(path / "bare.db"), jobs, job)
        seconds, done = rig.race(workers, drain_sqlite(str(path / "bare.db"), batch))
    if done != jobs:
        raise RuntimeError(f"the bare loop finished {done} jobs of {jobs}")
    return seconds
