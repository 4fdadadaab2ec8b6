"""A reload as the loop of the master drives it: asked for, checked in a child, handed over, and at its end when new
workers have taken the places of the old ones. How the next image is checked and started: see `handover`.
"""

from __future__ import annotations

import signal

from batchq import log
from batchq.clock import SYSTEM
from batchq.config import Settings
from batchq.master.children import death_of, signal_group
from batchq.master.crew import Crew
from batchq.master.handover import CHECK_S, Check, Origin
from batchq.system.notify import Notifier


class Reload:
    """`origin`: how the next image is started; without it there is no reload."""

    def __init__(self, origin: Origin | None, settings: Settings, crew: Crew, notify: Notifier) -> None:
        self._origin = origin
        self._settings = settings
        self._crew = crew
        self._notify = notify
        #: One is asked for: it begins when none is under way.
        self.wanted = False
        self._check: Check | None = None
        #: When this image began to replace the workers of the last one; None: it has.
        self._since: float | None = None
        self.done = 0
        self.failed = 0
        #: Why the last one failed.
        self.error: str | None = None

    def took_over(self, done: int, failed: int, *, again: bool) -> None:
        """This image is the next one. `again`: another was asked for meanwhile."""
        self.done, self.failed, self.wanted = done + 1, failed, again
        self._since = SYSTEM.monotonic()

    @property
    def is_replacing(self) -> bool:
        """Workers of an older generation are still to be let go."""
        return self._since is not None

    @property
    def is_under_way(self) -> bool:
        return self.wanted or self._check is not None or self.is_replacing

    def is_check(self, pid: int) -> bool:
        return self._check is not None and self._check.pid == pid

    def ask(self) -> None:
        """It begins when none is under way."""
        if self._origin is None:
            log.event("error", "reload_failed", why="this pool was not started by the command line; start it anew")
        else:
            self.wanted = True

    def drive(self) -> None:
        """Begins what is asked for; ends a check that takes too long."""
        if self._check is not None:
            if self._check.is_late:
                self.give_up()
            return
        # New workers that can't start must not keep out the code that mends them.
        if not self.wanted or (self.is_replacing and not self._crew.young_deaths):
            return
        assert self._origin is not None
        self.wanted = False
        log.event("info", "reloading", pid=self._notify.pid, workers=len(self._crew))
        self._notify.reloading()
        try:
            self._check = Check(self._origin, self._settings)
        except OSError as error:
            self.fail(f"the check can't be started: {error}")

    def give_up(self) -> None:
        """Ends the check that is under way."""
        if self._check is not None:
            signal_group(self._check.pid, signal.SIGKILL)

    def checked(self, code: int, *, stopping: bool) -> float | None:
        """The check has ended. Seconds that the next image will take to begin, where it is to take over now."""
        check, self._check = self._check, None
        assert check is not None
        words = check.ended(code)
        if stopping:
            return None
        if code != 0:
            late = f"the app was not imported within {CHECK_S:g} s"
            self.fail(late if check.is_late else words or death_of(code).text.replace("worker", "check"))
            return None
        # What was checked may have changed since a further one was asked for: the loop begins anew.
        return None if self.wanted else SYSTEM.monotonic() - check.began

    def fail(self, why: str) -> None:
        """Nothing has changed, and all work on."""
        self.error = why
        self.failed += 1
        self._notify.ready()
        log.event("error", "reload_failed", pid=self._notify.pid, why=why, workers=len(self._crew))

    def replaced(self) -> None:
        """No old worker is left that claims."""
        if self._since is None:
            return
        took_s, self._since = SYSTEM.monotonic() - self._since, None
        self.error = None
        finishing = sum(child.old for child in self._crew)
        log.event("info", "reloaded", pid=self._notify.pid, took_ms=int(took_s * 1000), finishing=finishing)
