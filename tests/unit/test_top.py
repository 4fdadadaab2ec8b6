"""`batchq top` without a terminal: what is drawn fits any size and agrees with the store; keys and errands."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchq.app import App
from batchq.job import Buried, NewJob, QueueStats, new_id, pack_error, pack_row
from batchq.lifecycle import TOTALS
from batchq.top.draw import View, count, screen
from batchq.top.look import Known, Looker, Queue
from batchq.top.morgue import Morgue
from batchq.top.screen import act, keys_of


def worker(number: int, **more: Any) -> dict[str, Any]:
    named = {"handler": "ümläut_日本語_handler_with_a_long_name", "job": new_id(), "queue": "q", "running_ms": number}
    return {"id": f"w{number}", "host": "h" * 40, "pid": number, "state": "busy", "rss": 5 << 30, **named, **more}


def stats(**counts: int) -> QueueStats:
    all_counts = {"pending": 0, "delayed": 0, "active": 0, "completed": 0, "dead": 0} | counts
    return QueueStats(True, all_counts, dict.fromkeys(TOTALS, 123_456_789), 90_061_000)


def known(queues: int, workers: int) -> Known:
    out = Known("redis://" + "long-name." * 12 + "example.org:6379/0", "redis", "redis 7.0.15", looks=3)
    for number in range(queues):
        one = Queue(f"queue-{number}-{'x' * 50}", stats(pending=10**12, dead=999_999, delayed=1_000_000), 1.0)
        one.see(stats(pending=10**12), 2.0)
        one.due_at = 86_500.0
        out.queues[one.name] = one
    out.masters = [{"workers": [worker(number) for number in range(workers)]}]
    out.heard = 1.0
    out.throughput.extend(float(number % 7) for number in range(300))
    return out


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (40, 8), (47, 9), (300, 100), (20, 5), (80, 8)])
@pytest.mark.parametrize(("queues", "workers"), [(0, 0), (1, 1), (3, 8), (60, 200)])
def test_it_fits(size: tuple[int, int], queues: int, workers: int) -> None:
    """Exactly so many lines, and none is wider, whatever the names are, also of characters that take two columns."""
    columns, rows = size
    for page, blocks in itertools.product(("main", "dead", "error"), (True, False)):
        looked = known(queues, workers)
        if page == "dead":
            looked.away_since, looked.why = 1.0, "can't be reached " * 30
        view = View(page=page, place=10**6, morgue=Morgue(list(looked.queues)), blocks=blocks)
        lines = screen(looked, view, columns, rows, 100.0)
        assert len(lines) == rows
        assert max(line.cell_len for line in lines) <= columns
        assert all("\n" not in line.plain for line in lines)


def test_what_is_drawn() -> None:
    """The numbers of a queue, the worker that runs longest first, its selected line in view."""
    looked = known(30, 3)
    # Between two jobs it is busy all the same, as `status` has it.
    looked.masters[0]["workers"][0] |= {"job": None, "handler": None, "running_ms": 0}
    text = [line.plain for line in screen(looked, View(place=29), 80, 24, 3.0)]
    assert any(line.startswith("queue-29-") for line in text)
    [title] = [line for line in text if line.startswith("3 workers")]
    assert title == "3 workers, 3 busy, on 1 host"
    pids = [line.split()[1] for line in text[text.index(title) + 2 : -1] if line.strip()]
    assert pids == ["2", "1", "0"]
    narrow = "\n".join(line.plain for line in screen(looked, View(), 47, 24, 3.0))
    assert "HANDLER" in narrow, "names have room before CPU and memory have"
    assert "CPU" not in narrow
    assert count(999_999) == "999999"
    assert (count(12_345), count(1_234_567), count(10**12)) == ("12,345", "1.23M", "1T")


def test_while_the_store_is_away_nothing_lies() -> None:
    """It is said, the numbers are marked as old ones, and no rate goes on."""
    looked = known(1, 0)
    looked.away_since, looked.why = 10.0, "redis at x: refused"
    text = "\n".join(line.plain for line in screen(looked, View(), 120, 24, 15.0))
    assert "AWAY for 5s" in text
    assert "redis at x: refused" in text
    assert "LAST SEEN" in text


def test_rates() -> None:
    """Of the last seconds; a store that lost its data begins anew."""
    one = Queue("q", stats(), 0.0)

    def see(at: float, enqueued: int) -> None:
        one.see(QueueStats(False, stats().counts, dict.fromkeys(TOTALS, 0) | {"enqueued": enqueued}, 0), at)

    see(0.0, 0)
    assert one.rate("enqueued") is None
    for second in range(1, 21):
        see(float(second), 100 if second <= 10 else 100 + (second - 10) * 30)
    assert one.rate("enqueued") == pytest.approx(30)
    see(21.0, 0)
    assert one.rate("enqueued") is None


def test_keys() -> None:
    """What terminals send; what means nothing is left out."""
    assert keys_of(b"\x1b[A\x1bOBjkp\r") == ["up", "down", "down", "up", "p", "enter"]
    assert keys_of(b"\x1b[5~q") == ["q"]
    assert keys_of(b"\x1b") == ["esc"]
    assert keys_of(b"\x1b[1;5C") == []


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(f"spool:{tmp_path / 'spool'}") as app:
        yield app


def test_many_queues_take_turns(app: App) -> None:
    """More queues than the budget allows are looked at in turn: each is seen, none is left out."""
    for number in range(40):
        app.store.enqueue(f"q{number}", [NewJob(new_id(), pack_row("j"))])
    looker = Looker(app, 1.0, lambda: None)
    seen = []
    for _ in range(8):
        looker.look()
        assert looker._spent <= 16 + 13
        seen.append(sum(bool(one.seen) for one in looker.known.queues.values()))
        sums = screen(looker.known, View(), 80, 24, 1.0)[1].plain
        assert sums.startswith(f"pending {seen[-1]} ")
        assert (f"in {seen[-1]} of 40 queues so far" in sums) == (seen[-1] < 40), "a part is not shown as the whole"
    assert seen == sorted(seen)
    assert seen[0] < seen[-1] == 40
    assert all(one.stats.counts["pending"] == 1 for one in looker.known.queues.values())


def test_what_is_selected_stays_so(app: App) -> None:
    """A queue that comes in front moves the line, not the choice: the key does what was meant when it was pressed."""
    app.store.enqueue("mail", [NewJob(new_id(), pack_row("j"))])
    looker = Looker(app, 1.0, lambda: None)
    looker.look()
    view = View()
    screen(looker.known, view, 80, 24, 1.0)
    app.store.enqueue("a-new-one", [NewJob(new_id(), pack_row("j"))])
    looker._queues_at = 0.0
    looker.look()
    assert list(looker.known.queues) == ["a-new-one", "mail"]
    act("p", view, looker)
    errand = looker._errands.get()
    assert errand is not None
    looker._do(errand)
    assert (app.store.stats("mail").paused, app.store.stats("a-new-one").paused) == (True, False)
    screen(looker.known, view, 80, 24, 1.0)
    assert view.place == 1
    act("up", view, looker)
    screen(looker.known, view, 80, 24, 1.0)
    assert view.chosen == "a-new-one"


def test_the_morgue_is_read_moved_and_removed(app: App) -> None:
    """By keys: a group is requeued after a yes only, another is deleted; what was not read stays."""
    store = app.store
    store.enqueue("q", [NewJob(f"{name}{n}", pack_row(name), given=True) for name in "ab" for n in range(3)])
    store.register("q", "w", 60_000)
    claims = store.claim("q", "w", 10, 0).claims
    error = pack_error("ValueError", "no 7", attempt=1, at_ms=1)
    store.bury("q", "w", [Buried(claim, "buried", error) for claim in claims])
    looker = Looker(app, 1.0, lambda: None)
    looker.look()
    view = View()

    def do_errands() -> None:
        while not looker._errands.empty():
            errand = looker._errands.get()
            assert errand is not None
            looker._do(errand)

    act("d", view, looker)
    assert view.page == "dead"
    assert view.morgue is not None
    looker.look()
    assert [len(pile.ids) for pile in view.morgue.sorted] == [3, 3]
    first = view.morgue.sorted[0].group.job
    act("r", view, looker)
    assert view.question == f"Requeue 3 dead jobs of {first} in q?"
    act("n", view, looker)
    do_errands()
    assert store.stats("q").counts["dead"] == 6
    act("r", view, looker)
    act("y", view, looker)
    do_errands()
    assert (store.stats("q").counts["pending"], store.stats("q").counts["dead"]) == (3, 3)
    assert looker.known.said == f"requeued 3 of {first}"
    act("enter", view, looker)
    assert view.page == "error"
    act("x", view, looker)
    act("y", view, looker)
    do_errands()
    assert store.stats("q").counts["dead"] == 0
    act("esc", view, looker)
    assert (view.page, view.morgue) == ("main", None)
    act("p", view, looker)
    do_errands()
    assert store.stats("q").paused
