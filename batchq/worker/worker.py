"""A worker: one process, one loop of settle and claim, run, repeat. It renews no lease and reaps nobody.

    settle what was finished + claim up to k     one round trip
    run the k handlers, one after the other
    repeat

Two threads at most: the main one runs handlers; a helper, only while a batch stands behind a running job, settles what
is finished and gives back what has not started when that job passes 100 ms. One lock is held for popping the next job
and for every call of the store.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from types import FrameType

from batchq import context, log
from batchq.app import App
from batchq.clock import monotonic_ns
from batchq.config import Settings
from batchq.errors import JobCancelled, JobTimeout, StoreError, StoreUnavailable
from batchq.job import Claim, Claims, Outcome, Released
from batchq.lifecycle import Word
from batchq.store import MAX_JOBS, StandingClaim, Store, Waiter
from batchq.system import scoreboard
from batchq.system.pipes import drain, wait_for
from batchq.system.scoreboard import Slot
from batchq.worker.admission import at_same_rate, read
from batchq.worker.base import DONE, REST_S, UNSETTLED, WorkerBase, error_of
from batchq.worker.grouped import Calling, gather, run_group
from batchq.worker.pace import SURPRISE_MS, Pace, Runtimes
from batchq.worker.runner import Interrupted, Prepared

#: Where the code of the stores is, and that which calls handlers.
_HERE = os.path.dirname(__file__)
_STORES = tuple(os.path.join(os.path.dirname(_HERE), name, "") for name in ("redis", "spool"))
_RUNNERS = (os.path.join(_HERE, "runner.py"), os.path.join(_HERE, "grouped.py"))


class Worker(WorkerBase):
    """Made in the child after the fork. `run` answers the exit code."""

    def __init__(
        self, app: App, store: Store, settings: Settings, slot: Slot, queues: Sequence[tuple[str, int]], wakeup_fd: int
    ) -> None:
        super().__init__(app, store, settings, slot, queues, wakeup_fd)
        self._runtimes = Runtimes()
        self._paces = {name: Pace() for name in self._names}
        #: What a batch handler wants next from a queue.
        self._wants: dict[str, int] = {}
        #: Held for popping the next job and for calls of the store.
        self._lock = threading.RLock()
        self._tail: deque[Prepared] = deque()
        self._finished: list[Outcome] = []
        self._queue = self._names[0]
        self._waiter: Waiter | None = None
        #: The same one, where it brings claims along.
        self._standing: StandingClaim | None = None
        #: What it has brought.
        self._came: Claims | None = None
        self._lease_ms = settings.lease_ms
        #: A signal had stopped it.
        self._was_stopped = False
        #: A batch is under way: the helper looks after it.
        self._batch = threading.Event()
        self._surprised = False
        #: monotonic ns of the handler under way; 0: none.
        self._running_since = 0
        #: The number of the run whose user code may be interrupted; 0: none.
        self._open_run = 0
        #: The run that was given an order before its user code began.
        self._early_run = 0
        #: What the master ordered for the run under way.
        self._ordered = scoreboard.NOTHING
        self._limit_ms = 0

    # -- life

    def run(self) -> int:
        """The whole life of the worker."""
        self._desk.take_new_id()
        if not self._stop:
            threading.Thread(target=self._help, name="batchq-helper", daemon=True).start()
            self._runner.call_hooks(self._app.worker_start_hooks)
            try:
                self._loop()
            except StoreUnavailable:
                if not self._stop:
                    raise
                # The stop waits for no store; what had ended runs again.
                log.event("warning", "not_settled", worker=self._desk.id, queue=self._queue, jobs=len(self._finished))
                return UNSETTLED
            finally:
                self._runner.call_hooks(self._app.worker_stop_hooks)
        self._runner.close()
        return DONE

    def go_on(self) -> None:
        """A signal had stopped it. Safe in a signal handler. The other threads block SIGCONT."""
        self._was_stopped = True

    @property
    def _is_resting(self) -> bool:
        """Nothing more is to be begun."""
        return self._stop or self._slot.pool_is_quiet

    def _loop(self) -> None:
        connected = self._slot.anew
        try:
            while not self._stop:
                if self._was_stopped:
                    # Its master may have reaped it meanwhile: what has come may be another's, and the store is asked.
                    self._was_stopped = False
                    self._stop_waiting()
                if self._slot.anew != connected:
                    connected = self._slot.anew
                    self._stop_waiting()
                    with self._lock:
                        self._store.close()
                try:
                    busy = self._round()
                except StoreUnavailable:
                    raise
                except StoreError as error:
                    self._stop_waiting()
                    self._desk.tell_failure(error)
                    self._pause()
                    continue
                if busy and (why := self._recycling.due(self._desk.claimed)) is not None:
                    log.event("info", "recycled", worker=self._desk.id, pid=os.getpid(), why=why)
                    break
            self._give_back()
        finally:
            self._stop_waiting()

    def _round(self) -> bool:
        """Runs a batch, or waits for one. Whether it ran any."""
        if self._slot.pool_is_quiet:
            # Hints are for others meanwhile.
            self._stop_waiting()
            self._give_back()
            self._rest()
            return False
        if self._slot.errand() is not None:
            # Nothing that could run elsewhere is claimed to stand behind the hooks.
            self._stop_waiting()
            self._give_back()
            self._desk.do_errand()
        if self._tail:
            # Left by a call that failed.
            self._give_back()
        busy = not self._claims_by_waiting and self._turn()
        if not busy:
            self._wait()
        return busy

    def _rest(self) -> None:
        """Until a signal comes, the master's that the pool is to go on among them; or for a second."""
        self._say(scoreboard.QUIET)
        # A claim that stood may have been made.
        self._desk.return_strays(self._names)
        self._pause()

    def _pause(self) -> None:
        wait_for(self._wakeup_fd, seconds=REST_S)
        drain(self._wakeup_fd)

    # -- waiting

    @property
    def _claims_by_waiting(self) -> bool:
        """A claim stands at the store: there is no other way to claim meanwhile."""
        return self._standing is not None and self._standing.stands

    def _wait(self) -> None:
        """Until a hint or a signal comes, or the store's own limit is over."""
        self._say(scoreboard.IDLE)
        for pace in self._paces.values():
            pace.waited()
        waiter = self._waiter or self._new_waiter()
        try:
            if self._standing is not None:
                self._standing.arm_for(self._desk.id, self._paces[self._queue].want, self._lease_ms)
            else:
                waiter.arm()
        except StoreUnavailable:
            return  # The next claim waits for the store, and says so.
        if self._stop or self._slot.pool_is_quiet:
            return
        ready = wait_for(waiter.fileno(), self._wakeup_fd, seconds=self._store.traits.idle_wait_s)
        if self._wakeup_fd in ready:
            drain(self._wakeup_fd)
        if waiter.fileno() in ready and not self._was_stopped:
            hears = self._desk.hear(waiter)
            if self._standing is not None:
                self._came = self._standing.claims()
            if not hears and not (self._came and self._came.claims):
                self._pause()

    def _new_waiter(self) -> Waiter:
        if len(self._names) == 1:
            self._waiter = self._standing = self._store.standing_claim(self._queue)
        if self._waiter is None:
            self._waiter = self._store.wake_waiter(self._names)
        return self._waiter

    def _stop_waiting(self) -> None:
        if self._waiter is not None:
            self._waiter.close()
            self._waiter = self._standing = None

    # -- settle and claim

    def _turn(self) -> bool:
        """One round: asks the queues in their order until one has something, and runs that. False: none had."""
        for queue in self._order.next():
            claims = self._exchange(queue, self._wants.pop(queue, 0) or self._paces[queue].want)
            if claims:
                self._say(scoreboard.BUSY)
                self._run_batch(queue, claims)
                return True
            if self._stop:
                return True
        return False

    def _exchange(self, queue: str, want: int) -> Sequence[Claim]:
        """Settles what is finished and claims from this queue."""
        with self._lock:
            if self._queue != queue:
                self._give_back()
                self._queue = queue
            came, self._came = self._came, None
            if came is not None:
                got = self._desk.receive(queue, came)
            else:
                got = self._desk.exchange(queue, self._finished, want, 0, self._forget_finished)
            if not got.renewed:
                self._order.drew(queue, len(got.claims))
                return got.claims
            # At once: the hint that led here is taken, and nobody else may be roused for what is ready.
            return () if self._stop else self._exchange(queue, want)

    def _forget_finished(self) -> None:
        self._finished = []

    def _give_back(self) -> None:
        """Settles what is finished and releases what has not started."""
        with self._lock:
            unseen = self._came.claims if self._came is not None and self._came.word is Word.OK else ()
            outcomes = [
                *self._finished,
                *(Released(ready.claim) for ready in self._tail),
                *(Released(claim) for claim in unseen),
            ]
            if not outcomes:
                return
            given_back = len(self._tail)
            self._desk.settle(self._queue, outcomes, 0, 0, self._forget_all)
            if given_back:
                self._order.drew(self._queue, -given_back)

    def _forget_all(self) -> None:
        self._finished, self._came = [], None
        self._tail.clear()

    # -- run

    def _run_batch(self, queue: str, claims: Sequence[Claim]) -> None:
        began = monotonic_ns()
        with self._lock:
            self._take_in(queue, claims)
            self._surprised = False
        short_ms = self._paces[queue].short_ms
        if len(claims) > 1 or self._store.is_unsure:
            self._batch.set()
        ran = 0
        try:
            while True:
                with self._lock:
                    if self._is_resting or self._was_stopped:
                        self._give_back()
                    if not self._tail:
                        break
                    ready = self._tail.popleft()
                    grouped = ready.spec.batch > 0
                    if not grouped:
                        alone = not ready.spec.batch_claim or not self._runtimes.is_short(ready.spec.name, short_ms)
                        if alone:
                            # Short ones would change it all the time.
                            self._title.say(f"{ready.spec.name} {ready.claim.id} of {ready.claim.queue}")
                        if alone and (self._finished or self._tail):
                            self._give_back()
                        if ready.gates:
                            admitted = self._desk.admit(queue, [ready])
                            if not admitted:
                                self._wait_too(queue, [gate.name for gate in ready.rates])
                                continue
                            [ready] = admitted
                    self._running_since = 0 if grouped else monotonic_ns()
                if grouped:
                    ran += self._run_group(queue, ready)
                    continue
                outcome = self._call(ready)
                ran += 1
                with self._lock:
                    self._running_since = 0
                    self._finished.append(outcome)
        finally:
            self._batch.clear()
        self._paces[queue].ran(ran, (monotonic_ns() - began) / 1e6, surprise=self._surprised)

    def _wait_too(self, queue: str, rates: Sequence[str]) -> None:
        """One had to wait at these: those behind it at the same rates are asked for in one call, not each by itself."""
        behind = [n for n, ready in enumerate(self._tail) if at_same_rate(ready, rates)]
        if behind:
            asked = [self._tail[n] for n in behind]
            may = {ready.claim.id: ready for ready in self._desk.admit(queue, asked)}
            left = {n: may.get(ready.claim.id) for n, ready in zip(behind, asked, strict=True)}
            tail = (left.get(n, ready) for n, ready in enumerate(self._tail))
            self._tail = deque(ready for ready in tail if ready is not None)

    def _run_group(self, queue: str, first: Prepared) -> int:
        """Runs a batch handler for as many jobs as it takes, and answers how many they were: none where the worker is
        to rest meanwhile."""
        group = gather(first, self._tail, partial(self._claim_more, queue), self._linger)
        with self._lock:
            if self._is_resting:
                # Given back with the rest, in its order.
                self._tail.extendleft(reversed(group))
                return 0
            # One that crashed runs alone, and nothing is claimed behind it.
            self._wants[queue] = 1 if first.claim.crashes else min(first.spec.batch, MAX_JOBS)
            # What stands behind it is for others.
            self._give_back()
            group = self._desk.admit(queue, group)
        if not group:
            return 0
        ran = 0
        for outcomes in run_group(self._runner, group, self._attempt_of_many):
            with self._lock:
                self._running_since = 0
                self._finished += outcomes
            ran += len(outcomes)
        return ran

    def _attempt_of_many(self, group: Sequence[Prepared], call: Calling) -> list[Outcome]:
        """One call of a batch handler: with all of the batch, or with a part of it once more."""
        with self._lock:
            if self._finished:
                # Of other parts. Should the worker die, all that it holds is what ran.
                self._give_back()
                if self._is_resting:
                    return [Released(ready.claim) for ready in group]
            self._running_since = monotonic_ns()
        return self._attempt(group, call)

    def _claim_more(self, queue: str, want: int, held: int) -> bool:
        """Claims beside what is held already, into the tail; False where nothing came, or the answer is odd: the next
        round looks into it."""
        with self._lock:
            if self._is_resting:
                return False
            claimed = self._store.claim(queue, self._desk.id, min(want, MAX_JOBS), held + len(self._finished))
            if claimed.word is not Word.OK or not claimed.claims:
                return False
            self._desk.claimed += len(claimed.claims)
            self._order.drew(queue, len(claimed.claims))
            self._take_in(queue, claimed.claims)
            return True

    def _take_in(self, queue: str, claims: Sequence[Claim]) -> None:
        """Into the tail, but for those that have ended or have to wait. What has a rate is asked for when its turn
        comes."""
        ready, ended = read(self._runner, claims)
        self._finished += ended
        self._tail.extend(self._desk.admit(queue, ready, rated=False))

    def _linger(self, seconds: float) -> bool:
        """Waits for more jobs to come. False: the worker is to rest."""
        wait_for(self._wakeup_fd, seconds=seconds)
        drain(self._wakeup_fd)
        return not self._is_resting

    def _call(self, ready: Prepared) -> Outcome:
        """Runs one handler."""
        return self._attempt([ready], lambda enter: [self._runner.call(ready, enter)])[0]

    def _attempt(self, group: Sequence[Prepared], call: Calling) -> list[Outcome]:
        """Makes one call of a handler between its marks on the scoreboard: for one job, or for many of a batch."""
        ready = group[0]
        self._ordered = scoreboard.NOTHING
        self._limit_ms = ready.timeout_ms
        started = monotonic_ns()

        def enter() -> None:
            # As late as can be: what is killed behind this mark and before the handler's first line is charged for it.
            self._open_run = number = self._slot.begin(
                ready.claim, ready.spec.name, started, ready.timeout_ms, whole=len(group) > 1
            )
            if self._early_run == number:
                self._obey(number)

        try:
            try:
                outcomes = call(enter)
            finally:
                self._open_run = 0
                context.waiting_order = None
        except (JobTimeout, JobCancelled, Interrupted) as late:
            # The order came in the instant between the handler's end and the line above.
            outcomes = [self._runner.outcome_of(one, late) for one in group]
        self._leave_copy()
        self._slot.end()
        self._runtimes.ran(ready.spec.name, (monotonic_ns() - started) / 1e6)
        if self._ordered != scoreboard.NOTHING:
            ends = zip(group, outcomes, strict=True)
            outcomes = [self._as_ordered(self._ordered, one, outcome) for one, outcome in ends]
        if self._slot.meter is not None:
            for one, outcome in zip(group, outcomes, strict=True):
                self._slot.meter.ran(one, outcome, started)
        return outcomes

    def obey(self, signum: int, frame: FrameType | None) -> None:
        """Handles ORDER_SIGNAL: raises what the master ordered for this run, in the user's code and nowhere else."""
        if self._is_copy:
            return
        if _is_inside_store(frame):
            # It waits for the end of the call: until the next one, or until the master has repeated it.
            context.waiting_order = self._obey_now
        else:
            self._obey(self._open_run)

    def _obey_now(self) -> None:
        if threading.current_thread() is threading.main_thread():
            context.waiting_order = None
            self._obey(self._open_run)

    def _obey(self, open_run: int) -> None:
        run, order = self._slot.order()
        if run == 0 or run != open_run:
            # Race: the run stands on the scoreboard, its user code has not begun. `enter` looks at it.
            self._early_run = run
            return
        self._slot.hear(run)
        self._open_run = 0
        self._ordered = order
        if (error := error_of(order, self._limit_ms)) is not None:
            raise error

    # -- the helper thread

    def _help(self) -> None:
        """Looks after a batch that stands behind a long job, and after strays. Sleeps while there is nothing to do."""
        # The main thread is to hear that it had been stopped before it takes what came meanwhile: a signal that is
        # caught here is heard there some moments later.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
        while True:
            self._batch.wait()
            time.sleep(SURPRISE_MS / 2000)
            try:
                with self._lock:
                    # On its own queue the next claim finds them.
                    self._desk.return_strays([name for name in self._names if name != self._queue])
            except StoreError as error:
                log.event("warning", "give_back_failed", queue=self._queue, worker=self._desk.id, error=str(error))
            since = self._running_since
            if since == 0 or monotonic_ns() - since < SURPRISE_MS * 1e6:
                continue
            with self._lock:
                # The same run is still under way, and cannot end its bookkeeping while the lock is held.
                if self._running_since == since and (self._tail or self._finished):
                    self._surprised = True
                    try:
                        self._give_back()
                    except StoreError as error:
                        log.event(
                            "warning", "give_back_failed", queue=self._queue, worker=self._desk.id, error=str(error)
                        )


def _is_inside_store(frame: FrameType | None) -> bool:
    """Whether the code that was interrupted is a store's, called by a handler: it keeps locks and connections."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_STORES):
            return True
        if file in _RUNNERS:
            return False
        frame = frame.f_back
    return False
