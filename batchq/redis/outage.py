"""An outage of a server as its users see it: when it began, one line in the log, and one when it ends."""

from __future__ import annotations

import os
import threading

from batchq import log
from batchq.clock import monotonic
from batchq.redis.replies import Unreached


class Outage:
    """The time in which a server can't be reached: one line in the log when it begins, one when it ends."""

    def __init__(self, where: str, verbs: tuple[str, str] = ("store_unavailable", "store_back")) -> None:
        self._where = where
        self._verbs = verbs
        self._lock = threading.Lock()
        #: Nothing is logged: somebody else speaks for this process.
        self.quiet = False
        #: But for what the server says to this process alone: that it does not get in.
        self.tells_refusals = False
        #: How many there were in this process.
        self.count = 0
        #: When it began, on the monotonic clock; None: there is none.
        self.since: float | None = None
        #: The server answers, but refuses writes: a read says nothing about its end.
        self.refused = False
        #: Jobs that went to the fallback spool meanwhile.
        self.spooled = 0

    def begin(self, error: BaseException) -> None:
        """Does nothing where it has begun already."""
        with self._lock:
            if self.since is not None:
                return
            self.since = monotonic()
            self.count += 1
            self.spooled = 0
            self.refused = isinstance(error, Unreached) and error.refused
        refused = isinstance(error, Unreached) and (error.denied or "max number of clients" in str(error))
        if not self.quiet or (refused and self.tells_refusals):
            log.event("error", self._verbs[0], error=str(error), pid=os.getpid())

    def end(self) -> None:
        """The server has answered."""
        with self._lock:
            if self.since is None:
                return
            lasted_ms, spooled, self.since = int((monotonic() - self.since) * 1000), self.spooled, None
        if not self.quiet:
            log.event(
                "warning", self._verbs[1], store=self._where, after_ms=lasted_ms, spooled=spooled, outages=self.count
            )

    def renew_after_fork(self) -> None:
        self._lock = threading.Lock()
