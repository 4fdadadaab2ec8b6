"""Spans of OpenTelemetry: one for each call of a handler, below the span in which its job was enqueued.

Nothing is to be switched on. A program that traces has loaded OpenTelemetry's API and set a provider; in all others
this costs a look or two. The context goes with the job, as the key `trace` of its row: a traceparent of W3C's Trace
Context. The extra `otel` has the API; the SDK and what exports are the app's choice.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from batchq import log
from batchq.errors import JobCancelled, Retry, Snooze

if TYPE_CHECKING:
    from batchq.worker.runner import Prepared

#: Loaded by whoever traces.
_API = "opentelemetry.trace"


class Span(Protocol):
    """The span of one call."""

    def failed(self, error: BaseException) -> None: ...

    def end(self) -> None: ...


class _Nothing:
    def failed(self, error: BaseException) -> None:
        pass

    def end(self) -> None:
        pass


_NOTHING = _Nothing()


def carried() -> bytes:
    """What a row says of the span under way, to stand in front of its arguments; b"" where there is none."""
    if _API not in sys.modules:
        return b""
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return b""
    return b',"trace":"00-%032x-%016x-%02x"' % (context.trace_id, context.span_id, context.trace_flags)


def begin(ready: Prepared) -> Span:
    """A span for the call of this job's handler, current until its end."""
    api = sys.modules.get(_API)
    if api is None or not (_has_provider(api) or b'"trace":' in ready.claim.row):
        return _NOTHING
    try:
        return _begin(ready)
    except Exception as error:  # noqa: BLE001 - a fault of what only looks on is no job's
        log.event("warning", "not_traced", queue=ready.claim.queue, job=ready.claim.id, error=repr(error))
        return _NOTHING


def _has_provider(api: Any) -> bool:
    """Whether spans go anywhere. Other libraries load the API as well (redis-py does, where it is installed): without
    a provider a span costs as much as all else that a worker does with a job, and is thrown away."""
    # Asking for it each time would be a look at the environment for each job.
    return getattr(api, "_TRACER_PROVIDER", api) is not None or _is_named_by_environment(api)


@cache
def _is_named_by_environment(api: Any) -> bool:
    return not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


def _begin(ready: Prepared) -> Span:
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    from batchq import __version__
    from batchq.jsons import orjson

    claim = ready.claim
    parent = orjson.loads(claim.row).get("trace")
    carrier = {"traceparent": parent} if isinstance(parent, str) else {}
    span = trace.get_tracer("batchq", __version__).start_span(
        ready.spec.name,
        context=TraceContextTextMapPropagator().extract(carrier),
        kind=trace.SpanKind.CONSUMER,
        attributes={
            "messaging.system": "batchq",
            "messaging.operation.type": "process",
            "messaging.destination.name": claim.queue,
            "messaging.message.id": claim.id,
            "batchq.token": claim.token,
            "batchq.attempt": claim.attempt,
        },
    )
    return _Traced(span, context.attach(trace.set_span_in_context(span)))


class _Traced:
    def __init__(self, span: Any, token: Any) -> None:
        self._span = span
        self._token = token

    def failed(self, error: BaseException) -> None:
        from opentelemetry import trace

        # Not now, not here: how a job is put off is no error of the handler's.
        if isinstance(error, Exception) and not isinstance(error, Snooze | Retry | JobCancelled):
            self._span.record_exception(error)
            self._span.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))

    def end(self) -> None:
        from opentelemetry import context

        context.detach(self._token)
        self._span.end()
