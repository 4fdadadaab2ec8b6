"""Table and plot of what was measured, and their places in the documents. Measures nothing."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import plot
from peers.systems import IN_FILES, OURS

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
TABLE, PLOT = RESULTS / "peers.md", ROOT / "docs" / "peers.svg"
README = ROOT / "README.md"
_SECTION = re.compile(r"(<!-- peers: made by benchmarks/compare.py -->\n).*(<!-- /peers -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Figure:
    """One column."""

    name: str
    question: str
    head: str
    #: Decimals that are shown.
    digits: int = 0
    more_is_better: bool = False


FIGURES = (
    Figure("drain_per_s", "drain", "worked off, jobs/s", more_is_better=True),
    Figure("one_per_s", "one", "enqueued one by one, /s", more_is_better=True),
    Figure("many_per_s", "drain", "enqueued in bulk, /s", more_is_better=True),
    Figure("retry_per_s", "retry", "failing once, jobs/s", more_is_better=True),
    Figure("pickup_p50_ms", "times", "picked up after, p50 ms", 1),
    Figure("pickup_p99_ms", "times", "picked up after, p99 ms", 1),
    Figure("late_p50_ms", "times", "delayed: late by, p50 ms", 1),
    Figure("late_p99_ms", "times", "delayed: late by, p99 ms", 1),
    Figure("bytes_a_job", "drain", "Redis bytes a pending job"),
    Figure("redis_us", "drain", "Redis CPU us a job"),
    Figure("workers_us", "drain", "worker CPU us a job"),
    Figure("heavy", "heavy", "20 ms CPU jobs: time / ideal", 2),
    Figure("idle_mib", "idle", "8 idle workers, MiB"),
)


#: A run meanwhile which other processes used more of a core says little about times and rates.
QUIET_PCT = 30.0
DISQUIET = f"Runs while they used more than {QUIET_PCT:.0f} % are left out; in parentheses: there was no other"


def median(result: dict[str, Any], system: str, figure: Figure) -> float | None:
    """Of the quiet runs; of all where none was quiet (`is_sure` tells). None where there is no figure."""
    runs = [run for run in result["runs"].get(system, {}).get(figure.question, []) if figure.name in run]
    found = [run[figure.name] for run in runs if is_quiet(run)] or [run[figure.name] for run in runs]
    return statistics.median(found) if found else None


def is_quiet(run: dict[str, Any]) -> bool:
    return bool(run.get("others_pct", 0.0) <= QUIET_PCT)


def is_sure(result: dict[str, Any], system: str, figure: Figure) -> bool:
    """Memory does not depend on who else uses the processors; all else is sure where one run was quiet."""
    runs = [run for run in result["runs"].get(system, {}).get(figure.question, []) if figure.name in run]
    return figure.name in ("idle_mib", "bytes_a_job") or any(map(is_quiet, runs))


def column(result: dict[str, Any], figure: Figure) -> dict[str, float]:
    """System -> median, where there is one."""
    found = {name: median(result, name, figure) for name in result["runs"]}
    return {name: value for name, value in found.items() if value is not None}


def label(system: str) -> str:
    return {
        "batchq_spool": "batchq, spool",
        "batchq_spool_unsynced": "batchq, spool not synced",
        "bullmq_node": "BullMQ (Node)",
        "bullmq": "BullMQ (Python)",
        "huey_sqlite": "huey, SQLite",
        "huey_sqlite_unsynced": "huey, SQLite not synced",
    }.get(system, system)


#: What the README has room for.
SHORT = (
    "drain_per_s",
    "one_per_s",
    "many_per_s",
    "retry_per_s",
    "pickup_p99_ms",
    "late_p99_ms",
    "bytes_a_job",
    "idle_mib",
)


def table(result: dict[str, Any], names: tuple[str, ...] = ()) -> str:
    """Markdown: a row a system; the best of each column is bold, what was measured in disquiet alone stands in
    parentheses. `names`: these figures only."""
    shown = [figure for figure in FIGURES if column(result, figure) and (not names or figure.name in names)]
    lines = ["| | " + " | ".join(figure.head for figure in shown) + " |", "|---" * (len(shown) + 1) + "|"]
    best = {}
    for figure in shown:
        found = [v for name, v in column(result, figure).items() if v >= 0 and is_sure(result, name, figure)]
        best[figure.name] = (max if figure.more_is_better else min)(found, default=None)
    for system in result["runs"]:
        cells = []
        for figure in shown:
            value = median(result, system, figure)
            text = "-" if value is None else f"{value:,.{figure.digits}f}"
            if value is not None and not is_sure(result, system, figure):
                cells.append(f"({text})")
            else:
                cells.append(f"**{text}**" if value == best[figure.name] else text)
        lines.append(f"| {label(system)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ratios(result: dict[str, Any]) -> str:
    """Markdown: batchq on Redis against the best of the others, figure by figure; its spools against those in files."""
    lines = ["| | batchq | the best other | batchq is |", "|---|---|---|---|"]
    for figure in FIGURES:
        found = column(result, figure)
        found = {name: value for name, value in found.items() if is_sure(result, name, figure)}
        pairs = [("batchq", [name for name, value in found.items() if name not in OURS + IN_FILES and value > 0])]
        if figure.name == "drain_per_s":
            pairs += [(ours, [theirs]) for ours, theirs in zip(OURS[1:], IN_FILES, strict=True)]
        for ours, others in pairs:
            others = [name for name in others if name in found]
            if ours not in found or not others:
                continue
            best = (max if figure.more_is_better else min)(others, key=found.__getitem__)
            mine, theirs = (f"{found[name]:,.{figure.digits}f}" for name in (ours, best))
            head = figure.head if ours == "batchq" else f"{figure.head}, {label(ours).partition(', ')[2]}"
            lines.append(f"| {head} | {mine} | {theirs} ({label(best)}) | {found[ours] / found[best]:.2f} times |")
    return "\n".join(lines)


def origin(result: dict[str, Any]) -> str:
    """Where and when."""
    return (
        f"{result['date']}, {result['machine']}, Python {result['python']}, {result['server']}; "
        f"median of {result['rounds']} round{'s' * (result['rounds'] != 1)}{_again(result)}"
    )


def _again(result: dict[str, Any]) -> str:
    """What was measured at another time than the rest."""
    told = []
    for one in result.get("again", ()):
        whose = "all" if set(one["systems"]) == set(result["systems"]) else " and ".join(map(label, one["systems"]))
        told.append(f"; {', '.join(one['asked'])} of {whose} later ({one['date']})")
    return "".join(told)


def details(result: dict[str, Any]) -> str:
    """What was run, and how."""
    lines = []
    for name, told in result["systems"].items():
        versions = ", ".join(f"{package} {version}" for package, version in told.get("versions", {}).items())
        by: dict[str, list[str]] = {}
        for question, configuration in told["asked"].items():
            by.setdefault(told["about"][configuration], []).append(question)
        how = "; ".join(f"{about} ({', '.join(asked)})" if len(by) > 1 else about for about, asked in by.items())
        lines.append(f"- **{label(name)}**{f' ({versions})' if versions else ''}: {how}. {told['note']}")
        if "left_out" in told:
            lines[-1] = f"- **{label(name)}**: left out: {told['left_out']}"
        errors = {run["error"] for runs in result["runs"].get(name, {}).values() for run in runs if "error" in run}
        lines += [f"  - {' '.join(error.split())[:200]}" for error in sorted(errors)]
    return "\n".join(lines)


def used_by_others(result: dict[str, Any]) -> str:
    used = [run.get("others_pct") for asked in result["runs"].values() for runs in asked.values() for run in runs]
    found = [value for value in used if value is not None]
    if not found:
        return ""
    return f"Other processes used {statistics.median(found):.0f} % of a core (median), {max(found):.0f} % at most."


def publish(result: dict[str, Any]) -> None:
    """Writes table and plot, and the section of the README."""
    TABLE.parent.mkdir(exist_ok=True)
    head = f"# batchq beside other job queues\n\n{origin(result)}. {used_by_others(result)} {DISQUIET}.\n"
    note = "Two workers, but for the idle ones; about 100 bytes of JSON a job; Redis saves nothing.\n"
    TABLE.write_text(f"{head}{note}\n{table(result)}\n\n{ratios(result)}\n\n{details(result)}\n")
    title = origin(result).removesuffix(_again(result))
    PLOT.write_text(plot.panels(_panels(result), f"batchq beside other job queues: {title}"))
    picture = f"![bars of the table below](docs/{PLOT.name})"
    said = f"{origin(result)}. {used_by_others(result)} {DISQUIET}."
    section = f"\n{picture}\n\n{table(result, SHORT)}\n\n{said}\n\n"
    README.write_text(_SECTION.sub(lambda found: found[1] + section + found[2], README.read_text()))


def _panels(result: dict[str, Any]) -> list[plot.Panel]:
    chosen = {
        "drain_per_s": "jobs/s worked off by 2 workers",
        "many_per_s": "jobs/s enqueued in bulk by 1 producer",
        "pickup_p99_ms": "ms until an idle worker begins, p99",
        "late_p99_ms": "ms that delayed jobs are late, p99",
        "bytes_a_job": "Redis bytes a pending job",
        "idle_mib": "MiB of 8 idle workers",
    }
    made = []
    for figure in FIGURES:
        if figure.name in chosen:
            # Jobs that ran early are not late by less than nothing.
            found = {name: value for name, value in column(result, figure).items() if value >= 0}
            ranked = sorted(found.items(), key=lambda item: item[1], reverse=figure.more_is_better)
            bars = [plot.Bar(label(name), value, name.startswith("batchq")) for name, value in ranked]
            made.append(plot.Panel(chosen[figure.name], bars, figure.digits))
    return made
