"""Who goes on in a rush: no more processes than processors come to the gate by turns, the others rest meanwhile.

Where workers do little else than come to the gate, more of them than there are processors are slower than fewer:
whoever is let in finds its caches cold, and its processor taken by one who was there before. So a few circulate, each
for a while, and then make room (Dice and Kogan, "Avoiding Scalability Collapse by Restricting Concurrency", 2019).

A seat is a byte of the file `seats` that is locked (fcntl): it goes with its process, however that ends. Nothing rests
on this but speed: who has rested for long goes on without a seat, and so does whoever finds the gate idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from batchq.clock import monotonic
from batchq.config import cpus
from batchq.spool import fs
from batchq.spool.writelock import WriteLock

#: So long a seat is kept where others rest; and who comes less often than that has other things to do.
TERM_S: Final = 0.4
#: Of its time, spent in the queue for the gate: less, and there is no crowd.
PART: Final = 0.25
#: Between two looks of one who rests, and how many of them it rests at most.
LOOK_S: Final = 0.01
LOOKS: Final = 160
#: The gate is idle when so many looks in a row found it free.
IDLE: Final = 3
#: More than that are never needed: who comes so rarely finds the gate free.
MOST: Final = 8
#: The byte that is shared by all who rest.
_RESTING: Final = MOST


class Seats:
    """A process at one gate. `gate_is_free`: a look, which takes nothing."""

    def __init__(
        self,
        path: str,
        gate: WriteLock,
        lock: AbstractContextManager[object],
        gate_is_free: Callable[[], bool],
        count: int | None = None,
    ) -> None:
        self._path = path
        self._gate = gate
        #: The ledger's, which closes all when any thread forks.
        self._lock = lock
        self._gate_is_free = gate_is_free
        self._count = min(count or cpus(), MOST)
        self._fd = -1
        self._seat: int | None = None
        self._until = 0.0
        self._came = -TERM_S

    def is_crowded(self) -> bool:
        """Whether the caller, who would come to the gate now, is to rest first."""
        with self._lock:
            return self._has_to_rest(monotonic())

    def _has_to_rest(self, now: float) -> bool:
        came, self._came = self._came, now
        if self._seat is not None:
            if now < self._until:
                return False
            if self._nobody_rests():
                self._until = now + TERM_S
                return False
            self.leave()
            return True
        period = now - came
        if period > TERM_S or self._gate.waited_s < PART * period:
            return False
        return not self._gate_is_free() and not self._sit()

    def leave(self) -> None:
        """The caller is in no rush any more."""
        with self._lock:
            if self._seat is not None:
                fs.unlock_byte(self._fd, self._seat)
                self._seat = None

    def rest(self, give_up: Callable[[], bool]) -> None:
        """Returns when there is a seat, or the gate is free, or the caller gives up, or it took long enough."""
        try:
            with self._lock:
                if not self._is_open() or not fs.try_lock_byte(self._fd, _RESTING, shared=True):
                    return
            try:
                free = 0
                for _ in range(LOOKS):
                    time.sleep(LOOK_S)
                    with self._lock:
                        # Once may be between two of those who circulate.
                        free = free + 1 if self._gate_is_free() else 0
                        if give_up() or free == IDLE or self._sit():
                            break
            finally:
                with self._lock:
                    if self._fd >= 0:
                        fs.unlock_byte(self._fd, _RESTING)
        finally:
            self._came = monotonic()

    def close(self) -> None:
        """Gives up the seat; the lock is held. The next call opens again."""
        fd, self._fd, self._seat = self._fd, -1, None
        if fd >= 0:
            fs.close(fd)

    def _is_open(self) -> bool:
        """Where the file can't be had nobody rests."""
        if self._fd < 0:
            try:
                self._fd = fs.open_lock(self._path)
            except OSError:
                return False
        return True

    def _sit(self) -> bool:
        """Takes a seat, if one is free."""
        if not self._is_open():
            return True
        for seat in range(self._count):
            if fs.try_lock_byte(self._fd, seat):
                self._seat = seat
                self._until = monotonic() + TERM_S
                return True
        return False

    def _nobody_rests(self) -> bool:
        if not fs.try_lock_byte(self._fd, _RESTING):
            return False
        fs.unlock_byte(self._fd, _RESTING)
        return True
