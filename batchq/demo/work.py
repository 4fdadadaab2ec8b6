"""The handlers of the demo: an app like any other. Its workers run in the demo's folder.

Every attempt signs in a log before it does anything else, so that attempts can be counted without batchq.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
import urllib.error
import urllib.request

from batchq import App, Dead, Retry, current_job, exponential

app = App(name="demo")

#: Short, so that the demo is: 0.2 s, 0.4 s, 0.8 s, then 1 s, each 20 % more or less.
QUICK = exponential(0.2, cap=1, jitter=0.2)

TABLE = "rows.db"
ATTEMPTS = "attempts.log"

_SCHEMA = "CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY, name TEXT NOT NULL, cents INTEGER NOT NULL)"


def open_table(path: str | os.PathLike[str] = TABLE) -> sqlite3.Connection:
    """The table that rows are imported into. Waits for other writers up to 30 s."""
    table = sqlite3.connect(path, timeout=30, isolation_level=None)
    table.execute("PRAGMA journal_mode = WAL")
    table.execute("PRAGMA synchronous = NORMAL")
    table.execute(_SCHEMA)
    return table


class _Opened:
    """What each worker opens once, before its first job."""

    table: sqlite3.Connection
    attempts: int


@app.on_worker_start
def open_files() -> None:
    _Opened.table = open_table()
    _Opened.attempts = os.open(ATTEMPTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def sign() -> None:
    """One line in the log of attempts: a single write to its end, which others can't tear."""
    job = current_job()
    os.write(_Opened.attempts, f"{job.queue} {job.id} {job.token}\n".encode())


@app.job(queue="import", backoff=QUICK, timeout=60)
def load_row(number: int, name: str, cents: int) -> None:
    """One row of the CSV. Should it run twice, its number makes it the same row."""
    sign()
    _Opened.table.execute("INSERT OR IGNORE INTO rows VALUES (?, ?, ?)", (number, name, cents))


@app.job(queue="webhooks", max_attempts=8, backoff=QUICK, timeout=60)
def deliver(url: str, event: str, payload: dict[str, str]) -> None:
    """One POST. The receiver knows a repeated event by its id."""
    sign()
    body = json.dumps(payload).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", "Event-Id": event})
    try:
        urllib.request.urlopen(request, timeout=30).close()
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 503:
            raise Retry(f"{event}: the receiver is busy (503)") from None
        raise Dead(f"{event}: the receiver says {error.code}") from None


@app.job(queue="cpu", timeout=60)
def count_primes(below: int) -> int:
    """Pure CPU, some 50 ms of it for 100,000."""
    sign()
    sieve = bytearray([1]) * below
    sieve[:2] = b"\0\0"
    for n in range(2, int(below**0.5) + 1):
        if sieve[n]:
            for multiple in range(n * n, below, n):
                sieve[multiple] = 0
    return sum(sieve)


@app.job(queue="failing", max_attempts=3, backoff=QUICK, timeout=60)
def fail(account: str, *, hopeless: bool = False) -> None:
    """Never succeeds: to the morgue when its attempts are spent, or at once where no retry can help."""
    sign()
    if hopeless:
        raise Dead(f"account {account} was closed")
    raise LookupError(f"no account {account}")


# One at a time: a batch that stood behind a crash would be given back with it.
@app.job(queue="crashing", max_attempts=10, backoff=QUICK, timeout=60, batch_claim=False)
def crash(times: int) -> None:
    """Kills its own worker on the first attempts, as the kernel does when memory runs out."""
    sign()
    if current_job().attempt <= times:
        os.kill(os.getpid(), signal.SIGKILL)


@app.job(queue="delayed", timeout=60, result=600)
def remind(due_ms: int) -> int:
    """Runs at its time. Its result is how late it was, in ms by this machine's clock."""
    late_ms = time.time_ns() // 1_000_000 - due_ms
    sign()
    return late_ms
