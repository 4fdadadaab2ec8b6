"""The dead by their errors, for a screen: read a page at a time within the budget of commands, oldest first."""

from __future__ import annotations

from dataclasses import dataclass, field

from batchq.job import Job
from batchq.lifecycle import State, Word
from batchq.selection import Group, group
from batchq.store import MAX_JOBS, Store

#: Dead jobs that are read at a time: as many as one step carries, for a page costs the same whatever is on it.
PAGE = MAX_JOBS


@dataclass(slots=True)
class Pile:
    """One group with the ids of its jobs, and the newest of them."""

    group: Group
    ids: list[str] = field(default_factory=list)
    newest: Job | None = None


@dataclass(slots=True)
class Morgue:
    """The dead of some queues. Read on the looker's thread, drawn from another."""

    queues: list[str]
    piles: dict[str, Pile] = field(default_factory=dict)
    read: int = 0
    complete: bool = False
    _cursor: str = ""
    _queue: int = 0

    @property
    def sorted(self) -> list[Pile]:
        """The greatest first."""
        return sorted(self.piles.values(), key=lambda pile: (-len(pile.ids), pile.group.id))

    def read_on(self, store: Store) -> None:
        """Reads one page more."""
        if self._queue < len(self.queues):
            page = store.jobs(self.queues[self._queue], State.DEAD, cursor=self._cursor, limit=PAGE)
            self._take(page.jobs)
            self._cursor = page.cursor
            if not page.cursor:
                self._queue += 1
        self.complete = self._queue >= len(self.queues)

    def _take(self, jobs: tuple[Job, ...]) -> None:
        for job in jobs:
            [found] = group([job])
            pile = self.piles.get(found.id)
            if pile is None:
                pile = self.piles[found.id] = Pile(found)
            elif found.last_ms >= pile.group.last_ms:
                pile.group = found
            pile.ids.append(job.id)
            if pile.newest is None or job.since_ms >= pile.newest.since_ms:
                pile.newest = job
            self.read += 1

    def requeue(self, store: Store, pile: Pile) -> str:
        """An errand: sends the group's jobs back."""
        moved = 0
        for ids in _chunks(pile.ids):
            moved += store.requeue(pile.group.queue, ids).count(Word.OK)
        self.piles.pop(pile.group.id, None)
        return f"requeued {moved} of {pile.group.job}"

    def purge(self, store: Store, pile: Pile) -> str:
        """An errand: removes the group's jobs for good."""
        gone = sum(store.purge(pile.group.queue, State.DEAD, ids) for ids in _chunks(pile.ids))
        self.piles.pop(pile.group.id, None)
        return f"deleted {gone} of {pile.group.job}"


def _chunks(ids: list[str]) -> list[list[str]]:
    return [ids[at : at + MAX_JOBS] for at in range(0, len(ids), MAX_JOBS)]
