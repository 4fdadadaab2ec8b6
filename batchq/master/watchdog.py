"""Notices a pool that is alive and consumes nothing, the fault that nobody sees: jobs are ready, a worker is idle, and
for a while nothing is claimed. Decides what to do next; the master does it.

    after the period             say so, and have the idle workers connect anew
    half a period later          replace them
    a whole period after that    give up: whoever runs the master (systemd, Kubernetes) is to act

Any claim, and any look that finds nothing ready or nobody idle, begins it all anew; new workers are given the time to
become idle.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

#: Looks a period: all of them must find work.
LOOKS = 4


class Step(Enum):
    """What is to be done. The value: when, in periods without a claim."""

    RECONNECT = 1.0
    REPLACE = 1.5
    GIVE_UP = 2.5


class Watchdog:
    """`period_s` 0: it never barks."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        #: Between two looks.
        self.look_s = period_s / LOOKS
        self._claimed = -1
        self._since = 0.0
        self._look_at = 0.0
        self._steps = list(Step)

    def look(self, now: float, claimed: int, *, some_idle: bool, is_ready: Callable[[], bool]) -> Step | None:
        """`claimed`: jobs so far, of the whole pool. `is_ready` is asked now and then only: it asks the store."""
        if not self._period_s:
            return None
        replacing = Step.REPLACE not in self._steps
        if claimed != self._claimed or not (some_idle or replacing):
            self._begin(now, claimed)
            return None
        if now < self._look_at:
            return None
        self._look_at = now + self.look_s
        if not is_ready():
            self._begin(now, claimed)
            return None
        if self._steps and now - self._since >= self._steps[0].value * self._period_s:
            return self._steps.pop(0)
        return None

    def _begin(self, now: float, claimed: int) -> None:
        self._claimed, self._since = claimed, now
        self._look_at = now + self.look_s
        self._steps = list(Step)
