"""`batchq batches` and `batchq batch`: how far the batches are."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING

import click

from batchq.cli.endings import DONE, FAILED, Failed, flush, say
from batchq.cli.output import Column, Table, clean, fields, json_line, on_terminal, span, when, write
from batchq.cli.params import note_unknown_queue, reach, reaches_store, takes_json, takes_limit, takes_queue
from batchq.cli.status import interval_ms

if TYPE_CHECKING:
    from batchq.tally import BatchStats


@click.command("batches")
@takes_queue
@takes_limit(100)
@takes_json
@reaches_store
def batches(queue: str | None, limit: int, as_json: bool, url: str | None, prefix: str | None) -> None:
    """List batches: queue by queue, those under way first, then by their end, the latest first.

    PENDING are jobs that are still to end. A batch is known for seven days after its end. With --json one object a
    line.

    \b
    batchq batches --queue mail
    """
    with reach(url, prefix) as app:
        note_unknown_queue(app, queue)
        now_ms = app.store.now_ms()
        found = list(islice(app.batches(queue), limit or None))
    if as_json:
        for one in found:
            json_line(one.as_dict(), indent=False)
    elif found:
        numbers = [Column(name, right=True) for name in ("TOTAL", "PENDING", "DONE", "DEAD", "CANCELLED")]
        Table(
            Column("ID", whole=True), Column("NAME"), Column("QUEUE", spare=1), *numbers, Column("STANDS", least=14)
        ).page((one.id, one.name, one.queue, *map(str, _numbers(one)), _standing(one, now_ms)) for one in found)
    flush()
    if not found:
        say("batchq: no batch")


@click.command("batch")
@click.argument("batch_id", metavar="ID")
@takes_queue
@click.option("-w", "--watch", is_flag=True, help="Again and again, until it is finished; exit 1 if not all succeeded.")
@click.option("--every", "every_ms", type=interval_ms, default="1s", show_default=True, help="How often, with --watch.")
@click.option("--close", is_flag=True, help="Say that no more jobs come: for a producer that ended in the middle.")
@takes_json
@reaches_store
def batch(
    batch_id: str,
    queue: str | None,
    watch: bool,
    every_ms: int,
    close: bool,
    as_json: bool,
    url: str | None,
    prefix: str | None,
) -> int:
    """Show the batch ID: how many jobs joined it, and what became of them.

    `batchq jobs --batch ID` lists its jobs. With --json one object, with --watch one a line.

    \b
    batchq batch 01h2x... --watch
    """
    with reach(url, prefix) as app:
        found = app.get_batch(batch_id, queue) if batch_id.isprintable() else None
        if found is None:
            where = f"queue {queue}" if queue else "any queue"
            say(f"batchq: error: batch {clean(batch_id):.200}: not in {where}; it never began, or is forgotten")
            raise Failed
        if close:
            found.conclude()
        told = False
        while True:
            stats = found.progress()
            _show(stats, app.store.now_ms(), as_json=as_json, watch=watch)
            if not (told or stats.closed or stats.pending):
                told = True
                say(
                    "batchq: it is open, and nothing in it is pending: more may come; "
                    "if its producer is gone, --close ends it"
                )
            if not watch or stats.finished:
                break
            time.sleep(every_ms / 1000)
    return FAILED if watch and stats.completed < stats.total else DONE


def _show(stats: BatchStats, now_ms: int, *, as_json: bool, watch: bool) -> None:
    if as_json:
        json_line(stats.as_dict(), indent=not watch)
    elif not watch:
        facts = [("id", stats.id), ("name", stats.name), ("queue", stats.queue)]
        numbers = zip(("total", "pending", "completed", "dead", "cancelled"), _numbers(stats), strict=True)
        facts += [(name, str(number)) for name, number in numbers]
        facts += [("began", when(stats.began_ms)), ("stands", _standing(stats, now_ms))]
        fields(facts)
    else:
        total, pending, completed, dead, cancelled = _numbers(stats)
        ended = total - pending
        line = (
            f"{ended} of {total}: {completed} completed, {dead} dead, {cancelled} cancelled; {_standing(stats, now_ms)}"
        )
        write(f"\r\x1b[K{line}" + ("\n" if stats.finished else "") if on_terminal() else f"{line}\n")
    flush()


def _numbers(stats: BatchStats) -> tuple[int, int, int, int, int]:
    return stats.total, stats.pending, stats.completed, stats.dead, stats.cancelled


def _standing(stats: BatchStats, now_ms: int) -> str:
    """What a batch has to say for itself, in a few words."""
    if stats.finished:
        assert stats.ended_ms is not None
        return f"finished {span(now_ms - stats.ended_ms)} ago, after {span(stats.ended_ms - stats.began_ms)}"
    return ("closed" if stats.closed else "open") + f", began {span(now_ms - stats.began_ms)} ago"
