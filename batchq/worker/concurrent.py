"""A worker that runs many jobs at once: coroutines in one event loop, plain functions on threads.

    settle what has ended + claim as many as there are free places     one round trip, in a thread of its own
    begin each at once

The protocol is that of `worker`: the same claims, tokens, outcomes and orders. What differs: an order cancels a task;
on a thread nothing can be raised, so only the end of the whole worker ends it. Calls of the store never block the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from batchq import log
from batchq.app import App
from batchq.clock import monotonic_ns
from batchq.config import Settings
from batchq.errors import ConfigError, StoreError, StoreUnavailable
from batchq.gates import LATE_MS
from batchq.job import Outcome, Released
from batchq.registry import Registry, place
from batchq.store import MAX_JOBS, Store, Waiter
from batchq.system import scoreboard
from batchq.system.pipes import drain
from batchq.system.scoreboard import Entry, Slot
from batchq.worker.admission import portion, read
from batchq.worker.base import DONE, REST_S, UNSETTLED, WorkerBase, error_of
from batchq.worker.blocking import LoopWatch
from batchq.worker.desk import STRAY_S, Got
from batchq.worker.runner import Interrupted, Prepared

T = TypeVar("T")

#: While the store is away during a stop, what has ended is offered again so often.
OFFER_S = 0.1
#: So many jobs in a row may miss their turn at a rate.
MOST_LATE = 3
#: Where jobs run for longer than this, free places are filled in so many parts. What is begun a little later than its
#: neighbours ends later too, and is settled while they run: places that all end at once wait for one another.
LONG_MS, PARTS = 50.0, 8


def check_concurrency(registry: Registry, settings: Settings) -> None:
    """For a concurrency above 1. Raises ConfigError for a plain function that nobody has said may run beside others,
    and for a batch handler."""
    served = [name for name, _ in settings.queues] or registry.queues()
    for spec in map(registry.get, registry.names()):
        if spec.queue in served and spec.batch:
            raise ConfigError(
                f"concurrency: {settings.concurrency} jobs at once, and handler {spec.name!r} ({place(spec.function)}) "
                f"takes many jobs a call, one call at a time; {_two_pools(registry, served, settings.concurrency)}"
            )
        if spec.queue in served and not settings.threads and not spec.is_async and not spec.threads:
            raise ConfigError(
                f"concurrency: {settings.concurrency} jobs at once, and handler {spec.name!r} ({place(spec.function)}) "
                "is a plain function, which may not bear that; mark it @app.job(threads=True), start with --threads, "
                f"make it async def, or serve its queue {spec.queue!r} by a pool of its own (-q)"
            )


def _two_pools(registry: Registry, served: Sequence[str], concurrency: int) -> str:
    """How handlers of both kinds are served."""
    specs = [registry.get(name) for name in registry.names()]
    batched = sorted({spec.queue for spec in specs if spec.batch and spec.queue in served})
    single = sorted({spec.queue for spec in specs if not spec.batch and spec.queue in served})
    flags = " ".join(f"-q {queue}" for queue in batched)
    if both := [queue for queue in batched if queue in single]:
        return (
            f"give it a queue of its own (other handlers are on {', '.join(both)}), and serve that by a pool of its own"
        )
    if not single:
        return "start this pool with -c 1"
    others = " ".join(f"-q {queue}" for queue in single)
    # Not only without the flag: the setting may stand in the environment, or in a file.
    return f"start two pools: `batchq start -c 1 {flags}` and `batchq start -c {concurrency} {others}`"


class _Run:
    """One job under way."""

    __slots__ = ("entry", "is_lost", "number", "ordered", "place", "ready", "started_ns", "task")

    def __init__(self, ready: Prepared, entry: Entry, place: int) -> None:
        self.ready = ready
        self.entry = entry
        #: Its place among the entries.
        self.place = place
        self.started_ns = monotonic_ns()
        #: Of the run on the scoreboard; 0: the handler has not been called yet.
        self.number = 0
        self.ordered = scoreboard.NOTHING
        #: None: on a thread.
        self.task: asyncio.Task[Outcome] | None = None
        #: The store counts it as this worker's no more.
        self.is_lost = False

    def enter(self) -> None:
        """As late as can be: what is killed behind this mark and before the handler's first line is charged for it."""
        ready, on_thread = self.ready, self.task is None
        self.number = self.entry.begin(
            ready.claim, ready.spec.name, self.started_ns, ready.timeout_ms, on_thread=on_thread
        )

    def cut_off(self) -> BaseException | None:
        """What the order for this run means to its handler."""
        return error_of(self.ordered, self.ready.timeout_ms)


class ConcurrentWorker(WorkerBase):
    """Made in the child after the fork. `run` answers the exit code."""

    def __init__(
        self, app: App, store: Store, settings: Settings, slot: Slot, queues: Sequence[tuple[str, int]], wakeup_fd: int
    ) -> None:
        super().__init__(app, store, settings, slot, queues, wakeup_fd)
        self._threads_for_all = settings.threads
        #: It makes room for a new one: as a stop, but of its own accord.
        self._leaving = False
        self._entries = slot.widen(settings.concurrency)
        #: The places nobody has.
        self._free = list(range(settings.concurrency))
        self._runs: dict[int, _Run] = {}
        #: What has ended and is not settled, by queue.
        self._finished: dict[str, list[Outcome]] = {}
        #: The last look found as many as were wanted, or something has happened since: another look is worth it.
        self._hungry = True
        #: The only thread that calls the store.
        self._clerk = ThreadPoolExecutor(1, "batchq-store")
        self._pool = ThreadPoolExecutor(settings.concurrency, "batchq-job")
        #: Held by a plain function that may not run beside another such.
        self._alone = threading.Lock()
        #: How long jobs ran lately.
        self._usual_ms = 0.0
        #: So many in a row have missed their turn at a rate.
        self._late = 0
        self._waiter: Waiter | None = None
        self._waits_on = -1
        #: A hint would be heard: nothing has been claimed since then.
        self._listens = False
        self._connected = slot.anew

    # -- life

    def run(self) -> int:
        """The whole life of the worker."""
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._news = asyncio.Event()
        life = self._loop.create_task(self._live())
        while True:
            try:
                return self._loop.run_until_complete(life)
            except (SystemExit, KeyboardInterrupt) as error:
                # From a task that a handler has made: asyncio lets it out of the loop. It ends nobody else.
                if life.done():
                    raise
                log.event("error", "task_exited", worker=self._desk.id, error=repr(error))

    def obey(self, signum: int, frame: FrameType | None) -> None:
        """Handles the signal of orders: nothing here. The loop reads them, woken by the same signal."""

    async def _live(self) -> int:
        self._loop.add_reader(self._wakeup_fd, self._on_signal)
        await self._ask(self._desk.take_new_id)
        if self._stop:
            return DONE
        watch = LoopWatch(self._loop)
        await _call_hooks(self._app.worker_start_hooks)
        watch.start()
        try:
            await self._drive()
            return await self._settle_rest()
        finally:
            await _call_hooks(self._app.worker_stop_hooks)

    async def _ask(self, call: Callable[..., T], *args: object) -> T:
        """A call of the store, which may take its time."""
        return await self._loop.run_in_executor(self._clerk, call, *args)

    def _on_signal(self) -> None:
        drain(self._wakeup_fd)
        for run in self._runs.values():
            number, order = run.entry.order()
            if number and number == run.number and run.ordered == scoreboard.NOTHING:
                run.entry.hear(number)
                run.ordered = order
                if run.task is not None:
                    run.task.cancel()
        self._news.set()

    @property
    def _claims_no_more(self) -> bool:
        return self._stop or self._leaving

    async def _drive(self) -> None:
        """Until a stop, and the end of all that runs."""
        while not (self._claims_no_more and not self._runs):
            self._news.clear()
            self._say(self._state)
            await self._look_at_board()
            try:
                if await self._exchange():
                    continue
                await self._return_strays()
            except StoreUnavailable:
                # Only in a stop: the patience of a worker is endless. What ended meanwhile is offered again.
                if not self._stop:
                    raise
            except StoreError as error:
                self._desk.tell_failure(error)
                self._hungry = True
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), REST_S)
                continue
            await self._rest()

    @property
    def _state(self) -> int:
        if self._leaving:
            # The master has another come at once: what still runs here may take its time.
            return scoreboard.STOPPING
        if self._runs:
            return scoreboard.BUSY
        return scoreboard.QUIET if self._slot.pool_is_quiet else scoreboard.IDLE

    async def _look_at_board(self) -> None:
        """What the master wants of this worker beside orders."""
        if self._slot.anew != self._connected:
            self._connected = self._slot.anew
            self._stand_down()
            await self._ask(self._store.close)
        if self._slot.pool_is_quiet or self._claims_no_more or not self._free:
            # Hints are for others meanwhile.
            self._stand_down()
        if self._slot.errand() is not None:
            await self._ask(self._desk.do_errand)

    async def _rest(self) -> None:
        """Until something ends, a hint or a signal comes, or the store's own limit is over."""
        wait_s = self._store.traits.idle_wait_s
        if self._slot.pool_is_quiet:
            wait_s = REST_S
        elif self._finished:
            wait_s = OFFER_S
        elif self._free and not self._claims_no_more and not self._listens:
            await self._listen()
        if self._store.is_unsure:
            wait_s = min(wait_s, STRAY_S)
        try:
            await asyncio.wait_for(self._news.wait(), wait_s)
        except TimeoutError:
            self._hungry, self._listens = True, False

    async def _return_strays(self) -> None:
        """On queues that nobody asks while every place is taken."""
        if self._store.is_unsure:
            asked = {run.ready.claim.queue for run in self._runs.values()} | self._finished.keys()
            await self._ask(self._desk.return_strays, [name for name in self._names if name not in asked])

    async def _listen(self) -> None:
        if self._waiter is None:
            self._waiter = self._store.wake_waiter(self._names)
        waiter = self._waiter
        # The loop must not take a hint while the other thread arms.
        self._deafen()
        try:
            await self._ask(waiter.arm)
        except StoreUnavailable:
            # The next claim waits for the store, and says so.
            self._hungry = True
            self._news.set()
            return
        self._waits_on = waiter.fileno()
        self._loop.add_reader(self._waits_on, self._heard)
        self._listens = True

    def _heard(self) -> None:
        # Taking the hint may close the descriptor, and another may get its number.
        self._deafen()
        # Where nobody can wait for hints: until the store's own limit is over.
        self._listens = self._waiter is not None and not self._desk.hear(self._waiter)
        self._hungry = True
        self._news.set()

    def _deafen(self) -> None:
        self._listens = False
        if self._waits_on >= 0:
            self._loop.remove_reader(self._waits_on)
            self._waits_on = -1

    def _stand_down(self) -> None:
        self._deafen()
        if self._waiter is not None:
            self._waiter.close()
            self._waiter = None

    # -- settle and claim

    async def _exchange(self) -> bool:
        """Settles what has ended, and fills the free places. False where nothing was settled or found."""
        # Before the look: a hint that comes while it is under way is for the next one.
        looks, self._hungry = self._hungry, False
        names = self._order.next()
        moved = False
        for queue in [name for name in self._finished if name != names[0]]:
            await self._exchange_on(queue, 0)
            moved = True
        for queue in names:
            may_claim = looks and not self._claims_no_more and not self._slot.pool_is_quiet
            want = self._want if may_claim else 0
            if want or queue in self._finished:
                settled, claimed = await self._exchange_on(queue, want)
                moved = settled + claimed > 0 or moved
                if want and claimed >= min(want, MAX_JOBS):
                    # It has more. What came free meanwhile is for the one whose turn it is then.
                    self._hungry = True
                    break
        if looks and (not self._free or self._slot.pool_is_quiet):
            # There may be more.
            self._hungry = True
        if moved and (why := self._recycling.due(self._desk.claimed)) is not None and not self._claims_no_more:
            log.event("info", "recycled", worker=self._desk.id, pid=os.getpid(), why=why)
            self._leaving = True
        return moved

    @property
    def _want(self) -> int:
        """How many places are filled next."""
        if self._usual_ms < LONG_MS:
            return len(self._free)
        return min(len(self._free), max(PARTS, len(self._entries) // PARTS))

    async def _exchange_on(self, queue: str, want: int) -> tuple[int, int]:
        """Answers how many were settled, and how many claimed; a new id counts as one settled."""
        outcomes = self._finished.pop(queue, [])
        mine = {(run.ready.claim.id, run.ready.claim.token): run for run in self._runs.values() if _is_on(run, queue)}
        held = sum(not run.is_lost for run in mine.values())
        taken = threading.Event()
        try:
            got = await self._ask(
                self._desk.exchange,
                *(queue, outcomes, want, held, taken.set, lambda claim: (claim.id, claim.token) in mine),
            )
        finally:
            if outcomes and not taken.is_set():
                # What the store did not take is still ours to settle.
                self._finished[queue] = outcomes + self._finished.get(queue, [])
        self._believe(got, mine)
        if want:
            self._order.drew(queue, len(got.claims))
        if got.claims:
            # The spool has taken this worker off the list of those that wait.
            self._listens = False
        ready, ended = read(self._runner, got.claims)
        for outcome in ended:
            self._end(outcome)
        await self._begin_all(queue, ready)
        return len(outcomes) + got.renewed, len(got.claims)

    async def _begin_all(self, queue: str, ready: Sequence[Prepared]) -> None:
        """Begins those that may run. What has a rate is asked for in portions: each begins before the next is asked
        for."""
        some, rated = [one for one in ready if not one.rates], deque(one for one in ready if one.rates)
        full: set[str] = set()
        try:
            while some or rated:
                some = some or portion(rated, full)
                may = await self._ask(self._desk.admit, queue, some) if any(one.has_to_ask for one in some) else some
                passed = {one.claim.id for one in may}
                full |= {gate.name for one in some if one.claim.id not in passed for gate in one.rates}
                some = []
                for one in may:
                    self._begin(one)
        except StoreUnavailable:
            for one in (*some, *rated):
                self._end(Released(one.claim._replace(gated=True)))
            raise

    def _believe(self, got: Got, mine: dict[tuple[str, int], _Run]) -> None:
        """What the store counts as this worker's no more is finished all the same; its settling will be refused."""
        if got.renewed:
            for run in self._runs.values():
                run.is_lost = True
        elif got.held is not None:
            for key, run in mine.items():
                run.is_lost = key not in got.held
            # At once: the hint that led here is taken.
            self._news.set()

    async def _settle_rest(self) -> int:
        """The last of a stop: it waits for no store; what is not settled runs again."""
        try:
            while self._finished:
                for queue in list(self._finished):
                    await self._exchange_on(queue, 0)
        except StoreUnavailable:
            jobs = sum(map(len, self._finished.values()))
            log.event("warning", "not_settled", worker=self._desk.id, queue=",".join(self._finished), jobs=jobs)
            return UNSETTLED
        finally:
            self._stand_down()
        return DONE

    # -- run

    def _begin(self, ready: Prepared) -> None:
        if self._stop or self._slot.pool_is_quiet:
            self._end(Released(ready.claim))
            return
        number = self._free.pop()
        run = self._runs[number] = _Run(ready, self._entries[number], number)
        if ready.spec.is_async:
            run.task = self._loop.create_task(self._call(run), name=f"{ready.spec.name} {ready.claim.id}")
            run.task.add_done_callback(partial(self._ended, run))
        else:
            future = self._loop.run_in_executor(self._pool, copy_context().run, self._call_plain, run)
            future.add_done_callback(partial(self._ended, run))

    async def _call(self, run: _Run) -> Outcome:
        if self._turn_is_over(run.ready):
            return Released(run.ready.claim)
        outcome = await self._runner.acall(run.ready, run.enter, run.cut_off)
        self._leave_copy()
        return outcome

    def _call_plain(self, run: _Run) -> Outcome:
        if run.ready.spec.threads or self._threads_for_all:
            return self._call_here(run)
        with self._alone:
            return self._call_here(run)

    def _call_here(self, run: _Run) -> Outcome:
        if self._turn_is_over(run.ready):
            return Released(run.ready.claim)
        outcome = self._runner.call(run.ready, run.enter)
        self._leave_copy()
        return outcome

    def _turn_is_over(self, ready: Prepared) -> bool:
        """It was admitted at a rate, and its time was counted, so long ago that it would be one too many in the next
        window: it asks again. But no worker that is always late does so for ever."""
        if not ready.admitted_ns:
            return False
        late_ms = (monotonic_ns() - ready.admitted_ns - self._desk.way_ns) // 1_000_000
        self._late = self._late + 1 if late_ms > LATE_MS else 0
        if self._late <= MOST_LATE:
            return self._late > 0
        self._late = 0
        told: dict[str, Any] = {"queue": ready.claim.queue, "job": ready.claim.id, "handler": ready.spec.name}
        log.event("warning", "rate_late", worker=self._desk.id, **told, for_ms=late_ms)
        return False

    def _ended(self, run: _Run, future: asyncio.Future[Outcome]) -> None:
        seen = run.entry.run()
        run.entry.end()
        self._usual_ms += ((monotonic_ns() - run.started_ns) / 1e6 - self._usual_ms) / 16
        del self._runs[run.place]
        self._free.append(run.place)
        if future.cancelled():
            # The order came before the task's first step.
            outcome = self._runner.outcome_of(run.ready, run.cut_off() or Interrupted())
        else:
            outcome = future.result()
        outcome = self._as_ordered(run.ordered, run.ready, outcome)
        if self._slot.meter is not None and seen is not None and run.number:
            self._slot.meter.ran(run.ready, outcome, seen.started_ns)
        self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        self._finished.setdefault(outcome.claim.queue, []).append(outcome)
        self._hungry = True
        self._news.set()


def _is_on(run: _Run, queue: str) -> bool:
    return run.ready.claim.queue == queue


async def _call_hooks(hooks: Sequence[Callable[[], object]]) -> None:
    for hook in hooks:
        answer = hook()
        if inspect.isawaitable(answer):
            await answer
