"""The workers of a pool as their master counts them: how many are missing or too many, how each ended. Forks nothing,
and asks no store.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

from batchq import log
from batchq.clock import SYSTEM
from batchq.master.children import Child, Unreaped, death_of, is_stopped, named, signal_group, signal_one
from batchq.master.sweeps import Death
from batchq.system import scoreboard
from batchq.system.memory import KillCount
from batchq.system.parent import Ended
from batchq.worker.base import UNSETTLED

#: So many workers in a row that ended before their first claim was answered, and none that works: they can't start.
MOST_YOUNG = 5
#: The longest wait after a fork that failed.
FORK_MOST_S = 30.0


@dataclass(slots=True)
class Crew:
    """All of them, those of an old generation too."""

    #: How many there are to be.
    want: int
    #: By pid.
    children: dict[int, Child] = field(default_factory=dict)
    #: Those that died, and whose claims are still to be moved.
    unreaped: list[Unreaped] = field(default_factory=list)
    #: Workers in a row that ended before they could work, or could not be forked.
    young_deaths: int = 0
    #: No worker is forked earlier, on the monotonic clock.
    spawn_at: float = 0.0
    _fork_failed: bool = False
    _claimed_before: int = 0
    _kills: KillCount = field(default_factory=KillCount)

    def __iter__(self) -> Iterator[Child]:
        return iter(list(self.children.values()))

    def __len__(self) -> int:
        return len(self.children)

    def in_state(self, *states: int) -> list[Child]:
        """Those that are idle, busy, ...: see `scoreboard`."""
        return [child for child in self if child.slot.state in states]

    @property
    def some_up(self) -> bool:
        return any(child.is_up for child in self)

    @property
    def claimed(self) -> int:
        """Jobs so far, also by workers that are gone."""
        return self._claimed_before + sum(child.slot.claimed for child in self)

    # -- as many as are wanted

    @property
    def is_short(self) -> bool:
        """One is to be forked now. While an old generation works on they come one by one: for a while there are more
        than wanted. And while some that make room still run long jobs, but of those as many at most as are wanted."""
        if len(self) >= scoreboard.MOST or SYSTEM.monotonic() < self.spawn_at:
            return False
        fresh = [child for child in self if not child.is_leaving and not child.old]
        old = any(child.old and not child.is_leaving for child in self)
        too_many = max(0, sum(child.makes_room for child in self) - self.want)
        return len(fresh) + too_many < self.want and (not old or all(child.is_up for child in fresh))

    def add(self, child: Child) -> None:
        self.children[child.pid] = child
        self._fork_failed = False

    def free_place(self) -> int:
        """The slot of the next one."""
        taken = {child.place for child in self}
        return next(place for place in range(scoreboard.MOST) if place not in taken)

    def retire_surplus(self) -> bool:
        """Lets those go that are too many: of an old generation one for each new worker that is up, so that never fewer
        than before claim; else the youngest. True when no old one is left that has not been let go."""
        fresh = [child for child in self if not child.old and not child.is_leaving]
        old = [child for child in self if child.old and not child.is_leaving]
        for child in sorted(fresh, key=lambda child: -child.born)[: max(0, len(fresh) - self.want)]:
            self.retire(child)
        surplus = sum(child.is_up for child in fresh) + len(old) - self.want
        no_room = self._fork_failed or len(self) >= scoreboard.MOST
        leaving = any(child.old and child.is_leaving for child in self)
        if old and no_room and not leaving and all(child.is_up for child in fresh):
            # One has to go first, and only one: the next waits until that has ended and another has come.
            surplus = max(surplus, 1)
        for child in old[: max(0, surplus)]:
            self.retire(child)
        up = sum(child.is_up for child in fresh)
        return len(old) <= max(0, surplus) and (up >= self.want or (self._fork_failed and up > 0))

    def retire(self, child: Child) -> None:
        """It ends when its job is done."""
        child.retiring = True
        signal_one(child.pid, signal.SIGTERM)

    def kill(self, child: Child, why: str) -> None:
        """A planned end, at once, with all that its handlers spawned: nothing is charged."""
        child.ended_by = child.ended_by or Death("stopped", why)
        signal_group(child.pid, signal.SIGKILL)

    # -- the stopped and the dead

    def lay_off_stopped(self) -> None:
        """Idle workers that a signal has stopped are reaped at once: a claim of theirs may stand at the store (of one
        with places none does), and what it brings would wait for the end of the lease. One that goes on takes a new
        id."""
        for child in self.in_state(scoreboard.IDLE):
            worker = child.slot.worker
            if worker != child.laid_off and not child.slot.entries() and is_stopped(child.pid):
                child.laid_off = worker
                log.event("warning", "worker_stopped", worker=worker, pid=child.pid)
                self.unreaped.append(Unreaped(worker, Death("stopped", "it was idle, and is stopped by a signal"), ()))

    def goes_on(self, worker: str) -> bool:
        """It was laid off, and is not stopped any more: what it has now is its own, if it has not been reaped yet."""
        for child in self:
            if child.laid_off == worker == child.slot.worker and not is_stopped(child.pid):
                child.laid_off = ""
                return True
        return False

    def bury(self, ended: Ended) -> Child | None:
        """Notes how a worker ended, and that its claims are to be moved. None of a process that is none."""
        child = self.children.pop(ended.pid, None)
        if child is None:
            return None
        self._claimed_before += child.slot.claimed
        child.let_go()
        self._count_young(child, ended.code)
        by_kernel = self._kills.has_grown() if ended.code == -signal.SIGKILL else None
        death = child.ended_by or death_of(ended.code, ended.peak_bytes, by_kernel)
        if ended.code not in (0, UNSETTLED) and child.ended_by is None:
            log.event(
                "error", "worker_died", worker=child.slot.worker, pid=ended.pid, why=death.text, **named(child.runs())
            )
        if child.slot.worker:
            self.unreaped.append(Unreaped(child.slot.worker, death, child.charged()))
        return child

    def _count_young(self, child: Child, code: int) -> None:
        """Until it is clear that workers can't start each is tried a little later than the one before."""
        if child.is_up or code == 0 or child.ended_by:
            self.young_deaths = 0
            if self._fork_failed:
                # There is room for another.
                self.spawn_at = 0.0
            return
        self.young_deaths += 1
        self.spawn_at = SYSTEM.monotonic() + min(5.0, 0.1 * 2.0 ** min(self.young_deaths, 20))

    def count_failed_fork(self) -> None:
        """As a worker that could not start: tried again ever later, and at once when one of the others has ended."""
        self._fork_failed = True
        self.young_deaths += 1
        self.spawn_at = SYSTEM.monotonic() + min(FORK_MOST_S, 0.25 * 2.0 ** min(self.young_deaths, 20))

    @property
    def cant_start(self) -> bool:
        """Too many in a row ended before they could work, and none works."""
        return self.young_deaths >= MOST_YOUNG and not self.some_up
