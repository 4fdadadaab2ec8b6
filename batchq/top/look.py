"""What is known of a store, asked again and again by one thread within a budget of commands a second."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from batchq.app import App
from batchq.cli.status import longest_first
from batchq.clock import SYSTEM
from batchq.config import masked
from batchq.errors import BatchqError, StoreError
from batchq.job import QueueStats
from batchq.lifecycle import State
from batchq.store import Store
from batchq.top.morgue import Morgue

#: Commands that may be sent to the store, a second. The rest of the queues has its turn in the next look.
BUDGET = 16
#: What each question costs of it: how many commands a Redis is sent for it.
STATS, QUEUES, MASTERS, PAGE = 2, 1, 3, 13
#: The registries change seldom: masters speak each five seconds. When the next job is due is asked of one queue a time.
QUEUES_S, MASTERS_S, DUE_S = 5.0, 2.5, 3.0
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
    #: When the next delayed job is due, on the monotonic clock; None: none, or not known.
    due_at: float | None = None
    #: (when, totals) of the last seconds.
    history: deque[tuple[float, dict[str, int]]] = field(default_factory=deque)

    def see(self, stats: QueueStats, now: float) -> None:
        if stats.totals["enqueued"] < self.stats.totals["enqueued"]:
            self.history.clear()  # Another store, or one that has lost its data.
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
        return longest_first(worker for master in self.masters for worker in master.get("workers", []))


class Looker(threading.Thread):
    """Looks each `every_s`, and does errands between. Ends with `stop`."""

    def __init__(self, app: App, every_s: float, local: Callable[[], dict[str, Any] | None]) -> None:
        super().__init__(name="batchq-top", daemon=True)
        self.known = Known(masked(app.settings.store_url), app.store.traits.kind)
        self._app = app
        self._every_s = every_s
        self._local = local
        self._errands: queue.SimpleQueue[Errand | None] = queue.SimpleQueue()
        self._queues_at = self._masters_at = self._due_at = 0.0
        #: Whose turn it is, and whose to be asked when its next job is due.
        self._turn = self._due_turn = 0
        #: The dead that are to be read on.
        self.reading: Morgue | None = None
        self._point: tuple[float, int] | None = None
        self._spent = 0.0
        #: worker -> when it was heard of last, its CPU time then, and its part of a CPU before that, in percent.
        self._cpu: dict[str, tuple[int, int, float | None]] = {}

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
            self._hear([here], by_socket=True)
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
            self._hear(store.masters(), by_socket=False)
            self._spent += MASTERS
            self._masters_at = now + MASTERS_S
        self._ask_queues(store)
        self._ask_due(store)
        if self.reading is not None and not self.reading.complete:
            self.reading.read_on(store)
            self._spent += PAGE

    def _hear(self, masters: list[dict[str, Any]], *, by_socket: bool) -> None:
        """What masters say; how busy a CPU their workers are follows from what they said before."""
        before, self._cpu = self._cpu, {}
        for master in masters:
            at = master.get("at_ms", 0)
            for worker in master.get("workers", []):
                spent, (then, old, part) = worker.get("cpu_ms", 0), before.get(worker["id"], (at, 0, None))
                if at > then:
                    part = max(0.0, (spent - old) * 100 / (at - then))
                worker["cpu"] = part
                self._cpu[worker["id"]] = (at, spent, part)
        self.known.masters, self.known.heard, self.known.by_socket = masters, SYSTEM.monotonic(), by_socket

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
            if not found.stats.counts["delayed"]:
                found.due_at = None
        else:
            step = len(names)
        self._turn = (self._turn + step) % len(names) if names else 0
        self._note_throughput()

    def _ask_due(self, store: Store) -> None:
        """When the next job of one queue is due; the others have their turn."""
        waiting = [one for one in self.known.queues.values() if one.stats.counts["delayed"]]
        now = SYSTEM.monotonic()
        if not waiting or now < self._due_at:
            return
        self._due_turn += 1
        chosen = waiting[self._due_turn % len(waiting)]
        page = store.jobs(chosen.name, State.DELAYED, limit=1).jobs
        chosen.due_at = now + (page[0].since_ms - store.now_ms()) / 1000 if page else None
        self._spent += PAGE
        self._due_at = now + DUE_S

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
