"""The `on_dead` hooks of jobs that died by reaping. The master runs no code of the user's: it asks one worker at a
time, by the scoreboard, and the next job follows when the hooks of the one before have been called.

What waits goes with a master that is killed; a reload hands it over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from batchq.master.children import Child, named, signal_one
from batchq.system import scoreboard
from batchq.system.scoreboard import Errand, Scoreboard
from batchq.worker.base import ORDER_SIGNAL


class Mourning:
    """`wanted`: the app has such hooks. `waiting`: (queue, id), from the image before this one."""

    def __init__(self, board: Scoreboard, *, wanted: bool, waiting: Iterable[tuple[str, str]] = ()) -> None:
        self._board = board
        self._wanted = wanted
        #: The first is under way, where there is an errand.
        self.waiting = deque((queue, job_id) for queue, job_id in waiting)
        self._errand: Errand | None = None
        # An errand that the image before this one has given must not pass for one of ours.
        self._number = board.errand_done + 1

    @property
    def is_under_way(self) -> bool:
        return self._errand is not None

    def add(self, queue: str, job_id: str) -> None:
        if self._wanted:
            self.waiting.append((queue, job_id))

    def drive(self, children: Collection[Child], *, quiet: bool) -> None:
        """Hands out the next: to an idle worker, else to a busy one, which comes to it when its batch is done."""
        if self._errand is not None and self._board.errand_done == self._errand.number:
            self._errand = None
            self.waiting.popleft()
        able = [child for child in children if child.is_up and not child.retiring]
        if not self.waiting or not able or quiet or self._is_in_good_hands(able):
            return
        child = next((child for child in able if child.slot.state == scoreboard.IDLE), able[0])
        self._number += 1
        self._errand = Errand(self._number, child.place, *self.waiting[0])
        self._board.give_errand(self._errand)
        signal_one(child.pid, ORDER_SIGNAL)

    def _is_in_good_hands(self, able: Collection[Child]) -> bool:
        """The worker that was asked lives, and runs no job while another is idle."""
        if self._errand is None:
            return False
        idle = any(child.slot.state == scoreboard.IDLE for child in able)
        return any(child.place == self._errand.place and not (idle and named(child.runs())) for child in able)
