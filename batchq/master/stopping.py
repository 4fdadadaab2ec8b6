"""How a pool ends: in order, then by an interrupt of what still runs, then by a kill. What is cut off is given back."""

from __future__ import annotations

import signal

from batchq import log
from batchq.clock import SYSTEM
from batchq.config import Settings
from batchq.master.children import named, signal_one
from batchq.master.crew import Crew
from batchq.master.limits import interrupt

#: After an interrupt or a cancel at shutdown a handler has this long, or its grace if that is shorter.
LAST_GRACE_S = 2.0


class Stop:
    """The one of a pool: begun once, and hastened by `at_once`."""

    def __init__(self, settings: Settings, crew: Crew) -> None:
        self._crew = crew
        self._timeout_s = settings.shutdown_timeout_ms / 1000
        self.last_grace_s = min(LAST_GRACE_S, settings.grace_ms / 1000)
        #: When running jobs are interrupted; None: no stop is under way.
        self._at: float | None = None
        #: They have been.
        self.interrupted = False
        self._killed = False

    @property
    def is_under_way(self) -> bool:
        return self._at is not None

    def begin(self, why: str) -> None:
        """Running jobs may end, nothing more is claimed."""
        log.event("info", "stopping", why=why, workers=len(self._crew))
        self._at = SYSTEM.monotonic() + self._timeout_s
        for child in self._crew:
            signal_one(child.pid, signal.SIGTERM)

    def at_once(self) -> None:
        """Waits for nobody any more."""
        self._killed = True
        for child in self._crew:
            self._crew.kill(child, "stopped at once")

    def drive(self, *, others: bool) -> bool:
        """One step; True when nothing is left to wait for. `others`: processes beside the workers still stop."""
        assert self._at is not None
        now = SYSTEM.monotonic()
        if now >= self._at and not self.interrupted:
            self.interrupted = True
            self._interrupt()
        if now >= self._at + self.last_grace_s and not self._killed:
            self.at_once()
        if others and not self._killed:
            # They have the same time to stop in, and a moment to give back what they interrupt.
            return now >= self._at + 2 * self.last_grace_s
        return not self._crew.children and (not self._crew.unreaped or self._killed or now >= self._at)

    def _interrupt(self) -> None:
        for child in self._crew:
            log.event("warning", "interrupted", worker=child.slot.worker, **named(child.runs()))
            interrupt(child)
