"""`batchq demo`: the main job on generated work."""

from __future__ import annotations

from importlib import import_module

import click

from batchq.cli.params import takes_json, warn_of_password, whole


@click.command("demo")
@click.option("--url", metavar="URL", help="redis://..., or spool:PATH that does not exist yet.  [default: a spool]")
@click.option("--seed", metavar="N", type=whole(0, 2**53), help="Repeat an input.  [default: another each time]")
@click.option("--keep", is_flag=True, help="Leave store and files, and say how to look at them.")
@takes_json
def demo(url: str | None, seed: int | None, keep: bool, as_json: bool) -> int:
    """See it all on generated work: an import, webhooks to a local server, failing and crashing jobs.

    Runs on a throw-away spool, or in a Redis under a prefix of its own, with eight real workers. Shows live progress,
    then a summary whose numbers add up: 0 if they do, 1 and what does not if they don't.

    \b
    batchq demo
    batchq demo --url redis://127.0.0.1:6379/0
    """
    warn_of_password(url)
    code: int = import_module("batchq.demo").run(url, seed=seed, keep=keep, as_json=as_json)
    return code
