"""`batchq spool share`, `accept`, `vacuum` and `sql`."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from batchq.cli.endings import DONE, FAILED, complain, flush
from batchq.cli.output import Column, Table, json_line, write
from batchq.cli.params import configured, takes_json, takes_spool
from batchq.cli.spool_repair import open_ledger

if TYPE_CHECKING:
    from batchq.spool.hands import Table as Answer


@click.command("accept")
@click.argument("names", metavar="FILE...", nargs=-1, required=True)
@takes_spool
def accept(names: tuple[str, ...], path: str | None) -> int:
    """Put files of inbox/bad back into the inbox, once they are mended: a master takes them then.

    Each is read before: one that still is no parcel stays, and its fault is said. Exit code 1 where one stays.

    \b
    batchq spool accept 019abc...-orders.json
    """
    from batchq.errors import SpoolError
    from batchq.spool import fs
    from batchq.spool.hands import accept as take_back
    from batchq.spool.layout import Layout

    layout = Layout(fs.real_path(path or configured()))
    failed = False
    for name in names:
        try:
            jobs = take_back(layout, name)
        except SpoolError as error:
            failed = True
            complain(str(error))
        else:
            write(f"{jobs} jobs of {name}\n")
    return FAILED if failed else DONE


@click.command("share")
@click.argument("group", metavar="GROUP", required=False)
@click.option("--off", is_flag=True, help="Nobody but the owner may, as at first.")
@takes_spool
def share(group: str | None, off: bool, path: str | None) -> None:
    """Let the members of GROUP drop jobs into the inbox, and nothing else.

    They may make files in inbox/tmp and move them to inbox/new. Their files must be readable for the group where the
    pool runs under another user (umask 027). Needs root, or the spool's owner as a member of GROUP.

    \b
    batchq spool share www-data
    cp job.json SPOOL/inbox/tmp/x && mv SPOOL/inbox/tmp/x SPOOL/inbox/new/
    """
    from batchq.spool import fs
    from batchq.spool.layout import prepare
    from batchq.spool.share import share as open_to
    from batchq.spool.share import unshare

    if (group is None) != off:
        raise click.UsageError("expected a GROUP, or --off")
    layout = prepare(fs.real_path(path or configured()), ledger=False)
    if group is None:
        unshare(layout)
        write(f"{layout.root}: only its owner may enter\n")
    else:
        open_to(layout, group)
        write(f"{layout.root}: members of {group} may drop files into inbox/new\n")


@click.command("vacuum")
@takes_spool
@takes_json
def vacuum(path: str | None, as_json: bool) -> None:
    """Give the room that finished jobs have left in the database back to the disk.

    Not needed in daily life: new jobs use that room. Nobody can enqueue or claim meanwhile, some seconds for a million
    jobs; twice the size of what is left must be free.

    \b
    batchq spool vacuum
    """
    from batchq.spool.hands import vacuum as shrink

    with open_ledger(path) as ledger:
        done = shrink(ledger)
    if as_json:
        json_line({"before": done.before, "after": done.after})
    else:
        write(f"{done.before / (1 << 20):.1f} MiB before, {done.after / (1 << 20):.1f} MiB after\n")


@click.command("sql")
@click.argument("statement", required=False)
@click.option("--write", "writes", is_flag=True, help="The statements may change something.")
@takes_spool
@takes_json
def sql(statement: str | None, writes: bool, path: str | None, as_json: bool) -> None:
    """Run a STATEMENT of SQL on the ledger, or those that come on stdin, each when its semicolon has come.

    Unlike another shell it goes through the gate, where writers queue. Without --write nothing can be changed; with it
    each statement is a transaction of its own, and `batchq spool check` says whether the counts still hold. The tables
    are explained in FORMAT.md. With --json one object a row.

    \b
    batchq spool sql "SELECT state, count(*) FROM job GROUP BY state"
    """
    from batchq.spool.hands import ask

    with open_ledger(path) as ledger:
        for one in [statement] if statement is not None else _statements(sys.stdin):
            _show(ask(ledger, one, write=writes), as_json)
            flush()


def _statements(lines: Iterable[str]) -> Iterator[str]:
    gathered = ""
    for line in lines:
        gathered += line
        if sqlite3.complete_statement(gathered):
            yield gathered
            gathered = ""
    if gathered.strip():
        yield gathered


def _show(answer: Answer, as_json: bool) -> None:
    if not answer.columns:
        if not as_json:
            write(f"{answer.changed} rows changed\n")
        return
    if as_json:
        for row in answer.rows:
            json_line(dict(zip(answer.columns, map(_plain, row), strict=True)), indent=False)
        return
    table = Table(*(Column(name, fold=True) for name in answer.columns))
    table.page([["" if value is None else str(_plain(value)) for value in row] for row in answer.rows])


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
