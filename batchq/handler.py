"""A handler as producers meet it: the plain function, and the ways to enqueue a call of it.

Everything that does not change from call to call is made once: the row's head, the sets that check the arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from batchq import tracing
from batchq.arity import Arity
from batchq.clock import MAX_FIRE_MS
from batchq.errors import ConfigError
from batchq.job import NewJob, check_id, new_id
from batchq.jsons import orjson
from batchq.payload import pack
from batchq.refs import Enqueued, JobRef
from batchq.registry import Duration, HandlerSpec, JobOptions, WhenFull, check_duration, check_keep, check_when_full
from batchq.tally import callback

if TYPE_CHECKING:
    from batchq.app import App
    from batchq.worker.grouped import BatchJob

P = ParamSpec("P")
R = TypeVar("R")

#: One call of a bulk: positional arguments, or keywords.
Item = tuple[Any, ...] | dict[str, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def fire_ms_of(at: object) -> int:
    """The fire-time of an aware datetime, rounded up to a millisecond. Raises ConfigError."""
    if not isinstance(at, datetime):
        raise ConfigError(f"at: expected an aware datetime, found {type(at).__name__}; for a delay use enqueue_in")
    if at.utcoffset() is None:
        raise ConfigError(
            f"at: {at.isoformat()} has no time zone, so it names no instant; "
            "write datetime.now(UTC) + ..., or datetime(..., tzinfo=...)"
        )
    return check_fire(-((_EPOCH - at) // _MS), "at")


def check_fire(fire_ms: int, name: str) -> int:
    """The fire-time, if it can be stored. Raises ConfigError."""
    if fire_ms > MAX_FIRE_MS:
        raise ConfigError(
            f"{name}: the job would run after 7 September 2039, the last time that can be stored; come nearer"
        )
    return fire_ms


def pack_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """The rest of a row behind its head: arguments and closing brace. Raises TypeError and ValueError (see payload)."""
    if not args and not kwargs:
        return b"}"
    body: dict[str, Any] = {"args": list(args)} if args else {}
    if kwargs:
        body["kwargs"] = kwargs
    try:
        return b"," + pack(body, "arguments")[1:]
    except (TypeError, ValueError) as error:
        # arguments.args[0].when: the caller wrote args[0].when.
        raise type(error)(str(error).removeprefix("arguments.")) from None


class Call(Generic[P, R]):
    """A handler's name with options: what can be enqueued. `handler.options(...)` makes one."""

    def __init__(
        self, app: App, name: str, queue: str, arity: Arity | None, options: JobOptions, *, keeps: bool | None
    ) -> None:
        self._app = app
        self.name = name
        self.queue = options.queue or queue
        self._arity = arity
        self._options = options
        # None: nobody knows here whether the handler keeps its results.
        self._keeps = keeps if options.keep_ms is None else options.keep_ms > 0
        self._head = _head(name, options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} queue={self.queue}>"

    # -- one -----------------------------------------------------------------------------------------------------

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobRef[R]:
        """Enqueues one call, to run as soon as a worker is free (or at the options' time).

        Raises TypeError for arguments that the handler does not take, TypeError or ValueError for values that JSON
        would change (the message has the path), ConfigError for a row above `max_payload`, StoreFull and
        StoreUnavailable where the store can't take it.
        """
        options = self._options
        return self._send(args, kwargs, options.delay_ms, options.fire_ms)

    def enqueue_in(self, delay: Duration, /, *args: P.args, **kwargs: P.kwargs) -> JobRef[R]:
        """Enqueues one call that runs after a delay in seconds (by the store's clock). Negative or 0: at once."""
        return self._send(args, kwargs, self._app.delay_ms(delay), None)

    def enqueue_at(self, at: datetime, /, *args: P.args, **kwargs: P.kwargs) -> JobRef[R]:
        """Enqueues one call that runs at an instant. Past: at once. A naive datetime is refused (ConfigError)."""
        return self._send(args, kwargs, 0, fire_ms_of(at))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobRef[R]:
        """`enqueue` for code inside an event loop, which never waits for the store. Calls of many tasks go in one step.

        Where the task is cancelled meanwhile the job may be enqueued all the same.
        """
        options, app = self._options, self._app
        job = self._new_job(args, kwargs, options.job_id, options.delay_ms, options.fire_ms)
        created, spooled = await app.asend(self.queue, job, options.when_full)
        return JobRef(app, job.id, self.queue, created=created, spooled=spooled, keeps=self._keeps)

    def _send(self, args: tuple[Any, ...], kwargs: dict[str, Any], delay_ms: int, fire_ms: int | None) -> JobRef[R]:
        job = self._new_job(args, kwargs, self._options.job_id, delay_ms, fire_ms)
        app = self._app
        [created], spooled = app.send(self.queue, [job], self._options.when_full)
        return JobRef(app, job.id, self.queue, created=created, spooled=spooled, keeps=self._keeps)

    def _new_job(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], given: str | None, delay_ms: int, fire_ms: int | None
    ) -> NewJob:
        if self._arity is not None:
            self._arity.check(args, kwargs)
        row = self._head + tracing.carried() + pack_arguments(args, kwargs)
        if len(row) > self._app.max_payload:
            raise ConfigError(
                f"{self.name}: this job takes {len(row)} bytes, max_payload is {self._app.max_payload}; "
                "store the data elsewhere and send its name, or raise max_payload"
            )
        return NewJob(given or new_id(), row, self._options.priority, delay_ms, fire_ms, given is not None)

    def callback_head(self, word: str, batch_id: str, name: str) -> bytes:
        """The beginning of the row of a batch's callback, which is called with one argument. Raises ConfigError where
        its options say what a callback can't have, and TypeError where it does not take the argument."""
        changed = [
            option
            for option in ("queue", "priority", "job_id", "delay_ms", "fire_ms")
            if getattr(self._options, option) != getattr(JobOptions(), option)
        ]
        if changed:
            raise ConfigError(
                f"{word}: {self.name} has options for {', '.join(changed)}; a callback runs in the batch's queue, at "
                "once, under an id of its own"
            )
        if self._arity is not None:
            try:
                self._arity.check(({},), {})
            except TypeError as error:
                raise TypeError(
                    f"{word}: it is called with one argument, an object with the batch's numbers: {error}"
                ) from None
        return callback(self._head + b"}", batch_id, name)

    # -- many ----------------------------------------------------------------------------------------------------

    def enqueue_many(
        self,
        items: Iterable[Item],
        *,
        ids: bool = False,
        job_id: Callable[[Any], str] | None = None,
        on_invalid: Callable[[int, Exception], object] | None = None,
    ) -> Enqueued:
        """Enqueues a call for each item: a tuple of positional arguments, or a dict of keywords.

        Any iterable, read as it is sent, in constant memory: a step carries up to 480 jobs and 1 MiB. The ids are kept
        and answered only with `ids=True`. `job_id` gives each job the id that it derives from the item, so that
        a repeated item is known instead of new.

        An item that can't be sent, and an iterable that raises, stop it: everything before that item is enqueued,
        nothing from there on, and a note on the error says at which item (from 0). With `on_invalid(index, error)`
        items that can't be sent are handed over and passed by instead. A step that the store does not take raises
        its error, with a note that says how many items are in surely.
        """
        if self._options.job_id is not None:
            raise ConfigError(
                "job_id: one id can't name many jobs; give enqueue_many a function, job_id=lambda item: ..."
            )
        return self._app.send_many(
            self.queue, self._new_jobs(items, job_id, on_invalid), ids=ids, when_full=self._options.when_full
        )

    async def aenqueue_many(
        self,
        items: Iterable[Item],
        *,
        ids: bool = False,
        job_id: Callable[[Any], str] | None = None,
        on_invalid: Callable[[int, Exception], object] | None = None,
    ) -> Enqueued:
        """`enqueue_many` for code inside an event loop. It runs in a thread, which also reads the iterable."""
        return await self._app.arun(lambda: self.enqueue_many(items, ids=ids, job_id=job_id, on_invalid=on_invalid))

    def _new_jobs(
        self,
        items: Iterable[Item],
        job_id: Callable[[Any], str] | None,
        on_invalid: Callable[[int, Exception], object] | None,
    ) -> Iterator[NewJob]:
        delay_ms, fire_ms = self._options.delay_ms, self._options.fire_ms
        for index, item in enumerate(items):
            try:
                if isinstance(item, tuple):
                    args, kwargs = item, {}
                elif isinstance(item, dict):
                    args, kwargs = (), item
                else:
                    raise TypeError(
                        f"expected a tuple of arguments or a dict of keywords, found {type(item).__name__}; "
                        "for one argument write (value,)"
                    )
                given = None if job_id is None else check_id(job_id(item))
                job = self._new_job(args, kwargs, given, delay_ms, fire_ms)
            except (TypeError, ValueError, ConfigError) as error:
                if on_invalid is None:
                    error.add_note(f"enqueue_many: item {index} (from 0) of handler {self.name}")
                    raise
                on_invalid(index, error)
            else:
                yield job

    # -- options -------------------------------------------------------------------------------------------------

    def options(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        job_id: str | None = None,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        result: bool | Duration | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        when_full: WhenFull | None = None,
    ) -> Call[P, R]:
        """A copy with other terms, for one call or many: `deliver.options(priority=5, job_id="order-7").enqueue(...)`.

        `priority` from -100 to 100, higher first. `job_id`: enqueued twice, it is one job, also for a day after its
        end. `timeout`, `delay` and `result` (how long it is kept) are seconds or timedeltas. `when_full`, where the
        setting `max_pending` bounds the queue: "raise" QueueFull, "spool", or how long to wait. Raises ConfigError.
        """
        if delay is not None and at is not None:
            raise ConfigError("options: delay and at exclude each other; give one")
        changes: dict[str, Any] = {
            "queue": queue,
            "priority": priority,
            "job_id": job_id,
            "max_attempts": max_attempts,
            "timeout_ms": None if timeout is None else check_duration(timeout, "timeout"),
            "keep_ms": None if result is None else check_keep(result, lambda: self._app.settings.result_keep_ms),
            "delay_ms": None if delay is None else self._app.delay_ms(delay),
            "fire_ms": None if at is None else fire_ms_of(at),
            "when_full": None if when_full is None else check_when_full(when_full),
        }
        if delay is not None:
            changes["fire_ms"] = None
        before = {name: getattr(self._options, name) for name in changes}
        given = {name: value for name, value in changes.items() if value is not None}
        if delay is not None:
            before["fire_ms"] = None
        return Call(self._app, self.name, self.queue, self._arity, JobOptions(**before | given), keeps=self._keeps)


def _head(name: str, options: JobOptions) -> bytes:
    """The row's beginning, without the arguments and the closing brace."""
    differs = {"max": options.max_attempts, "timeout": options.timeout_ms, "keep": options.keep_ms}
    row = {"job": name} | {key: value for key, value in differs.items() if value is not None}
    return orjson.dumps(row)[:-1]


class _Registered(Call[P, R]):
    """What a handler of either kind has."""

    def __init__(self, app: App, spec: HandlerSpec) -> None:
        self.spec = spec
        super().__init__(app, spec.name, spec.queue, spec.arity(), JobOptions(), keeps=spec.keep_ms > 0)
        # Not its __dict__: a function's attribute `queue` is none of ours.
        functools.update_wrapper(cast("Callable[..., Any]", self), spec.function, updated=())


class Handler(_Registered[P, R]):
    """A registered function: callable as it was, and enqueued by the methods of Call."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.spec.function(*args, **kwargs)
        return result


class AsyncHandler(_Registered[P, R]):
    """A registered coroutine function: its plain call gives the coroutine, its jobs the awaited result."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        coroutine: Coroutine[Any, Any, R] = self.spec.function(*args, **kwargs)
        return coroutine


class BatchHandler(_Registered[..., Any]):
    """A function that takes many jobs of its kind at a time: its plain call takes a list of `BatchJob`s, its jobs have
    what arguments they like."""

    def __call__(self, jobs: list[BatchJob], /) -> Any:
        return self.spec.function(jobs)


class BatchDecorator(Protocol):
    """What `@app.job(batch=...)` is."""

    def __call__(self, function: Callable[[list[BatchJob]], Any], /) -> BatchHandler: ...


class JobDecorator(Protocol):
    """What `@app.job(...)` is."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncHandler[P, R]: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, function: Callable[P, R], /) -> Handler[P, R]: ...
