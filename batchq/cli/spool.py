"""`batchq spool ...`: the directory on this host's disk, as a directory. Its jobs are seen by `status` and `jobs`."""

from __future__ import annotations

import os
from typing import Any

import click

from batchq.cli.group import LazyGroup
from batchq.cli.output import Column, Table, fields, json_line, write
from batchq.cli.params import reach, takes_json


class SpoolGroup(LazyGroup):
    """The subcommands."""

    table = {"status": ("spool", "What waits in its inbox, and what was moved aside.")}  # noqa: RUF012 - like its base

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return {"status": status}.get(cmd_name)


@click.group("spool", cls=SpoolGroup)
def spool() -> None:
    """Look after the spool on this host."""


@click.command("status")
@click.option("--spool", "path", metavar="PATH", help="The spool.  [default: the store's, or BATCHQ_SPOOL]")
@takes_json
def status(path: str | None, as_json: bool) -> None:
    """Show what waits in the inbox for a master, and which files were moved aside, with the reason.

    Nothing is made or changed; a spool that is not there yet is said to be so.
    """
    found = _look(path or _configured())
    if as_json:
        json_line(found)
        return
    facts = [(name, str(found[name])) for name in ("path", "files", "jobs", "bad")]
    facts.append(("free", f"{found['free_bytes'] / (1 << 30):.1f}GiB" if found["exists"] else "- (no spool there yet)"))
    fields(facts)
    if found["moved_aside"]:
        write("\n")
        table = Table(Column("MOVED ASIDE"), Column("WHY"))
        table.page((one["file"], one["why"]) for one in found["moved_aside"])


def _configured() -> str:
    """The store's own directory where that is a spool, else the one that producers fall back to."""
    settings = reach().settings
    return settings.store_url.removeprefix("spool:") if settings.store_url.startswith("spool:") else settings.spool


def _look(path: str) -> dict[str, Any]:
    """What lies there. Raises StoreUnavailable for what can't be read."""
    from batchq.errors import StoreUnavailable
    from batchq.spool import fs, inbox
    from batchq.spool.layout import Layout

    root = fs.real_path(path)
    try:
        here = inbox.census(root)
        exists = "FORMAT" in fs.names(root)
        bad = Layout(root).bad
        aside = [name for name in fs.names(bad) if not name.endswith(".why")] if exists else []
        return {
            "path": root,
            "exists": exists,
            **here._asdict(),
            "free_bytes": fs.free_bytes(root) if exists else 0,
            "moved_aside": [{"file": name, "why": _why(f"{bad}/{name}.why")} for name in aside],
        }
    except FileNotFoundError:
        return {"path": root, "exists": False, "files": 0, "jobs": 0, "bad": 0, "free_bytes": 0, "moved_aside": []}
    except OSError as error:
        raise StoreUnavailable(f"spool: {root}: can't be read ({error.strerror}); check its owner and yours") from error


def _why(path: str) -> str:
    from batchq.spool import fs

    try:
        read = fs.read_foreign(path, limit=4096, owners=fs.owners_of(os.path.dirname(path)))
    except OSError:
        return "no reason was kept"
    return read.data.decode("utf-8", "replace").strip() or read.fault
