"""Which handlers an app has, and under what terms they run. A job names its handler; nothing is imported for it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal

from batchq.arity import Arity
from batchq.backoff import BackoffLike, Called, Curve, as_backoff
from batchq.errors import ConfigError, UnknownHandler, milliseconds
from batchq.flow import Limit
from batchq.job import check_id, check_priority, check_queue
from batchq.kinds import MAX_COUNT

Duration = float | timedelta
#: What a producer does about a full queue: raise, spool, or wait so long.
WhenFull = Literal["raise", "spool"] | Duration

DEFAULT_QUEUE = "default"

#: Names of handlers: they stand in rows, log lines and on the command line.
NAME = re.compile(r"\w[\w.:/-]{0,199}")


def check_name(name: object) -> str:
    """The name, if a handler can have it. Raises ConfigError."""
    if isinstance(name, str) and NAME.fullmatch(name):
        return name
    raise ConfigError(
        f"name: {name!r:.100} is no handler's name; use a letter, digit or _, then up to 199 of these or any of . : / -"
    )


def check_count(value: object, name: str, most: int = MAX_COUNT) -> int:
    """A whole number from 1. Raises ConfigError."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
        return value
    raise ConfigError(f"{name}: expected a whole number from 1 to {most}, found {value!r:.100}")


def check_duration(value: object, name: str) -> int:
    """Milliseconds of a duration above 0, of at most ten years. Raises ConfigError."""
    if isinstance(value, timedelta) or (isinstance(value, int | float) and not isinstance(value, bool)):
        ms = milliseconds(value, name)
        if 0 < ms <= 3660 * 86_400_000:
            return ms
        raise ConfigError(f"{name}: expected more than 0 seconds and at most 10 years, found {value!r:.100}")
    raise ConfigError(f"{name}: expected seconds (a number) or a timedelta, found {value!r:.100}")


def check_keep(value: object, default_ms: Callable[[], int], name: str = "result") -> int:
    """How long a result is kept: True for the setting, False for not at all, or a duration. Raises ConfigError."""
    if isinstance(value, bool):
        return default_ms() if value else 0
    return check_duration(value, f"{name} (True, False, or how long to keep it)")


def check_when_full(value: object) -> str | int:
    """raise, spool, or milliseconds to wait. Raises ConfigError."""
    if value in ("raise", "spool"):
        return str(value)
    return check_duration(value, "when_full (raise, spool, or how long to wait)")


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """A handler and the terms it runs under."""

    name: str
    function: Callable[..., Any]
    queue: str = DEFAULT_QUEUE
    #: None: the setting.
    max_attempts: int | None = None
    #: None: the default curve.
    backoff: Curve | Called | None = None
    #: None: the setting.
    timeout_ms: int | None = None
    #: How long the result is kept; 0: not at all.
    keep_ms: int = 0
    #: A worker may claim others behind it. Off: one at a time, for jobs that must not run twice after a crash.
    batch_claim: bool = True
    is_async: bool = False
    #: A plain function that may run on a thread, beside others.
    threads: bool = False
    #: How many jobs one call takes; 0: a call is for one job, with its arguments.
    batch: int = 0
    #: How long a call waits for more jobs.
    linger_ms: int = 0
    #: Where a call raises it is made again for each half.
    bisect: bool = False
    #: It may run from the fallback spool while the server is away.
    offline: bool = False
    #: What its jobs have to pass before they run.
    limits: tuple[Limit, ...] = ()

    def arity(self) -> Arity | None:
        """What its jobs can be called with; None: anything, for the function takes jobs."""
        return None if self.batch else Arity(self.function, self.name)


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What one call says otherwise than its handler. None: as the handler says."""

    queue: str | None = None
    priority: int = 0
    job_id: str | None = None
    max_attempts: int | None = None
    timeout_ms: int | None = None
    keep_ms: int | None = None
    delay_ms: int = 0
    #: An absolute fire-time, instead of a delay.
    fire_ms: int | None = None
    #: raise, spool, or milliseconds to wait for room.
    when_full: str | int | None = None

    def __post_init__(self) -> None:
        if self.queue is not None:
            check_queue(self.queue)
        if self.job_id is not None:
            check_id(self.job_id)
        if self.max_attempts is not None:
            check_count(self.max_attempts, "max_attempts")
        check_priority(self.priority)


def make_spec(
    function: Callable[..., Any],
    *,
    name: str | None,
    queue: str,
    max_attempts: int | None,
    backoff: BackoffLike | None,
    timeout: Duration | None,
    keep_ms: int,
    batch_claim: bool,
    threads: bool,
    batch: int | None = None,
    linger: Duration | None = None,
    bisect: bool = False,
    offline: bool = False,
    limits: Callable[[], tuple[Limit, ...]] = tuple,
) -> HandlerSpec:
    """Checks what `@app.job` was given. Raises ConfigError that names the handler and the argument."""
    if not callable(function):
        raise ConfigError(
            f"@app.job: expected a function, found {function!r:.100}; name options, as in @app.job(queue=...)"
        )
    name = getattr(function, "__name__", None) if name is None else name
    if name is None or name == "<lambda>":
        raise ConfigError(f"@app.job: {function!r:.100} has no name of its own; give one: @app.job(name=...)")
    try:
        check_name(name)
        _check_kind(function)
        for word, value in (("batch_claim", batch_claim), ("threads", threads), ("offline", offline)):
            if not isinstance(value, bool):
                raise ConfigError(f"{word}: expected True or False, found {value!r:.100}")
        if threads and _is_async(function):
            raise ConfigError("threads: a coroutine function runs in the event loop; leave it out")
        if offline and keep_ms:
            raise ConfigError("offline: a result is kept by the server alone; leave out offline=True or result")
        return HandlerSpec(
            name,
            function,
            check_queue(queue),
            None if max_attempts is None else check_count(max_attempts, "max_attempts"),
            None if backoff is None else as_backoff(backoff),
            None if timeout is None else check_duration(timeout, "timeout"),
            keep_ms,
            batch_claim,
            _is_async(function),
            threads,
            *_check_batch(function, batch, linger, bisect),
            offline=offline,
            limits=limits(),
        )
    except ConfigError as error:
        raise ConfigError(f"handler {name!r:.100} ({place(function)}): {error}") from None


#: The most jobs of one call, and how long one may wait for more.
MOST_JOBS, LINGER_MAX_MS = 10_000, 60_000


def _check_batch(function: Callable[..., Any], batch: object, linger: object, bisect: object) -> tuple[int, int, bool]:
    """batch, linger in ms, bisect; (0, 0, False) for a handler of single jobs. Raises ConfigError."""
    if batch is None:
        if linger is not None or bisect:
            raise ConfigError("linger, bisect: are for batch handlers; say how many jobs one call takes: batch=500")
        return 0, 0, False
    if not isinstance(bisect, bool):
        raise ConfigError(f"bisect: expected True or False, found {bisect!r:.100}")
    count = check_count(batch, "batch", MOST_JOBS)
    linger_ms = 0 if linger in (None, 0) else check_duration(linger, "linger")
    if linger_ms > LINGER_MAX_MS:
        raise ConfigError(f"linger: expected at most {LINGER_MAX_MS // 1000} s, found {linger!r:.100}")
    try:
        Arity(function, "it").check(([],), {})
    except TypeError as error:
        raise ConfigError(f"batch: its function is called with one argument, the list of jobs: {error}") from None
    return count, linger_ms, bisect


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _check_kind(function: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError("a generator's body would never run; write a function that loops, and return its result")
    if inspect.isclass(function):
        raise ConfigError("a class is no handler; register a function")


def place(function: Callable[..., Any]) -> str:
    """file:line of a function, for messages."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)[:100]


@dataclass(slots=True)
class Registry:
    """The handlers of an app, by name."""

    _specs: dict[str, HandlerSpec] = field(default_factory=dict)
    #: Limits of whole queues.
    queue_limits: dict[str, Limit] = field(default_factory=dict)
    #: Any job may have gates to pass.
    is_limited: bool = False

    def register(self, spec: HandlerSpec) -> None:
        """Raises ConfigError where the name is taken: at import, before a job could meet the wrong code."""
        other = self._specs.get(spec.name)
        if other is not None:
            raise ConfigError(
                f"handler {spec.name!r}: registered twice, at {place(other.function)} and at {place(spec.function)}; "
                "give one of them another name: @app.job(name=...)"
            )
        self._specs[spec.name] = spec
        self.is_limited = self.is_limited or bool(spec.limits)

    def limit_queue(self, queue: str, limit: Limit) -> None:
        self.queue_limits[check_queue(queue)] = limit
        self.is_limited = True

    def replace(self, name: str, **changes: Any) -> HandlerSpec:
        """Changes the terms of a handler that is registered already; answers the new ones."""
        self._specs[name] = replace(self.get(name), **changes)
        return self._specs[name]

    def get(self, name: str) -> HandlerSpec:
        """Raises UnknownHandler."""
        try:
            return self._specs[name]
        except KeyError:
            raise UnknownHandler(
                f"handler {name!r:.100}: this app has none of that name, only {', '.join(self.names()) or 'no one'}; "
                "deploy the code that has it, or enqueue under another name"
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def __len__(self) -> int:
        return len(self._specs)

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self._specs))

    def queues(self) -> tuple[str, ...]:
        """The queues that a pool serves when nobody says otherwise: those of the handlers, and `default`; sorted."""
        return tuple(sorted({DEFAULT_QUEUE, *(spec.queue for spec in self._specs.values())}))
