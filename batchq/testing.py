"""Tests of code that enqueues, and of handlers: an app on a store in memory, with a clock that stands until moved.

    @pytest.fixture
    def jobs():
        with app.testing() as harness:
            yield harness

    def test_second_try_delivers(jobs):
        ref = deliver.enqueue("http://...")
        jobs.run_pending()
        jobs.run_for(2)
        assert ref.status() is None

Handlers run in the calling thread through the same runner as in a worker; nothing here limits their time or memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from batchq.batch import around
from batchq.clock import ManualClock
from batchq.errors import BatchqError, milliseconds
from batchq.job import Buried, Claim, Outcome, Released
from batchq.lifecycle import Word
from batchq.memory_store import MemoryStore
from batchq.registry import Duration
from batchq.store import Limits

if TYPE_CHECKING:
    from batchq.app import App
    from batchq.worker.runner import Prepared

#: Longer than any test moves the clock.
_LEASE_MS = 10**13


class Ran(NamedTuple):
    """One attempt that ran, and what the store answered to its outcome."""

    #: Completed, Retried, Buried, Snoozed or Released (batchq.job).
    outcome: Outcome
    word: Word

    @property
    def claim(self) -> Claim:
        return self.outcome.claim

    @property
    def id(self) -> str:
        return self.outcome.claim.id


class Harness:
    """What `app.testing()` gives. Jobs run when the test says so, or, inline, as they are enqueued."""

    def __init__(self, app: App, *, inline: bool = False) -> None:
        settings = app.settings
        self.app = app
        self.clock = ManualClock()
        self.store = MemoryStore(
            limits=Limits(mark_ttl_ms=settings.mark_ttl_ms, remember_ms=settings.remember_ms), clock=self.clock
        )
        self._inline = inline
        # A handler that waits for another job's result runs it inside its own run, as a second worker.
        self._depth = 0
        self._started = False
        self._runner: Any = None

    def run_pending(self, limit: int = 10_000) -> list[Ran]:
        """Runs what is pending now, and what that enqueues to run at once, until nothing is left.

        Raises BatchqError after `limit` attempts: jobs that enqueue each other for ever.
        """
        ran: list[Ran] = []
        while some := self._run_next():
            ran += some
            if len(ran) >= limit:
                raise BatchqError(
                    f"run_pending: still not done after {limit} attempts; do the jobs enqueue each other?"
                )
        return ran

    def advance(self, delay: Duration) -> list[Ran]:
        """Moves the clock on (seconds or a timedelta): what falls due is pending then. Runs it only with `inline`."""
        if self._inline:
            return self.run_for(delay)
        self.clock.advance(_ms(delay))
        for queue in self.store.queues():
            while self.store.promote(queue).moved:
                pass
        return []

    def run_for(self, delay: Duration) -> list[Ran]:
        """Moves the clock on from fire-time to fire-time, and runs at each what is due: retries, schedules, snoozes."""
        left_ms = float(_ms(delay))
        ran = self.run_pending()
        while (next_ms := self._next_in_ms()) is not None and next_ms <= left_ms:
            # Never less than a thousandth: a fire-time rounded up may lie 0 ms ahead.
            step = max(next_ms, 0.001)
            self.clock.advance(step)
            left_ms -= step
            ran += self.run_pending()
        self.clock.advance(max(0.0, left_ms))
        return ran

    def sent(self) -> None:
        """Called by the app after each enqueue."""
        if self._inline and self._depth == 0:
            self.run_pending()

    def close(self) -> None:
        """Runs the stop hooks, if a job ran."""
        if self._started:
            self._runner.call_hooks(self.app.worker_stop_hooks)
        self.store.close()

    # -- one attempt ----------------------------------------------------------------------------------------------

    def _run_next(self) -> list[Ran]:
        """One call of a handler: one attempt, or one for each job of a batch handler."""
        worker = f"testing-{self._depth}"
        for queue in self.store.queues():
            self.store.register(queue, worker, _LEASE_MS)
            while claims := self.store.claim(queue, worker, 1, 0).claims:
                self._start()
                # One that may not run yet waits in the store, and the next is looked at.
                ready, ended = self._admitted(queue, worker, claims)
                for one in ready:
                    return self._run(queue, worker, one)
                if ended:
                    return self._settle(queue, worker, ended)
        return []

    def _admitted(self, queue: str, worker: str, claims: Sequence[Claim]) -> tuple[list[Prepared], list[Outcome]]:
        from batchq.worker.admission import admit, read

        ready, ended = read(self._runner, claims)
        return admit(self.store, queue, worker, ready), ended

    def _run(self, queue: str, worker: str, ready: Prepared) -> list[Ran]:
        tail: deque[Prepared] = deque()
        self._depth += 1
        # What the handler enqueues is no part of a batch around the test.
        token = around.set(None)
        try:
            outcomes = self._call(queue, worker, ready, tail)
        finally:
            around.reset(token)
            self._depth -= 1
        return self._settle(queue, worker, outcomes, [Released(one.claim) for one in tail])

    def _settle(
        self, queue: str, worker: str, outcomes: Sequence[Outcome], given_back: Sequence[Outcome] = ()
    ) -> list[Ran]:
        words = self.store.exchange(queue, worker, [*outcomes, *given_back], 0, 0).words
        ran = [Ran(outcome, word) for outcome, word in zip(outcomes, words, strict=False)]
        for one in ran:
            if one.word is Word.DEAD or (one.word is Word.OK and isinstance(one.outcome, Buried)):
                self._tell_dead(queue, one.id)
        return ran

    def _call(self, queue: str, worker: str, ready: Prepared, tail: deque[Prepared]) -> list[Outcome]:
        """What can't run with it is left in the tail."""
        from batchq.worker.grouped import gather, run_group

        if not ready.spec.batch:
            return [self._runner.call(ready)]
        ended: list[Outcome] = []

        def claim_more(want: int, held: int) -> bool:
            claims = self.store.claim(queue, worker, want, held + len(ended)).claims
            came, over = self._admitted(queue, worker, claims)
            tail.extend(came)
            ended.extend(over)
            return bool(claims)

        # Nobody enqueues while it would linger: the clock stands.
        group = gather(ready, tail, claim_more, lambda seconds: False)
        return ended + list(chain.from_iterable(run_group(self._runner, group, lambda some, call: call(None))))

    def _start(self) -> None:
        if self._started:
            return
        from batchq.worker.runner import Runner

        self._runner = Runner(self.app.registry, self.app.settings, clock=self.clock)
        self._started = True
        self._runner.call_hooks(self.app.worker_start_hooks)

    def _tell_dead(self, queue: str, job_id: str) -> None:
        job = self.store.get(queue, job_id)
        if job is not None:
            for hook in self.app.dead_hooks:
                hook(job)

    def _next_in_ms(self) -> float | None:
        nexts = [self.store.promote(queue).next_in_ms for queue in self.store.queues()]
        return min((one for one in nexts if one is not None), default=None)


def _ms(delay: float | timedelta) -> int:
    return milliseconds(delay, "delay")
