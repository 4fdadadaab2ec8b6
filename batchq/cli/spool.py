"""`batchq spool ...`: the directory on this host's disk, as a directory. Its jobs are seen by `status` and `jobs`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from batchq.cli.endings import DONE, FAILED, flush, say
from batchq.cli.group import LazyGroup
from batchq.cli.output import Column, Table, fields, json_line, write
from batchq.cli.params import configured, reach, reaches_store, takes_json, takes_spool

if TYPE_CHECKING:
    from batchq.app import App
    from batchq.fallback.forward import Forwarder
    from batchq.redis.sync import Confirm
    from batchq.store import Ingested

#: How long `forward` waits for another forwarder, or for room in the server.
STUCK_S = 5.0


class SpoolGroup(LazyGroup):
    """The subcommands."""

    table = {  # noqa: RUF012 - like its base
        "status": ("spool", "What waits in its inbox, and what was moved aside."),
        "ls": ("spool_look", "List its files, queues and jobs, as in a directory."),
        "cat": ("spool_look", "Print files and jobs."),
        "forward": ("spool", "Send what waits there to Redis."),
        "share": ("spool_hands", "Let the members of a group drop files."),
        "accept": ("spool_hands", "Take files back that were moved aside, once mended."),
        "check": ("spool_repair", "Look whether all is as it should be; mend it."),
        "dump": ("spool_repair", "Write all of its ledger as lines of JSON."),
        "load": ("spool_repair", "Make a ledger of such lines."),
        "salvage": ("spool_repair", "Save what can be read of a damaged ledger."),
        "vacuum": ("spool_hands", "Give back the room of jobs that are done."),
        "sql": ("spool_hands", "Ask its database, through the gate."),
    }


@click.group("spool", cls=SpoolGroup)
def spool() -> None:
    """Look after the spool on this host.

    \b
    batchq spool status                   is it empty
    batchq spool forward --watch
    """


@click.command("status")
@takes_spool
@takes_json
def status(path: str | None, as_json: bool) -> None:
    """Show what waits in the inbox for a master, and which files were moved aside, with the reason.

    Nothing is made or changed; a spool that is not there yet is said to be so.

    \b
    batchq spool status
    batchq spool status --json
    """
    found = _look(path or configured())
    if as_json:
        json_line(found)
        return
    facts = [(name, str(found[name])) for name in ("path", "files", "jobs", "bad")]
    if found["sent"]:
        facts.append(("sent", f"{found['sent']} (taken, not yet confirmed)"))
    facts.append(("free", f"{found['free_bytes'] / (1 << 30):.1f}GiB" if found["exists"] else "- (no spool there yet)"))
    fields(facts)
    if found["moved_aside"]:
        write("\n")
        table = Table(Column("MOVED ASIDE", whole=True), Column("WHY", fold=True))
        table.page((one["file"], one["why"]) for one in found["moved_aside"])


@click.command("forward")
@click.option("--spool", "path", metavar="PATH", help="The spool.  [default: BATCHQ_SPOOL]")
@click.option("--watch", is_flag=True, help="Go on until interrupted; wait for a server that is away.")
@click.option("--ledger", is_flag=True, help="Also the jobs that stand in its ledger: it was the store before.")
@click.option(
    "--confirm",
    type=click.Choice(("reply", "waitaof", "grace")),
    help="When a file has arrived.  [default: BATCHQ_FORWARD_CONFIRM, or reply]",
)
@click.option("--all", "everything", is_flag=True, help="Also what waits for another server or prefix.")
@takes_json
@reaches_store
def forward(
    path: str | None,
    watch: bool,
    ledger: bool,
    confirm: Confirm | None,
    everything: bool,
    as_json: bool,
    url: str | None,
    prefix: str | None,
) -> int:
    """Send the jobs that wait in a spool of this host to Redis, each exactly once.

    Masters of this host do so by themselves; this is for hosts that have none. It may be interrupted, killed, and run
    beside others: what it had sent is known by its mark. With --confirm=waitaof a file stays until its jobs are on the
    server's disk (Redis 7.2 or newer, or Valkey), with =grace until the server has run on for 5 s. With --ledger the
    spool's queues are paused for good, and its pending and delayed jobs move with all their attempts; stop the pools
    that serve it first. Exit code 0 when nothing is left, 1 when files were moved aside, 4 when the server can't be
    reached (not with --watch).

    \b
    batchq spool forward                  what waits there, once
    batchq spool forward --watch          for ever, on a host without a pool
    """
    with reach(url, prefix) as app:
        forwarder = _forwarder(app, path, everything, confirm)
        moved = _empty(app, forwarder.path) if ledger else 0
        sums = _run_forward(forwarder, watch, lambda took: _tell_portion(took, as_json) if watch else None)
    if not watch and as_json:
        json_line({"path": forwarder.path, **sums._asdict(), **({"moved": moved} if ledger else {})})
    elif not watch:
        write(f"{sums.jobs} jobs of {sums.files} files\n")
    if sums.bad:
        say(f"batchq: {sums.bad} files were moved aside; `batchq spool status` shows why")
        return FAILED
    return DONE


def _forwarder(app: App, path: str | None, everything: bool, confirm: Confirm | None) -> Forwarder:
    """Raises ConfigError for a store to which nothing can be forwarded."""
    from batchq.errors import ConfigError
    from batchq.fallback.forward import Forwarder
    from batchq.redis.store import RedisStore
    from batchq.stores import limits_of, spool_path

    store = app.store
    if not isinstance(store, RedisStore):
        raise ConfigError(
            f"url: expected the Redis that the jobs wait for, found {store.info().url:.200}; "
            "write --url redis://HOST:PORT/DB, or set BATCHQ_URL"
        )
    return Forwarder(
        store,
        path or spool_path(app.settings),
        limits_of(app.settings),
        everything=everything,
        confirm=confirm or app.settings.forward_confirm,
    )


def _empty(app: App, path: str) -> int:
    """Moves what stands in the ledger; answers how many jobs."""
    from batchq.errors import SpoolError
    from batchq.fallback.emptying import empty, left
    from batchq.redis.store import RedisStore
    from batchq.spool import SpoolStore, fs
    from batchq.spool.layout import Layout
    from batchq.stores import limits_of

    if not fs.size_of(Layout(path).db):
        raise SpoolError(f"spool: {path}: expected a ledger, found none; leave out --ledger, or give another --spool")
    assert isinstance(app.store, RedisStore)
    ledger = SpoolStore(path, limits=limits_of(app.settings))
    try:
        moved = sum(empty(ledger, app.store))
        active, ended = left(ledger)
    finally:
        ledger.close()
    say(f"batchq: {moved} jobs have left the ledger of {path}; its queues are paused")
    if active:
        say(f"batchq: {active} jobs are still held by its workers; forward again when they have ended")
    if ended:
        say(f"batchq: {ended} jobs that have ended stay there; `batchq jobs --url spool:{path}` shows them")
    return moved


def _run_forward(forwarder: Forwarder, watch: bool, tell: Callable[[Ingested], None]) -> Ingested:
    """Sweeps until nothing is left, or for ever. Answers the sum. Raises StoreUnavailable where it does not watch."""
    import time

    from batchq.errors import StoreUnavailable
    from batchq.store import Ingested

    sums = Ingested()
    patience_s = STUCK_S + forwarder.confirm_s
    patient_until = time.monotonic() + patience_s
    least: float = math.inf
    said = ""
    while True:
        try:
            took = forwarder.sweep()
            left = forwarder.waiting() + forwarder.unconfirmed()
            said = ""
        except StoreUnavailable as error:
            if not watch:
                raise
            if not said:
                said = f"batchq: {error}"
                say(said)
            took, left = Ingested(), 0
        sums = Ingested(sums.files + took.files, sums.jobs + took.jobs, sums.bad + took.bad)
        if left < least:
            # Also where another one took them.
            least, patient_until = left, time.monotonic() + patience_s
        if took.files or took.bad:
            tell(took)
            patient_until = time.monotonic() + patience_s
        elif watch:
            time.sleep(1.0)
        elif left and time.monotonic() < patient_until:
            # A master of this host is at it, most likely.
            time.sleep(0.05)
        elif left:
            raise StoreUnavailable(
                f"spool: {forwarder.path}: {left} files can't be forwarded now: the server has no room for them, does "
                "not confirm them, or another forwarder is at it; try again"
            )
        else:
            return sums


def _tell_portion(took: Ingested, as_json: bool) -> None:
    if as_json:
        json_line(took._asdict())
    else:
        write(f"{took.jobs} jobs of {took.files} files" + (f", {took.bad} moved aside\n" if took.bad else "\n"))
    flush()


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
        none = inbox.Census(0, 0, 0)._asdict()
        return {"path": root, "exists": False, **none, "free_bytes": 0, "moved_aside": []}
    except OSError as error:
        raise StoreUnavailable(f"spool: {root}: can't be read ({error.strerror}); check its owner and yours") from error


def _why(path: str) -> str:
    from batchq.spool import fs

    try:
        read = fs.read_foreign(path, limit=4096, owners=fs.owners_of(os.path.dirname(path)))
    except OSError:
        return "no reason was kept"
    return read.data.decode("utf-8", "replace").strip() or read.fault
