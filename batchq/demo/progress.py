"""What one sees while the demo runs: bars on a terminal, a line now and then elsewhere. All of it goes to stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from batchq.cli.endings import say

if TYPE_CHECKING:
    from rich.progress import TaskID

#: Between two lines where there is no terminal.
LINE_S = 1.0


class Watch(Protocol):
    def say(self, message: str) -> None:
        """One message of its own."""
        ...

    def look(self, stats: dict[str, Any]) -> None:
        """Shows where things stand: `app.stats()`."""
        ...

    def close(self) -> None:
        """Takes moving parts away. Can be called twice."""
        ...


def chosen(kinds: Sequence[str]) -> Watch:
    """Bars where stderr is a person's, else lines."""
    return Bars(kinds) if sys.stderr is not None and sys.stderr.isatty() else Lines(kinds)


def silent() -> Watch:
    return _Silent()


class _Silent:
    def say(self, message: str) -> None:
        pass

    def look(self, stats: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


class Lines(_Silent):
    """`2.0s  import 1200/5000  webhooks 87/300 ...` each second, and at the end."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = kinds
        self._began = time.monotonic()
        self._next = 0.0
        #: What was seen last, and what of it was said.
        self._line = self._said = ""

    def say(self, message: str) -> None:
        say(message)

    def look(self, stats: dict[str, Any]) -> None:
        parts = [f"{name} {_ended(queue)}/{_enqueued(queue)}" for name, queue in _queues(stats, self._kinds)]
        self._line = "  ".join(parts)
        if time.monotonic() >= self._next:
            self._tell()

    def close(self) -> None:
        self._tell()

    def _tell(self) -> None:
        if self._line != self._said:
            now = time.monotonic()
            self._next, self._said = now + LINE_S, self._line
            say(f"{now - self._began:5.1f}s  {self._line}")


class Bars:
    """A bar a kind, with what was retried and what crashed."""

    def __init__(self, kinds: Sequence[str]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            console=Console(stderr=True, highlight=False),
        )
        self._kinds = kinds
        self._bars: dict[str, TaskID] = {}
        self._open = False

    def say(self, message: str) -> None:
        self._progress.console.print(message, markup=False, soft_wrap=True)

    def look(self, stats: dict[str, Any]) -> None:
        if not self._open:
            self._progress.start()
            self._open = True
        for name, queue in _queues(stats, self._kinds):
            if name not in self._bars:
                self._bars[name] = self._progress.add_task(name, total=_enqueued(queue), note="")
            self._progress.update(
                self._bars[name], total=_enqueued(queue), completed=_ended(queue), note=_note(queue["totals"])
            )

    def close(self) -> None:
        if self._open:
            self._progress.stop()
            self._open = False


def _queues(stats: dict[str, Any], kinds: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """The queues there are, in the order of the kinds. While the store is away there are none."""
    return [(name, stats["queues"][name]) for name in kinds if name in stats["queues"]]


def _ended(queue: dict[str, Any]) -> int:
    return int(queue["totals"]["completed"] + queue["totals"]["dead"])


def _enqueued(queue: dict[str, Any]) -> int:
    return int(queue["totals"]["enqueued"])


def _note(totals: dict[str, int]) -> str:
    return "  ".join(f"{totals[name]} {name}" for name in ("retried", "crashed", "dead") if totals[name])
