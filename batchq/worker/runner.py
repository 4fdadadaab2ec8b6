"""Runs one claim's handler and says how the attempt ended. Knows no store and no process: a value in, a value out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from contextvars import copy_context
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from batchq import context, log, payload, tracing
from batchq.backoff import DEFAULT, Called, Curve
from batchq.clock import SYSTEM, Clock
from batchq.config import Settings, scrub
from batchq.errors import Dead, JobCancelled, JobTimeout, Retry, Snooze, UnknownHandler
from batchq.flow import gates_of
from batchq.gates import Gate
from batchq.job import SNOOZE_MIN_MS, Buried, Claim, Completed, Outcome, Released, Retried, Snoozed, pack_error
from batchq.jsons import orjson
from batchq.registry import HandlerSpec, Registry
from batchq.worker.grouped import Group
from batchq.worker.traces import trace_of

if TYPE_CHECKING:
    import asyncio

#: An unknown handler (a rolling deploy) is parked: 5 s, growing to 60 s.
PARK_MS, PARK_MAX_MS = 5_000, 60_000
#: So often at least, however short the grace is.
PARKS = 5


class Interrupted(BaseException):
    """A planned stop cuts the run off. Not an Exception, so that a handler's `except Exception` lets it pass."""


class Prepared(NamedTuple):
    """A claim with its row read and its handler found: ready to run."""

    claim: Claim
    spec: HandlerSpec
    args: list[Any]
    kwargs: dict[str, Any]
    max_attempts: int
    timeout_ms: int
    keep_ms: int
    enqueued_ms: int
    #: Since when its first attempt could run, by the store's clock.
    ready_ms: int = 0
    #: What it has to pass yet.
    gates: tuple[Gate, ...] = ()
    #: When this worker asked whether it may pass a rate, on the monotonic clock; 0: there is none.
    admitted_ns: int = 0

    @property
    def handler(self) -> str:
        return self.spec.name

    @property
    def rates(self) -> list[Gate]:
        """Those of its gates that have one."""
        return [gate for gate in self.gates if gate.rate]

    @property
    def has_to_ask(self) -> bool:
        """There are gates, or it may have waited at some that a deployment has taken away: those behind it are called
        then."""
        return bool(self.gates) or self.claim.forgiven > 0


@dataclass(frozen=True, slots=True)
class Terms:
    """What budgets and backoff a claim has, for those that run no handler code (the reaping master)."""

    max_attempts: int
    backoff: Curve


class Runner:
    """Turns claims into outcomes. `worker` stands in the errors that jobs keep; `clock` is the store's:
    how long a job has waited is told by it."""

    def __init__(self, registry: Registry, settings: Settings, worker: str = "", *, clock: Clock = SYSTEM) -> None:
        self._registry = registry
        self._settings = settings
        self.worker = worker
        self._clock = clock
        self._loop: asyncio.Runner | None = None
        #: Jobs may have gates to pass.
        self.is_limited = registry.is_limited
        if any(registry.get(name).is_async for name in registry.names()):
            # Before the master forks, and for nobody else: it is a tenth of a worker's memory.
            import_module("asyncio")

    def prepare(self, claim: Claim) -> Prepared | Outcome:
        """Reads the row, finds the handler, and what the job has to pass; an outcome where there is nothing that could
        run."""
        try:
            row = orjson.loads(claim.row)
            spec = self._registry.get(row["job"])
        except UnknownHandler as error:
            return self._park(claim, row, error)
        except (ValueError, KeyError, TypeError) as error:
            return Buried(claim, "unreadable", self._error(claim, "StoreCorrupt", f"the row can't be read: {error}"))
        settings = self._settings
        ready = Prepared(
            claim,
            spec,
            row.get("args") or [],
            row.get("kwargs") or {},
            row.get("max") or spec.max_attempts or settings.max_attempts,
            row.get("timeout") or spec.timeout_ms or settings.timeout_ms or 0,
            spec.keep_ms if row.get("keep") is None else row["keep"],
            row.get("t", 0),
            max(row.get("t", 0), row.get("at", 0)),
        )
        return self._with_gates(ready) if self.is_limited else ready

    def _with_gates(self, ready: Prepared) -> Prepared | Outcome:
        """An outcome where its key can't be told."""
        spec, queue = ready.spec, ready.claim.queue
        try:
            found = gates_of(spec.limits, spec.name, self.worker, ready.args, ready.kwargs)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a key function's fault is a failed attempt
            error.add_note(f"key: the function of handler {spec.name!r} that names what its limits are for")
            return self.outcome_of(ready, error)
        limit = self._registry.queue_limits.get(queue)
        return ready._replace(gates=found if limit is None else (*found, limit.gate(f"queue {queue}")))

    def _park(self, claim: Claim, row: dict[str, Any], error: UnknownHandler) -> Outcome:
        # By both: a job that only waited long is given its chances, and one that was parked often enough is let go.
        waited_ms = self._clock.now_us() // 1000 - max(row.get("t", 0), row.get("at", 0))
        if claim.forgiven >= PARKS and waited_ms > self._settings.unknown_grace_ms:
            return Buried(claim, "no_handler", self._error(claim, "UnknownHandler", str(error)))
        log.event("warning", "parked", queue=claim.queue, job=claim.id, token=claim.token, handler=row["job"])
        # A short grace leaves room for the chances all the same.
        most = min(PARK_MAX_MS, max(SNOOZE_MIN_MS, self._settings.unknown_grace_ms // PARKS))
        return Snoozed(claim, min(most, PARK_MS << min(claim.forgiven, 10)))

    def run(self, claim: Claim) -> Outcome:
        """Prepares and calls."""
        ready = self.prepare(claim)
        return self.call(ready) if isinstance(ready, Prepared) else ready

    def call(self, ready: Prepared, enter: Callable[[], None] | None = None) -> Outcome:
        """Calls the handler (one of batches with just this job), and catches every end, BaseException included. `enter`
        is called just before user code."""
        if ready.spec.batch:
            return Group(self, [ready]).call(enter)[0]
        token = context.enter(ready)
        span = tracing.begin(ready)
        try:
            if enter is not None:
                enter()
            result = self.result_of(ready.spec, ready.spec.function(*ready.args, **ready.kwargs))
            return self.completed(ready, result)
        except BaseException as error:  # noqa: BLE001 - SystemExit in a handler is a failed attempt, not the worker's end
            span.failed(error)
            return self.outcome_of(ready, error)
        finally:
            span.end()
            context.leave(token)

    async def acall(
        self, ready: Prepared, enter: Callable[[], None], cut_off: Callable[[], BaseException | None]
    ) -> Outcome:
        """`call` for a coroutine function, inside an event loop and a task of its own. `cut_off`: why that task was
        cancelled; None where it was not."""
        import asyncio

        token = context.enter(ready)
        span = tracing.begin(ready)
        try:
            enter()
            return self.completed(ready, await ready.spec.function(*ready.args, **ready.kwargs))
        except asyncio.CancelledError as error:
            cause = cut_off() or error
            span.failed(cause)
            return self.outcome_of(ready, cause)
        except BaseException as error:  # noqa: BLE001 - the same
            span.failed(error)
            return self.outcome_of(ready, error)
        finally:
            span.end()
            context.leave(token)

    def _wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Runs a coroutine in this worker's event loop, which lives as long as the worker."""
        if self._loop is None:
            import asyncio

            self._loop = asyncio.Runner()
        try:
            # In the context of now: its own would be that of the first coroutine, and current_job the first job.
            return self._loop.run(coroutine, context=copy_context())
        except (JobTimeout, JobCancelled, Interrupted):
            # An order that came while the loop waited left the coroutine standing: it would go on beside the next job.
            loop, self._loop = self._loop, None
            loop.close()
            raise

    def result_of(self, spec: HandlerSpec, value: Any) -> Any:
        """What a call of the handler gave, awaited where that is needed."""
        return self._wait_for(value) if spec.is_async else value

    def completed(self, ready: Prepared, result: Any) -> Completed:
        """It went well. Raises TypeError or ValueError for a result that can't be kept."""
        if ready.keep_ms <= 0:
            return Completed(ready.claim)
        data = payload.pack(result, "result")
        if len(data) > self._settings.result_max_bytes:
            raise ValueError(
                f"result: {len(data)} bytes, more than result_max {self._settings.result_max_bytes}; "
                "store it elsewhere and return its path"
            )
        return Completed(ready.claim, data, ready.keep_ms)

    def outcome_of(self, ready: Prepared, error: BaseException) -> Outcome:
        """How an attempt ends that raised."""
        claim = ready.claim
        match error:
            case Interrupted():
                return Released(claim, self._error(claim, "Interrupted", "cut off by a planned stop; no attempt spent"))
            case Snooze(after_ms=after_ms):
                return Snoozed(claim, after_ms)
            case Dead():
                return Buried(claim, "buried", self._error(claim, "Dead", safe_text(error)))
            case JobTimeout():
                return self._retried(ready, error, "timed_out")
            case _:
                return self._retried(ready, error, "failed")

    def _retried(self, ready: Prepared, error: BaseException, cause: str) -> Retried:
        claim = ready.claim
        trace = "" if isinstance(error, Retry | JobTimeout | JobCancelled) else trace_of(error)
        delay_ms = self._delay_ms(ready, error)
        entry = self._error(claim, type(error).__name__, safe_text(error), trace, delay_ms)
        return Retried(claim, delay_ms, ready.max_attempts, entry, cause, self._settings.max_crashes)

    def _delay_ms(self, ready: Prepared, error: BaseException) -> int:
        policy = ready.spec.backoff or DEFAULT
        if isinstance(error, Retry) and error.after_ms is not None:
            return min(error.after_ms, policy.cap_ms)
        try:
            return policy.delay_ms(ready.claim.attempt, error)
        except (Exception, SystemExit) as fault:  # noqa: BLE001 - a policy that raises does not lose the job
            log.event(
                "error",
                "backoff_failed",
                queue=ready.claim.queue,
                job=ready.claim.id,
                handler=ready.spec.name,
                error=safe_text(fault),
            )
            return DEFAULT.delay_ms(ready.claim.attempt, error)

    def _error(self, claim: Claim, kind: str, text: str, trace: str = "", delay_ms: int | None = None) -> bytes:
        here = context.job_here()
        # A client's error may quote the url that it was given, and people read these texts.
        text, trace = scrub(text, self._settings.url), scrub(trace, self._settings.url)
        return pack_error(
            kind,
            text,
            attempt=claim.attempt,
            at_ms=SYSTEM.now_us() // 1000,
            started_ms=here.started_ms if here is not None else 0,
            delay_ms=delay_ms,
            worker=self.worker,
            trace=trace,
        )

    def terms(self, claim: Claim) -> Terms:
        """Budget and declarative backoff of a claim, without running anything of the user's."""
        try:
            row = orjson.loads(claim.row)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            row = {}
        name = row.get("job", "")
        spec = self._registry.get(name) if name in self._registry else None
        backoff = spec.backoff if spec is not None else None
        budget = row.get("max") or (spec and spec.max_attempts) or self._settings.max_attempts
        return Terms(budget, DEFAULT if backoff is None or isinstance(backoff, Called) else backoff)

    def call_hooks(self, hooks: Iterable[Callable[[], object]]) -> None:
        """Hooks of the worker's start or end; coroutines run in the loop in which the handlers will run."""
        for hook in hooks:
            answer = hook()
            if inspect.iscoroutine(answer):
                self._wait_for(answer)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
            self._loop = None


def safe_text(error: BaseException) -> str:
    """The text of an exception, also of one whose __str__ raises. One that says nothing shows its type."""
    try:
        return str(error) or type(error).__name__
    except BaseException:  # noqa: BLE001 - a broken __str__ must not end the worker
        return f"{type(error).__name__} (its text can't be read: __str__ raises)"
