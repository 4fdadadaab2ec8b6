"""`batchq status` and `batchq workers`: what is there, at a glance and again and again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click

from batchq.cli.control import local_status, takes_pid_file
from batchq.cli.endings import NO_STORE, complain, flush, say
from batchq.cli.output import Column, Table, fields, json_line, named, on_terminal, span, write, write_whole_frames
from batchq.cli.params import reach, reaches_store, span_ms, takes_json
from batchq.errors import StoreUnavailable

#: Totals whose growth a second is shown while watching.
RATES = (("IN/S", "enqueued"), ("DONE/S", "completed"))


def interval_ms(text: str) -> int:
    """Reads how often to look: not so often that looking is a load of its own."""
    return max(100, span_ms(text))


@click.command("status")
@takes_json
@click.option("-w", "--watch", is_flag=True, help="Again and again, with rates, until Ctrl-C.")
@click.option("--every", "every_ms", type=interval_ms, default="2s", show_default=True, help="How often, with --watch.")
@takes_pid_file
@reaches_store
def status(as_json: bool, watch: bool, every_ms: int, pid_file: str | None, url: str | None, prefix: str | None) -> int:
    """Show how many jobs stand where, what the workers do, and whether the store is up.

    DONE counts since the queue began, the other columns jobs in that state now; KEPT are completed ones. LAG is how
    long the oldest pending job has been ready. With --json one object, with --watch one a line.

    Exit code 4 if the store can't be reached; then the workers shown are those of this host, where a pid file is
    named.

    \b
    batchq status --watch
    batchq status --json
    """
    with reach(url, prefix, only_look=True, brief=True) as app:

        def look() -> dict[str, Any]:
            stats = app.stats()
            here = None if stats["store"]["up"] else local_status(pid_file)
            return stats if here is None else stats | {"workers": here["workers"]}

        if not watch:
            return _show(look(), None, as_json=as_json)
        before: tuple[float, dict[str, Any]] | None = None
        write_whole_frames()
        while True:
            now, found = time.monotonic(), look()
            if on_terminal() and not as_json:
                # Home, and clear to the end: no flicker, and the scroll-back stays.
                write("\x1b[H\x1b[2J")
            # A frame that is longer than the screen would scroll.
            rows = shutil.get_terminal_size().lines - 1 if on_terminal() else None
            _show(found, _rates(before, now, found), as_json=as_json, rows=rows)
            flush()
            before = (now, found)
            time.sleep(every_ms / 1000)


def _rates(
    before: tuple[float, dict[str, Any]] | None, now: float, found: dict[str, Any]
) -> dict[str, dict[str, float]]:
    """What each total of a queue grew by a second since the look before."""
    if before is None:
        return {}
    then, old = before
    return {
        name: {
            total: (count - old["queues"][name]["totals"][total]) / (now - then)
            for total, count in queue["totals"].items()
        }
        for name, queue in found["queues"].items()
        if name in old["queues"]
    }


def _show(
    stats: dict[str, Any], rates: dict[str, dict[str, float]] | None, *, as_json: bool, rows: int | None = None
) -> int:
    """Prints it, on so many lines at most; answers the exit code."""
    store = stats["store"]
    if as_json:
        json_line(stats)
    elif store["up"]:
        _print(stats, rates, rows)
    elif stats["workers"]:
        fields([("workers", f"{_workers_line(stats['workers'])} (this host's, by its control socket)")])
    if not store["up"]:
        complain(str(store.get("error") or f"{store['url']}: can't be reached"))
        return NO_STORE
    return 0


def _print(stats: dict[str, Any], rates: dict[str, dict[str, float]] | None, rows: int | None) -> None:
    store, spool = stats["store"], stats["spool"]
    facts = [("store", f"{store['url']}  {named(store['kind'], store['version'])}")]
    if store["kind"] != "spool" or any(spool[name] for name in ("files", "bad")):
        facts.append(("spool", f"{spool['path']}  {spool['files']} files, {spool['jobs']} jobs, {spool['bad']} bad"))
    facts.append(("workers", _workers_line(stats["workers"])))
    fields(facts)
    if not stats["queues"]:
        write("\nNo queue yet: nothing was ever enqueued.\n")
        return
    write("\n")
    titles = ["PENDING", "DELAYED", "ACTIVE", "DEAD", "KEPT", "DONE", "LAG"]
    titles += [title for title, _ in RATES] if rates is not None else []
    numbers = (Column(title, right=True, spare=1 if title == "KEPT" else 0) for title in titles)
    table = Table(Column("QUEUE", least=16), *numbers, Column(""))
    queues = list(stats["queues"].items())
    # Without the facts, a blank line and the titles.
    room = len(queues) if rows is None else max(1, rows - len(facts) - 2)
    shown = queues if len(queues) <= room else queues[: room - 1]
    table.page(_queue_row(name, queue, rates) for name, queue in shown)
    if len(shown) < len(queues):
        write(f"... and {len(queues) - len(shown)} more queues\n")


def _queue_row(name: str, queue: dict[str, Any], rates: dict[str, dict[str, float]] | None) -> Sequence[str]:
    counts, totals = queue["counts"], queue["totals"]
    row = [name, *(str(counts[state]) for state in ("pending", "delayed", "active", "dead", "completed"))]
    row += [str(totals["completed"]), span(queue["oldest_pending_age_ms"]) if counts["pending"] else "-"]
    if rates is not None:
        row += [f"{rates[name][total]:.1f}" if name in rates else "-" for _, total in RATES]
    circuits = len(queue.get("circuits", ()))
    remarks = ["paused"] if queue["paused"] else []
    if circuits:
        remarks.append(f"{circuits} circuit{'s' if circuits > 1 else ''} open: batchq gates")
    return [*row, ", ".join(remarks)]


def _workers_line(workers: Sequence[dict[str, Any]]) -> str:
    if not workers:
        return "none"
    states = [str(worker.get("state", "?")) for worker in workers]
    hosts = len({worker.get("host") for worker in workers})
    each = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
    return f"{len(workers)} on {hosts} host{'s' if hosts > 1 else ''}: {each}"


@click.command("workers")
@takes_json
@takes_pid_file
@reaches_store
def workers(as_json: bool, pid_file: str | None, url: str | None, prefix: str | None) -> None:
    """List the workers of all masters, and what each one runs. With --json one object a line.

    The one whose job runs longest comes first. While the store is away: those of this host, where a pid file is named.

    \b
    batchq workers                        what is slow now
    """
    with reach(url, prefix, only_look=True, brief=True) as app:
        try:
            masters = app.store.masters()
        except StoreUnavailable as error:
            here = local_status(pid_file)
            if here is None:
                raise
            say(f"batchq: {error} These are the workers of this host, by its control socket")
            masters = [here]
    found = longest_first(worker for master in masters for worker in master.get("workers", []))
    if as_json:
        for worker in found:
            json_line(worker, indent=False)
    elif found:
        table = Table(
            # Host and pid say as much.
            Column("ID", whole=True, spare=1),
            Column("HOST"),
            Column("PID", right=True),
            Column("STATE", whole=True),
            Column("QUEUE", spare=2),
            Column("HANDLER"),
            Column("JOB", whole=True),
            Column("RUNNING", right=True),
            Column("MEMORY", right=True, spare=3),
        )
        table.page(_worker_row(worker) for worker in found)
    flush()
    if not found:
        say(f"batchq: {'no worker has started yet' if masters else 'no master is running on this store'}")


def longest_first(workers: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The worker whose job runs longest, then the others, then those without a job."""
    return sorted(workers, key=lambda one: (not one.get("job"), -(one.get("running_ms") or 0), str(one.get("id"))))


def _worker_row(worker: dict[str, Any]) -> Sequence[str]:
    row = [
        str(worker[name]) if worker.get(name) else "-"
        for name in ("id", "host", "pid", "state", "queue", "handler", "job")
    ]
    running = span(worker["running_ms"]) if worker.get("job") and worker.get("running_ms") is not None else "-"
    memory = f"{worker['rss'] / (1 << 20):.0f}MiB" if worker.get("rss") else "-"
    return [*row, running, memory]
