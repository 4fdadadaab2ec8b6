"""Metrics for Prometheus, and health for load balancers: a small HTTP server in the master's loop.

    GET /metrics    what the store counts of the queues, what this pool's handlers did, and how its workers are
    GET /healthz    200: the master's loop answers
    GET /readyz     200: a worker is up, the store answers, and nothing is being stopped; else 503 with the reason

Needs the extra `metrics`. The numbers of queues are those of `batchq status`: asked of the store at each scrape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from selectors import BaseSelector
from typing import TYPE_CHECKING, Any, NamedTuple

from batchq import log
from batchq.errors import ConfigError, StoreError
from batchq.master.loop_server import Client, LoopServer
from batchq.store import Store
from batchq.system.listening import listen
from batchq.system.meters import BOUNDS_S, ENDS, Histogram, Meters

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

#: What the text format calls itself.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Health(NamedTuple):
    """How the master is, as it knows without asking anybody."""

    #: running, quiet, reloading, stopping.
    state: str
    #: Why no job can be taken now; "" where it can.
    unready: str
    store_up: bool


class Exporter(LoopServer):
    """`health` is asked at each request; at each scrape `status`, for what `Store.publish` is told, and `spool`, for
    (files, jobs, bad) of the inbox, or None."""

    def __init__(
        self,
        address: tuple[str, int],
        selector: BaseSelector,
        store: Store,
        meters: Meters,
        health: Callable[[], Health],
        status: Callable[[], dict[str, Any]],
        spool: Callable[[], tuple[int, int, int] | None],
    ) -> None:
        """Raises ConfigError where the port can't be had, or the extra is missing."""
        try:
            import prometheus_client  # noqa: F401
        except ImportError:
            raise ConfigError("metrics_port: prometheus_client writes them; pip install 'batchq[metrics]'") from None
        listening = listen(*address, f"metrics_port: {address[0]}:{address[1]}", backlog=16)
        #: Where it listens: the port that was found where 0 was asked for.
        self.port: int = listening.getsockname()[1]
        self._store = store
        self._meters = meters
        self._health = health
        self._status = status
        self._spool = spool
        super().__init__(listening, selector)

    # -- HTTP

    def is_whole(self, heard: bytes) -> bool:
        return b"\r\n\r\n" in heard or b"\n\n" in heard

    def too_long(self) -> bytes:
        return _response(431, "the request is too long\n")

    def answer(self, client: Client) -> bytes:
        words = client.heard.split(b"\n", 1)[0].split()
        client.heard, client.hung_up = b"", True
        if len(words) < 2 or words[0] not in (b"GET", b"HEAD"):
            return _response(405, "only GET and HEAD\n")
        try:
            code, text, kind = self._page(words[1].split(b"?", 1)[0].decode("latin-1"))
        except Exception as error:  # noqa: BLE001 - a fault of ours is no end of the loop
            log.event("error", "metrics_failed", error=repr(error), exc=error)
            code, text, kind = 500, f"{error!r}\n", "text/plain; charset=utf-8"
        return _response(code, text, kind, body=words[0] == b"GET")

    def _page(self, path: str) -> tuple[int, str, str]:
        plain = "text/plain; charset=utf-8"
        if path == "/healthz":
            return 200, f"{self._health().state}\n", plain
        if path == "/readyz":
            unready = self._health().unready
            return (503, f"{unready}\n", plain) if unready else (200, "ready\n", plain)
        if path == "/metrics":
            return 200, self.metrics(), CONTENT_TYPE
        return 404, "there are /metrics, /healthz and /readyz\n", plain

    # -- metrics

    def metrics(self) -> str:
        """All families as text."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Once(self._families()))
        return generate_latest(registry).decode()

    def _families(self) -> Iterator[Metric]:
        queues = self._queues() if self._health().store_up else None
        yield from self._of_pool(self._status(), store_up=queues is not None)
        yield from queues or ()
        yield from self._of_handlers()

    def _queues(self) -> list[Metric] | None:
        """What the store counts; None where it went away meanwhile."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        jobs = GaugeMetricFamily("batchq_jobs", "Jobs in that state now.", labels=("queue", "state"))
        events = CounterMetricFamily(
            "batchq_queue_events", "What happened on the queue since it began: the totals.", labels=("queue", "event")
        )
        lag = GaugeMetricFamily("batchq_queue_lag_seconds", "Age of the oldest pending job.", labels=("queue",))
        paused = GaugeMetricFamily("batchq_queue_paused", "1: no worker claims from it.", labels=("queue",))
        try:
            for name in self._store.queues():
                stats = self._store.stats(name)
                for state, count in stats.counts.items():
                    jobs.add_metric((name, state), count)
                for event, count in stats.totals.items():
                    events.add_metric((name, event), count)
                lag.add_metric((name,), stats.oldest_pending_age_ms / 1000 if stats.counts["pending"] else 0)
                paused.add_metric((name,), int(stats.paused))
        except StoreError as error:
            log.event("debug", "metrics_without_store", error=str(error))
            return None
        return [jobs, events, lag, paused]

    def _of_pool(self, status: dict[str, Any], *, store_up: bool) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        from batchq import __version__

        yield InfoMetricFamily("batchq", "The version.", value={"version": __version__})
        yield GaugeMetricFamily("batchq_store_up", "1: the store answers this master.", value=int(store_up))
        yield CounterMetricFamily("batchq_store_outages", "How often it was away.", value=status["outages"])
        yield CounterMetricFamily("batchq_reloads", "Reloads that went well.", value=status["reloads"])
        yield CounterMetricFamily("batchq_failed_reloads", "Those that did not.", value=status["failed_reloads"])
        yield GaugeMetricFamily("batchq_workers_wanted", "How many workers the pool is to have.", status["processes"])
        workers = GaugeMetricFamily("batchq_workers", "Workers of this pool by what they do.", labels=("state",))
        states: Counter[str] = Counter({"booting": 0, "idle": 0, "busy": 0, "stopping": 0, "quiet": 0, "stopped": 0})
        states.update(worker["state"] for worker in status["workers"])
        for state, count in states.items():
            workers.add_metric((state,), count)
        yield workers
        for name, key, scale, words in (
            ("batchq_worker_rss_bytes", "rss", 1, "Resident memory of a worker."),
            ("batchq_worker_running_seconds", "running_ms", 1000, "How long its job runs; 0: it has none."),
        ):
            family = GaugeMetricFamily(name, words, labels=("pid",))
            for worker in status["workers"]:
                family.add_metric((str(worker["pid"]),), worker[key] / scale)
            yield family
        waiting = self._spool()
        if waiting is not None:
            family = GaugeMetricFamily("batchq_spool", "What lies in the inbox of this host's spool.", labels=("what",))
            for what, count in zip(("files", "jobs", "bad"), waiting, strict=True):
                family.add_metric((what,), count)
            yield family

    def _of_handlers(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        labels = ("queue", "handler")
        ended = CounterMetricFamily(
            "batchq_attempts", "Attempts of this pool's workers by how they ended.", labels=(*labels, "outcome")
        )
        run = HistogramMetricFamily("batchq_run_seconds", "How long handlers ran.", labels=labels)
        wait = HistogramMetricFamily(
            "batchq_wait_seconds", "How long jobs had been ready at their first claim.", labels=labels
        )
        for row in self._meters.rows():
            for outcome, count in zip(ENDS, row.ends, strict=True):
                ended.add_metric((row.queue, row.handler, outcome), count)
            for family, histogram in ((run, row.run), (wait, row.wait)):
                family.add_metric((row.queue, row.handler), _buckets(histogram), histogram.sum_s)
        yield from (ended, run, wait)


class _Once:
    """What a registry asks for its families."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Summed up, as the format wants them."""
    from itertools import accumulate

    bounds = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]
    return list(zip(bounds, (float(count) for count in accumulate(histogram.parts)), strict=True))


_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 431: "Request Header Fields Too Large"}


def _response(code: int, text: str, kind: str = "text/plain; charset=utf-8", *, body: bool = True) -> bytes:
    data = text.encode()
    reason = _REASONS.get(code, "Service Unavailable" if code == 503 else "Internal Server Error")
    head = (
        f"HTTP/1.1 {code} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (data if body else b"")
