"""What people do with jobs from outside: list, count, cancel, requeue, purge. Over any store, page by page.

A job's id does not say its queue; where none is given, each queue is asked.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from batchq.config import masked
from batchq.errors import ConfigError, StoreUnavailable
from batchq.job import Job, check_queue
from batchq.lifecycle import COUNTED, State, Word
from batchq.selection import Selection
from batchq.store import Store

#: Jobs that are read at a time.
PAGE = 100

#: The states whose jobs can be purged.
PURGED = (State.PENDING, State.DELAYED, State.COMPLETED, State.DEAD)


def check_state(state: object, allowed: Sequence[State] = COUNTED) -> State:
    """The state, from its name. Raises ConfigError."""
    names = [one.value for one in allowed]
    if isinstance(state, str) and state in names:
        return State(state)
    near = difflib.get_close_matches(state.lower(), names, n=1) if isinstance(state, str) else []
    hint = f"did you mean {near[0]}?" if near else f"write {', '.join(names)}"
    raise ConfigError(f"state: {state!r:.100} is no state that can be asked for here; {hint}")


def queues_of(store: Store, queue: str | None) -> list[str]:
    """The one queue, or all. Raises ConfigError."""
    return store.queues() if queue is None else [check_queue(queue)]


class Listing(Iterator[Job]):
    """Jobs, read page by page while they are looked at. While jobs move, one may be seen twice."""

    def __init__(
        self,
        store: Store,
        queues: Sequence[str],
        states: Sequence[State],
        *,
        chosen: Selection,
        limit: int | None,
        cursor: str,
    ) -> None:
        if cursor and (len(queues) != 1 or len(states) != 1):
            raise ConfigError("cursor: it goes on in one list; give the queue and the state that it came from")
        #: Where the list goes on behind what was read: "" at its end. Of use with one queue and one state.
        self.cursor = cursor
        self._store = store
        self._chosen = chosen
        self._now_ms = store.now_ms() if chosen.needs_clock else 0
        self._left = limit
        self._jobs = self._read([(queue, state) for queue in queues for state in states])

    def __next__(self) -> Job:
        return next(self._jobs)

    def _read(self, lists: Sequence[tuple[str, State]]) -> Iterator[Job]:
        for queue, state in lists:
            while self._left != 0:
                # No more than is wanted: the cursor then stands right behind the last one that was shown.
                size = PAGE if self._left is None else min(PAGE, self._left)
                page = self._store.jobs(queue, state, cursor=self.cursor, limit=size)
                self.cursor = page.cursor
                for job in page.jobs:
                    if self._chosen.wants(job, self._now_ms):
                        self._left = None if self._left is None else max(0, self._left - 1)
                        yield job
                if not page.cursor or (page.jobs and self._chosen.is_past(page.jobs[-1], self._now_ms)):
                    break


def find_job(store: Store, job_id: str, queue: str | None) -> Job | None:
    """The job of that id, or None."""
    for name in queues_of(store, queue):
        job = store.get(name, job_id)
        if job is not None:
            return job
    return None


def ask_all(
    store: Store, ids: Sequence[str], queue: str | None, move: Callable[[str, Sequence[str]], Sequence[Word]]
) -> list[Word]:
    """Makes a move of ids whose queues are not known: the first queue that knows an id answers for it."""
    words = dict.fromkeys(ids, Word.UNKNOWN)
    for name in queues_of(store, queue):
        left = [job_id for job_id, word in words.items() if word is Word.UNKNOWN]
        if not left:
            break
        words.update(zip(left, move(name, left), strict=True))
    return [words[job_id] for job_id in ids]


def purge_jobs(store: Store, state: State, *, chosen: Selection, queue: str | None) -> int:
    """Removes the jobs of a state that are meant, of one queue if given; answers how many.

    What comes while it runs stays.
    """
    now_ms = store.now_ms()
    if chosen.older_than_ms is None:
        chosen = replace(chosen, older_than_ms=0)
    gone = 0
    for name in queues_of(store, queue):
        cursor = ""
        while True:
            page = store.jobs(name, state, cursor=cursor, limit=PAGE)
            ids = [one.id for one in page.jobs if chosen.wants(one, now_ms)]
            removed = store.purge(name, state, ids) if ids else 0
            gone += removed
            # Others have moved up into what was removed: the same place is read again.
            if not removed:
                cursor = page.cursor
                if not cursor or (page.jobs and chosen.is_past(page.jobs[-1], now_ms)):
                    break
    return gone


def read_stats(store: Store, url: str, *, since_ms: int, spool: dict[str, Any]) -> dict[str, Any]:
    """Everything that is counted, in the shape that programs rely on. While the store is away `up` is false.

    `url` is shown without its password. `since_ms`: since when the store is open in this process.
    """
    here = {"url": masked(url), "kind": store.traits.kind, "version": "", "up": True, "since_ms": since_ms}
    out: dict[str, Any] = {"store": here, "queues": {}, "workers": [], "spool": spool}
    try:
        here["version"] = store.info().version
        for name in store.queues():
            stats = store.stats(name)
            out["queues"][name] = {
                "paused": stats.paused,
                "counts": stats.counts,
                "totals": stats.totals,
                "oldest_pending_age_ms": stats.oldest_pending_age_ms,
            }
            circuits = [gate._asdict() for gate in store.gates(name, closed=False)]
            if circuits:
                out["queues"][name]["circuits"] = circuits
        for master in store.masters():
            out["workers"] += master.get("workers", [])
    except StoreUnavailable as error:
        return out | {"store": here | {"up": False, "error": str(error)}, "queues": {}, "workers": []}
    return out


def spool_stats(path: str) -> dict[str, Any]:
    """What lies in a spool's inbox; nothing where there is none. A spool that can't be looked into says why."""
    from batchq.spool.inbox import census

    try:
        found = census(path)
    except OSError as error:
        return {"path": path, "files": 0, "jobs": 0, "bad": 0, "error": str(error)}
    return {"path": path, "files": found.files, "jobs": found.jobs, "bad": found.bad}
