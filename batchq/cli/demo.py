"""`batchq demo`: the main job on generated work."""

from __future__ import annotations

from importlib import import_module

import click


@click.command("demo")
@click.option("--url", metavar="URL", help="A store to run on.  [default: a throw-away spool]")
def demo(url: str | None) -> int:
    """See it all on generated work: an import, webhooks to a local server, failing and crashing jobs.

    Shows live progress, and a summary whose numbers add up.
    """
    code: int = import_module("batchq.demo").run(url)
    return code
