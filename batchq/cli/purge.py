"""`batchq purge`: removing jobs for good."""

from __future__ import annotations

import click

from batchq.cli.filters import Chosen, takes_filter
from batchq.cli.output import json_line, write
from batchq.cli.params import asks, confirm, reach, reaches_store, takes_json, takes_yes

#: What can be purged; active jobs are cancelled instead.
PURGED = ("dead", "completed", "pending", "delayed")


@click.command("purge")
@click.option("-s", "--state", type=click.Choice(PURGED), required=True, help="Those in this state.")
@takes_filter
@takes_yes
@takes_json
@reaches_store
def purge(state: str, chosen: Chosen, yes: bool, as_json: bool, url: str | None, prefix: str | None) -> None:
    """Remove the jobs of one state that the filters choose, and print how many they were.

    The age of dead jobs counts from their death, that of others from their enqueue. On a terminal it says how many
    there are and asks first.

    \b
    batchq purge --state dead --older-than 7d
    batchq purge --state dead --group 3f2a91bc --yes
    """
    with reach(url, prefix) as app:
        chosen.note_unknown(app)
        if asks(yes):
            count = sum(map(len, chosen.ids(app, [state]).values()))
            if count > 1:
                confirm(f"Remove {count} {state} jobs{chosen}?", yes)
        gone = app.purge(state=state, queue=chosen.queue, chosen=chosen.what)
    if as_json:
        json_line({"purged": gone})
    else:
        write(f"purged {gone}\n")
