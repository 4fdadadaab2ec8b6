"""A bulk import: every row of a CSV is a job, and a batch handler loads 500 of them at a time into a table of SQLite.

In this folder, with batchq installed:

    python bulk_import.py make orders.csv                   # 20,000 orders, some of them broken
    batchq import orders.csv --app bulk_import:app --job load -q orders
    batchq start -n 4 bulk_import:app --burst               # works them off and ends
    python bulk_import.py summary                           # what is in the table, and what could not be

The second step makes a job of each row, in constant memory. It goes on where it was interrupted, and adds nothing when
it is run a second time. Lines that are no rows go to orders.csv.rejects.ndjson with number and reason (exit code 1);
rows that the handler refuses end in the morgue (`batchq dead`). All others are in the table, once each.

The jobs stand in ./var/bulk_import. With BATCHQ_URL=redis://127.0.0.1:6379/0 all of these commands use Redis instead.
"""

from __future__ import annotations

import csv
import json
import random
import sqlite3
import sys
from decimal import Decimal, InvalidOperation
from pathlib import Path

from batchq import App, BatchJob, State

app = App(spool="./var/bulk_import")

TABLE = "orders.db"


def open_table() -> sqlite3.Connection:
    # Many workers write to one file: each waits up to 30 s for its turn.
    table = sqlite3.connect(TABLE, timeout=30)
    table.execute("CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, customer TEXT, cents INTEGER)")
    return table


class Worker:
    """What a worker process opens once and all of its jobs use."""

    table: sqlite3.Connection


@app.on_worker_start
def open_worker() -> None:
    Worker.table = open_table()


@app.job(queue="orders", batch=500, linger=0.1, timeout=60)
def load(jobs: list[BatchJob]) -> None:
    orders = []
    for job in jobs:
        number, amount = job.kwargs["number"], job.kwargs["amount"]
        try:
            orders.append((int(number), job.kwargs["customer"], int(Decimal(amount) * 100)))
        except InvalidOperation:
            # No retry mends the file: this one to the morgue, the others go on.
            job.dead(f"order {number}: {amount!r} is no amount")
    # One transaction for all. A job can run twice, if its worker dies at the wrong moment: the order's number makes
    # that one row.
    with Worker.table:
        Worker.table.executemany("INSERT OR IGNORE INTO orders VALUES (?, ?, ?)", orders)


def make(path: str, count: int = 20_000) -> None:
    rng = random.Random(1)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("number", "customer", "amount"))
        for number in range(1, count + 1):
            amount = "n/a" if number % 2_500 == 0 else f"{rng.randint(100, 99_999) / 100:.2f}"
            # Now and then a cell is missing.
            row = (number, f"customer-{rng.randint(1, 500)}", amount)
            writer.writerow(row[:2] if number % 4_001 == 0 else row)


def summary() -> None:
    count, cents = open_table().execute("SELECT count(*), sum(cents) FROM orders").fetchone()
    print(f"{count} orders in {TABLE}, {cents / 100:.2f} in all")
    for job in app.jobs(state=State.DEAD):
        print(f"not loaded: {job.errors[0]['error']}")
    for path in Path().glob("*.rejects.ndjson"):
        for line in path.read_text().splitlines():
            rejected = json.loads(line)
            print(f"no row: {rejected['file']} line {rejected['line']}: {rejected['reason']}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make", path]:
            make(path)
        case ["summary"]:
            summary()
        case _:
            sys.exit(__doc__)
