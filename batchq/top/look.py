"""What is known of a store, asked again and again by one thread within a budget of commands a second."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from batchq.app import App
from batchq.clock import SYSTEM
from batchq.config import masked
from batchq.errors import BatchqError, StoreError
from batchq.job import QueueStats
from batchq.lifecycle import State
from batchq.store import Store

#: Commands that may be sent to the store, a second. The rest of the queues has its turn in the next look.
BUDGET = 16
#: What each question costs of it, in round trips and commands.
STATS, QUEUES, MASTERS, HEAD, PAGE = 2, 1, 3, 2, 3
#: The registries change seldom: masters speak each five seconds.
QUEUES_S, MASTERS_S = 5.0, 2.5
#: Rates are those of so many seconds.
RATE_S = 5.0
#: Points of the sparkline that are kept.
POINTS = 400

Errand = Callable[[Store], str]


@dataclass(slots=True)
class Queue:
    """One queue as it was last seen."""

    name: str
    stats: QueueStats
    seen: float
    #: When the next delayed job is due, on the store's clock less its now; None: none, or not known.
    next_in_ms: int | None = None
    #: (when, totals) of the last seconds.
    history: deque[tuple[float, dict[str, int]]] = field(default_factory=deque)

    def see(self, stats: QueueStats, now: float) -> None:
        self.stats, self.seen = stats, now
        self.history.append((now, stats.totals))
        while len(self.history) > 2 and now - self.history[1][0] >= RATE_S:
            self.history.popleft()

    def rate(self, *totals: str) -> float | None:
        """What these totals grew by a second; None before the second look."""
        if len(self.history) < 2:
            return None
        (then, old), (now, new) = self.history[0], self.history[-1]
        return max(0.0, sum(new[total] - old[total] for total in totals) / max(0.001, now - then))


@dataclass(slots=True)
class Known:
    """All that is on the screen. Written by the looker alone, and read by the drawer: each field is replaced whole."""

    url: str
    kind: str
    version: str = ""
    #: None: up. Else since when it is away, on the monotonic clock, and why.
    away_since: float | None = None
    why: str = ""
    queues: dict[str, Queue] = field(default_factory=dict)
    masters: list[dict[str, Any]] = field(default_factory=list)
    #: When the masters were heard.
    heard: float = 0.0
    #: Their words come by this host's control socket.
    by_socket: bool = False
    #: Jobs that were completed a second, a point a look.
    throughput: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS))
    #: The answer to the last errand, and when it came.
    said: str = ""
    said_at: float = 0.0
    #: Grows with each look.
    looks: int = 0

    @property
    def workers(self) -> list[dict[str, Any]]:
        """Those that run longest first."""
        found = [worker for master in self.masters for worker in master.get("workers", [])]
        return sorted(found, key=lambda one: (not one.get("job"), -(one.get("running_ms") or 0), str(one.get("id"))))


class Looker(threading.Thread):
    """Looks each `every_s`, and does errands between. Ends with `stop`."""

    def __init__(self, app: App, every_s: float, local: Callable[[], dict[str, Any] | None]) -> None:
        super().__init__(name="batchq-top", daemon=True)
        self.known = Known(masked(app.settings.store_url), app.store.traits.kind)
        self._app = app
        self._every_s = every_s
        self._local = local
        self._errands: queue.SimpleQueue[Errand | None] = queue.SimpleQueue()
        self._queues_at = self._masters_at = 0.0
        #: Whose turn it is.
        self._turn = 0
        self._point: tuple[float, int] | None = None
        self._spent = 0.0

    def ask(self, errand: Errand) -> None:
        """Has something done with the store; its answer is shown."""
        self._errands.put(errand)

    def stop(self) -> None:
        self._errands.put(None)

    def run(self) -> None:
        due = 0.0
        while True:
            try:
                errand = self._errands.get(timeout=max(0.0, due - SYSTEM.monotonic()))
            except queue.Empty:
                self.look()
                due = SYSTEM.monotonic() + max(self._every_s, self._spent / BUDGET)
                continue
            if errand is None:
                return
            self._do(errand)
            # What was changed is to be seen.
            due = min(due, SYSTEM.monotonic() + 0.1)

    def _do(self, errand: Errand) -> None:
        try:
            said = errand(self._app.store)
        except BatchqError as error:
            said = str(error)
        if said:
            self.known.said, self.known.said_at = said, SYSTEM.monotonic()
        self.known.looks += 1

    def look(self) -> None:
        """One look at the store; at this host's pool where that is away."""
        known = self.known
        self._spent = 0.0
        try:
            self._ask_store(self._app.store)
            known.away_since = None
        except StoreError as error:
            if known.away_since is None:
                known.away_since = SYSTEM.monotonic()
            known.why = str(error)
            known.version = ""
            self._masters_at = self._queues_at = 0.0
            self._point = None
        here = self._local() if known.away_since is not None else None
        if here is not None:
            known.masters, known.heard, known.by_socket = [here], SYSTEM.monotonic(), True
        known.looks += 1

    def _ask_store(self, store: Store) -> None:
        known, now = self.known, SYSTEM.monotonic()
        if not known.version:
            known.version = store.info().version
            self._spent += 1
        if now >= self._queues_at:
            names = store.queues()
            self._spent += QUEUES
            known.queues = {name: known.queues.get(name) or _unseen(name) for name in names}
            self._queues_at = now + QUEUES_S
        if now >= self._masters_at:
            known.masters, known.heard, known.by_socket = store.masters(), now, False
            self._spent += MASTERS
            self._masters_at = now + MASTERS_S
        self._ask_queues(store)

    def _ask_queues(self, store: Store) -> None:
        """As many as the budget allows, the others in the next look."""
        names = list(self.known.queues)
        room = max(STATS, BUDGET * self._every_s)
        for step in range(len(names)):
            if self._spent + STATS > room and step:
                break
            name = names[(self._turn + step) % len(names)]
            found = self.known.queues[name]
            found.see(store.stats(name), SYSTEM.monotonic())
            self._spent += STATS
            if found.stats.counts["delayed"] and self._spent + HEAD <= room:
                page = store.jobs(name, State.DELAYED, limit=1).jobs
                found.next_in_ms = page[0].since_ms - store.now_ms() if page else None
                self._spent += HEAD
            elif not found.stats.counts["delayed"]:
                found.next_in_ms = None
        else:
            step = len(names)
        self._turn = (self._turn + step) % len(names) if names else 0
        self._note_throughput()

    def _note_throughput(self) -> None:
        seen = [one for one in self.known.queues.values() if one.seen]
        done = sum(one.stats.totals["completed"] for one in seen)
        now = SYSTEM.monotonic()
        if self._point is not None and len(seen) == len(self.known.queues):
            then, before = self._point
            self.known.throughput.append(max(0.0, (done - before) / max(0.001, now - then)))
        self._point = (now, done) if len(seen) == len(self.known.queues) else None


def _unseen(name: str) -> Queue:
    from batchq.lifecycle import COUNTED, TOTALS

    return Queue(name, QueueStats(False, {state.value: 0 for state in COUNTED}, dict.fromkeys(TOTALS, 0), 0), 0.0)
