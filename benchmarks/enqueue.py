"""How many jobs a second can one producer enqueue, one at a time and in bulk, against the store's plainest insert?

The plainest insert: on Redis an LPUSH of the same row, in bulk pipelined by 480 (batchq's own step); on the spool an
INSERT into a table of one column, each committed and synced for one at a time, a transaction of 1,000 in bulk. Beside
it on Redis: the script that batchq calls, called through redis-py.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import bare
import rig
import work

from batchq.job import new_id
from batchq.redis.scripts import Keys, call, shipped

STEP = {"redis": 480, "spool": 1000}


def timed(jobs: int, act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return jobs / (time.perf_counter() - began)


def one(url: str, jobs: int) -> float:
    def act() -> None:
        for n in range(jobs):
            work.noop.enqueue(n, rig.PAD)

    return _ours(url, jobs, act)


def many(url: str, jobs: int) -> float:
    return _ours(url, jobs, lambda: work.noop.enqueue_many((n, rig.PAD) for n in range(jobs)))


def _ours(url: str, jobs: int, act: Callable[[], object]) -> float:
    work.app.configure({"url": url})
    work.noop.enqueue(0, rig.PAD)
    found = timed(jobs, act)
    counted = work.app.store.stats("default").counts["pending"]
    if counted != jobs + 1:
        raise RuntimeError(f"{counted} jobs are pending, {jobs + 1} were enqueued")
    work.app.close()
    return found


def same_script(url: str, jobs: int) -> float:
    """The script that batchq calls, with a row and an id made anew, through redis-py's own client."""
    connection, script, keys = rig.client(url), shipped("enqueue"), Keys("bq")
    connection.script_load(script.text)

    def send(n: int) -> None:
        row = bare.row_of(n)[1:]
        argv = (n + 1, 604_800_000, 86_400_000, "", 0, new_id(), row, "")
        answer = connection.execute_command(*call(script, keys, "default", argv, owner="bare"))
        if answer != [b"ok"]:
            raise RuntimeError(f"the script answered {answer}")

    return timed(jobs, lambda: [send(n) for n in range(jobs)])


def bare_one(store: str, url: str, jobs: int) -> float:
    if store == "redis":
        connection = rig.client(url)
        connection.ping()
        return timed(jobs, lambda: [connection.lpush("bare", bare.row_of(n)) for n in range(jobs)])
    db = _table(url)
    return timed(jobs, lambda: [db.execute("INSERT INTO job VALUES (?)", (bare.row_of(n),)) for n in range(jobs)])


def bare_many(store: str, url: str, jobs: int) -> float:
    step = STEP[store]
    if store == "redis":
        connection = rig.client(url)
        connection.ping()

        def push() -> None:
            for start in range(0, jobs, step):
                pipe = connection.pipeline(transaction=False)
                for n in range(start, min(jobs, start + step)):
                    pipe.lpush("bare", bare.row_of(n))
                pipe.execute()

        return timed(jobs, push)
    db = _table(url)

    def insert() -> None:
        for start in range(0, jobs, step):
            db.execute("BEGIN IMMEDIATE")
            numbers = range(start, min(jobs, start + step))
            db.executemany("INSERT INTO job VALUES (?)", ((bare.row_of(n),) for n in numbers))
            db.execute("COMMIT")

    return timed(jobs, insert)


def _table(url: str) -> sqlite3.Connection:
    path = Path(url.removeprefix("spool:"))
    path.mkdir()
    db = sqlite3.connect(path / "bare.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE job (row BLOB NOT NULL)")
    return db


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    for case, jobs, our, plain in (
        ("one at a time", args.jobs // 10, one, bare_one),
        ("enqueue_many", args.jobs, many, bare_many),
    ):
        runs = [our(new_url(), jobs) for _ in range(args.repeat)]
        floor = [plain(store, new_url(), jobs) for _ in range(args.repeat)]
        rig.row(store, case, rig.rate(runs), f"bare {rig.rate(floor).strip()}", rig.ratio(runs, floor))
        if store == "redis" and our is one:
            script = [same_script(new_url(), jobs) for _ in range(args.repeat)]
            told = f"{100 * statistics.median(runs) / statistics.median(script):.0f} % of the same script"
            rig.row(store, "the same script by redis-py", rig.rate(script), told)


if __name__ == "__main__":
    rig.main(__doc__, measure, jobs=rig.Option(100_000, 1_500, "N", "jobs in bulk; a tenth of it one at a time"))
