"""`batchq imports`: how far the imports of this host are."""

from __future__ import annotations

import click

from batchq.cli.endings import flush, say
from batchq.cli.output import Column, Table, json_line, span
from batchq.cli.params import reach, takes_json


@click.command("imports")
@click.option("--state-dir", metavar="DIR", help="Where it is remembered.  [default: SPOOL.imports]")
@takes_json
def imports(state_dir: str | None, as_json: bool) -> None:
    """Show how far the imports of this host are: those that run, then those that have ended or were stopped.

    What was stopped goes on when the same command is called again. With --json one object a line.

    \b
    batchq imports
    """
    from batchq.clock import SYSTEM
    from batchq.importing import overview
    from batchq.importing.lane import default_folder

    with reach() as app:
        folder = state_dir or default_folder(app.settings)
    now_ms = SYSTEM.now_us() // 1000
    found = list(overview.imports(folder))
    if as_json:
        for one in found:
            json_line(one.as_dict(), indent=False)
    elif found:
        table = Table(
            Column("FILE", least=20),
            Column("STATE", whole=True),
            Column("READ", right=True),
            Column("ROWS", right=True),
            Column("REJECTED", right=True),
            Column("TOOK", right=True, spare=1),
            Column("LAST SIGN", whole=True),
        )
        table.page(
            (
                one.state.source,
                one.word,
                "-" if one.part is None else f"{one.part:.0%}",
                f"{one.state.rows:,}",
                f"{one.state.rejected:,}",
                span(one.state.updated_ms - one.state.began_ms),
                f"{span(now_ms - one.state.updated_ms)} ago",
            )
            for one in found
        )
    flush()
    if not found:
        say(f"batchq: no import is known in {folder}")
