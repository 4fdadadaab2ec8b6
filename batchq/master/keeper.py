"""What a master does at the store: it keeps time and leases, reaps the dead, takes in what was dropped, says how it is.

One errand at a time, on one handle, each when it is due. An outage is one line in the log when it begins and one when
it ends; meanwhile errands wait, and the master's loop has other things to do.
"""

from __future__ import annotations

import contextlib
import selectors
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from batchq import log
from batchq.clock import SYSTEM
from batchq.config import Settings
from batchq.errors import StoreDenied, StoreError, StoreFull, StoreUnavailable
from batchq.job import Claim
from batchq.lifecycle import Word
from batchq.master.children import Child, Unreaped, is_stopped, named
from batchq.master.crew import Crew
from batchq.master.limits import give_order
from batchq.master.mourning import Mourning
from batchq.master.sweeps import LeaseWatch, TermsOf, expire, reap_left, reap_lost, reap_own
from batchq.store import PROMOTE_LIMIT, Store, Waiter
from batchq.system import scoreboard

#: Something is looked at so often at least.
TICK_S = 1.0
#: While the store is away it is tried so often at most; and the dead whose claims are to be moved so often.
TRY_S, REAP_S = 0.1, 0.05
#: The longest wait before another try for one that can't be reaped.
REAP_MOST_S = 60.0
PUBLISH_S = 5.0
#: What the store does not do is told so often, and a wait that it refuses is tried again.
SILENT_S = 60.0
EXPIRE_S = 60.0


@dataclass(slots=True)
class Timers:
    """When what is due next, on the monotonic clock."""

    sweep: float = 0.0
    renew: float = 0.0
    renewed: float = 0.0
    watch: float = 0.0
    publish: float = 0.0
    expire: float = 0.0
    fire: dict[str, float] = field(default_factory=dict)


class Keeper:
    """`names`: the queues that are served; `old_names`: those that workers of an older generation may hold claims of.
    `tell`: what is published of the master `master`; asked each few seconds.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        crew: Crew,
        mourning: Mourning,
        selector: selectors.BaseSelector,
        *,
        names: Sequence[str],
        old_names: Sequence[str],
        terms_of: TermsOf,
        master: str,
        tell: Callable[[], dict[str, object]],
        outage_since: float | None,
        outages: int,
    ) -> None:
        self._store = store
        self._settings = settings
        self._crew = crew
        self._mourning = mourning
        self._selector = selector
        self._names = list(names)
        #: All queues that a worker of this master may hold claims of.
        self.all_names = [*names, *old_names]
        self._terms_of = terms_of
        self._master = master
        self._tell = tell
        #: On the monotonic clock.
        self.outage_since = outage_since
        #: How often the store was away.
        self.outages = outages
        #: While the store is away: when it is tried next.
        self._try_at = 0.0
        #: There is no room to take the inbox in.
        self._inbox_stands = False
        self._watch = LeaseWatch(settings.lease_ms)
        self._timers = Timers()
        self._waiter: Waiter | None = None
        self._waiter_fd: int | None = None
        #: Failures, and when they were told.
        self._told: dict[str, float] = {}
        #: Not before: the store lets nobody wait for news.
        self._listen_at = 0.0

    # -- the store comes and goes

    def begin(self, *, may_be_away: bool) -> tuple[str, list[str]] | None:
        """The first call of all. Answers the server's version and what may lose jobs there; None where it does not
        answer and that is the end. `may_be_away`: a pool that has taken over goes on, as does one with a fallback."""
        began = SYSTEM.monotonic()
        try:
            server, warnings = self._store.info().version, self._store.warnings()
            for queue in self._names:
                self._store.promote(queue)
            self.reap()
        except StoreUnavailable as error:
            # With a fallback jobs come in all the same: the pool stands ready for the store's return.
            has_fallback = self._settings.fallback and self._store.traits.kind == "redis"
            if not may_be_away and (not has_fallback or isinstance(error, StoreDenied)):
                log.event("error", "store_unavailable", error=str(error))
                return None
            self._lost(error, began)
            return "", []
        return server, warnings

    def attempt(self, act: Callable[[], object]) -> None:
        """Runs one errand where the store is there."""
        if self._is_away():
            return
        began = SYSTEM.monotonic()
        try:
            act()
        except StoreUnavailable as error:
            self._lost(error, began)
        except StoreError as error:
            self._tell_failure(error)
        except Exception as error:  # noqa: BLE001 - one errand that fails must not end the pool, nor the other errands
            log.event("error", "errand_failed", error=repr(error), exc=error)

    def _tell_failure(self, error: StoreError) -> None:
        """Until somebody has mended it each sweep fails again."""
        now, text = SYSTEM.monotonic(), str(error)
        self._told = {said: at for said, at in self._told.items() if now - at < SILENT_S}
        if text not in self._told:
            self._told[text] = now
            log.event("error", "store_failed", error=text)

    def _is_away(self) -> bool:
        """Tries a store that was away, now and then; all errands are done at once when it is back."""
        if self.outage_since is None:
            return False
        began = SYSTEM.monotonic()
        if began < self._try_at:
            return True
        try:
            # A write: a server that has become a replica, or can't save, answers reads all the same.
            self._store.promote(self._names[0], 1)
        except StoreUnavailable as error:
            self._lost(error, began)
            return True
        log.event(
            "warning",
            "store_back",
            after_ms=int((SYSTEM.monotonic() - self.outage_since) * 1000),
            spooled=self._store.waiting_here(),
            outages=self.outages,
        )
        self.outage_since = None
        self._timers = Timers(fire=dict.fromkeys(self._names, 0.0))
        return False

    def _lost(self, error: StoreUnavailable, began: float) -> None:
        self._deafen()
        now = SYSTEM.monotonic()
        # A refusal costs nothing, a server that hangs costs a time-out: the loop has other things to do.
        self._try_at = now + min(TICK_S, max(TRY_S, now - began))
        if self.outage_since is None:
            self.outage_since = now
            self.outages += 1
            log.event("error", "store_unavailable", error=str(error))

    # -- news of the earliest fire-time

    def listen(self) -> None:
        """Waits for it in the selector."""
        if self._is_away() or SYSTEM.monotonic() < self._listen_at:
            return
        began = SYSTEM.monotonic()
        if self._waiter is None:
            self._waiter = self._store.timer_waiter(self._names)
        try:
            self._waiter.arm()
            fd = self._waiter.fileno()
        except StoreUnavailable as error:
            self._lost(error, began)
            return
        if fd != self._waiter_fd:
            self._deafen()
            self._selector.register(fd, selectors.EVENT_READ, self._heard)
            self._waiter_fd = fd

    def _deafen(self) -> None:
        if self._waiter_fd is not None:
            with contextlib.suppress(KeyError, ValueError, OSError):
                self._selector.unregister(self._waiter_fd)
            self._waiter_fd = None

    def _heard(self, mask: int) -> None:
        # Taking the news may close the descriptor, and another may get its number.
        self._deafen()
        try:
            news = self._waiter is not None and self._waiter.take()
        except StoreError as error:
            # The sweeps find what is due meanwhile.
            self._listen_at = SYSTEM.monotonic() + SILENT_S
            self._tell_failure(error)
            return
        if news:
            self._timers.fire = dict.fromkeys(self._names, 0.0)

    def hang_up(self) -> None:
        """Listens no more, until `listen` is called again."""
        self._deafen()
        self.let_go()

    def let_go(self) -> None:
        """The same in a child: the selector is its parent's too."""
        if self._waiter is not None:
            self._waiter.close()
            self._waiter = None

    # -- what is due

    def patience(self) -> float:
        """Seconds until something is due here."""
        now, t = SYSTEM.monotonic(), self._timers
        wait = min(TICK_S, min(t.sweep, t.renew, t.watch, t.publish, *t.fire.values()) - now)
        for dead in self._crew.unreaped:
            wait = min(wait, max(REAP_S, dead.try_at - now))
        if self.outage_since is not None:
            wait = min(wait, self._try_at - now)
        return wait

    def publish_in(self, seconds: float) -> None:
        """Says anew how things are: then, when what has just changed will have taken effect."""
        self._timers.publish = SYSTEM.monotonic() + seconds

    def keep_time(self) -> None:
        """All that is due now."""
        now, t, s = SYSTEM.monotonic(), self._timers, self._settings
        if now >= t.sweep:
            t.sweep = now + min(TICK_S, s.sweep_ms / 1000)
            t.fire = dict.fromkeys(self._names, 0.0)
            self.attempt(self._ingest)
            self.reap_soon()
        if any(due <= now for due in t.fire.values()):
            self.attempt(self._promote)
        # Cancel marks come with the renewals: while a job is active they are asked for each second.
        at_work = self._crew.in_state(scoreboard.BUSY, scoreboard.STOPPING)
        if now >= t.renew or (now >= t.renewed + TICK_S and at_work):
            t.renewed, t.renew = now, now + s.lease_ms / 3000
            self.renew()
        if now >= t.watch:
            t.watch = now + s.lease_ms / 3000
            self._on_each(self._look_for_lost)
        if now >= t.publish:
            t.publish = now + PUBLISH_S
            told = self._tell()
            self.attempt(lambda: self._store.publish(self._master, told, int(PUBLISH_S * 3000)))
        if now >= t.expire:
            t.expire = now + EXPIRE_S
            self._on_each(self._expire)

    def _on_each(self, errand: Callable[[str], None]) -> None:
        """For every queue that is served: one where it fails keeps it from no other."""
        for queue in self._names:
            self.attempt(partial(errand, queue))

    def _promote(self) -> None:
        """Moves what is due, and learns when the next one is. A full sweep is repeated at once."""
        fire = self._timers.fire
        for queue in [queue for queue, due in fire.items() if due <= SYSTEM.monotonic()]:
            # Should the store be away: the next sweep asks again.
            fire[queue] = SYSTEM.monotonic() + TICK_S
            promoted = self._store.promote(queue)
            if promoted.moved >= PROMOTE_LIMIT:
                fire[queue] = 0.0
            elif promoted.next_in_ms is not None:
                fire[queue] = SYSTEM.monotonic() + max(0.0, promoted.next_in_ms) / 1000

    def renew(self, lease_ms: int | None = None) -> None:
        """The leases of all workers, where the store is there, and what is to be cancelled of what they run."""
        # A stopped child is not renewed: when its lease is over it is reaped like any other.
        children = {c.slot.worker: c for c in self._crew if c.slot.worker and not is_stopped(c.pid)}
        if not children:
            return
        for queue in self.all_names:
            self.attempt(partial(self._renew_on, queue, children, lease_ms or self._settings.lease_ms))

    def _renew_on(self, queue: str, children: Mapping[str, Child], lease_ms: int) -> None:
        renewal = self._store.renew(queue, list(children), lease_ms)
        for worker, word in zip(children, renewal.words, strict=True):
            if word is Word.SEALED:
                log.event("warning", "lease_lost", queue=queue, worker=worker)
        for worker, job_id, token in renewal.marks:
            child = children[worker]
            for entry, run in child.slot.under_way():
                # One of many can't be interrupted alone: the mark is obeyed with its outcome.
                is_it = (run.queue, run.id, run.token) == (queue, job_id, token) and not run.whole
                if is_it and run.number not in child.orders:
                    log.event("info", "cancelling", worker=worker, **named([run]))
                    give_order(child, entry, run, scoreboard.CANCEL)

    def _look_for_lost(self, queue: str) -> None:
        most, mourn = self._settings.max_lost, self._mourning.add
        for worker, end in self._watch.look(queue, self._store.leases(queue), SYSTEM.monotonic()):
            # One that can't be reaped stands in nobody's way.
            self.attempt(partial(reap_lost, self._store, queue, worker, end, self._terms_of, most, mourn))

    def _ingest(self) -> None:
        """Takes in what other programs dropped into the store's inbox; the next round goes on where there is more."""
        try:
            took = self._store.sweep_inbox()
        except StoreFull as error:
            # Once: a disk may be full for hours, and what stands is worked off meanwhile.
            if not self._inbox_stands:
                log.event("error", "inbox_stands", error=str(error))
            self._inbox_stands = True
            return
        if self._inbox_stands:
            log.event("warning", "inbox_goes_on")
        self._inbox_stands = False
        if took.jobs:
            log.event("info", "ingested", files=took.files, jobs=took.jobs)
        if took.bad:
            log.event("warning", "moved_aside", files=took.bad, why="no valid parcels; their reasons stand beside them")
        if took.files or took.bad:
            self._timers.sweep = 0.0

    def _expire(self, queue: str) -> None:
        expire(self._store, queue, dead_keep_ms=self._settings.dead_keep_ms, dead_limit=self._settings.dead_limit)

    # -- the dead of this master

    def reap_soon(self, *, last: bool = False) -> None:
        """Moves the claims of the dead, where there are any and the store is there. `last`: of all, now or never."""
        if last:
            for dead in self._crew.unreaped:
                dead.try_at = 0.0
        if self._crew.unreaped:
            self.attempt(self.reap)

    def reap(self) -> None:
        """The same. Raises StoreUnavailable; who is not reaped by then stays among the dead. One who can't be reaped
        stands in nobody's way, and is tried again, ever later."""
        for dead in list(self._crew.unreaped):
            if dead.try_at > SYSTEM.monotonic():
                continue
            if self._crew.goes_on(dead.worker):
                self._crew.unreaped.remove(dead)
                continue
            try:
                self._reap_one(dead)
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, others wait behind it
                dead.failures += 1
                pause_s = min(REAP_MOST_S, REAP_S * 2.0 ** min(dead.failures, 20))
                dead.try_at = SYSTEM.monotonic() + pause_s
                exc = None if isinstance(error, StoreError) else error
                log.event("error", "reap_failed", worker=dead.worker, tries=dead.failures, error=str(error), exc=exc)
            else:
                self._crew.unreaped.remove(dead)
                self._timers.sweep = 0.0

    def _reap_one(self, dead: Unreaped) -> None:
        store, terms_of, mourn = self._store, self._terms_of, self._mourning.add
        max_lost, max_crashes = self._settings.max_lost, self._settings.max_crashes
        counted: Counter[str] = Counter()
        failed: Exception | None = None

        def began(claim: Claim) -> int:
            return next((run.started_ms for run in dead.runs if run.is_of(claim)), 0)

        is_lost = dead.death.cause == "lost"
        is_anyones = dead.death.cause == "crashed" and len(dead.runs) > 1
        text = f"worker {dead.worker} ended with its master, which was killed"
        if is_anyones:
            text = f"{dead.death.text}; {len(dead.runs)} jobs were under way, nobody knows whose fault it was"
        for queue in sorted({*self.all_names, *store.queues()}) if is_lost else self.all_names:
            try:
                if is_lost or is_anyones:
                    counted += reap_left(store, queue, dead.worker, began, terms_of, max_lost, mourn, text)
                else:
                    counted += reap_own(store, queue, dead.worker, dead.death, began, terms_of, max_crashes, mourn)
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - its claims on other queues are moved all the same
                failed = failed or error
        if counted["lost"]:
            log.event("warning", "reaped_lost", worker=dead.worker, jobs=counted["lost"], why=dead.death.text)
        if counted["released"]:
            log.event("info", "released", worker=dead.worker, jobs=counted["released"], why=dead.death.text)
        if failed is not None:
            raise failed

    # -- what is left to do

    def ready_queues(self) -> list[str]:
        """Queues from which jobs could be claimed now."""
        ready: list[str] = []

        def ask() -> None:
            looks = ((queue, self._store.stats(queue)) for queue in self._names)
            ready.extend(queue for queue, stats in looks if stats.counts["pending"] and not stats.paused)

        self.attempt(ask)
        return ready

    def is_drained(self, *, wait_for_delayed: bool) -> bool:
        """Nothing is left on any queue that is not paused. False where the store can't be asked."""
        drained = False

        def look() -> None:
            nonlocal drained
            drained = not any(self._left_on(queue, wait_for_delayed) for queue in self._names)

        self.attempt(look)
        return drained

    def _left_on(self, queue: str, wait_for_delayed: bool) -> int:
        stats = self._store.stats(queue)
        waiting = stats.counts["pending"] + (stats.counts["delayed"] if wait_for_delayed else 0)
        return stats.counts["active"] + (0 if stats.paused else waiting)

    def close(self) -> None:
        """The last errand: this master is gone."""
        self.attempt(lambda: self._store.publish(self._master, {}, 0))
        self.let_go()
