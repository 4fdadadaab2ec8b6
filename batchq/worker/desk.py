"""A worker's dealings with its store: who it is there, settling and claiming, and what of it goes to the log.

Runs nothing, and knows not how many jobs run at once. One call at a time: its worker sees to that.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple
from uuid import getnode

from batchq import log
from batchq.app import App
from batchq.clock import monotonic, monotonic_ns
from batchq.config import Settings
from batchq.errors import StoreError, StoreUnavailable
from batchq.job import Buried, Claim, Claims, Completed, Outcome, Released, Retried, Snoozed, random_name
from batchq.lifecycle import State, Word
from batchq.store import Store, Waiter
from batchq.system.notices import Notice
from batchq.system.scoreboard import Slot
from batchq.worker.admission import admit
from batchq.worker.runner import Prepared, Runner, safe_text

#: While a late copy of a claim may arrive, queues that are not asked meanwhile are looked at so often.
STRAY_S = 1.0

#: Outcomes that need no line in the log when all went well.
_QUIET = (Completed, Released, Snoozed)


#: This host in the names of workers: found once, on the master's side of the forks.
_HOST = re.sub(r"[^A-Za-z0-9-]", "-", platform.node())[:40] or "host"


@cache
def boot_id() -> str:
    """Eight characters that change when the host is started anew; where the system tells of no such thing, the host's
    own."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(8)
    except OSError:
        return f"{getnode() & 0xFFFFFFFF:08x}"


def new_worker_id() -> str:
    """host.boot.pid.random: never used twice."""
    return f"{_HOST}.{boot_id()}.{os.getpid()}.{random_name(8)}"


class Got(NamedTuple):
    """What an exchange brought."""

    claims: Sequence[Claim] = ()
    #: The worker has a new id: what it ran until now is not its own any more.
    renewed: bool = False
    #: (id, token) of what the store counts as this worker's, where that is not what the worker believes.
    held: frozenset[tuple[str, int]] | None = None


class Desk:
    """See the module. `names`: the queues that the worker serves."""

    def __init__(
        self, app: App, store: Store, settings: Settings, slot: Slot, names: Sequence[str], runner: Runner
    ) -> None:
        self._app = app
        self._store = store
        self._settings = settings
        self._slot = slot
        self._names = names
        self._runner = runner
        #: Jobs so far.
        self.claimed = 0
        self.id = ""
        #: What the way to the store and back takes at least.
        self.way_ns = 0
        #: When strays are looked for next, on the monotonic clock.
        self._stray_at = 0.0
        #: The last failure that was told, of calls and of waits; none: the last one went well.
        self._told: dict[str, str] = {}

    def tell_failure(self, error: StoreError, of: str = "call") -> None:
        """The store does not do what was asked, and may again once somebody has mended it: that is said once."""
        text = str(error)
        if self._told.get(of) != text:
            self._told[of] = text
            log.event("error", "store_failed", worker=self.id, error=text)

    def hear(self, waiter: Waiter) -> bool:
        """Takes a hint. False where the store lets nobody wait for one: that is said once."""
        try:
            waiter.take()
        except StoreError as error:
            self.tell_failure(error, "wait")
            return False
        self._told.pop("wait", None)
        return True

    def take_new_id(self) -> None:
        """Registers under a new id: at the start, and when it was sealed or the store lost its data."""
        self.id = self._runner.worker = new_worker_id()
        # The master must know it before any store does: a death in between leaves nothing for the lease to find.
        self._slot.enter(self.id)
        for queue in self._names:
            self._store.register(queue, self.id, self._settings.lease_ms)

    def exchange(
        self,
        queue: str,
        finished: Sequence[Outcome],
        want: int,
        held: int,
        settled: Callable[[], None],
        is_mine: Callable[[Claim], bool] = lambda claim: False,
    ) -> Got:
        """Settles what is finished and claims from this queue. `settled` is called once the store has taken the
        outcomes, before anything else can fail. `is_mine`: whether a claim that the store counts is known here."""
        if self._doomed(finished):
            # Nothing that could run elsewhere is claimed to stand behind the hooks.
            self.settle(queue, finished, 0, 0, settled)
            finished = ()
        return self.receive(queue, self.settle(queue, finished, want, held, settled), is_mine)

    def receive(self, queue: str, claimed: Claims, is_mine: Callable[[Claim], bool] = lambda claim: False) -> Got:
        """What a claim brought, and what follows from it. Raises StoreUnavailable."""
        match claimed.word:
            case Word.OK:
                self.claimed += len(claimed.claims)
                return Got(claimed.claims)
            case Word.HELD:
                # An answer was lost on the way: what the store counts for us and we never saw is given back.
                self._release_unknown(queue, [claim for claim in claimed.claims if not is_mine(claim)])
                return Got(held=frozenset((claim.id, claim.token) for claim in claimed.claims))
            case Word.SEALED | Word.UNKNOWN:
                log.event("warning", "sealed", queue=queue, worker=self.id, why=claimed.word.value)
                self.take_new_id()
                return Got(renewed=True)
            case _:
                return Got()

    def settle(
        self, queue: str, outcomes: Sequence[Outcome], want: int, held: int, settled: Callable[[], None]
    ) -> Claims:
        """`Store.exchange`, and what of it is told. Jobs that it may end as dead are noted before, until their hooks
        have been called."""
        notices = self._slot.notices
        doomed = self._doomed(outcomes)
        if doomed:
            notices.clear()
            for outcome in doomed:
                notices.note(Notice(queue, outcome.claim.id))
        answer = self._store.exchange(queue, self.id, outcomes, want, held)
        self._told.pop("call", None)
        settled()
        for outcome, word in zip(outcomes, answer.words, strict=True):
            self._tell(queue, outcome, word)
            if doomed and _is_the_end(outcome):
                notices.tell()
        return answer.claimed

    def _doomed(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Those that may end their job as dead, where somebody wants to know."""
        return [outcome for outcome in outcomes if _is_the_end(outcome)] if self._app.dead_hooks else []

    def return_strays(self, queues: Sequence[str]) -> None:
        """Gives back what a late copy of a claim took on queues where the worker holds nothing and does not ask: they
        are looked at each second for a while after an answer was lost. (Where it holds something, a copy takes
        nothing.)"""
        if not queues or not self._store.is_unsure or monotonic() < self._stray_at:
            return
        self._stray_at = monotonic() + STRAY_S
        for queue in queues:
            claimed = self._store.claim(queue, self.id, 0, 0)
            if claimed.word is Word.HELD:
                self._release_unknown(queue, claimed.claims)

    def _release_unknown(self, queue: str, claims: Sequence[Claim]) -> None:
        if claims:
            log.event("warning", "unknown_claims", queue=queue, worker=self.id, jobs=len(claims))
            # The answer that was lost may have been one of `admit`.
            gated = self._runner.is_limited
            self._store.release(queue, self.id, [Released(claim._replace(gated=gated)) for claim in claims])

    def admit(self, queue: str, ready: Sequence[Prepared], *, rated: bool = True) -> list[Prepared]:
        """Those that may run now, see `admission`. Raises StoreUnavailable."""
        began_ns = monotonic_ns()
        may = admit(self._store, queue, self.id, ready, rated=rated)
        self.way_ns = min(self.way_ns or 1 << 62, monotonic_ns() - began_ns)
        return may

    def _tell(self, queue: str, outcome: Outcome, word: Word) -> None:
        """Says what is worth saying of a settled attempt."""
        if word is Word.OK and type(outcome) in _QUIET:
            return
        claim = outcome.claim
        told: dict[str, Any] = {"queue": queue, "job": claim.id, "token": claim.token, "attempt": claim.attempt}
        died = word is Word.DEAD or (word is Word.OK and isinstance(outcome, Buried))
        if word is Word.STALE:
            log.event("warning", "fenced", **told)
        elif word is Word.CANCELLED:
            log.event("info", "cancelled", **told)
        elif died:
            why = outcome.reason if isinstance(outcome, Buried) else "budget spent"
            log.event("warning", "died", **told, why=why)
            self.call_dead_hooks(queue, claim.id)
        elif isinstance(outcome, Retried):
            log.event("info", "retried", **told, delay_ms=outcome.delay_ms, cause=outcome.cause)

    def do_errand(self) -> None:
        """What the master asks of this worker, where it does. Raises StoreUnavailable."""
        if (errand := self._slot.errand()) is not None:
            self._slot.take(errand)
            self.call_dead_hooks(errand.queue, errand.id)
            self._slot.did(errand)

    def call_dead_hooks(self, queue: str, job_id: str) -> None:
        """Where the job is dead. Raises StoreUnavailable."""
        if not self._app.dead_hooks:
            return
        try:
            job = self._store.get(queue, job_id)
        except StoreUnavailable:
            raise
        except StoreError as error:
            self._tell_hook_failed(queue, job_id, error)
            return
        if job is None or job.state is not State.DEAD:
            return
        for hook in self._app.dead_hooks:
            try:
                hook(job)
            except BaseException as error:  # noqa: BLE001 - a hook's fault, a SystemExit say, is not the worker's end
                self._tell_hook_failed(queue, job_id, error)

    def _tell_hook_failed(self, queue: str, job_id: str, error: BaseException) -> None:
        log.event("error", "hook_failed", hook="on_dead", queue=queue, job=job_id, error=safe_text(error))


def _is_the_end(outcome: Outcome) -> bool:
    return isinstance(outcome, Buried) or (isinstance(outcome, Retried) and outcome.is_last)
