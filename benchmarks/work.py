"""The handlers that the benchmarks run."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from batchq import App, BatchJob, Retry, current_job, fixed

app = App()

# 16 hexadecimal digits and a line end, in one write to the end of a file: nobody tears it, and it costs 2 us.
_out = os.open(os.environ.get("BATCHQ__OUT", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@app.job
def noop(n: int, pad: str) -> None:
    """Nothing."""


@app.job
def doze(n: int, pad: str) -> None:
    """1 ms of waiting, as on a network."""
    time.sleep(0.001)


@app.job
def stamp(due_ns: int) -> None:
    """Notes how late it begins, in ns (CLOCK_REALTIME, the same for all processes of the host). Negative: early."""
    late = time.time_ns() - due_ns
    os.write(_out, b"%d\n" % late)


@app.job(backoff=fixed(0))
def fail_once(n: int, pad: str) -> None:
    """Fails at its first attempt."""
    if current_job().attempt == 1:
        raise ValueError("fails once")


#: Seconds until the second attempt of the next two.
AGAIN_S = float(os.environ.get("BATCHQ__AGAIN_S", "3600"))


@app.job(backoff=fixed(AGAIN_S))
def fail(n: int, pad: str) -> None:
    """Fails, and waits for its second attempt."""
    raise ValueError("fails")


@app.job(backoff=fixed(3600))
def come_again(n: int, pad: str) -> None:
    """Asks for a second attempt, without a traceback."""
    raise Retry(after=AGAIN_S)


@app.job
def burn(n: int, pad: str) -> None:
    """20 ms of this thread's own CPU time in pure Python: waiting for a core makes it longer by the clock."""
    until, x = time.thread_time() + 0.02, 1
    while time.thread_time() < until:
        for _ in range(500):
            x = (x * 1103515245 + 12345) & 0x7FFFFFFF


@app.job
def brief(sent_ns: int) -> None:
    """1 ms, and notes how long it waited for that."""
    stamp(sent_ns)
    time.sleep(0.001)


@app.job
def lengthy(sent_ns: int) -> None:
    """2 s."""
    time.sleep(2)


@app.job
def either(sent_ns: int, is_long: bool) -> None:
    """Nobody can tell by the name how long it takes."""
    (lengthy if is_long else brief)(sent_ns)


@app.job
def note(n: int, pad: str) -> None:
    """5 ms, and notes which job ended when, in ns."""
    time.sleep(0.005)
    os.write(_out, b"%d %d\n" % (n, time.time_ns()))


class Table:
    """An SQLite file that workers insert into, each by a connection of its own. `make` makes it before they begin: two
    that switch a file to WAL at once do not wait for each other, and one fails."""

    _db: sqlite3.Connection | None = None

    @staticmethod
    def make(path: Path) -> None:
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE row (n INTEGER PRIMARY KEY, pad TEXT)")

    @classmethod
    def insert(cls, rows: list[tuple[int, str]]) -> None:
        """All of them in one transaction."""
        if cls._db is None:
            cls._db = sqlite3.connect(os.environ["BATCHQ__TABLE"], timeout=60)
        with cls._db:
            cls._db.executemany("INSERT OR IGNORE INTO row VALUES (?, ?)", rows)


@app.job
def insert_one(n: int, pad: str) -> None:
    """A row."""
    Table.insert([(n, pad)])


@app.job(batch=500, linger=0.05)
def insert_many(jobs: list[BatchJob]) -> None:
    """A row a job."""
    Table.insert([(job.args[0], job.args[1]) for job in jobs])
