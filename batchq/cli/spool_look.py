"""`batchq spool ls` and `cat`: the ledger as if it were folders, beside the folders of the inbox.

inbox/<new|work|sent|bad|tmp>/<file>
<queue>/<pending|delayed|active|dead|completed>/<id>
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from batchq.cli.endings import DONE, FAILED, complain, flush
from batchq.cli.output import Column, Table, clean, json_line, span, write
from batchq.cli.params import STATES, configured, takes_json, takes_spool

if TYPE_CHECKING:
    from batchq.job import Job
    from batchq.spool import SpoolStore

#: Jobs that are read at a time.
PAGE = 100


@click.command("ls")
@click.argument("place", metavar="[PLACE]", default="")
@takes_spool
@takes_json
def ls(place: str, path: str | None, as_json: bool) -> None:
    """List what is in a spool, or in a PLACE in it: `inbox/new`, `inbox/bad`, a queue, or `<queue>/<state>`.

    \b
    batchq spool ls
    batchq spool ls mail/dead
    batchq spool ls inbox/bad
    """
    with _looking(path) as store:
        entries = _entries(store, place.strip("/"))
        if as_json:
            for name, size, age in entries:
                json_line({"path": name, "size": size, "age": age}, indent=False)
        else:
            table = Table(Column("PATH", fold=True), Column("SIZE", right=True), Column("AGE", right=True))
            page: list[tuple[str, str, str]] = []
            for entry in entries:
                page.append(entry)
                if len(page) == PAGE:
                    table.page(page)
                    page = []
            table.page(page)
    flush()


@contextmanager
def _looking(path: str | None) -> Iterator[SpoolStore]:
    """The spool, for looking. Raises StoreUnavailable where there is none."""
    from batchq.errors import StoreUnavailable
    from batchq.spool import SpoolStore, fs

    where = path or configured()
    if not fs.is_there(fs.real_path(where)):
        raise StoreUnavailable(f"spool: {where}: expected a spool, found nothing there")
    store = SpoolStore(where, make=False)
    try:
        yield store
    finally:
        store.close()


def _entries(store: SpoolStore, place: str) -> Iterator[tuple[str, str, str]]:
    """(path, size, age) of what stands there. Raises ConfigError for a place that is none."""
    from batchq.errors import ConfigError
    from batchq.spool.hands import FOLDERS, files
    from batchq.spool.layout import Layout

    layout = Layout(store.path)
    match place.split("/") if place else []:
        case []:
            for folder in FOLDERS:
                yield f"inbox/{folder}/", f"{sum(1 for _ in files(layout, folder))} files", ""
            for queue in store.queues():
                for state, n in store.stats(queue).counts.items():
                    yield f"{queue}/{state}/", f"{n} jobs", ""
        case ["inbox"]:
            for folder in FOLDERS:
                yield from _entries(store, f"inbox/{folder}")
        case ["inbox", folder] if folder in FOLDERS:
            for file in files(layout, folder):
                yield file.path, str(file.size), span(store.now_ms() - file.modified_ms)
        case [queue] if queue in store.queues():
            for state in STATES:
                yield from _entries(store, f"{queue}/{state}")
        case [queue, state] if queue in store.queues() and state in STATES:
            for job in _jobs(store, queue, state):
                yield f"{queue}/{state}/{job.id}", job.job, span(store.now_ms() - job.enqueued_ms)
        case _:
            raise ConfigError(
                f"{place!r:.200}: no such place; write inbox/<{'|'.join(FOLDERS)}>, <queue> or "
                f"<queue>/<{'|'.join(STATES)}>"
            )


def _jobs(store: SpoolStore, queue: str, state: str) -> Iterator[Job]:
    from batchq.lifecycle import State

    cursor = ""
    while True:
        page = store.jobs(queue, State(state), cursor=cursor, limit=PAGE)
        yield from page.jobs
        cursor = page.cursor
        if not cursor:
            return


@click.command("cat")
@click.argument("places", metavar="PATH...", nargs=-1, required=True)
@takes_spool
def cat(places: tuple[str, ...], path: str | None) -> int:
    """Print files of the inbox as they are, and jobs as the lines that would make them anew.

    PATH is one that `batchq spool ls` shows, or a job's id. Exit code 1 where one is not there.

    \b
    batchq spool cat inbox/bad/019abc...-orders.json
    batchq spool cat mail/dead/01h2x...
    """
    import sys

    from batchq.admin import find_job
    from batchq.errors import SpoolError
    from batchq.spool.hands import content, parcel_line
    from batchq.spool.layout import Layout

    failed = False
    with _looking(path) as store:
        for place in places:
            if place.startswith("inbox/"):
                try:
                    data = content(Layout(store.path), place)
                except SpoolError as error:
                    failed = True
                    complain(str(error))
                    continue
            else:
                *queue, job_id = [part for part in place.split("/", 2) if part not in STATES]
                job = find_job(store, job_id, queue[0] if queue else None) if job_id.isprintable() else None
                if job is None:
                    failed = True
                    complain(f"{clean(place):.200}: no such job; `batchq spool ls` shows what there is")
                    continue
                data = parcel_line(job) + b"\n"
            write("")
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
    return FAILED if failed else DONE
