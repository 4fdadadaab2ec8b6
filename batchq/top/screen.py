"""The loop of `batchq top`: keys in, lines out. On the alternate screen, which is left as it was found."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from batchq.app import App
from batchq.clock import SYSTEM
from batchq.store import Store
from batchq.top.draw import View, screen, selected_pile
from batchq.top.look import Looker
from batchq.top.morgue import Morgue

#: The screen is drawn so often at least, for its clocks; and looked at for a key or another size so often.
DRAW_S, TICK_S = 1.0, 0.1

#: What terminals send for a key, by its name.
_ESCAPES = {b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down", b"\x1b": "esc"}
_NAMES = {"k": "up", "j": "down", "\r": "enter", "\n": "enter", "\x7f": "esc"}


def run(app: App, *, every_s: float, local: Callable[[], dict[str, Any] | None]) -> None:
    """Until `q`. `local`: what this host's master says, while the store is away."""
    looker = Looker(app, every_s, local)
    looker.start()
    console = Console(highlight=False, markup=False, emoji=False)
    view = View(blocks=console.encoding.lower().startswith("utf"))
    try:
        with _keys() as fd, Live(console=console, screen=True, auto_refresh=False) as live:
            _loop(looker, view, console, live, fd)
    finally:
        looker.stop()


def _loop(looker: Looker, view: View, console: Console, live: Live, fd: int) -> None:
    drawn: tuple[Any, ...] = ()
    draw_at = 0.0
    while True:
        now = SYSTEM.monotonic()
        size = console.size
        fresh = (looker.known.looks, size, view.page, view.place, view.top, view.question)
        if fresh != drawn or now >= draw_at:
            live.update(Group(*screen(looker.known, view, size.width, size.height, now)), refresh=True)
            drawn, draw_at = (*fresh[:3], view.place, view.top, view.question), now + DRAW_S
        for key in _pressed(fd):
            if key == "q" or not act(key, view, looker):
                return


def act(key: str, view: View, looker: Looker) -> bool:
    """Does what a key means on this page; False: leave."""
    if view.question:
        if key == "y":
            view.answer(looker)
        view.question = ""
        return True
    match key, view.page:
        case (("up" | "down"), "error"):
            view.top += 1 if key == "down" else -1
        case (("up" | "down"), _):
            view.place, view.chosen = max(0, view.place + (1 if key == "down" else -1)), ""
        case "p", "main":
            _toggle(view, looker)
        case "d", "main":
            _open_morgue(view, looker)
        case "enter", "dead" if selected_pile(view) is not None:
            view.page, view.top = "error", 0
        case (("r" | "x"), ("dead" | "error")):
            _ask_for_group(key, view)
        case "esc", "error":
            view.page = "dead"
        case "esc", "dead":
            view.page, view.chosen, view.morgue = "main", view.queue, None
            looker.reading = None
    return True


def _toggle(view: View, looker: Looker) -> None:
    """Pauses the selected queue, or lets it go on."""
    name = _selected_queue(view, list(looker.known.queues))
    if not name:
        return

    def errand(store: Store) -> str:
        # What it is now, not what was last drawn.
        paused = store.stats(name).paused
        (store.resume if paused else store.pause)(name)
        if (shown := looker.known.queues.get(name)) is not None:
            shown.see(store.stats(name), SYSTEM.monotonic())
        return f"{name} {'resumed' if paused else 'paused'}"

    looker.ask(errand)


def _selected_queue(view: View, names: list[str]) -> str:
    """The one that was drawn as selected; "" where there is none."""
    if view.chosen in names:
        return view.chosen
    return names[min(view.place, len(names) - 1)] if names else ""


def _open_morgue(view: View, looker: Looker) -> None:
    """The dead of the selected queue; of all where it has none."""
    names = list(looker.known.queues)
    if not names:
        return
    view.queue = chosen = _selected_queue(view, names)
    dead = looker.known.queues[chosen].stats.counts["dead"]
    view.morgue, view.page = Morgue([chosen] if dead else names), "dead"
    view.place, view.chosen = 0, ""
    looker.reading = view.morgue
    # Not only with the next look.
    looker.ask(lambda store: "")


def _ask_for_group(key: str, view: View) -> None:
    pile, morgue = selected_pile(view), view.morgue
    if pile is None or morgue is None:
        return
    verb = "Requeue" if key == "r" else "Delete"
    view.question = f"{verb} {len(pile.ids):,} dead jobs of {pile.group.job} in {pile.group.queue}?"
    move = morgue.requeue if key == "r" else morgue.purge

    def answer(looker: Looker) -> None:
        looker.ask(lambda store: move(store, pile))
        view.page = "dead"

    view.answer = answer


@contextlib.contextmanager
def _keys() -> Iterator[int]:
    """The terminal gives each key at once, and shows none. Restored at the end."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _pressed(fd: int) -> list[str]:
    """The keys that came; waits a tick for the first. A terminal that is gone quits."""
    ready, _, _ = select.select([fd], [], [], TICK_S)
    if not ready:
        return []
    got = os.read(fd, 256)
    return keys_of(got) if got else ["q"]


def keys_of(got: bytes) -> list[str]:
    """The names of the keys that a terminal sent; what is none is left out."""
    found: list[str] = []
    while got:
        escape = next((one for one in _ESCAPES if got.startswith(one)), None)
        if escape == b"\x1b" and len(got) > 1 and got[1:2] in b"[O":
            # A sequence that means nothing here ends with a letter or ~.
            end = next((at for at in range(2, len(got)) if 0x40 <= got[at] <= 0x7E), len(got) - 1)
            got = got[end + 1 :]
        elif escape is not None:
            found.append(_ESCAPES[escape])
            got = got[len(escape) :]
        else:
            key = chr(got[0])
            found.append(_NAMES.get(key, key.lower()))
            got = got[1:]
    return found
