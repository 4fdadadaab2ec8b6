"""`batchq export`: jobs as lines that `batchq import --envelope` takes again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from batchq.cli.endings import flush, say
from batchq.cli.output import json_line
from batchq.cli.params import STATES, note_unknown_queue, reach, reaches_store, takes_queue, whole

if TYPE_CHECKING:
    from batchq.job import Job


@click.command("export")
@click.option("-s", "--state", type=click.Choice(STATES), required=True, help="Those in this state.")
@takes_queue
@click.option("--job", metavar="NAME", help="Those of this handler only.")
@click.option(
    "-n", "--limit", type=whole(0, 2**31 - 1), default="0", metavar="N", help="At most so many.  [default: all]"
)
@click.option("--format", "format_", type=click.Choice(["ndjson"]), default="ndjson", help="One object a line.")
@reaches_store
def export(
    state: str, queue: str | None, job: str | None, limit: int, format_: str, url: str | None, prefix: str | None
) -> None:
    """Write the jobs of one state to stdout, a line of JSON each, with their errors.

    `batchq import --envelope` makes jobs of these lines again: under the same ids, so that one which still stands, or
    ended a short while ago, is a duplicate; with --new-ids under ids of their own. Nothing is removed here; see
    `batchq purge`.
    """
    count = 0
    with reach(url, prefix) as app:
        note_unknown_queue(app, queue)
        for one in app.jobs(state=state, queue=queue, job=job, limit=limit or None):
            json_line(envelope(one), indent=False)
            count += 1
    flush()
    say(f"batchq: {count} jobs")


def envelope(job: Job) -> dict[str, Any]:
    """A job as one line: what makes it that job, then how it went."""
    out = job.as_dict()
    if job.max_attempts is not None:
        out["max_attempts"] = job.max_attempts
    return out
