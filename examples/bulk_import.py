"""A bulk import: every row of a CSV is a job, read and enqueued in constant memory, and one row of a table in the end.

In this folder, with batchq installed:

    python bulk_import.py make orders.csv           # generates 3,000 orders, a few of them broken
    python bulk_import.py enqueue orders.csv        # a job a row; a second time it adds nothing
    batchq start -n 4 bulk_import:app --burst       # works them off and ends
    python bulk_import.py summary                   # what is in the table, and what could not be

The second step needs no code: `batchq import orders.csv --app bulk_import:app --job load` reads the same rows, and goes
on where it was interrupted.

The jobs stand in ./var/bulk_import. With BATCHQ_URL=redis://127.0.0.1:6379/0 all of these commands use Redis instead.
"""

from __future__ import annotations

import csv
import random
import sqlite3
import sys
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation

from batchq import App, Dead, State

app = App(spool="./var/bulk_import")

TABLE = "orders.db"


def open_table() -> sqlite3.Connection:
    # Many workers write to one file: each waits up to 30 s for its turn.
    table = sqlite3.connect(TABLE, timeout=30, isolation_level=None)
    table.execute("PRAGMA journal_mode = WAL")
    table.execute("CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, customer TEXT, cents INTEGER)")
    return table


class Worker:
    """What a worker process opens once and all of its jobs use."""

    table: sqlite3.Connection


@app.on_worker_start
def open_worker() -> None:
    Worker.table = open_table()


@app.job(queue="orders", timeout=60)
def load(number: str, customer: str, amount: str) -> None:
    try:
        cents = int(Decimal(amount) * 100)
    except InvalidOperation:
        # No retry mends the file: straight to the morgue, where `batchq show` tells why.
        raise Dead(f"order {number}: {amount!r} is no amount") from None
    # A job can run twice, if its worker dies at the wrong moment. The order's number makes that one row.
    Worker.table.execute("INSERT OR IGNORE INTO orders VALUES (?, ?, ?)", (int(number), customer, cents))


def rows(path: str) -> Iterator[dict[str, str]]:
    """One row at a time: the file may be larger than the memory."""
    with open(path, newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def make(path: str, count: int = 3_000) -> None:
    rng = random.Random(1)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("number", "customer", "amount"))
        for number in range(1, count + 1):
            amount = "n/a" if number % 500 == 0 else f"{rng.randint(100, 99_999) / 100:.2f}"
            writer.writerow((number, f"customer-{rng.randint(1, 500)}", amount))


def enqueue(path: str) -> None:
    # An id of its own for each row: a file that is imported twice adds nothing the second time.
    done = load.enqueue_many(rows(path), job_id=lambda row: f"order-{row['number']}")
    print(f"{done.created} enqueued, {done.known} known already")


def summary() -> None:
    count, cents = open_table().execute("SELECT count(*), sum(cents) FROM orders").fetchone()
    print(f"{count} orders in {TABLE}, {cents / 100:.2f} in all")
    for job in app.jobs(state=State.DEAD):
        print(f"not imported: {job.errors[0]['error']}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make", path]:
            make(path)
        case ["enqueue", path]:
            enqueue(path)
        case ["summary"]:
            summary()
        case _:
            sys.exit(__doc__)
