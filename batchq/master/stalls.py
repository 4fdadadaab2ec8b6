"""Does what the watchdog says about a pool that consumes nothing: idle workers connect anew, then are replaced."""

from __future__ import annotations

import os

from batchq import log
from batchq.clock import SYSTEM
from batchq.master.children import signal_one
from batchq.master.crew import Crew
from batchq.master.keeper import Keeper
from batchq.master.watchdog import Step, Watchdog
from batchq.system import scoreboard
from batchq.worker.base import ORDER_SIGNAL


class Stalls:
    """Of one pool. `look_s`: how often to look, 0: never. `patience_s`: how long one that is replaced has to end by
    itself."""

    def __init__(self, crew: Crew, keeper: Keeper, *, period_s: float, patience_s: float) -> None:
        self._crew = crew
        self._keeper = keeper
        self._watchdog = Watchdog(period_s)
        self.look_s = self._watchdog.look_s
        self._patience_s = patience_s

    def look(self, *, quiet: bool) -> bool:
        """Acts on what it finds. True: nothing has helped, and whoever runs the master is to act."""
        idle = self._crew.in_state(scoreboard.IDLE)
        for child in idle:
            if SYSTEM.monotonic() >= child.doomed_at and not child.ended_by:
                self._crew.kill(child, "replaced: it claimed nothing")
        if quiet or self._keeper.outage_since is not None:
            return False
        ready: list[str] = []

        def is_ready() -> bool:
            ready[:] = self._keeper.ready_queues()
            return bool(ready)

        step = self._watchdog.look(SYSTEM.monotonic(), self._crew.claimed, some_idle=bool(idle), is_ready=is_ready)
        if step is None:
            return False
        why = f"jobs are ready on {','.join(ready)}, {len(idle)} workers are idle, and none is claimed"
        log.event("error", "stalled", pid=os.getpid(), step=step.name.lower(), why=why)
        for child in idle:
            if step is Step.RECONNECT:
                child.slot.want_anew()
                signal_one(child.pid, ORDER_SIGNAL)
            elif step is Step.REPLACE:
                self._crew.retire(child)
                child.doomed_at = SYSTEM.monotonic() + self._patience_s
        return step is Step.GIVE_UP
