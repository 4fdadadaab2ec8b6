"""`batchq top`: the live view."""

from __future__ import annotations

import sys

import click

from batchq.cli.control import local_status, takes_pid_file
from batchq.cli.endings import ended_by_sigterm
from batchq.cli.output import on_terminal
from batchq.cli.params import reach, reaches_store
from batchq.cli.status import interval_ms


@click.command("top")
@click.option("--every", "every_ms", type=interval_ms, default="1s", show_default=True, help="How often to look.")
@takes_pid_file
@reaches_store
def top(every_ms: int, pid_file: str | None, url: str | None, prefix: str | None) -> None:
    """Watch queues, workers and throughput on one screen; pause queues, look at the dead, requeue or delete them.

    Workers that have run longest stand first: what is slow now. It sends the store less than 20 commands a second; with
    many queues each is looked at a little less often. While the store is away, the workers of this host are shown by
    the control socket, where a pid file is named.

    \b
    batchq top
    batchq top --url redis://127.0.0.1:6379/0 --every 2s
    """
    if not on_terminal() or not sys.stdin.isatty():
        raise click.UsageError("top needs a terminal; `batchq status --watch` does not", click.get_current_context())
    from batchq.top.screen import run

    with ended_by_sigterm(), reach(url, prefix, only_look=True, brief=True) as app:
        run(app, every_s=every_ms / 1000, local=lambda: local_status(pid_file))
