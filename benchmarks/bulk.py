"""How many CSV rows a second does `batchq import` take in, in how much memory, and what does a batch handler bring?

The import is the command itself: parsing, checks, checkpoints, progress. Beside it the plainest loop that does the same
work: csv.reader, a row of JSON, 480 of them a pipeline of LPUSH (Redis) or a synced transaction (spool); no ids, no
marks, no totals. On Redis other queues enqueue rows of the same file by the best bulk call they have, for some seconds:
csv.DictReader, no checks, no checkpoints, and the start of the process is not counted. Then rows that workers insert
into one SQLite file: a job with a transaction each, and a batch handler with one for up to 500.
"""

from __future__ import annotations

import argparse
import csv
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import orjson
import rig
import work
from peers import systems
from peers.environments import NotInstallable
from peers.trial import Failed, Trial

#: Rows of one step, as batchq has them.
STEP = 480
#: Other queues in Python, the fastest in bulk among them.
PEERS = ["huey", "bullmq", "streaq", "dramatiq", "saq", "taskiq", "rq", "celery"]


class Imported(NamedTuple):
    rows_per_s: float
    peak_mib: float


def write_rows(path: Path, count: int) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("number", "customer", "amount", "note"))
        writer.writerows((n, f"customer-{n % 997}", f"{n % 10_000 / 100:.2f}", rig.PAD) for n in range(count))


def ours(url: str, path: Path, rows: int) -> Imported:
    """One `batchq import`, as a process of its own."""
    with tempfile.TemporaryDirectory(dir=path.parent) as states:
        command = [sys.executable, "-m", "batchq", "import", str(path), "--job", "load", "--json"]
        environment = os.environ | {"BATCHQ_URL": url, "BATCHQ_FALLBACK": "false"}
        began = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--state-dir", states], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        summary = orjson.loads(process.stdout.read().splitlines()[-1])
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        spent = time.perf_counter() - began
    if process.returncode != 0 or summary["enqueued"] != rows:
        raise RuntimeError(f"the import ended with {process.returncode}: {summary}")
    # KiB on Linux, bytes on macOS.
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return Imported(rows / spent, usage.ru_maxrss / unit)


def _steps(path: Path) -> Iterator[list[bytes]]:
    with path.open(newline="") as file:
        rows = csv.reader(file)
        names = next(rows)
        packed = (orjson.dumps({"job": "load", "kwargs": dict(zip(names, row, strict=True))}) for row in rows)
        while step := list(islice(packed, STEP)):
            yield step


def bare(store: str, url: str, path: Path, rows: int) -> float:
    """The plainest loop, in this process."""
    began = time.perf_counter()
    if store == "redis":
        connection = rig.client(url)
        for step in _steps(path):
            pipe = connection.pipeline(transaction=False)
            for row in step:
                pipe.lpush("bare", row)
            pipe.execute()
    else:
        folder = Path(url.removeprefix("spool:"))
        folder.mkdir()
        db = sqlite3.connect(folder / "bare.db", isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("CREATE TABLE job (row BLOB NOT NULL)")
        for step in _steps(path):
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO job VALUES (?)", ((row,) for row in step))
            db.execute("COMMIT")
        db.close()
    return rows / (time.perf_counter() - began)


def theirs(args: argparse.Namespace, name: str, path: Path) -> float | None:
    """Rows a second that another queue takes; None where it can't be asked."""
    system = systems.read(name)
    try:
        with Trial(system, system.install(), "drain", server=args.server, folder=args.folder) as trial:
            sent = trial.enqueue_rows(path, seconds=args.seconds)
    except (Failed, NotInstallable) as error:
        print(f"LEFT OUT: {name}: {error}", file=sys.stderr, flush=True)
        return None
    return float(sent["jobs"] / sent["seconds"])


def inserted(url: str, folder: Path, handler: str, jobs: int, workers: int) -> float:
    """Rows a second of one drain into a new table."""
    table = folder / f"{handler}.db"
    work.Table.make(table)
    os.environ["BATCHQ__TABLE"] = str(table)
    try:
        seconds = rig.drained(url, work.app, work.app.call(handler), jobs, workers).seconds
        [count] = sqlite3.connect(table).execute("SELECT count(*) FROM row").fetchone()
        if count != jobs:
            raise RuntimeError(f"{count} rows are in the table, {jobs} jobs were completed")
    finally:
        del os.environ["BATCHQ__TABLE"]
        for path in folder.glob(f"{handler}.db*"):
            path.unlink()
    return jobs / seconds


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    with tempfile.TemporaryDirectory(prefix="batchq-bench-", dir=args.folder) as name:
        folder = Path(name)
        path = folder / "rows.csv"
        write_rows(path, args.rows)
        runs = [ours(new_url(), path, args.rows) for _ in range(args.repeat)]
        floor = [bare(store, new_url(), path, args.rows) for _ in range(args.repeat)]
        rates = [run.rows_per_s for run in runs]
        memory = f"{max(run.peak_mib for run in runs):.0f} MiB at most"
        rig.row(store, f"import of {args.rows:,} rows", rig.rate(rates), memory)
        rig.row(store, "the plainest loop", rig.rate(floor), rig.ratio(rates, floor))
        for name in args.peers if store == "redis" else ():
            if (rate := theirs(args, name, path)) is not None:
                rig.row(
                    store,
                    f"{name}, its best bulk call",
                    rig.rate([rate]),
                    f"batchq: {rig.middle(rates) / rate:.1f} times",
                )
        single = [inserted(new_url(), folder, "insert_one", args.jobs, args.workers) for _ in range(args.repeat)]
        many = [inserted(new_url(), folder, "insert_many", args.jobs, args.workers) for _ in range(args.repeat)]
        rig.row(store, f"a row a job into SQLite, {args.workers} workers", rig.rate(single))
        times = f"{rig.middle(many) / rig.middle(single):.1f} times as many"
        rig.row(store, "a batch handler, 500 rows a call", rig.rate(many), times)


if __name__ == "__main__":
    rig.main(
        __doc__,
        measure,
        rows=rig.Option(1_000_000, 3_000, "N", "rows of the imported file"),
        jobs=rig.Option(20_000, 600, "N", "rows that workers insert"),
        workers=rig.Option(2, 2, "N", "workers"),
        seconds=rig.Option(5.0, 0.5, "S", "how long another queue is asked"),
        peers=rig.Option(PEERS, [], "NAME", "other queues that are asked; none in a smoke run"),
    )
