"""`batchq export`: jobs as lines that `batchq import --envelope` takes again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from batchq.cli.endings import flush, say
from batchq.cli.filters import Chosen, takes_filter
from batchq.cli.output import json_line
from batchq.cli.params import STATES, reach, reaches_store, takes_limit

if TYPE_CHECKING:
    from batchq.job import Job


@click.command("export")
@click.option("-s", "--state", type=click.Choice(STATES), required=True, help="Those in this state.")
@takes_filter
@takes_limit(0)
@click.option("--format", "format_", type=click.Choice(["ndjson"]), default="ndjson", help="One object a line.")
@reaches_store
def export(state: str, chosen: Chosen, limit: int, format_: str, url: str | None, prefix: str | None) -> None:
    """Write the jobs of one state to stdout, a line of JSON each, with their errors.

    `batchq import --envelope` makes jobs of these lines again: under the same ids, so that one which still stands, or
    ended a short while ago, is a duplicate; with --new-ids under ids of their own. Nothing is removed here; see
    `batchq purge`.

    \b
    batchq export --state dead --job deliver > dead.ndjson
    """
    count = 0
    with reach(url, prefix, only_look=True) as app:
        chosen.note_unknown(app)
        for one in app.jobs(state=state, queue=chosen.queue, chosen=chosen.what, limit=limit or None):
            json_line(envelope(one), indent=False)
            count += 1
    flush()
    say(f"batchq: {count} jobs")


def envelope(job: Job) -> dict[str, Any]:
    """A job as one line: what makes it that job, then how it went."""
    own = {"max_attempts": job.max_attempts, "timeout": job.timeout_ms, "keep": job.keep_ms}
    return job.as_dict() | {name: value for name, value in own.items() if value is not None}
