"""The import of one input: hears what `run` says, keeps what is remembered, and says how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from batchq.cli.endings import DONE, FAILED, complain, say
from batchq.cli.output import clean, span
from batchq.importing.build import Build
from batchq.importing.lane import Memory
from batchq.importing.progress import Watch, sums, tell
from batchq.importing.rejects import Rejects
from batchq.importing.rows import Bad, Row
from batchq.importing.run import Counts, Stopped, run
from batchq.importing.source import Source
from batchq.store import Store

#: Rejected rows that are named on stderr; all of them are in the rejects file.
NAMED = 20


@dataclass(slots=True)
class Part:
    """See the module. An Observer of `run`."""

    source: Source
    #: None: a dry run.
    store: Store | None
    lane: str
    #: None: it can't go on after an interruption.
    memory: Memory | None
    rejects: Rejects | None
    watch: Watch
    counts: Counts
    #: Shared by the files of a session: the totals of each queue when its import began.
    baseline: dict[str, dict[str, int]]
    strict: bool
    patience_ms: int
    as_json: bool
    #: Of a queue: how many may be pending there while it goes on; 0: any number.
    max_pending: Callable[[str], int]
    _last: Bad | None = None
    _told_full: bool = False

    def run(self, rows: Iterator[Row | Bad], build: Build) -> int:
        """Answers the exit code. Raises what ends the command, once the sums are said."""
        began = time.monotonic()
        self.watch.begin(self.source.shown, self.source.size)
        end = "failed"
        try:
            end = self._run(rows, build)
        except KeyboardInterrupt:
            end = "interrupted"
            raise
        finally:
            if self.memory is not None:
                self.memory.end(finished=end == "done", rejected=self.counts.rejected)
            self._tell(end, time.monotonic() - began)
        return DONE if end == "done" and not self.counts.rejected else FAILED

    def _run(self, rows: Iterator[Row | Bad], build: Build) -> str:
        """How it ended, in a word."""
        shown = clean(self.source.shown)
        try:
            broken = run(
                rows,
                build,
                self.store,
                self.lane,
                self.counts,
                self,
                strict=self.strict,
                patience_s=self.patience_ms / 1000,
                max_pending=self.max_pending,
            )
        except Stopped:
            assert self._last is not None
            self.watch.close()
            complain(f"{shown}: stopped at line {self._last.line} (--strict); what was not sent yet stays out")
            return "strict"
        self.watch.close()
        if broken is not None:
            complain(f"{shown}: {broken}; what stood whole before that place was read")
            return "unreadable"
        change = self.source.change()
        if change:
            complain(f"{shown}: {change}: whether these are all its rows is not known")
            return "changed"
        return "done"

    # -- Observer

    def rejected(self, bad: Bad) -> None:
        self._last = bad
        shown = clean(self.source.shown)
        number = self.counts.rejected
        if number <= NAMED:
            lines = f"lines {bad.line} to {bad.last}" if bad.last > bad.line else f"line {bad.line}"
            self.watch.say(f"batchq: {shown}: {lines}: {clean(bad.reason)}")
        elif number == NAMED + 1:
            self.watch.say(f"batchq: {shown}: there are more")
        if self.rejects is not None:
            self.rejects.add(self.source, bad)

    def sending(self, queues: list[str]) -> None:
        if self.store is None:
            return
        known = {} if self.memory is None else self.memory.state.baseline
        for queue in queues:
            if queue not in self.baseline:
                self.baseline[queue] = known.get(queue) or self.store.stats(queue).totals
            known.setdefault(queue, self.baseline[queue])
        if self.memory is not None:
            self.memory.sending()

    def moved(self, counts: Counts) -> None:
        self._note(counts, waits=False)

    def _note(self, counts: Counts, *, waits: bool) -> None:
        self.watch.look(counts, self.source.read, waits=waits)
        if self.memory is not None:
            self.memory.note(counts.rows, self.source.read, counts.rejected)

    def waiting(self, error: Exception) -> None:
        self.watch.say(f"batchq: {error}; trying again for {span(self.patience_ms)}")

    def full(self, queue: str, most: int) -> None:
        if not self._told_full:
            self._told_full = True
            shown = clean(self.source.shown)
            self.watch.say(f"batchq: {shown}: queue {queue} is full ({most} pending): waits for room, each time")
        # Time goes on: so do the lines, and what is remembered.
        self._note(self.counts, waits=True)

    # -- what is said

    def _tell(self, end: str, spent_s: float) -> None:
        """The sums, on stdout, and what to do where it did not come to its end."""
        self.watch.close()
        rejects = self.rejects.path if self.rejects is not None and self.counts.rejected else None
        if self.as_json:
            event = {"event": "summary", "file": self.source.shown, **sums(self.counts), "end": end}
            event |= {"chunks": self.counts.chunks, "rejects": rejects, "bytes": self.source.read}
            event |= {"seconds": round(spent_s, 3), "dry_run": self.store is None}
            tell(event)
        else:
            tell(f"{clean(self.source.shown)}: {in_words(self.counts, dry_run=self.store is None)}")
        if rejects is not None:
            say(f"batchq: the rejected rows are in {clean(rejects)}")
        if end in ("interrupted", "failed"):
            say(f"batchq: {clean(self.source.shown)}: {self._how_to_go_on()}")
        elif self.memory is not None and self.memory.was_finished and not self.counts.enqueued and self.counts.earlier:
            say(f"batchq: {clean(self.source.shown)}: was imported before; --restart imports it once more")

    def _how_to_go_on(self) -> str:
        if self.store is None:
            return "nothing was changed"
        if self.memory is None:
            return "it was a stream, which can't be read again: import what is left of it by hand"
        return "the same command goes on where it ended"

    def close(self) -> None:
        if self.rejects is not None:
            self.rejects.close()
        if self.memory is not None:
            self.memory.close()


def in_words(counts: Counts, *, dry_run: bool) -> str:
    """`997 jobs enqueued + 0 duplicates + 3 rejected = 1000 rows`"""
    verb = "would be enqueued" if dry_run else "enqueued"
    earlier = f" + {counts.earlier} enqueued by an earlier run" if counts.earlier else ""
    return (
        f"{counts.enqueued} jobs {verb}{earlier} + {counts.duplicates} duplicates + {counts.rejected} rejected = "
        f"{counts.rows} rows"
    )
