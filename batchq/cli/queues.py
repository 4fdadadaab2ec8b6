"""`batchq pause` and `batchq resume`: whether workers claim from a queue."""

from __future__ import annotations

import click

from batchq.cli.output import write
from batchq.cli.params import note_unknown_queue, reach, reaches_store


@click.command("pause")
@click.argument("queue", metavar="QUEUE")
@reaches_store
def pause(queue: str, url: str | None, prefix: str | None) -> None:
    """Let no worker claim from QUEUE. What runs goes on, and enqueues too, until `batchq resume`.

    \b
    batchq pause mail
    """
    with reach(url, prefix) as app:
        note_unknown_queue(app, queue)
        app.pause(queue)
    write(f"{queue}  paused\n")


@click.command("resume")
@click.argument("queue", metavar="QUEUE")
@reaches_store
def resume(queue: str, url: str | None, prefix: str | None) -> None:
    """Let workers claim from QUEUE again.

    \b
    batchq resume mail
    """
    with reach(url, prefix) as app:
        note_unknown_queue(app, queue)
        app.resume(queue)
    write(f"{queue}  resumed\n")
