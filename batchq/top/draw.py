"""The screen as lines of text: for any size, exactly so many lines and never wider. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from batchq.cli.output import clean, shorten, span
from batchq.top.look import Known, Looker, Queue
from batchq.top.morgue import Morgue, Pile

#: Below that nothing of use fits.
LEAST_COLUMNS, LEAST_ROWS = 40, 8

KEYS = {
    "main": "up/down select  p pause/resume  d dead  q quit",
    "dead": "up/down select  enter error  r requeue  x delete  esc back  q quit",
    "error": "up/down scroll  r requeue  x delete  esc back  q quit",
}


@dataclass(slots=True)
class View:
    """What the person at the keys has chosen."""

    #: main, dead or error.
    page: str = "main"
    #: The line that is selected, and the first that is seen of a longer text.
    place: int = 0
    top: int = 0
    #: What stands on that line: a queue, or a group of the dead. It stays selected, wherever its line goes meanwhile.
    chosen: str = ""
    morgue: Morgue | None = None
    #: The queue that was selected before the morgue was opened.
    queue: str = ""
    #: A question that waits for y or n, and what a yes does.
    question: str = ""
    answer: Callable[[Looker], None] = lambda looker: None
    #: The terminal has block characters.
    blocks: bool = True


def settle(view: View, keys: Sequence[str]) -> None:
    """The line of what was selected, among those that there are now."""
    if view.chosen in keys:
        view.place = keys.index(view.chosen)
    view.place = max(0, min(view.place, len(keys) - 1))
    view.chosen = keys[view.place] if keys else ""


def screen(known: Known, view: View, columns: int, rows: int, now: float) -> list[Text]:
    """All lines of the screen."""
    if columns < LEAST_COLUMNS or rows < LEAST_ROWS:
        return _fit([Text(f"too small: {columns}x{rows}"[:columns])], columns, rows)
    lines = _head(known, columns, now, blocks=view.blocks)
    body = rows - len(lines) - 1
    if view.page == "main":
        lines += _main(known, view, columns, body, now)
    elif view.page == "dead":
        lines += _dead(view, columns, body, known)
    else:
        lines += _error(view, body)
    lines = _fit(lines, columns, rows - 1)
    return [*lines, _foot(known, view, columns, now)]


def _fit(lines: list[Text], columns: int, rows: int) -> list[Text]:
    """Exactly so many lines, each cut to the width."""
    lines = lines[:rows] + [Text("") for _ in range(rows - len(lines))]
    for line in lines:
        line.truncate(columns, overflow="crop")
        line.no_wrap = True
    return lines


def cell(text: str, width: int, *, right: bool = False, style: str = "") -> Text:
    """One cell of exactly that width, in columns of a terminal."""
    out = Text(clean(text), style=style, no_wrap=True)
    out.truncate(width, overflow="ellipsis")
    if right:
        out.pad_left(max(0, width - out.cell_len))
    else:
        out.pad_right(max(0, width - out.cell_len))
    return out


def row(cells: Iterable[Text], style: str = "") -> Text:
    line = Text(" ", no_wrap=True).join(cells)
    if style:
        line.stylize(style)
    return line


def count(number: float) -> str:
    """At most six characters: 99,999, 999999, then 1.23M."""
    if number < 1_000_000:
        return f"{number:,.0f}" if number < 100_000 else f"{number:.0f}"
    unit, size = next((unit, size) for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)) if number >= size)
    return f"{number / size:.3g}{unit}"


def rate(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:.1f}" if 0 < number < 10 else count(number)


# -- the head: store, sums, throughput


def _head(known: Known, columns: int, now: float, *, blocks: bool) -> list[Text]:
    if known.away_since is None:
        state = Text(known.version or "connecting", style="green")
    else:
        state = Text(f"AWAY for {span((now - known.away_since) * 1000)}", style="bold red")
    url = cell(known.url, max(10, columns - state.cell_len - 14)).plain.rstrip()
    first = Text.assemble(("batchq top", "bold"), "  ", url, "  ", state)
    return [first, _sums(known), _spark(known, columns, blocks=blocks)]


def _sums(known: Known) -> Text:
    if known.away_since is not None:
        return Text(shorten(clean(known.why), 300), style="red")
    queues = known.queues.values()
    sums = {state: sum(one.stats.counts[state] for one in queues) for state in ("pending", "delayed", "active", "dead")}
    lag = max((one.stats.oldest_pending_age_ms for one in queues if one.stats.counts["pending"]), default=0)
    parts = [f"{state} {count(number)}" for state, number in sums.items()]
    parts.append(f"lag {span(lag)}" if sums["pending"] else "lag -")
    seen = sum(bool(one.seen) for one in queues)
    if seen < len(queues):
        parts.append(f"in {seen} of {len(queues)} queues so far")
    line = Text("  ".join(parts))
    if sums["dead"]:
        line.highlight_words([parts[3]], style="red")
    return line


def _spark(known: Known, columns: int, *, blocks: bool) -> Text:
    """Completed a second; as wide as there is room, the newest at the right end."""
    points = list(known.throughput)
    label = f" {rate(points[-1] if points else None)}/s done, most {rate(max(points, default=None))}"
    ink = "▁▂▃▄▅▆▇█" if blocks else "_.-=+*%#"
    room = max(0, columns - len(label))
    shown = points[-room:] if room else []
    most = max(shown, default=0.0)
    bars = "".join(ink[0 if not most else min(7, int(point / most * 7.999))] for point in shown)
    return Text.assemble((bars.rjust(room), "cyan"), label)


# -- the main page: queues above, workers below


def _main(known: Known, view: View, columns: int, rows: int, now: float) -> list[Text]:
    names = list(known.queues)
    workers = known.workers
    # Half for each; what one does not need is the other's.
    want_queues, want_workers = len(names) + 1, len(workers) + 2
    room = min(want_queues, max(rows // 2, rows - want_workers))
    settle(view, names)
    first = max(0, min(view.place - (room - 2), len(names) - (room - 1))) if room > 1 else 0
    lines = [_queue_titles(columns, "QUEUE" if known.away_since is None else "LAST SEEN")]
    lines += [
        _queue(known.queues[names[at]], columns, now, selected=at == view.place, stale=known.away_since)
        for at in range(first, min(len(names), first + room - 1))
    ]
    if not names:
        lines.append(Text("no queue yet: nothing was ever enqueued" if known.away_since is None else ""))
    rest = rows - len(lines)
    return [*lines, *_workers(known, workers, columns, rest, now)]


#: (title, width), the name's is what is left.
_QUEUE_COLUMNS = (
    ("PEND", 7), ("DELAY", 7), ("ACTIVE", 6), ("DEAD", 7), ("IN/S", 6), ("DONE/S", 6), ("FAIL/S", 6), ("LAG", 6),
    ("NEXT", 6),
)  # fmt: skip
#: Where there is no room for all.
_FIRST_TO_GO = ("NEXT", "FAIL/S", "IN/S", "DELAY", "ACTIVE", "DONE/S")
_WIDE_COLUMNS = (("KEPT", 7), ("DONE", 7), ("RETRIED", 7), ("FENCED", 6), ("LOST", 6))


def _queue_columns(columns: int) -> tuple[list[tuple[str, int]], int]:
    """Those that fit, and the width of the name."""
    chosen = list(_QUEUE_COLUMNS)
    for extra in _WIDE_COLUMNS:
        if _width([*chosen, extra]) + 24 <= columns:
            chosen.append(extra)
    for title in _FIRST_TO_GO:
        if _width(chosen) + 10 > columns:
            chosen = [column for column in chosen if column[0] != title]
    return chosen, max(8, columns - _width(chosen))


def _queue_titles(columns: int, first: str) -> Text:
    chosen, name = _queue_columns(columns)
    return row([cell(first, name), *(cell(title, width, right=True) for title, width in chosen)], "bold")


def _queue(one: Queue, columns: int, now: float, *, selected: bool, stale: float | None) -> Text:
    chosen, name = _queue_columns(columns)
    counts, totals = one.stats.counts, one.stats.totals
    due = None if one.due_at is None or one.due_at < now else (one.due_at - now) * 1000
    values = {
        "PEND": count(counts["pending"]),
        "DELAY": count(counts["delayed"]),
        "ACTIVE": count(counts["active"]),
        "DEAD": count(counts["dead"]),
        "KEPT": count(counts["completed"]),
        "DONE": count(totals["completed"]),
        "RETRIED": count(totals["retried"]),
        "FENCED": count(totals["fenced"]),
        "LOST": count(totals["lost"]),
        "IN/S": rate(one.rate("enqueued") if stale is None else None),
        "DONE/S": rate(one.rate("completed") if stale is None else None),
        "FAIL/S": rate(one.rate("retried", "dead") if stale is None else None),
        "LAG": span(one.stats.oldest_pending_age_ms) if counts["pending"] else "-",
        "NEXT": "-" if due is None else span(due),
    }
    shown = f"{one.name} (paused)" if one.stats.paused else one.name
    styles = {"DEAD": "red" if counts["dead"] else "", "ACTIVE": "cyan" if counts["active"] else ""}
    cells = [cell(shown, name, style="yellow" if one.stats.paused else "")]
    if not one.seen:
        cells += [cell("...", width, right=True) for _, width in chosen]
    else:
        cells += [cell(values[title], width, right=True, style=styles.get(title, "")) for title, width in chosen]
    return row(cells, "reverse" if selected else "dim" if stale is not None else "")


#: From the right they give room to what is named beside them.
_WORKER_COLUMNS = (("PID", 7), ("TIME", 6), ("STATE", 8), ("RSS", 6), ("CPU", 5))
#: Columns for host, handler and job.
_LEAST_NAMES = 26


def _width(shown: Iterable[tuple[str, int]]) -> int:
    return sum(width + 1 for _, width in shown)


def _workers(known: Known, workers: Sequence[dict[str, Any]], columns: int, rows: int, now: float) -> list[Text]:
    if rows < 2:
        return []
    hosts = len({worker.get("host") for worker in workers})
    busy = sum(worker.get("state") == "busy" for worker in workers)
    source = ", by the control socket" if known.by_socket else ""
    age = f", as of {span((now - known.heard) * 1000)} ago" if known.heard and now - known.heard >= 4 else ""
    title = f"{len(workers)} workers, {busy} busy, on {hosts} host{'' if hosts == 1 else 's'}{source}{age}"
    if not workers:
        title = f"no workers{source}{age}"
    lines = [Text(title, style="bold")]
    if not workers or rows < 3:
        return lines
    shown = list(_WORKER_COLUMNS)
    while len(shown) > 2 and columns - _width(shown) < _LEAST_NAMES:
        shown.pop()
    left = columns - _width(shown)
    # No wider than what stands there: the rest is for the ids of the jobs.
    host = _needed(workers, "host", max(8, left // 4))
    handler = max(7, _needed(workers, "handler", max(10, left // 3)))
    job = max(6, left - host - handler - 2)
    titles = [cell("HOST", host), *(cell(name, width, right=True) for name, width in shown)]
    lines.append(row([*titles, cell("HANDLER", handler), cell("JOB", job)], "bold"))
    room = rows - 2
    some = workers[: room if len(workers) <= room else room - 1]
    lines += [_worker(one, shown, host, handler, job) for one in some]
    if len(workers) > room:
        lines.append(Text(f"... and {len(workers) - room + 1} more", style="dim"))
    return lines


def _needed(workers: Sequence[dict[str, Any]], name: str, most: int) -> int:
    return min(most, max(len(name), *(len(str(worker.get(name) or "")) for worker in workers)))


def _worker(worker: dict[str, Any], shown: Sequence[tuple[str, int]], host: int, handler: int, job: int) -> Text:
    busy = bool(worker.get("job"))
    cpu = worker.get("cpu")
    values = {
        "PID": str(worker.get("pid", "?")),
        "STATE": str(worker.get("state", "?")),
        "TIME": span(worker.get("running_ms") or 0) if busy else "-",
        "RSS": f"{worker['rss'] / (1 << 20):.0f}M" if worker.get("rss") else "-",
        "CPU": f"{cpu:.0f}%" if isinstance(cpu, int | float) else "-",
    }
    cells = [
        cell(str(worker.get("host", "?")), host),
        *(cell(values[name], width, right=True) for name, width in shown),
    ]
    named = [str(worker.get(name) or "-") for name in ("handler", "job")]
    return row([*cells, cell(named[0], handler, style="cyan" if busy else ""), cell(named[1], job)])


# -- the morgue


def _dead(view: View, columns: int, rows: int, known: Known) -> list[Text]:
    assert view.morgue is not None
    piles = view.morgue.sorted
    whole = sum(known.queues[name].stats.counts["dead"] for name in view.morgue.queues if name in known.queues)
    part = "" if view.morgue.complete else f" ({view.morgue.read:,} read so far)"
    lines = [
        Text(
            f"{whole:,} dead in {', '.join(view.morgue.queues)}{part}: {len(piles)} group{'s' * (len(piles) != 1)}",
            style="bold",
        )
    ]
    settle(view, [pile.group.id for pile in piles])
    handler = max(10, columns // 5)
    lines.append(
        row([cell("COUNT", 7, right=True), cell("HANDLER", handler), cell("ERROR", columns - handler - 9)], "bold")
    )
    room = rows - len(lines)
    first = max(0, min(view.place - room + 1, len(piles) - room))
    shown = range(first, min(len(piles), first + room))
    return lines + [_pile(piles[at], handler, columns, selected=at == view.place) for at in shown]


def _pile(pile: Pile, handler: int, columns: int, *, selected: bool) -> Text:
    error = shorten(pile.group.shown, 400)
    cells = [
        cell(count(len(pile.ids)), 7, right=True),
        cell(pile.group.job, handler),
        cell(error, columns - handler - 9),
    ]
    return row(cells, "reverse" if selected else "")


def selected_pile(view: View) -> Pile | None:
    """The group that is selected, or open."""
    piles = view.morgue.sorted if view.morgue is not None else []
    if view.chosen:
        return next((pile for pile in piles if pile.group.id == view.chosen), None)
    return piles[view.place] if 0 <= view.place < len(piles) else None


def _error(view: View, rows: int) -> list[Text]:
    pile = selected_pile(view)
    if pile is None or pile.newest is None:
        return [Text("this group is gone")]
    job = pile.newest
    entry = job.errors[0] if job.errors else {}
    text = str(entry.get("trace") or f"{entry.get('kind', 'Error')}: {entry.get('error', job.reason)}")
    facts = [f"{len(pile.ids):,} dead of {job.job} in {job.queue}; the newest:", f"{job.id}  attempt {job.attempt}"]
    if entry.get("worker"):
        facts.append(f"on {entry['worker']}")
    body = [clean(line) for line in text.splitlines()]
    view.top = max(0, min(view.top, len(body) - (rows - len(facts) - 1)))
    return [Text(fact, style="bold") for fact in facts] + [Text("")] + [Text(line) for line in body[view.top :]]


# -- the foot


def _foot(known: Known, view: View, columns: int, now: float) -> Text:
    if view.question:
        line = Text(f"{view.question} y/n", style="bold yellow")
    elif known.said and now - known.said_at < 6:
        line = Text(shorten(clean(known.said), columns), style="bold")
    else:
        line = Text(KEYS[view.page], style="dim")
    line.truncate(columns, overflow="crop")
    line.no_wrap = True
    return line
