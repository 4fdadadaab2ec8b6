"""What one sees while it runs: a bar on a terminal, a line a second elsewhere, events for programs."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Protocol

from batchq.cli import output
from batchq.cli.endings import flush, say
from batchq.cli.output import clean, span
from batchq.importing.run import Counts

#: Between two looks.
LINE_S = 1.0
BAR_S = 0.1


class Watch(Protocol):
    def begin(self, name: str, size: int | None) -> None:
        """An input of so many bytes begins; None: nobody knows."""
        ...

    def look(self, counts: Counts, read: int, *, waits: bool = False) -> None:
        """So far. Called often: it is shown when it is time. `waits`: for room in a full queue."""
        ...

    def stage(self, queues: dict[str, dict[str, int]]) -> None:
        """How far the second stage is, see `wait`."""
        ...

    def say(self, message: str) -> None:
        """One message of its own."""
        ...

    def close(self) -> None:
        """Takes moving parts away. Can be called twice."""
        ...


def chosen(*, as_json: bool) -> Watch:
    """Events where a program asked for them; a bar where stderr is a person's; else lines."""
    if as_json:
        return Events()
    return Bar() if sys.stderr is not None and sys.stderr.isatty() else Lines()


class Lines:
    """`orders.csv: 120000 rows (3 rejected), 38%, 61203 rows/s, 5s left` on stderr."""

    def __init__(self) -> None:
        self._name = ""
        self._size: int | None = None
        self._began = self._next = time.monotonic()

    def begin(self, name: str, size: int | None) -> None:
        self._name, self._size = name, size
        self._began = time.monotonic()
        self._next = self._began + LINE_S

    def look(self, counts: Counts, read: int, *, waits: bool = False) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + LINE_S
        self._show(counts, read, now - self._began, waits=waits)

    def _show(self, counts: Counts, read: int, spent_s: float, *, waits: bool = False) -> None:
        facts = f", {facts}" if (facts := _beside(counts)) else ""
        if waits:
            # How far it is and how long it takes is up to those who make room.
            say(f"{clean(self._name)}: {counts.rows} rows{facts}, waiting for room")
            return
        place = "" if not self._size else f", {100 * read // self._size}%"
        left = _left_s(self._size, read, spent_s)
        eta = "" if left is None else f", {span(left * 1000)} left"
        say(f"{clean(self._name)}: {counts.rows} rows{facts}{place}, {counts.rows / spent_s:.0f} rows/s{eta}")

    def stage(self, queues: dict[str, dict[str, int]]) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LINE_S
            for name, facts in queues.items():
                say(f"queue {name}: {_stage(facts)}")

    def say(self, message: str) -> None:
        say(message)

    def close(self) -> None:
        pass


class Events(Lines):
    """`{"event": "progress", ...}` lines on stdout; messages stay on stderr."""

    def _show(self, counts: Counts, read: int, spent_s: float, *, waits: bool = False) -> None:
        event: dict[str, Any] = {"event": "progress", "file": self._name, **sums(counts), "bytes": read}
        event["total_bytes"] = self._size
        event["rows_per_s"] = round(counts.rows / spent_s)
        left = None if waits else _left_s(self._size, read, spent_s)
        event["eta_ms"] = None if left is None else round(left * 1000)
        event["waits"] = waits
        tell(event)

    def stage(self, queues: dict[str, dict[str, int]]) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LINE_S
            for name, facts in queues.items():
                tell({"event": "stage", "queue": name, **facts})


class Bar:
    """One line that moves: by bytes where their number is known."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            DownloadColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeRemainingColumn(),
            console=Console(stderr=True, highlight=False),
        )
        self._stages = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}", markup=False),
            console=Console(stderr=True, highlight=False),
        )
        self._open: Progress | None = None
        self._began = self._next = time.monotonic()
        self._task: Any = None
        self._last: tuple[Counts, int, bool] | None = None
        self._queues: dict[str, Any] = {}

    def begin(self, name: str, size: int | None) -> None:
        self._show(self._progress)
        self._last = None
        self._began, self._next = time.monotonic(), 0.0
        self._task = self._progress.add_task(clean(name), total=size, note="")

    def _show(self, progress: Any) -> None:
        if self._open is not progress:
            self.close()
            progress.start()
            self._open = progress

    def look(self, counts: Counts, read: int, *, waits: bool = False) -> None:
        self._last = counts, read, waits
        now = time.monotonic()
        if now >= self._next:
            self._next = now + BAR_S
            self._draw(now)

    def _draw(self, now: float) -> None:
        assert self._last is not None
        counts, read, waits = self._last
        rate = counts.rows / max(now - self._began, 0.001)
        beside = f", {facts}" if (facts := _beside(counts)) else ""
        pace = "waiting for room" if waits else f"{rate:.0f} rows/s"
        self._progress.update(self._task, completed=read, note=f"{counts.rows} rows{beside}, {pace}")

    def stage(self, queues: dict[str, dict[str, int]]) -> None:
        self._show(self._stages)
        for name, facts in queues.items():
            if name not in self._queues:
                self._queues[name] = self._stages.add_task(f"queue {name}", note="")
            total = facts["settled"] + facts["waiting"]
            self._stages.update(self._queues[name], total=total, completed=facts["settled"], note=_stage(facts))

    def say(self, message: str) -> None:
        if self._open is None:
            say(message)
        else:
            self._open.console.print(message, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self._open is not None:
            if self._open is self._progress and self._last is not None:
                # As it ended.
                self._draw(time.monotonic())
            self._open.stop()
            self._open = None


def tell(answer: str | dict[str, Any]) -> None:
    """A line on stdout: text, or one JSON object. A reader that has gone is told nothing more: the rows go on, and the
    exit code is theirs."""
    try:
        if isinstance(answer, str):
            output.write(answer + "\n")
        else:
            output.json_line(answer, indent=False)
        flush()
    except BrokenPipeError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def sums(counts: Counts) -> dict[str, int]:
    """The counts, as programs get them."""
    return {
        "rows": counts.rows,
        "enqueued": counts.enqueued,
        "earlier": counts.earlier,
        "duplicates": counts.duplicates,
        "rejected": counts.rejected,
    }


def _beside(counts: Counts) -> str:
    named = ((counts.earlier, "by an earlier run"), (counts.duplicates, "duplicates"), (counts.rejected, "rejected"))
    return ", ".join(f"{number} {name}" for number, name in named if number)


def _left_s(size: int | None, read: int, spent_s: float) -> float | None:
    return None if not size or not read or read > size else spent_s * (size - read) / read


def _stage(facts: dict[str, int]) -> str:
    beside = "".join(f", {facts[name]} {name}" for name in ("dead", "cancelled", "purged", "dropped") if facts[name])
    waiting = ", ".join(f"{facts[name]} {name}" for name in ("pending", "active", "delayed") if facts[name])
    return f"{facts['completed']} completed{beside}; " + (f"still {waiting}" if waiting else "nothing is left")
