"""`batchq config`: every setting with its value, where that comes from, and how else it could be given."""

from __future__ import annotations

import click

from batchq.cli.output import Column, Table, json_line
from batchq.cli.params import reach, takes_json


@click.command("config")
@click.argument("names", metavar="[SETTING]...", nargs=-1)
@click.option("--changed", is_flag=True, help="Only those that differ from their default's source.")
@takes_json
def config(names: tuple[str, ...], changed: bool, as_json: bool) -> None:
    """Show each SETTING, or all: value, where it comes from, and its variable. What an app's code sets is shown too
    where one is configured.

    A setting `lease` is the flag --lease, the variable BATCHQ_LEASE and the key lease of [tool.batchq]; flags win over
    variables, and these over the file. Passwords are not shown.

    \b
    batchq config
    batchq config lease url
    batchq config --changed --json
    """
    from batchq.config import rules, unknown

    for name in names:
        if name not in rules():
            raise unknown(name, "the command line", list(rules()))
    with reach() as app:
        found = {key: (value, source) for key, value, source in app.settings.effective()}
    shown = [
        (key, value, source)
        for key, (value, source) in found.items()
        if (not names or key in names) and not (changed and source == "default")
    ]
    if as_json:
        json_line({key: {"value": value, "source": source} for key, value, source in shown})
        return
    table = Table(
        Column("SETTING", whole=True),
        Column("VALUE", fold=True, least=16),
        Column("FROM", fold=True),
        Column("FLAG", whole=True, spare=2),
        Column("VARIABLE", whole=True, spare=1),
    )
    table.page((key, value, source, rules()[key].flag, f"BATCHQ_{key.upper()}") for key, value, source in shown)
