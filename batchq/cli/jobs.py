"""`batchq jobs` and `batchq show`: looking at jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from batchq.cli.endings import Failed, flush, say
from batchq.cli.filters import Chosen, takes_filter
from batchq.cli.output import Column, Table, clean, fields, json_line, shorten, span, when, write
from batchq.cli.params import STATES, reach, reaches_store, takes_json, takes_limit, takes_queue
from batchq.lifecycle import State
from batchq.selection import host_of

if TYPE_CHECKING:
    from batchq.job import Job

#: Rows of a table that are printed at a time.
PAGE = 100


@click.command("jobs")
@click.option("-s", "--state", type=click.Choice(STATES), help="Those in this state only.")
@takes_filter
@takes_limit(100)
@takes_json
@reaches_store
def jobs(state: str | None, chosen: Chosen, limit: int, as_json: bool, url: str | None, prefix: str | None) -> None:
    """List jobs: queue by queue, state by state, in the order in which they will run or have ended.

    With --json one object a line. Completed jobs are listed only while they are kept.

    \b
    batchq jobs --state dead --job deliver --error timeout --since 1h
    batchq jobs --due 1h                  what is due in the next hour
    batchq jobs --state pending -n 1      what waits longest, of each priority
    """
    if state is None and chosen.what.due_ms is not None:
        state = "delayed"
    with reach(url, prefix, only_look=True) as app:
        chosen.note_unknown(app)
        now_ms = app.store.now_ms()
        # One more than asked for tells whether there are more.
        found = app.jobs(state=state, queue=chosen.queue, chosen=chosen.what, limit=limit + 1 if limit else None)
        shown = _listed(found if limit == 0 else islice(found, limit), now_ms, as_json)
        more = limit != 0 and next(found, None) is not None
    flush()
    if more:
        say(f"batchq: there are more than {limit}; --limit 0 lists all")
    elif not shown:
        say(f"batchq: no {f'{state} ' if state else ''}job{chosen}")


def _listed(found: Iterable[Job], now_ms: int, as_json: bool) -> int:
    """Prints them and answers how many they were."""
    count = 0
    if as_json:
        for one in found:
            json_line(one.as_dict(), indent=False)
            count += 1
        return count
    table = Table(
        Column("ID", whole=True),
        Column("QUEUE"),
        Column("JOB"),
        Column("STATE", whole=True),
        Column("ATTEMPT", right=True, spare=3),
        Column("PRI", right=True, spare=1),
        Column("AGE", right=True, spare=2),
        Column("SINCE", least=24),
    )
    for page in _pages(iter(found)):
        table.page(_row(one, now_ms) for one in page)
        count += len(page)
    return count


def _pages(found: Iterator[Job]) -> Iterator[list[Job]]:
    while page := list(islice(found, PAGE)):
        yield page


def _row(job: Job, now_ms: int) -> tuple[str, ...]:
    age = span(now_ms - job.enqueued_ms)
    return (job.id, job.queue, job.job, job.state, str(job.attempt), str(job.priority), age, _standing(job, now_ms))


def _standing(job: Job, now_ms: int) -> str:
    """What a state has to say for itself, in a few words."""
    error = shorten(str(job.errors[0].get("error", "")), 60) if job.errors else ""
    match job.state:
        case "delayed":
            due = job.since_ms - now_ms
            return (f"in {span(due)}" if due > 0 else "due") + (f", after {error}" if error else "")
        case "dead":
            return f"{span(now_ms - job.since_ms)} ago, {job.reason}" + (f": {error}" if error else "")
        case "active":
            return f"{job.worker}{', cancelled' if job.cancel else ''}"
        case "completed":
            return f"kept for {span(job.since_ms - now_ms)}"
        case _:
            return error


@click.command("show")
@click.argument("job_id", metavar="ID")
@takes_queue
@takes_json
@reaches_store
def show(job_id: str, queue: str | None, as_json: bool, url: str | None, prefix: str | None) -> None:
    """Show the job ID: its arguments, the attempts that failed (the last five), and the newest error in full.

    \b
    batchq show 01h2x...           why did it die
    batchq show 01h2x... --json    all that is known, older tracebacks too
    """
    with reach(url, prefix, only_look=True) as app:
        job = app.get(job_id, queue) if job_id.isprintable() else None
    if job is None:
        where = f"queue {queue}" if queue else "any queue"
        say(
            f"batchq: error: job {clean(job_id):.200}: not in {where}; it was completed (and not kept), cancelled,"
            " purged, or never enqueued"
        )
        raise Failed
    if as_json:
        json_line(job.as_dict())
        return
    fields(_facts(job.as_dict()))
    if job.errors:
        write("\n")
        _print_history(job)
        write("\n")
        _print_error(job.errors[0])


#: What `show` leaves to others, or says in another way.
_ELSEWHERE = ("errors", "error")


def _facts(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    from batchq.jsons import orjson

    for name, value in facts.items():
        if name in _ELSEWHERE:
            continue
        if name.endswith("_ms") and isinstance(value, int):
            yield name.removesuffix("_ms"), when(value)
        elif isinstance(value, str):
            yield name, value
        else:
            yield name, orjson.dumps(value).decode()


def _print_history(job: Job) -> None:
    """The attempts that failed, the oldest first: as many as the job keeps."""
    table = Table(
        Column("ATTEMPT", right=True),
        Column("BEGAN", whole=True),
        Column("TOOK", right=True),
        Column("HOST", spare=2),
        Column("PID", right=True, spare=1),
        Column("NEXT"),
        Column("ERROR", least=30),
    )
    over = job.errors[0] if job.state is State.DEAD else None
    table.page(_attempt(entry, last=entry is over) for entry in reversed(job.errors))


def _attempt(entry: dict[str, Any], *, last: bool) -> tuple[str, ...]:
    began, ended, delay = (entry.get(name) for name in ("started_ms", "at_ms", "delay_ms"))
    worker = str(entry.get("worker", ""))
    at = began or ended
    took = span(ended - began, tenths=True) if isinstance(began, int) and isinstance(ended, int) else "-"
    return (
        str(entry.get("attempt", "?")),
        # The zone stands with the other times above.
        when(at)[:19] if isinstance(at, int) else "-",
        took,
        host_of(worker) or "-",
        worker.rsplit(".", 2)[1] if worker.count(".") >= 3 else "-",
        f"{span(delay, tenths=True)} later" if isinstance(delay, int) and not last else "-",
        shorten(f"{entry.get('kind', 'Error')}: {entry.get('error', '')}", 80),
    )


def _print_error(entry: dict[str, Any]) -> None:
    text = f"{entry.get('kind', 'Error')}: {entry.get('error', '')}"
    trace = str(entry.get("trace", "")).rstrip()
    # A trace ends with the error itself.
    for line in (trace or text).splitlines():
        write(f"{clean(line)}\n")
