"""`batchq spool check`, `dump`, `load` and `salvage`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from batchq.cli.endings import DONE, FAILED, OutputFailed, flush, say
from batchq.cli.output import clean, json_line, write
from batchq.cli.params import configured, takes_json, takes_spool

if TYPE_CHECKING:
    from batchq.spool.ledger import Ledger


@contextmanager
def open_ledger(path: str | None, *, make: bool = False) -> Iterator[Ledger]:
    """The ledger of a spool that is there. Raises StoreUnavailable where there is none, unless it may be made."""
    from batchq.clock import SYSTEM
    from batchq.errors import StoreUnavailable
    from batchq.spool.ledger import Ledger

    where = path or configured()
    ledger = Ledger(where, clock=SYSTEM, durability="power", make=make)
    try:
        if ledger.is_absent:
            raise StoreUnavailable(f"spool: {ledger.layout.root}: expected a spool with a ledger, found none")
        yield ledger
    finally:
        ledger.close()


@click.command("check")
@takes_spool
@click.option("--repair", is_flag=True, help="Mend what a program may mend.")
@click.option("--quick", is_flag=True, help="Look less closely at the database's pages and indexes.")
@takes_json
def check(path: str | None, repair: bool, quick: bool, as_json: bool) -> int:
    """Look whether a spool is as it should be: its place, modes and files, the database, the counts and the law of the
    totals, marks, the inbox, room on its disk.

    It may be in use. A `note` is nothing to worry about; what is `mendable` is mended with --repair; a `fault` needs a
    person. Exit code 0 when nothing is left to do, 1 otherwise, 4 where there is no spool.

    \b
    batchq spool check
    batchq spool check --repair
    """
    from batchq.spool.check import check as look
    from batchq.spool.check import is_well

    where = path or configured()
    found = look(where, repair=repair, quick=quick)
    well = is_well(found)
    if as_json:
        json_line({"path": where, "well": well, "findings": [{"level": one.level, "text": one.text} for one in found]})
    else:
        for one in found:
            write(f"{one.level:<8}  {clean(one.text)}\n")
        write("all is well\n" if well else "")
    flush()
    if not well and not repair and any(one.level == "mendable" for one in found):
        say("batchq: --repair mends what is mendable")
    return DONE if well else FAILED


@click.command("dump")
@takes_spool
def dump(path: str | None) -> None:
    """Write all of the ledger to stdout, a line of JSON each: jobs in every state, totals, marks, leases.

    One instant of it, also while it is in use. `batchq spool load` makes a spool of these lines again, also after you
    have changed some. Files in the inbox are files already, and not in it.

    \b
    batchq spool dump > all.ndjson
    """
    from batchq.spool.dump import dump as lines

    with open_ledger(path) as ledger:
        _out(lines(ledger))
    flush()


def _out(lines: Iterable[bytes]) -> None:
    if sys.stdout is None:
        raise OutputFailed("stdout is closed: the answer has nowhere to go")
    sys.stdout.flush()
    for line in lines:
        sys.stdout.buffer.write(line)


@click.command("load")
@click.argument("file", type=click.File("rb"))
@click.option("--spool", "path", metavar="PATH", required=True, help="The new spool: a directory without jobs.")
@takes_json
def load(file: Iterable[bytes], path: str, as_json: bool) -> None:
    """Make a ledger of the lines of FILE (- for stdin), which `batchq spool dump` wrote: all of it or nothing.

    Counts are made anew, so lines may be left out or changed.

    \b
    batchq spool load all.ndjson --spool ./new
    batchq spool dump | grep -v broken | batchq spool load - --spool ./new
    """
    from batchq.spool.dump import load as load_lines

    with open_ledger(path, make=True) as ledger:
        jobs = load_lines(ledger, file)
    if as_json:
        json_line({"path": path, "jobs": jobs})
    else:
        write(f"{jobs} jobs\n")


@click.command("salvage")
@click.argument("new", metavar="NEW")
@takes_spool
@takes_json
def salvage(new: str, path: str | None, as_json: bool) -> int:
    """Save what can still be read of a damaged ledger into a new spool in the directory NEW.

    Stop everything that uses the damaged one first; it is not changed. Counts are made anew, and the files of the inbox
    are copied. Jobs that are known by name only are listed. Exit code 1 where something could not be read.

    \b
    batchq spool salvage ./new
    """
    from batchq.spool.salvage import salvage as save

    found = save(path or configured(), new)
    if as_json:
        lost = [{"queue": queue, "id": id} for queue, id in found.lost]
        json_line({"path": new, "jobs": found.jobs, "lost": lost, "torn": found.torn})
    else:
        write(f"{found.jobs} jobs saved in {new}\n")
        for queue, id in found.lost:
            write(f"lost  {clean(queue)}  {clean(id)}\n")
    if found.torn:
        say(
            f"batchq: could be read in part only: {', '.join(found.torn)}; "
            f"look at it with `batchq spool check --spool {new}`"
        )
        return FAILED
    return DONE
