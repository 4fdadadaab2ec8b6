"""`batchq requeue` and `batchq cancel`: moves of jobs by hand. Each id gets its own answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from batchq.cli.endings import Failed, flush, say
from batchq.cli.output import clean, json_line, write
from batchq.cli.params import confirm, note_unknown_queue, reach, reaches_store, takes_json, takes_queue, takes_yes
from batchq.lifecycle import State, Word

if TYPE_CHECKING:
    from batchq.app import App

#: Jobs that are moved in one step.
CHUNK = 480

#: What each answer means: said with the id, on stdout where it was done, on stderr where it was not.
_DONE = {
    Word.OK: "requeued",
    Word.CANCELLED: "cancelled",
    Word.MARKED: "marked: it runs, and is stopped within the time its handler needs (at most the grace)",
}
_REFUSED = {
    Word.REFUSED: "not requeued: it is neither dead nor kept after its completion",
    Word.FINISHED: "not cancelled: it has ended already",
    Word.UNKNOWN: "no such job",
}


@click.command("requeue")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All dead jobs, instead of ids.")
@takes_queue
@takes_yes
@takes_json
@reaches_store
def requeue(
    ids: tuple[str, ...],
    everything: bool,
    queue: str | None,
    yes: bool,
    as_json: bool,
    url: str | None,
    prefix: str | None,
) -> None:
    """Send dead jobs back to the tail of their queue, their attempts counted afresh.

    Completed jobs that are kept can be requeued by their ids, too. Exit code 1 if one of the ids was not requeued.
    """
    if bool(ids) == everything:
        raise click.UsageError("give ids, or --all for all dead jobs")
    with reach(url, prefix) as app:
        note_unknown_queue(app, queue)
        if everything:
            _requeue_all(app, queue, yes=yes, as_json=as_json)
        else:
            _answer(ids, _known(ids, lambda known: app.requeue(known, queue=queue)), as_json)


def _requeue_all(app: App, queue: str | None, *, yes: bool, as_json: bool) -> None:
    # Read to the end first: what dies again meanwhile stays dead, or this would go round for ever.
    dead: dict[str, list[str]] = {}
    for job in app.jobs(state=State.DEAD, queue=queue):
        dead.setdefault(job.queue, []).append(job.id)
    count = sum(map(len, dead.values()))
    if count:
        confirm(f"Requeue {count} dead jobs?", yes)
    moved = 0
    for name, ids in dead.items():
        for at in range(0, len(ids), CHUNK):
            words = app.requeue(ids[at : at + CHUNK], queue=name)
            moved += words.count(Word.OK)
    if as_json:
        json_line({"requeued": moved, "gone": count - moved})
    else:
        write(f"requeued {moved}{f', {count - moved} had gone meanwhile' if moved < count else ''}\n")


@click.command("cancel")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@takes_queue
@takes_json
@reaches_store
def cancel(ids: tuple[str, ...], queue: str | None, as_json: bool, url: str | None, prefix: str | None) -> None:
    """End jobs: those that wait at once, those that run by JobCancelled inside their handler.

    Exit code 1 if one of the ids is unknown or has ended already.
    """
    with reach(url, prefix) as app:
        note_unknown_queue(app, queue)
        _answer(ids, _known(ids, lambda known: app.cancel(known, queue=queue)), as_json)


def _known(ids: Sequence[str], move: Callable[[list[str]], list[Word]]) -> dict[str, Word]:
    """The answers by id. What no id can look like is not sent to the store."""
    words = dict.fromkeys(ids, Word.UNKNOWN)
    sendable = [job_id for job_id in words if job_id and job_id.isprintable()]
    if sendable:
        words.update(zip(sendable, move(sendable), strict=True))
    return words


def _answer(ids: Sequence[str], words: dict[str, Word], as_json: bool) -> None:
    """Says what became of each. Raises Failed where one was not moved."""
    for job_id in dict.fromkeys(ids):
        word = words[job_id]
        if as_json:
            json_line({"id": clean(job_id), "word": word, "done": word in _DONE}, indent=False)
        elif word in _DONE:
            write(f"{job_id}  {_DONE[word]}\n")
    flush()
    refused = [job_id for job_id in dict.fromkeys(ids) if words[job_id] not in _DONE]
    for job_id in refused:
        say(f"batchq: error: job {clean(job_id):.200}: {_REFUSED.get(words[job_id], words[job_id])}")
    if refused:
        raise Failed
