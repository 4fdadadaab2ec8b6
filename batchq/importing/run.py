"""The import itself: rows in, chunks out, each under its mark; and the sums, which add up at every moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from batchq.errors import ConfigError, QueueFull, StoreDenied, StoreError, StoreFull, StoreUnavailable
from batchq.importing.build import Build, Placed
from batchq.importing.rows import Bad, Row, Unreadable
from batchq.job import Mark, NewJob
from batchq.lifecycle import Word
from batchq.store import MAX_BYTES, MAX_JOBS, Sent, Store

#: Between two tries of a store that is away or full.
PAUSE_S = 0.5
#: Between two looks whether a full queue has room.
LOOK_S = 0.1


@dataclass(slots=True)
class Counts:
    """What became of the rows so far. rows = enqueued + earlier + duplicates + rejected."""

    enqueued: int = 0
    #: They stand in chunks that an earlier run had enqueued.
    earlier: int = 0
    #: Their id was known: nothing was enqueued for them.
    duplicates: int = 0
    rejected: int = 0
    chunks: int = 0

    @property
    def rows(self) -> int:
        return self.enqueued + self.earlier + self.duplicates + self.rejected

    def add(self, other: Counts) -> None:
        """Takes in what became of another input's rows."""
        self.enqueued += other.enqueued
        self.earlier += other.earlier
        self.duplicates += other.duplicates
        self.rejected += other.rejected
        self.chunks += other.chunks


class Stopped(Exception):
    """--strict: a row was rejected."""


class Observer(Protocol):
    """Who hears what happens."""

    def rejected(self, bad: Bad) -> None:
        """A row became no job."""
        ...

    def sending(self, queues: list[str]) -> None:
        """A chunk for these queues is about to be sent."""
        ...

    def moved(self, counts: Counts) -> None:
        """Some rows further."""
        ...

    def waiting(self, error: Exception) -> None:
        """The store is away or full; it is tried again."""
        ...

    def full(self, queue: str, most: int) -> None:
        """So many jobs are pending there; room is waited for."""
        ...


def run(
    rows: Iterator[Row | Bad],
    build: Build,
    store: Store | None,
    lane: str,
    counts: Counts,
    observer: Observer,
    *,
    strict: bool,
    patience_s: float,
    max_pending: Callable[[str], int],
) -> Unreadable | None:
    """Imports all rows; answers why the input ended too soon, where it did. Without a store nothing is enqueued, and
    what would be is counted.

    Raises Stopped for a rejected row where `strict`: its chunk is not sent. Raises the store's errors once they have
    lasted for `patience_s`; a full queue is waited for as long as it takes. `counts` is right whatever ends it; a chunk
    whose answer was lost is not in it.
    """
    sender = Sender(store, lane, counts, observer, patience_s, max_pending)
    chunk: list[Placed] = []
    size = 0
    broken: Unreadable | None = None

    def reject(bad: Bad) -> None:
        counts.rejected += 1
        observer.rejected(bad)
        observer.moved(counts)
        if strict:
            sender.finish()
            raise Stopped

    try:
        for row in rows:
            if isinstance(row, Bad):
                reject(row)
                continue
            try:
                placed = build(row.value)
            except (ValueError, TypeError, ConfigError) as error:
                reject(Bad(row.line, str(error), row.raw))
                continue
            length = len(placed[1].row)
            if chunk and (len(chunk) == MAX_JOBS or size + length > MAX_BYTES):
                sender.send(chunk)
                chunk, size = [], 0
            chunk.append(placed)
            size += length
    except Unreadable as error:
        # What was whole before it goes on.
        broken = error
    except BaseException:
        # Mostly an interrupt: the answer is on its way, but no store is waited for.
        sender.hear()
        raise
    if chunk:
        sender.send(chunk)
    sender.finish()
    return broken


class _Ahead(NamedTuple):
    """A chunk that is on its way: the next one is made meanwhile."""

    queue: str
    jobs: list[NewJob]
    mark: Mark
    sent: Sent


class Sender:
    """Sends chunks, one after the other, each under its number."""

    def __init__(
        self,
        store: Store | None,
        lane: str,
        counts: Counts,
        observer: Observer,
        patience_s: float,
        max_pending: Callable[[str], int],
    ) -> None:
        self._store = store
        self._lane = lane
        self._counts = counts
        self._observer = observer
        self._patience_s = patience_s
        self._max_pending = max_pending
        #: A chunk of this run is in: from here on `again` is the answer to a call of its own that was lost.
        self._fresh = False
        self._ahead: _Ahead | None = None

    def send(self, chunk: list[Placed]) -> None:
        """One chunk, once the one before is in. Where it is for several queues each takes its part under the same mark:
        marks are a queue's."""
        self.finish()
        parts: dict[str, list[NewJob]] = {}
        for queue, job in chunk:
            parts.setdefault(queue, []).append(job)
        self._observer.sending(list(parts))
        mark = Mark(self._lane, self._counts.chunks + 1)
        if len(parts) == 1:
            [(queue, jobs)] = parts.items()
            # A full queue is waited for, before the next chunk is made.
            if self._store is not None and not self._max_pending(queue):
                sent = self._store.send_ahead(queue, jobs, mark)
                if sent is not None:
                    self._ahead = _Ahead(queue, jobs, mark, sent)
                    return
        for queue, jobs in parts.items():
            self._count(self._enqueue(queue, jobs, mark))
        self._is_in()

    def finish(self) -> None:
        """Waits until the chunk that is on its way is in. Raises the store's errors once they have lasted."""
        if self._ahead is not None:
            (queue, jobs, mark, sent), self._ahead = self._ahead, None
            self._count(self._enqueue(queue, jobs, mark, sent))
            self._is_in()

    def hear(self) -> None:
        """The answer for the chunk that is on its way, where there is one."""
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            with suppress(StoreError):
                self._count(ahead.sent.words())
                self._counts.chunks += 1

    def _is_in(self) -> None:
        self._counts.chunks += 1
        self._observer.moved(self._counts)

    def _count(self, words: list[Word]) -> None:
        counts = self._counts
        known = words.count(Word.KNOWN)
        counts.duplicates += known
        if words[0] is not Word.AGAIN:
            self._fresh = True
            counts.enqueued += len(words) - known
        elif self._fresh:
            counts.enqueued += len(words)
        else:
            counts.earlier += len(words)

    def _enqueue(self, queue: str, jobs: list[NewJob], mark: Mark, sent: Sent | None = None) -> list[Word]:
        """`sent`: it is on its way already."""
        if self._store is None:
            return [Word.OK] * len(jobs)
        give_up, most = 0.0, self._max_pending(queue)
        while True:
            try:
                if sent is not None:
                    ahead, sent = sent, None
                    return ahead.words()
                return self._store.enqueue(queue, jobs, mark, max_pending=most)
            except StoreDenied:
                raise
            except (StoreUnavailable, StoreFull) as error:
                now = time.monotonic()
                if not give_up:
                    give_up = now + self._patience_s
                    if self._patience_s:
                        self._observer.waiting(error)
                if now >= give_up:
                    raise
                time.sleep(PAUSE_S)
            except QueueFull:
                give_up = 0.0
                self._observer.full(queue, most)
                time.sleep(LOOK_S)
