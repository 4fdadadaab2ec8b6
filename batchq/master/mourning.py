"""The `on_dead` hooks of jobs that died by reaping, or whose worker died before it had called them all. The master runs
no code of the user's: it asks one worker at a time, by the scoreboard, and the next job follows when the hooks of the
one before have been called.

What waits stands in the scoreboard's file as well, noted before the death: a reload goes on with it, and so does the
next start beside the same pid file after a kill. So hooks are called at least once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from batchq import log
from batchq.master.children import Child, signal_one
from batchq.system import scoreboard
from batchq.system.notices import Notice
from batchq.system.scoreboard import Errand, Scoreboard
from batchq.worker.base import ORDER_SIGNAL

#: So many workers that die in the hooks of one job: no other is asked.
MOST_TRIES = 3


class Mourning:
    """`wanted`: the app has such hooks. What the image before this one noted waits."""

    def __init__(self, board: Scoreboard, *, wanted: bool) -> None:
        self._board = board
        self._wanted = wanted
        self._notices = board.notices()
        if not wanted:
            self._notices.clear()
        #: The first is under way, where there is an errand.
        self.waiting = deque(self._notices.open())
        #: So many of these, the first ones, are noted.
        self._noted = len(self.waiting)
        self._errand: Errand | None = None
        #: The pid of the worker that was asked.
        self._asked = 0
        self._tries = 0
        # An errand that the image before this one has given must not pass for one of ours.
        self._number = board.errand_done + 1

    @property
    def is_under_way(self) -> bool:
        return self._errand is not None

    def add(self, queue: str, job_id: str) -> None:
        """The job is about to die."""
        notice = Notice(queue, job_id)
        if self._wanted and notice not in self.waiting:
            self.waiting.append(notice)
            self._note()

    def gather(self) -> None:
        """What the workers of a killed master had noted."""
        for place in range(scoreboard.MOST):
            self._take_over(place)

    def bury(self, child: Child) -> None:
        """A worker is gone: what it had noted waits here, and what it was asked for is another's."""
        self._take_over(child.place)
        self._look_at_errand()
        if self._errand is not None and child.pid == self._asked:
            # Else it died of something else, before it came to it.
            self._tries += self._is_taken
            self._withdraw()
            if self._tries >= MOST_TRIES:
                queue, job_id = self.waiting[0]
                why = f"{self._tries} workers died in it"
                log.event("error", "hook_failed", hook="on_dead", queue=queue, job=job_id, error=why)
                self._tell()

    def drive(self, children: Collection[Child], *, quiet: bool) -> None:
        """Hands out the next: to an idle worker, else to a busy one, which comes to it when its batch is done."""
        self._look_at_errand()
        able = [child for child in children if child.is_up and not child.retiring]
        if not self.waiting or not able or quiet or self._is_in_good_hands(able):
            return
        child = next((child for child in able if child.slot.state == scoreboard.IDLE), able[0])
        self._number += 1
        self._errand = Errand(self._number, child.place, *self.waiting[0])
        self._asked = child.pid
        self._board.give_errand(self._errand)
        signal_one(child.pid, ORDER_SIGNAL)

    def _take_over(self, place: int) -> None:
        notices = self._board.notices(place)
        for notice in notices.open():
            self.add(*notice)
        notices.clear()

    def _note(self) -> None:
        """Notes what waits, as far as there is room."""
        while self._noted < len(self.waiting) and self._notices.note(self.waiting[self._noted]):
            self._noted += 1

    def _look_at_errand(self) -> None:
        if self._errand is not None and self._board.errand_done == self._errand.number:
            self._errand = None
            self._tell()

    def _tell(self) -> None:
        """The first waits no more."""
        self._tries = 0
        self.waiting.popleft()
        if self._noted:
            self._noted -= 1
            self._notices.tell()
        self._note()

    @property
    def _is_taken(self) -> bool:
        return self._errand is not None and self._board.errand_taken == self._errand.number

    def _withdraw(self) -> None:
        """A new worker at that place must not take it for its own."""
        self._errand = None
        self._board.give_errand(Errand(0, 0, "", ""))

    def _is_in_good_hands(self, able: Collection[Child]) -> bool:
        """The worker that was asked has begun with it, or is no busier than the others."""
        if self._errand is None:
            return False
        idle = [child for child in able if child.slot.state == scoreboard.IDLE]
        return any(child.pid == self._asked and (self._is_taken or not idle or child in idle) for child in able)
