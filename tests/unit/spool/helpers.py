"""What the spool's own tests share: children that end at a named point, and the books checked against the rows."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from batchq.job import Claim, NewJob, new_id, pack_row
from batchq.lifecycle import unaccounted
from batchq.spool import SpoolStore
from batchq.spool.schema import COUNTS, STATE

Q = "mail"
LEASE_MS = 15_000
#: What a child answers that was ended at its point.
ENDED_THERE = 77


def a_job(id: str | None = None, **options: object) -> NewJob:
    return NewJob(new_id() if id is None else id, pack_row("send", ["x"]), **options)  # type: ignore[arg-type]


def claim_all(store: SpoolStore, worker: str, *, queue: str = Q, want: int = 480) -> list[Claim]:
    store.register(queue, worker, LEASE_MS)
    return list(store.claim(queue, worker, want, 0).claims)


def run(code: str, *args: str, timeout: float = 30) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def end_at(point: str, code: str, *args: str) -> None:
    """Runs code in a child that ends without a word when it passes a point of a protocol."""
    prelude = f"""
import os
from batchq.spool import fs
def passed(here, point={point!r}):
    if here == point:
        os._exit({ENDED_THERE})
fs.passed = passed
"""
    done = run(prelude + textwrap.dedent(code), *args)
    assert done.returncode == ENDED_THERE, (point, done.returncode, done.stderr)


def fork(work: Callable[[], object]) -> int:
    """Runs it in a forked child, which ends with 0 or, after an exception, with 1. Answers the child's pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:  # noqa: BLE001 - a child must not return into the test
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def wait(pid: int, timeout_s: float = 20.0) -> int:
    """The exit code of a child; one that does not end is killed."""
    deadline = time.monotonic() + timeout_s
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError(f"child {pid} did not end within {timeout_s} s")
        time.sleep(0.002)


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.002)


def check_books(path: Path) -> None:
    """SQLite finds nothing wrong, the tally is what a recount gives, and the law of the totals holds."""
    store = SpoolStore(path)
    db = sqlite3.connect(path / "queue.db")
    try:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        for queue in store.queues():
            stats = store.stats(queue)
            assert unaccounted(stats.counts, stats.totals) == 0, stats
            for state in COUNTS:
                [[n]] = db.execute("SELECT count(*) FROM job WHERE queue=? AND state=?", (queue, STATE[state]))
                assert stats.counts[state.value] == n, (queue, state)
        [[orphans]] = db.execute("SELECT count(*) FROM note WHERE seq NOT IN (SELECT seq FROM job WHERE noted)")
        assert orphans == 0
    finally:
        db.close()
        store.close()
