"""`batchq requeue` and `batchq cancel`: moves by hand. Each id gets its own answer; a filter gets one number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click

from batchq.app import App
from batchq.cli.endings import Failed, flush, say
from batchq.cli.filters import Chosen, takes_filter
from batchq.cli.output import clean, json_line, write
from batchq.cli.params import confirm, reach, reaches_store, takes_json, takes_yes
from batchq.lifecycle import Word

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


class Moving(NamedTuple):
    """A verb for many: what its answers are called in the sum, and how it is done."""

    verb: str
    states: Sequence[str]
    counted: dict[Word, str]
    move: Callable[[App, Sequence[str], str | None], list[Word]]


_REQUEUE = Moving(
    "requeue", ("dead",), {Word.OK: "requeued"}, lambda app, ids, queue: app.requeue(list(ids), queue=queue)
)
_CANCEL = Moving(
    "cancel",
    ("pending", "delayed", "active"),
    {Word.CANCELLED: "cancelled", Word.MARKED: "marked"},
    lambda app, ids, queue: app.cancel(list(ids), queue=queue),
)


@click.command("requeue")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All dead jobs, instead of ids or a filter.")
@takes_filter
@takes_yes
@takes_json
@reaches_store
def requeue(
    ids: tuple[str, ...],
    everything: bool,
    chosen: Chosen,
    yes: bool,
    as_json: bool,
    url: str | None,
    prefix: str | None,
) -> None:
    """Send dead jobs back to the tail of their queue, their attempts counted afresh: by id, or by a filter.

    Completed jobs that are kept can be requeued by their ids, too. Exit code 1 if one of the ids was not requeued. On a
    terminal it asks before it requeues more than one job by a filter.

    \b
    batchq requeue 01h2x...
    batchq requeue --job deliver --error timeout --since 1h
    batchq requeue --group 3f2a91bc --yes
    """
    _run(_REQUEUE, ids, everything, None, chosen, yes=yes, as_json=as_json, url=url, prefix=prefix)


@click.command("cancel")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that wait or run, instead of ids or a filter.")
@click.option("-s", "--state", type=click.Choice(_CANCEL.states), help="Those in this state only.")
@takes_filter
@takes_yes
@takes_json
@reaches_store
def cancel(
    ids: tuple[str, ...],
    everything: bool,
    state: str | None,
    chosen: Chosen,
    yes: bool,
    as_json: bool,
    url: str | None,
    prefix: str | None,
) -> None:
    """End jobs: those that wait at once, those that run by JobCancelled inside their handler. By id, or by a filter.

    Exit code 1 if one of the ids is unknown or has ended already. On a terminal it asks before it ends more than one
    job by a filter.

    \b
    batchq cancel 01h2x...
    batchq cancel --state pending --job resize --queue images
    """
    _run(_CANCEL, ids, everything, state, chosen, yes=yes, as_json=as_json, url=url, prefix=prefix)


def _run(
    moving: Moving,
    ids: Sequence[str],
    everything: bool,
    state: str | None,
    chosen: Chosen,
    *,
    yes: bool,
    as_json: bool,
    url: str | None,
    prefix: str | None,
) -> None:
    """By ids, or by a filter: all is never meant by accident."""
    filtered = bool(chosen.what) or state is not None or (chosen.queue is not None and not ids)
    if not ids and not everything and not filtered:
        raise click.UsageError("give an ID, a filter (--job, --error ...), or --all")
    if ids and (everything or filtered):
        raise click.UsageError("IDs stand alone, but for --queue: leave out --all and the filters")
    with reach(url, prefix) as app:
        chosen.note_unknown(app)
        if ids:
            _answer(ids, _known(ids, lambda known: moving.move(app, known, chosen.queue)), as_json)
        else:
            _move_all(app, moving, [state] if state else moving.states, chosen, yes=yes, as_json=as_json)


def _move_all(app: App, moving: Moving, states: Sequence[str], chosen: Chosen, *, yes: bool, as_json: bool) -> None:
    found = chosen.ids(app, states)
    count = sum(map(len, found.values()))
    if count > 1:
        confirm(f"{moving.verb.capitalize()} {count} {', '.join(states)} jobs{chosen}?", yes)
    words: Counter[Word] = Counter()
    for name, ids in found.items():
        for at in range(0, len(ids), CHUNK):
            words.update(moving.move(app, ids[at : at + CHUNK], name))
    done = {said: words[word] for word, said in moving.counted.items()}
    gone = count - sum(done.values())
    if as_json:
        json_line(done | {"gone": gone})
        return
    said = [f"{what} {number}" for i, (what, number) in enumerate(done.items()) if number or i == 0]
    write(f"{', '.join(said)}{f', {gone} had gone meanwhile' if gone else ''}\n")


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
