"""`batchq dead`: the morgue, put together by what the jobs died of."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

import click

from batchq.cli.endings import flush, say
from batchq.cli.filters import Chosen, takes_filter
from batchq.cli.output import Column, Table, json_line, shorten, span
from batchq.cli.params import reach, reaches_store, takes_json, takes_limit

if TYPE_CHECKING:
    from batchq.app import App
    from batchq.job import Job
    from batchq.selection import Group

#: What is named before its count: see `Group`.
_COLUMNS = {
    "error": ("HANDLER", "QUEUE", "ERROR", "HOSTS", "LAST", "GROUP"),
    "job": ("HANDLER", "LATEST ERROR", "HOSTS", "LAST"),
    "queue": ("QUEUE", "LATEST ERROR", "HOSTS", "LAST"),
    "host": ("HOST", "LATEST ERROR", "LAST"),
}

#: Those that are more than a text which is cut.
_SHAPED = {
    one.title: one
    for one in (
        Column("ERROR", least=30),
        Column("LATEST ERROR", least=30),
        Column("HOSTS", spare=1),
        Column("LAST", whole=True),
        Column("GROUP", whole=True),
    )
}


@click.command("dead")
@click.option(
    "--by", type=click.Choice(list(_COLUMNS)), default="error", show_default=True, help="What puts them together."
)
@click.option("--retrying", is_flag=True, help="Also jobs that failed and will be tried again.")
@takes_filter
@takes_limit(20, "At most so many groups; 0 for all.")
@takes_json
@reaches_store
def dead(
    by: str, retrying: bool, chosen: Chosen, limit: int, as_json: bool, url: str | None, prefix: str | None
) -> None:
    """Show what jobs died of: how many of which handler by which error, the most frequent first.

    Errors that differ in numbers and ids only are one group. GROUP is its name for `requeue`, `purge`, `jobs` and
    `export`. With --json one object a line.

    \b
    batchq dead                          which handler fails most, and how
    batchq dead --by host --since 1h     which host
    batchq dead --retrying               also what is still being tried
    batchq requeue --group 3f2a91bc      send one group back
    batchq purge -s dead --group 3f2a91bc
    """
    from batchq.selection import group

    with reach(url, prefix, only_look=True) as app:
        chosen.note_unknown(app)
        now_ms = app.store.now_ms()
        groups = group(_failed(app, chosen, retrying), by)
    shown = groups[:limit] if limit else groups
    if as_json:
        for one in shown:
            json_line(one.as_dict(), indent=False)
    elif shown:
        numbers = ("COUNT", *(("DEAD",) if retrying else ()))
        table = Table(
            *(Column(title, right=True) for title in numbers),
            *(_SHAPED.get(title, Column(title)) for title in _COLUMNS[by]),
        )
        table.page(_row(one, by, now_ms, retrying=retrying) for one in shown)
    flush()
    if len(shown) < len(groups):
        say(f"batchq: {len(groups) - len(shown)} more groups; --limit 0 shows all")
    if not groups:
        say(f"batchq: no dead job{' or retry' if retrying else ''}{chosen}")


def _failed(app: App, chosen: Chosen, retrying: bool) -> Iterator[Job]:
    found: Iterator[Job] = app.jobs(state="dead", queue=chosen.queue, chosen=chosen.what)
    if not retrying:
        return found
    # A retry waits, is ready or runs again: what has an error failed.
    states = ("delayed", "pending", "active")
    lists = (app.jobs(state=state, queue=chosen.queue, chosen=chosen.what) for state in states)
    return chain(found, (job for one in lists for job in one))


def _row(one: Group, by: str, now_ms: int, *, retrying: bool) -> tuple[str, ...]:
    error = shorten(one.shown, 90)
    cells = {
        "HANDLER": one.job,
        "QUEUE": one.queue,
        "HOST": one.host or "-",
        "ERROR": error,
        "LATEST ERROR": error,
        "HOSTS": _hosts(one),
        "LAST": f"{span(now_ms - one.last_ms)} ago",
        "GROUP": one.id,
    }
    counts = (f"{one.count:,}", *((f"{one.dead:,}",) if retrying else ()))
    return (*counts, *(cells[title] for title in _COLUMNS[by]))


def _hosts(one: Group) -> str:
    """One host by its name, more by their number."""
    return next(iter(one.hosts), "-") if len(one.hosts) < 2 else f"{len(one.hosts)} hosts"
