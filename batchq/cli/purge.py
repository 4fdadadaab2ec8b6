"""`batchq purge`: removing jobs for good."""

from __future__ import annotations

from datetime import timedelta

import click

from batchq.cli.output import json_line, span, write
from batchq.cli.params import (
    confirm,
    note_unknown_queue,
    reach,
    reaches_store,
    span_ms,
    takes_json,
    takes_queue,
    takes_yes,
)

#: What can be purged; active jobs are cancelled instead.
PURGED = ("dead", "completed", "pending", "delayed")


@click.command("purge")
@click.option("-s", "--state", type=click.Choice(PURGED), required=True, help="Those in this state.")
@click.option("--older-than", "age_ms", type=span_ms, metavar="DURATION", help="Only those older than 7d, 12h, 30m ...")
@click.option("--job", metavar="NAME", help="Only those of this handler.")
@takes_queue
@takes_yes
@takes_json
@reaches_store
def purge(
    state: str,
    age_ms: int | None,
    job: str | None,
    queue: str | None,
    yes: bool,
    as_json: bool,
    url: str | None,
    prefix: str | None,
) -> None:
    """Remove the jobs of one state, and print how many they were.

    The age of dead jobs counts from their death, that of others from their enqueue. On a terminal it asks first.
    """
    with reach(url, prefix) as app:
        note_unknown_queue(app, queue)
        of = f" of {job}" if job else ""
        older = f" older than {span(age_ms)}" if age_ms else ""
        confirm(f"Remove the {state} jobs{of} in {f'queue {queue}' if queue else 'all queues'}{older}?", yes)
        gone = app.purge(state=state, older_than=timedelta(milliseconds=age_ms or 0), job=job, queue=queue)
    if as_json:
        json_line({"purged": gone})
    else:
        write(f"purged {gone}\n")
