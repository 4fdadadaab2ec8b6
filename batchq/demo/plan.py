"""What the demo enqueues: drawn from a seed, written to the folder, handed to the store."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from batchq.demo import work

CSV = "input.csv"

ROWS, WEBHOOKS, CPU_JOBS, FAILING, HOPELESS, DELAYED = 5_000, 300, 40, 5, 1, 20
#: How often each crashing job kills its worker before it goes well; the last one never does.
CRASHES = (1, 1, 1, 2, 2, 1_000_000)
#: Delayed jobs are due within this, in seconds from their enqueue.
DELAYS_S = (0.5, 5.0)

_NAMES = ("Ada", "Edsger", "Grace", "Barbara", "Donald", "Frances", "Leslie", "Radia", "Tony", "Margaret")


@dataclass(frozen=True, slots=True)
class Kind:
    """Jobs of one kind: they have a queue of that name to themselves."""

    name: str
    #: What they do, for people.
    what: str
    jobs: int


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    #: number, name, cents of each row of the CSV.
    rows: tuple[tuple[int, str, int], ...]
    events: tuple[str, ...]
    primes_below: tuple[int, ...]
    crashes: tuple[int, ...]
    delays_s: tuple[float, ...]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return (
            Kind("import", "rows into SQLite", len(self.rows)),
            Kind("webhooks", "POST to a server", len(self.events)),
            Kind("cpu", "sieve primes", len(self.primes_below)),
            Kind("failing", "always fail", FAILING + HOPELESS),
            Kind("crashing", "kill the worker", len(self.crashes)),
            Kind("delayed", "come due later", len(self.delays_s)),
        )

    @property
    def jobs(self) -> int:
        return sum(kind.jobs for kind in self.kinds)


def draw(seed: int) -> Plan:
    """The same plan for the same seed."""
    rng = random.Random(seed)
    low, high = DELAYS_S
    return Plan(
        seed,
        tuple((number, f"{rng.choice(_NAMES)} {number}", rng.randint(1, 100_000)) for number in range(1, ROWS + 1)),
        tuple(f"event-{rng.getrandbits(48):012x}" for _ in range(WEBHOOKS)),
        tuple(rng.randint(80_000, 120_000) for _ in range(CPU_JOBS)),
        tuple(rng.sample(CRASHES, len(CRASHES))),
        tuple(rng.uniform(low, high) for _ in range(DELAYED)),
    )


def prepare(plan: Plan, folder: Path) -> None:
    """Writes the CSV and makes the empty table."""
    with open(folder / CSV, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("number", "name", "cents"))
        writer.writerows(plan.rows)
    work.open_table(folder / work.TABLE).close()


def read_rows(folder: Path) -> Iterator[tuple[int, str, int]]:
    """The rows of the CSV, one at a time: what an import does with a file of any size."""
    with open(folder / CSV, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield int(row["number"]), row["name"], int(row["cents"])


def enqueue(plan: Plan, folder: Path, webhook_url: str) -> None:
    """Hands everything to the store. The delays begin here."""
    work.load_row.enqueue_many(read_rows(folder))
    work.deliver.enqueue_many((webhook_url, event, {"event": event}) for event in plan.events)
    work.count_primes.enqueue_many((below,) for below in plan.primes_below)
    work.fail.enqueue_many((f"no-{n}",) for n in range(FAILING))
    for n in range(HOPELESS):
        work.fail.enqueue(f"closed-{n}", hopeless=True)
    work.crash.enqueue_many((times,) for times in plan.crashes)
    now = datetime.now(UTC).timestamp()
    for delay_s in plan.delays_s:
        due_ms = round((now + delay_s) * 1000)
        work.remind.enqueue_at(datetime.fromtimestamp(due_ms / 1000, UTC), due_ms)
