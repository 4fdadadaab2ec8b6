"""`batchq doctor`: what is wrong here, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from batchq.cli.endings import DONE, FAILED
from batchq.cli.output import Column, Table, json_line, on_terminal, write
from batchq.cli.params import load, reach, reaches_store, takes_json
from batchq.errors import AppError, ConfigError

if TYPE_CHECKING:
    from batchq.app import App
    from batchq.doctor import Finding

_MARKS = {"ok": "ok", "warn": "look", "bad": "BAD"}


@click.command("doctor")
@click.argument("app", metavar="[APP]", required=False)
@takes_json
@reaches_store
def doctor(app: str | None, as_json: bool, url: str | None, prefix: str | None) -> int:
    """Look at settings, app, store, clocks, rights, queues, leases and spool, and say what is wrong and what to do.

    It makes every move of the store once, under a prefix of its own. Exit code 1 if anything is bad; with --json one
    object a line.

    \b
    batchq doctor tasks:app
    batchq doctor --url redis://127.0.0.1:6379/0
    """
    findings = _examine(app, url, prefix)
    if as_json:
        for one in findings:
            json_line(one._asdict(), indent=False)
    else:
        _print(findings)
        bad, look = (sum(one.level == level for one in findings) for level in ("bad", "warn"))
        write(f"\n{bad} bad, {look} to look at, {len(findings) - bad - look} well\n")
    return FAILED if any(one.level == "bad" for one in findings) else DONE


def _print(findings: list[Finding]) -> None:
    mark, about, found = Column("", whole=True), Column("ABOUT", whole=True), Column("FOUND", fold=True)
    if not on_terminal():
        rows = [(_MARKS[one.level], one.about, one.text, one.advice) for one in findings]
        Table(mark, about, found, Column("WHAT TO DO")).page(rows)
        return
    # Sentences have the whole width: what to do stands below what was found.
    lines = [
        line
        for one in findings
        for line in (
            (_MARKS[one.level], one.about, one.text),
            *([("", "", f"-> {one.advice}")] if one.advice else []),
        )
    ]
    Table(mark, about, found).page(lines)


def _examine(spec: str | None, url: str | None, prefix: str | None) -> list[Finding]:
    from batchq.doctor import examine, failed

    def configured() -> App | None:
        flags: dict[str, object] = {"app": spec, "url": url, "prefix": prefix}
        try:
            return load(flags, "batchq doctor module:app")[0]
        except click.UsageError:
            return None  # None is named.

    try:
        with reach(url, prefix, only_look=True, brief=True, spec=spec) as app:
            return list(examine(app, configured))
    except (AppError, ConfigError) as error:
        return [failed(error)]
