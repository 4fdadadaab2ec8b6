"""Spans: a handler's call stands below the span in which its job was enqueued, with its error."""

from __future__ import annotations

import subprocess
import sys

import orjson
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from batchq import App, Retry, current_job, fixed

_EXPORTED = InMemorySpanExporter()


@pytest.fixture
def spans() -> InMemorySpanExporter:
    """What is exported. A process has one provider, for ever."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(_EXPORTED))
        trace.set_tracer_provider(provider)
    _EXPORTED.clear()
    return _EXPORTED


def test_a_call_is_a_span_below_its_enqueue(spans: InMemorySpanExporter) -> None:
    """The same trace; retries too, each with its attempt; what the handler does itself stands below."""
    app = App()
    tracer = trace.get_tracer("test")

    @app.job(max_attempts=2, backoff=fixed(1))
    def deliver() -> None:
        with tracer.start_as_current_span("inside"):
            pass
        if current_job().attempt == 1:
            raise ValueError("no")

    with app.testing() as jobs:
        with tracer.start_as_current_span("request") as request:
            ref = deliver.enqueue()
        jobs.run_pending()
        jobs.run_for(2)
        job = app.get(ref.id)
        assert job is None
    found = [span for span in spans.get_finished_spans() if span.name == "deliver"]
    assert [span.attributes["batchq.attempt"] for span in found if span.attributes] == [1, 2]
    for span in found:
        assert span.context.trace_id == request.get_span_context().trace_id
        assert span.parent is not None
        assert span.parent.span_id == request.get_span_context().span_id
        assert span.attributes is not None
        assert span.attributes["messaging.message.id"] == ref.id
        assert span.kind is trace.SpanKind.CONSUMER
    assert [span.status.status_code.name for span in found] == ["ERROR", "UNSET"]
    assert found[0].events[0].name == "exception"
    inside = [span for span in spans.get_finished_spans() if span.name == "inside"]
    assert [span.parent.span_id for span in inside if span.parent] == [span.context.span_id for span in found]
    assert not trace.get_current_span().get_span_context().is_valid


def test_without_a_span_a_job_begins_a_trace(spans: InMemorySpanExporter) -> None:
    """Its row says nothing; putting a job off is no error; a coroutine has its span too."""
    app = App()

    @app.job
    async def later(n: int) -> None:
        if n:
            raise Retry(after=60)

    with app.testing() as jobs:
        later.enqueue(1)
        [claimed] = jobs.run_pending()
        assert "trace" not in orjson.loads(claimed.outcome.claim.row)
    [span] = spans.get_finished_spans()
    assert span.parent is None
    assert span.status.status_code.name == "UNSET"


def test_who_does_not_trace_loads_nothing() -> None:
    """A program without OpenTelemetry pays for none of it."""
    code = (
        "import sys; from batchq import App; app = App()\n"
        "@app.job\n"
        "def f(): pass\n"
        "with app.testing() as jobs: f.enqueue(); jobs.run_pending()\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_where_no_provider_is_set_no_span_is_made() -> None:
    """The API alone, loaded by another library, costs a job nothing; a provider that is set later is found."""
    code = (
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from batchq import App, tracing; app = App()\n"
        "made, begin = [], tracing._begin\n"
        "tracing._begin = lambda ready: made.append(ready) or begin(ready)\n"
        "@app.job\n"
        "def f(): pass\n"
        "with app.testing() as jobs:\n"
        "    for _ in range(2):\n"
        "        f.enqueue(); jobs.run_pending(); print(len(made))\n"
        "        trace.set_tracer_provider(TracerProvider())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0\n1\n"
