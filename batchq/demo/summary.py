"""The demo's numbers: what the store counts, what others counted, and whether they agree. Prints nothing."""

from __future__ import annotations

import sqlite3
import statistics
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from batchq.app import App
from batchq.demo.plan import Kind, Plan
from batchq.demo.pool import Ended
from batchq.demo.receiver import Seen
from batchq.demo.work import ATTEMPTS, TABLE
from batchq.job import Job
from batchq.lifecycle import State, unaccounted

#: The totals that are shown, in their order.
SHOWN = ("enqueued", "completed", "dead", "retried", "crashed", "reaped")

Totals = dict[str, int]


@dataclass(frozen=True, slots=True)
class Line:
    """One kind in the table, by the store's own count."""

    kind: Kind
    counts: Totals
    totals: Totals

    @property
    def missing(self) -> int:
        """What the law of the totals misses here."""
        return unaccounted(self.counts, self.totals)

    @property
    def standing(self) -> int:
        """Jobs that have not ended."""
        return self.counts["pending"] + self.counts["delayed"] + self.counts["active"]

    @property
    def attempts(self) -> int:
        """Attempts that the store knows the end of."""
        return self.totals["completed"] + self.totals["retried"] + self.totals["dead"]


class Check(NamedTuple):
    """Two counts of one thing, made independently of each other. They are to be equal."""

    what: str
    here: str
    counted: int
    there: str
    expected: int

    @property
    def ok(self) -> bool:
        return self.counted == self.expected

    def __str__(self) -> str:
        sign = "=" if self.ok else "is not"
        return f"{self.what}: {self.counted:,} {self.here} {sign} {self.expected:,} {self.there}"


@dataclass(frozen=True, slots=True)
class Summary:
    """All that the demo found."""

    seed: int
    lines: tuple[Line, ...]
    checks: tuple[Check, ...]
    #: How often a webhook was accepted more than once: at least once is promised, once is usual.
    repeated: int
    #: Why jobs are dead, and how many each.
    reasons: dict[str, int]
    #: How late the delayed jobs were, in ms, sorted.
    late_ms: tuple[int, ...]
    ended: Ended
    enqueue_s: float

    @property
    def total(self) -> Totals:
        """The sum over the kinds."""
        return {name: sum(line.totals[name] for line in self.lines) for name in SHOWN}

    @property
    def ended_jobs(self) -> int:
        return self.total["completed"] + self.total["dead"]

    @property
    def jobs_per_s(self) -> float:
        return self.ended_jobs / self.ended.seconds if self.ended.seconds else 0.0

    @property
    def faults(self) -> list[str]:
        """What does not add up, in words; empty where all does."""
        out = [str(check) for check in self.checks if not check.ok]
        if self.ended.code is None:
            out.append(f"the workers were not done after {self.ended.seconds:.0f} s")
        elif self.ended.code != 0:
            out.append(f"the workers' master ended with exit code {self.ended.code}")
        return out

    @property
    def ok(self) -> bool:
        return not self.faults

    @property
    def late_median_ms(self) -> float | None:
        return statistics.median(self.late_ms) if self.late_ms else None


def collect(app: App, plan: Plan, folder: Path, seen: Seen, ended: Ended, enqueue_s: float) -> Summary:
    """Asks everybody who counted. Raises StoreUnavailable."""
    lines = read_lines(app.stats(), plan.kinds)
    dead = list(app.jobs(state=State.DEAD))
    reminded = app.jobs(state=State.COMPLETED, queue="delayed")
    return Summary(
        plan.seed,
        lines,
        (*own_checks(plan, lines, dead), *outside_checks(plan, lines, folder, seen)),
        seen.accepted.total() - len(seen.accepted),
        dict(sorted(Counter(job.reason for job in dead).items())),
        tuple(sorted(job.result for job in reminded if isinstance(job.result, int))),
        ended,
        enqueue_s,
    )


def read_lines(stats: dict[str, Any], kinds: tuple[Kind, ...]) -> tuple[Line, ...]:
    """A line a kind out of `app.stats()`; a queue that the store does not know has none."""
    queues = stats["queues"]
    return tuple(
        Line(kind, queues[kind.name]["counts"], queues[kind.name]["totals"]) for kind in kinds if kind.name in queues
    )


def own_checks(plan: Plan, lines: tuple[Line, ...], dead: list[Job]) -> list[Check]:
    """Whether the store agrees with itself and with what was handed to it."""
    totals = {name: sum(line.totals[name] for line in lines) for name in SHOWN}
    return [
        Check("accepted", "jobs generated", plan.jobs, "enqueued", totals["enqueued"]),
        Check("ended", "enqueued", totals["enqueued"], "completed or dead", totals["completed"] + totals["dead"]),
        Check("left over", "jobs wait or run", sum(line.standing for line in lines), "expected", 0),
        Check("law of the totals", "jobs unaccounted for", sum(abs(line.missing) for line in lines), "expected", 0),
        Check("morgue", "jobs listed", len(dead), "counted dead", totals["dead"]),
    ]


def outside_checks(plan: Plan, lines: tuple[Line, ...], folder: Path, seen: Seen) -> list[Check]:
    """Whether the store agrees with the table, the server, and the log that attempts sign."""
    of = {line.kind.name: line for line in lines}
    rows, cents = _table(folder)
    signed = _signed(folder)
    return [
        Check("import", "rows in SQLite", rows, "jobs completed", of["import"].totals["completed"]),
        Check("import", "cents in SQLite", cents, "in the CSV", sum(row[2] for row in plan.rows)),
        Check(
            "webhooks", "events accepted by the server", len(seen.accepted), "done", of["webhooks"].totals["completed"]
        ),
        Check("webhooks", "refused by the server", seen.refused, "retried", of["webhooks"].totals["retried"]),
        Check("webhooks", "requests at the server", seen.requests, "attempts", of["webhooks"].attempts),
        *(Check(name, "attempts signed", signed[name], "settled", line.attempts) for name, line in of.items()),
        Check(
            "crashing",
            "attempts killed their worker",
            signed["crashing"] - of["crashing"].totals["completed"],
            "crashes counted",
            of["crashing"].totals["crashed"],
        ),
    ]


def _table(folder: Path) -> tuple[int, int]:
    """Rows, and the sum of their cents."""
    with closing(sqlite3.connect(folder / TABLE)) as table:
        rows, cents = table.execute("SELECT count(*), coalesce(sum(cents), 0) FROM rows").fetchone()
    return rows, cents


def _signed(folder: Path) -> Counter[str]:
    """Attempts by kind, as they signed when they began."""
    try:
        with open(folder / ATTEMPTS, encoding="ascii") as file:
            return Counter(line.split(" ", 1)[0] for line in file)
    except FileNotFoundError:
        return Counter()
