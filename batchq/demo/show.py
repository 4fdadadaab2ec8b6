"""Prints the summary: one table and what was checked for people, one object for programs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from batchq.cli.endings import say
from batchq.cli.output import Column, Table, json_line, write
from batchq.demo.place import Place
from batchq.demo.summary import SHOWN, Summary


def as_json(found: Summary, place: Place) -> None:
    """One object. `ok` is what the exit code says."""
    json_line(
        {
            "ok": found.ok,
            "seed": found.seed,
            "store": place.shown,
            "kept": place.kept,
            "enqueue_s": round(found.enqueue_s, 3),
            "drain_s": round(found.ended.seconds, 3),
            "jobs_per_s": round(found.jobs_per_s, 1),
            "kinds": {line.kind.name: _kind(line.totals) for line in found.lines},
            "total": found.total,
            "unaccounted": sum(abs(line.missing) for line in found.lines),
            "checks": [check._asdict() | {"ok": check.ok} for check in found.checks],
            "webhooks_repeated": found.repeated,
            "reasons": found.reasons,
            "late_ms": {"median": found.late_median_ms, "max": max(found.late_ms, default=None)},
            "faults": found.faults,
        }
    )
    if found.ended.log:
        say(found.ended.log)


def _kind(totals: dict[str, int]) -> dict[str, Any]:
    return {name: totals[name] for name in SHOWN}


def for_people(found: Summary, place: Place) -> None:
    """The table, the checks, and where to look next."""
    write("\n")
    table = Table(Column("kind"), Column("jobs that"), *(Column(name, right=True) for name in SHOWN))
    table.page(
        [
            *((line.kind.name, line.kind.what, *(f"{line.totals[name]:,}" for name in SHOWN)) for line in found.lines),
            ("all", "", *(f"{found.total[name]:,}" for name in SHOWN)),
        ]
    )
    write("\n" + "\n".join(_told(found)) + "\n\n")
    for check in found.checks:
        write(f"{'ok   ' if check.ok else 'FAULT'} {check}\n")
    write("\n")
    if found.ok:
        write("All of it adds up.\n")
    else:
        say("\n".join(["batchq demo: this does not add up:", *(f"  {fault}" for fault in found.faults)]))
        if found.ended.log:
            say(f"The workers' last words:\n{found.ended.log}")
    write("\n" + "\n".join(_next(place)) + "\n")


def _told(found: Summary) -> Iterator[str]:
    yield (
        f"{found.ended_jobs:,} jobs in {found.ended.seconds:.1f} s, {found.jobs_per_s:,.0f} a second,"
        " waits for retries and delays included."
    )
    if found.reasons:
        yield f"In the morgue: {', '.join(f'{count} {reason}' for reason, count in found.reasons.items())}."
    if found.late_median_ms is not None:
        yield f"Delayed jobs began {found.late_median_ms:.0f} ms late in the median, {max(found.late_ms)} ms at most."
    if found.repeated:
        yield f"{found.repeated} webhooks were accepted twice: at least once is the promise."


def _next(place: Place) -> Iterator[str]:
    if place.kept is None:
        yield "Next: `batchq demo --keep` leaves the store to look at; `batchq start --help` is for an app of your own."
        return
    yield "The store is kept. Look around in it:"
    yield f"  cd {place.kept}"
    settings = sorted(name for name in os.environ if name.startswith("BATCHQ_") and not name.startswith("BATCHQ__"))
    if settings:
        yield f"  unset {' '.join(settings)}"
    yield "  batchq status"
    yield "  batchq jobs --state dead"
    yield "  batchq show ID"
    yield "  batchq requeue --all && batchq start --burst"
    yield f"  rm -r {place.kept}" + (f"    # and the keys {place.prefix}:* in Redis" if place.on_redis else "")
