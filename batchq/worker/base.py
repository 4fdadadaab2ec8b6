"""What workers have in common, those of one job at a time and those of many: their parts, a stop, what an order of the
master means, and the copy that a handler makes of its worker by a fork.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from batchq.app import App
from batchq.config import Settings
from batchq.errors import JobCancelled, JobTimeout
from batchq.job import Outcome, Retried
from batchq.store import Store
from batchq.system import scoreboard
from batchq.system.scoreboard import Slot
from batchq.system.titles import Title
from batchq.worker.desk import Desk
from batchq.worker.pace import Order
from batchq.worker.recycle import Recycling
from batchq.worker.runner import Interrupted, Prepared, Runner

#: Exit codes of a worker, for its master.
DONE, BROKEN, UNSETTLED = 0, 70, 71

#: A worker of a pool that is quiet looks so often whether it still is.
REST_S = 1.0

#: The signal by which the master says that an order stands in the slot.
ORDER_SIGNAL = signal.SIGUSR1


class WorkerBase:
    """Made in the child after the fork."""

    def __init__(
        self, app: App, store: Store, settings: Settings, slot: Slot, queues: Sequence[tuple[str, int]], wakeup_fd: int
    ) -> None:
        self._app = app
        self._store = store
        self._slot = slot
        self._names = [name for name, _ in queues]
        self._order = Order(queues, strict=settings.strict_order)
        self._wakeup_fd = wakeup_fd
        self._runner = Runner(app.registry, settings)
        self._desk = Desk(app, store, settings, slot, self._names, self._runner)
        self._recycling = Recycling(settings)
        self._title = Title(f"worker of {app.name}")
        #: A plain flag: a signal handler sets it, and may not take a lock.
        self._stop = False
        #: A handler forked, and this is the copy.
        self._is_copy = False
        os.register_at_fork(after_in_child=self._become_copy)

    def stop(self) -> None:
        """Claims nothing more; what runs may finish. Safe in a signal handler."""
        self._stop = True

    def go_on(self) -> None:
        """A signal had stopped it."""

    @property
    def stopping(self) -> bool:
        return self._stop

    def _say(self, state: int) -> None:
        self._slot.say(state, self._desk.claimed)
        self._title.say(scoreboard.STATES[state])

    def _as_ordered(self, order: int, ready: Prepared, outcome: Outcome) -> Outcome:
        """Once a limit has fired, the attempt is a timeout, whatever the handler made of it."""
        error = error_of(order, ready.timeout_ms)
        if not isinstance(error, JobTimeout) or (isinstance(outcome, Retried) and outcome.cause == "timed_out"):
            return outcome
        return self._runner.outcome_of(ready, error)

    def _become_copy(self) -> None:
        """In a process that a handler forked: signals do again what they do in any program (multiprocessing ends its
        children by SIGTERM), and none reaches the worker through the pipe that both hold."""
        self._is_copy = True
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, ORDER_SIGNAL):
            signal.signal(number, signal.SIG_DFL)

    def _leave_copy(self) -> None:
        """When a handler has come back."""
        if self._is_copy:
            # It came back twice. The copy is no worker: it must settle and claim nothing.
            os._exit(DONE)


def error_of(order: int, timeout_ms: int) -> BaseException | None:
    """What an order means to the handler that it is for; None: there is none."""
    match order:
        case scoreboard.TIMED_OUT:
            return JobTimeout(f"ran past its time limit of {timeout_ms / 1000:g} s")
        case scoreboard.CANCEL:
            return JobCancelled("the job was cancelled")
        case scoreboard.INTERRUPT:
            return Interrupted()
    return None
