"""App: the handlers of a program and the store that their jobs are in. What users import.

An App opens its store at its first use, one handle for all threads; a forked child gets connections of its own.
It runs no job: that is the worker's part, which reads `registry` and the hooks from here.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from batchq import config, context, sending
from batchq.admin import PURGED, Listing, ask_all, check_state, find_job, purge_jobs, queues_of, read_stats, spool_stats
from batchq.backoff import BackoffLike
from batchq.batch import Batch, find_batch, list_batches
from batchq.batch import around as _batch
from batchq.clock import SYSTEM, Clock
from batchq.errors import InternalError, milliseconds
from batchq.flow import Breaker, Limit, make_limits
from batchq.gates import GateState, gate_name
from batchq.handler import (
    AsyncHandler,
    BatchDecorator,
    BatchHandler,
    Call,
    Handler,
    JobDecorator,
    P,
    R,
    check_fire,
)
from batchq.job import Job, NewJob, check_queue, new_id
from batchq.lifecycle import COUNTED, State, Word
from batchq.refs import Enqueued, JobRef
from batchq.registry import (
    DEFAULT_QUEUE,
    Duration,
    JobOptions,
    Registry,
    WhenFull,
    check_count,
    check_duration,
    check_keep,
    check_name,
    make_spec,
)
from batchq.selection import Selection
from batchq.store import MAX_BYTES, MAX_JOBS, Sent, Store
from batchq.tally import BatchStats

if TYPE_CHECKING:
    from batchq.bridge import Bridge
    from batchq.fallback.producer import Fallback
    from batchq.testing import Harness

T = TypeVar("T")
Hook = TypeVar("Hook", bound=Callable[[], object])
DeadHook = TypeVar("DeadHook", bound=Callable[[Job], object])


class App:
    """Handlers, settings and a store.

    `url` and the settings given here (`App(lease="30s")`) are above BATCHQ_* variables and [tool.batchq], and below
    the flags of the command line. Without a url: BATCHQ_URL, the file, else the spool at its default place.
    Raises ConfigError for a wrong setting.
    """

    def __init__(self, url: str | None = None, *, name: str = "batchq", **settings: object) -> None:
        self.name = name
        self.registry = Registry()
        #: Called without arguments in each worker, after the fork and before its first job.
        self.worker_start_hooks: list[Callable[[], object]] = []
        #: Called without arguments in each worker that ends by itself.
        self.worker_stop_hooks: list[Callable[[], object]] = []
        #: Called with each job that reaches the morgue.
        self.dead_hooks: list[Callable[[Job], object]] = []
        if "fallback" in settings:
            # None reads better where there is none.
            settings["fallback"] = settings["fallback"] if settings["fallback"] is not None else False
        self._code = settings if url is None else {**settings, "url": url}
        config.check_code(self._code)
        self._flags: Mapping[str, object] = {}
        self._settings: config.Settings | None = None
        self._only_looks = False
        self._store: Store | None = None
        #: Takes the jobs that the store can't take, where there is one.
        self._fallback: Fallback | None = None
        self._forking: Fallback | None = None
        #: In the worker of a pool: its master says when the store is away.
        self.is_spoken_for = False
        self._opened_ms = 0
        self._lock = threading.RLock()
        #: By the thread that forks.
        self._is_held = False
        self._harness: Harness | None = None
        # Handlers whose results are kept for as long as the setting says.
        self._keep_default: set[str] = set()
        _apps.add(self)

    def __repr__(self) -> str:
        return f"<App {self.name} handlers={len(self.registry)}>"

    # -- settings and store ---------------------------------------------------------------------------------------

    @property
    def settings(self) -> config.Settings:
        """The effective settings, read at the first use. Raises ConfigError."""
        if self._settings is None:
            self._settings = config.load(self._flags, code=self._code)
        return self._settings

    def configure(self, flags: Mapping[str, object]) -> config.Settings:
        """Puts the flags of a command line above everything else. Raises ConfigError. Closes an open store."""
        settings = config.load(flags, code=self._code)
        self.close()
        self._flags, self._settings = flags, settings
        self.__dict__.pop("max_payload", None)
        self.__dict__.pop("is_bounded", None)
        for name in self._keep_default:
            self.registry.replace(name, keep_ms=settings.result_keep_ms)
        return settings

    def only_look(self) -> None:
        """For programs that read and enqueue nothing: a spool that is not there yet is not made."""
        self._only_looks = True

    @cached_property
    def max_payload(self) -> int:
        """The greatest row in bytes. Read at every enqueue: an attribute from its first use on."""
        return self.settings.max_payload_bytes

    @cached_property
    def is_bounded(self) -> bool:
        """Whether some queue can be full. Read at every enqueue."""
        return bool(self.settings.max_pending)

    @property
    def store(self) -> Store:
        """The open store. Raises ConfigError, StoreError."""
        if context.waiting_order is not None:
            context.waiting_order()
        store = self._store
        if store is not None:
            return store
        with self._lock:
            if self._store is None:
                from batchq.stores import open_fallback, open_store

                opened = open_store(self.settings.store_url, self.settings, make=not self._only_looks)
                if self.is_spoken_for:
                    opened.be_silent()
                self._fallback = open_fallback(opened, self.settings)
                self._opened_ms = self.clock.now_us() // 1000
                # Last: other threads look at it without the lock.
                self._store = opened
            return self._store

    @property
    def clock(self) -> Clock:
        """This machine's clock; inside `testing()` the harness's."""
        return SYSTEM if self._harness is None else self._harness.clock

    def pause_s(self, seconds: float) -> None:
        """Waits; inside `testing()` the clock is moved on instead, and what is due runs."""
        if self._harness is None:
            time.sleep(seconds)
        else:
            self._harness.run_for(seconds)

    def close(self) -> None:
        """Closes the store. The next use opens it again."""
        with self._lock:
            store, self._store, self._fallback = self._store, None, None
        if store is not None:
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- handlers -------------------------------------------------------------------------------------------------

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncHandler[P, R]: ...  # type: ignore[overload-overlap]  # the first that fits is meant

    @overload
    def job(self, function: Callable[P, R], /) -> Handler[P, R]: ...

    @overload
    def job(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        max_attempts: int | None = None,
        backoff: BackoffLike | None = None,
        timeout: Duration | None = None,
        result: bool | Duration = False,
        batch_claim: bool = True,
        threads: bool = False,
        offline: bool = False,
        rate: str | None = None,
        limit: int | None = None,
        key: Callable[..., Any] | None = None,
        breaker: Breaker | None = None,
        concurrency: int | None = None,
        limits: Sequence[Limit] = (),
    ) -> JobDecorator: ...

    @overload
    def job(
        self,
        /,
        *,
        batch: int,
        linger: Duration = 0,
        bisect: bool = False,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        max_attempts: int | None = None,
        backoff: BackoffLike | None = None,
        timeout: Duration | None = None,
        result: bool | Duration = False,
        offline: bool = False,
    ) -> BatchDecorator: ...

    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        max_attempts: int | None = None,
        backoff: BackoffLike | None = None,
        timeout: Duration | None = None,
        result: bool | Duration = False,
        batch_claim: bool = True,
        threads: bool = False,
        batch: int | None = None,
        linger: Duration | None = None,
        bisect: bool = False,
        offline: bool = False,
        rate: str | None = None,
        limit: int | None = None,
        key: Callable[..., Any] | None = None,
        breaker: Breaker | None = None,
        concurrency: int | None = None,
        limits: Sequence[Limit] = (),
    ) -> Any:
        """Registers a handler, under the function's name unless given.

        `max_attempts`: tries before a job is dead (setting: 5). `backoff`: a policy, a list of seconds, or a function
        (attempt, error) -> seconds. `timeout`: seconds. `result`: True keeps what the handler returns for the setting
        `result_keep`, seconds keep it that long. `batch_claim=False`: a worker claims its jobs one at a time.
        `threads`: a plain function that workers with a `concurrency` may run on threads, beside others. `offline`: may
        run from this host's fallback spool while the server is away.

        `batch=500`: the function is called with a list of up to so many jobs (`BatchJob`, see docs/batches.md); where
        there are fewer it waits `linger` seconds for more; with `bisect` a call that raises is made again with each
        half.

        `rate` ("100/s"), `limit` (at once), `breaker`: over all workers and hosts, of the handler or, with `key` (a
        function of the job's arguments), of each key; `limits`: more of them. `concurrency`: at once in one worker.
        Raises ConfigError for a wrong argument, and for a name that is taken.
        """

        def register(function: Callable[..., Any]) -> Handler[Any, Any] | AsyncHandler[Any, Any] | BatchHandler:
            spec = make_spec(
                function,
                name=name,
                queue=queue,
                max_attempts=max_attempts,
                backoff=backoff,
                timeout=timeout,
                keep_ms=check_keep(result, lambda: self.settings.result_keep_ms),
                batch_claim=batch_claim,
                threads=threads,
                batch=batch,
                linger=linger,
                bisect=bisect,
                offline=offline,
                limits=lambda: make_limits(limits, rate, limit, key, breaker, concurrency),
            )
            self.registry.register(spec)
            if result is True:
                self._keep_default.add(spec.name)
            if spec.batch:
                return BatchHandler(self, spec)
            return AsyncHandler(self, spec) if spec.is_async else Handler(self, spec)

        return register if function is None else register(function)

    def limit_queue(
        self, queue: str, *, rate: str | None = None, limit: int | None = None, breaker: Breaker | None = None
    ) -> None:
        """Limits all jobs of a queue together, over all workers and hosts: see `job`. Raises ConfigError."""
        self.registry.limit_queue(queue, Limit(rate, limit, None, breaker))

    def on_worker_start(self, hook: Hook) -> Hook:
        """Calls the function in each worker, after the fork and before its first job: open database pools there.
        A coroutine function runs in the worker's event loop."""
        self.worker_start_hooks.append(hook)
        return hook

    def on_worker_stop(self, hook: Hook) -> Hook:
        """Calls the function in each worker that ends by itself, after its last job."""
        self.worker_stop_hooks.append(hook)
        return hook

    def on_dead(self, hook: DeadHook) -> DeadHook:
        """Calls the function with each job that reaches the morgue: in a worker, once, and again only where that was
        killed in the middle of it."""
        self.dead_hooks.append(hook)
        return hook

    # -- enqueue --------------------------------------------------------------------------------------------------

    def enqueue(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        queue: str | None = None,
        priority: int = 0,
        job_id: str | None = None,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        result: bool | Duration | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        when_full: WhenFull | None = None,
    ) -> JobRef[Any]:
        """Enqueues a call by the handler's name: for producers that do not have its code.

        The queue is the handler's where it is known here, else `default`. The other options and the errors are those
        of `handler.options` and `handler.enqueue`.
        """
        call = self.call(name).options(
            queue=queue,
            priority=priority,
            job_id=job_id,
            max_attempts=max_attempts,
            timeout=timeout,
            result=result,
            delay=delay,
            at=at,
            when_full=when_full,
        )
        if isinstance(args, str | bytes | Mapping) or not isinstance(args, Sequence):
            raise TypeError(f"args: expected a list of arguments, found {type(args).__name__}; write args=[value]")
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise TypeError(f"kwargs: expected a dict of arguments, found {type(kwargs).__name__}")
        return call.enqueue(*args, **(kwargs or {}))

    def call(self, name: str) -> Call[..., Any]:
        """What `enqueue` by name uses: has the same methods as a handler, for a handler whose code is elsewhere."""
        if name in self.registry:
            spec = self.registry.get(name)
            return Call(self, name, spec.queue, spec.arity(), JobOptions(), keeps=spec.keep_ms > 0)
        return Call(self, check_name(name), DEFAULT_QUEUE, None, JobOptions(), keeps=None)

    def delay_ms(self, delay: Duration) -> int:
        """A delay as stored. Raises ConfigError for what is no finite number, and for one past what can be stored."""
        ms = milliseconds(delay, "delay")
        if ms:
            check_fire(self.clock.now_us() // 1000 + ms, "delay")
        return ms

    def send(
        self, queue: str, jobs: Sequence[NewJob], when_full: str | int | None = None, sent: Sent | None = None
    ) -> tuple[list[bool], bool]:
        """Hands at most one step of jobs to the store: which of them are new, and whether they went to the fallback
        spool, where nobody knows yet. `sent`: they are on their way already, by `_send_ahead`."""
        store = self.store
        batch, most = _batch.get(), self.settings.pending_limit(queue) if self.is_bounded else 0
        if sent is None and (most or batch is not None):
            words = sending.send(
                store,
                self._fallback,
                batch if batch is not None and batch.is_of(self) else None,
                queue,
                jobs,
                max_pending=most,
                when_full=self.settings.when_full if when_full is None else when_full,
                pause_s=self.pause_s,
                monotonic=self.clock.monotonic,
            )
        elif self._fallback is not None:
            words = self._fallback.enqueue(queue, jobs, sent=sent)
        else:
            words = store.enqueue(queue, jobs) if sent is None else sent.words()
        if words is None:
            return [True] * len(jobs), True
        created = [word is not Word.KNOWN for word in words]
        if not all(created):
            _check_known(queue, jobs, created)
        if self._harness is not None:
            self._harness.sent()
        return created, False

    async def asend(self, queue: str, job: NewJob, when_full: str | int | None = None) -> tuple[bool, bool]:
        """`send` of one job from an event loop, which does not wait for the store."""
        if self._harness is not None:
            [created], spooled = self.send(queue, [job], when_full)
            return created, spooled
        if self.is_bounded or _batch.get() is not None:
            all_created, spooled = await self.arun(lambda: self.send(queue, [job], when_full))
            return all_created[0], spooled
        return await self._bridge.send(queue, job)

    @cached_property
    def _bridge(self) -> Bridge:
        # Only producers in event loops pay for it.
        from batchq.bridge import Bridge

        return Bridge(self.send)

    async def arun(self, call: Callable[[], T]) -> T:
        """A call that may wait for the store, from an event loop, which does not."""
        return call() if self._harness is not None else await self._bridge.run(call)

    def send_many(
        self, queue: str, jobs: Iterator[NewJob], *, ids: bool, when_full: str | int | None = None
    ) -> Enqueued:
        """Hands over any number of jobs, a step at a time. See `Call.enqueue_many`."""
        sums = [0, 0, 0]
        kept: list[str] = []
        #: A step that is on its way while the next is made.
        ahead: tuple[list[NewJob], Sent] | None = None

        def take(chunk: list[NewJob], sent: Sent | None) -> None:
            nonlocal ahead
            ahead = None
            created, spooled = self.send(queue, chunk, when_full, sent)
            new = sum(created)
            sums[0] += new
            sums[1] += len(created) - new
            sums[2] += new if spooled else 0
            if ids:
                kept.extend(job.id for job in chunk)

        try:
            try:
                for chunk in _chunks(jobs, self.settings.pending_limit(queue) or MAX_JOBS):
                    if ahead is not None:
                        take(*ahead)
                    if (sent := self._send_ahead(queue, chunk)) is not None:
                        ahead = chunk, sent
                    else:
                        take(chunk, None)
            except Exception:
                # The iterable's: what came before is enqueued.
                if ahead is not None:
                    take(*ahead)
                raise
            if ahead is not None:
                take(*ahead)
        except Exception as error:
            error.add_note(f"enqueue_many: the first {sums[0] + sums[1]} jobs are enqueued surely")
            raise
        finally:
            if ahead is not None:
                # A signal's exception: nobody will ask.
                ahead[1].drop()
        created_sum, known, spooled_sum = sums
        return Enqueued(created_sum, known, spooled_sum, tuple(kept) if ids else None)

    def _send_ahead(self, queue: str, jobs: Sequence[NewJob]) -> Sent | None:
        """A step that no batch, limit or order has a say in; None where it is to be sent in the ordinary way."""
        store = self.store
        if self.is_bounded or _batch.get() is not None or (self._fallback is not None and self._fallback.is_ordered):
            return None
        return store.send_ahead(queue, jobs)

    # -- batches --------------------------------------------------------------------------------------------------

    def batch(
        self,
        name: str = "",
        *,
        queue: str | None = None,
        on_complete: Call[..., Any] | str | None = None,
        on_success: Call[..., Any] | str | None = None,
    ) -> Batch:
        """A group of jobs that are counted together: everything that is enqueued inside its `with`, by this thread or
        task. A batch is of one queue: `queue`, else that of its first job. `name` is for people.

        `on_complete` and `on_success` (a handler, with options where it needs some, or a handler's name) are enqueued
        there once: when the last job has ended in whatever way, and when all are completed. They are called with
        one argument, an object with id, name, total, completed, dead and cancelled. Raises ConfigError, TypeError.
        """
        return Batch(self, new_id(), name=name, queue=queue, on_complete=on_complete, on_success=on_success)

    def get_batch(self, batch_id: str, queue: str | None = None) -> Batch | None:
        """One that has begun, in whatever process; None where there is none. Without a queue all are asked."""
        stats = find_batch(self.store, batch_id, queue)
        return None if stats is None else Batch(self, batch_id, name=stats.name, queue=stats.queue, stands=True)

    def batches(self, queue: str | None = None) -> Iterator[BatchStats]:
        """The numbers of all batches, queue by queue: those under way first, then the latest that ended."""
        return list_batches(self.store, queue)

    # -- looking and mending --------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Counts, totals, workers and the spool: what `batchq status --json` prints. While the store is away `up` is
        false."""
        url = self.settings.store_url if self._harness is None else "memory:"
        return read_stats(self.store, url, since_ms=self._opened_ms, spool=spool_stats(self.settings.own_spool))

    def jobs(
        self,
        *,
        state: State | str | None = None,
        queue: str | None = None,
        job: str | None = None,
        error: str | None = None,
        since: Duration | None = None,
        chosen: Selection | None = None,
        limit: int | None = None,
        cursor: str = "",
    ) -> Listing:
        """Jobs of a state, a queue, a handler; of all where none is given. An iterator, read page by page.

        `error`: those in whose last error this stands. `since`: those that died, failed or else were enqueued at most
        so many seconds ago. `chosen`: a `Selection` instead of these three. `limit`: at most so many. Its `cursor`,
        given again with the same queue and state, goes on where it ended.
        """
        states = COUNTED if state is None else (check_state(state),)
        if limit is not None:
            check_count(limit, "limit")
        if chosen is None:
            chosen = Selection(job, error, since_ms=None if since is None else milliseconds(since, "since"))
        return Listing(self.store, queues_of(self.store, queue), states, chosen=chosen, limit=limit, cursor=cursor)

    def get(self, job_id: str, queue: str | None = None) -> Job | None:
        """One job as it stands now; None where it has left no row. Without a queue all are asked."""
        return find_job(self.store, job_id, queue)

    @overload
    def cancel(self, job_id: str, /, *, queue: str | None = None) -> Word: ...  # type: ignore[overload-overlap]
    @overload
    def cancel(self, job_id: Iterable[str], /, *, queue: str | None = None) -> list[Word]: ...
    def cancel(self, job_id: str | Iterable[str], /, *, queue: str | None = None) -> Word | list[Word]:
        """Ends a job that waits (CANCELLED), or marks one that runs (MARKED): its handler meets JobCancelled.

        FINISHED where it ended already, UNKNOWN where there is none. Many ids answer a list, in their order.
        """
        return self._ask(job_id, queue, self.store.cancel)

    @overload
    def requeue(self, job_id: str, /, *, queue: str | None = None) -> Word: ...  # type: ignore[overload-overlap]
    @overload
    def requeue(self, job_id: Iterable[str], /, *, queue: str | None = None) -> list[Word]: ...
    def requeue(self, job_id: str | Iterable[str], /, *, queue: str | None = None) -> Word | list[Word]:
        """Sends a dead job (or a kept completed one) round again, its budgets afresh: OK.

        REFUSED in another state, UNKNOWN where there is none. Many ids answer a list, in their order.
        """
        return self._ask(job_id, queue, self.store.requeue)

    def _ask(
        self,
        job_id: str | Iterable[str],
        queue: str | None,
        move: Callable[[str, Sequence[str]], list[Word]],
    ) -> Word | list[Word]:
        if isinstance(job_id, str):
            return ask_all(self.store, [job_id], queue, move)[0]
        return ask_all(self.store, list(job_id), queue, move)

    def purge(
        self,
        *,
        state: State | str,
        older_than: Duration = 0,
        job: str | None = None,
        error: str | None = None,
        queue: str | None = None,
        chosen: Selection | None = None,
    ) -> int:
        """Removes the jobs of a state (pending, delayed, completed, dead), and answers how many.

        `older_than` in seconds: the dead since their death, others since their enqueue. What comes meanwhile stays.
        `error`: those in whose last error this stands. `chosen`: a `Selection` instead of these.
        """
        if chosen is None:
            chosen = Selection(job, error, older_than_ms=milliseconds(older_than, "older_than"))
        return purge_jobs(self.store, check_state(state, PURGED), chosen=chosen, queue=queue)

    def pause(self, queue: str) -> None:
        """No job of the queue is begun until `resume`; enqueues go on."""
        self.store.pause(check_queue(queue))

    def resume(self, queue: str) -> None:
        """The queue's jobs run again."""
        self.store.resume(check_queue(queue))

    def gates(self, queue: str) -> list[GateState]:
        """The limits and circuits of a queue at which anything is going on."""
        return self.store.gates(check_queue(queue))

    def trip(self, gate: str, queue: str, for_s: Duration = 3600) -> None:
        """Opens a circuit by hand for so many seconds: its jobs wait, without an attempt. Raises ConfigError."""
        self.store.trip(check_queue(queue), gate_name(gate), check_duration(for_s, "for_s"))

    def mend(self, gate: str, queue: str) -> None:
        """Closes a circuit: its jobs pass again."""
        self.store.mend(check_queue(queue), gate_name(gate))

    # -- tests ----------------------------------------------------------------------------------------------------

    @contextmanager
    def testing(self, *, inline: bool = False) -> Iterator[Harness]:
        """Puts the app on a store in memory with a clock that stands: see `batchq.testing.Harness`.

        With `inline`, a job that is enqueued to run at once has run when its enqueue returns.
        """
        from batchq.testing import Harness

        with self._lock:
            before = self._store, self._harness, self._fallback
            harness = Harness(self, inline=inline)
            self._store, self._harness, self._fallback = harness.store, harness, None
        try:
            yield harness
        finally:
            harness.close()
            with self._lock:
                self._store, self._harness, self._fallback = before

    # -- forks ----------------------------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        # A store that another thread is opening is waited for. Its modules are half imported, and would stay so in the
        # child, which would wait for them for ever.
        self._is_held = self._store is None and self._lock.acquire(timeout=_OPENING_S)
        if self._is_held and self._store is not None and "batchq.spool.ledger" in sys.modules:
            from batchq.spool import ledger

            # Its turn in this fork was before there was anything to be held.
            ledger.before_fork()
        if self._fallback is not None:
            self._fallback.before_fork()
            self._forking = self._fallback
        if self._store is not None:
            self._store.before_fork()

    def _after_fork_in_parent(self) -> None:
        forking, self._forking = self._forking, None
        if forking is not None:
            forking.after_fork()
        if self._is_held:
            self._is_held = False
            self._lock.release()

    def _after_fork(self) -> None:
        self._after_fork_in_parent()
        # Another thread may have held it; in the child there is no such thread.
        self._lock = threading.RLock()
        # Another thread may have held its lock too.
        self.__dict__.pop("_bridge", None)
        if self._store is not None:
            self._store.after_fork()


def _chunks(jobs: Iterator[NewJob], most: int) -> Iterator[list[NewJob]]:
    """What one step carries, at most so many, again and again. Where `jobs` raises, what came before is handed out
    first."""
    chunk: list[NewJob] = []
    size, most = 0, min(most, MAX_JOBS)
    try:
        for job in jobs:
            if chunk and (len(chunk) >= most or size + len(job.row) > MAX_BYTES):
                yield chunk
                chunk, size = [], 0
            chunk.append(job)
            size += len(job.row)
    except Exception:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def _check_known(queue: str, jobs: Sequence[NewJob], created: Sequence[bool]) -> None:
    for job, new in zip(jobs, created, strict=True):
        if not new and not job.given:
            raise InternalError(
                f"job {job.id}: a generated id is known already in queue {queue}; the job was not enqueued, "
                "and two jobs may have met under one id"
            )


#: How long a fork waits for a store that is being opened.
_OPENING_S = 5.0

_apps: weakref.WeakSet[App] = weakref.WeakSet()


def _each(step: Callable[[App], None]) -> None:
    for app in list(_apps):
        step(app)


# Producers fork too: gunicorn, multiprocessing. The master calls the same on the stores that it opens itself.
os.register_at_fork(
    before=lambda: _each(App._before_fork),
    after_in_parent=lambda: _each(App._after_fork_in_parent),
    after_in_child=lambda: _each(App._after_fork),
)
