"""Metrics and health of a pool: the numbers are those of the store, and of what its handlers did."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from batchq.system.meters import BOUNDS_S

from .rig import Pool, Rig

APP = """
@app.job(queue="mail", max_attempts=2, backoff=fixed(0))
def send(n):
    if n % 3 == 0:
        raise ValueError("no")
    if n % 3 == 1:
        raise Dead("never")

@app.job(queue="slow", result=True)
async def wait():
    import asyncio
    await asyncio.sleep(0.06)

@app.job(queue="slow")
def stay(path):
    import os, time
    while not os.path.exists(path):
        time.sleep(0.01)
"""

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def ports(rig: Rig) -> Rig:
    rig.app(APP)
    return rig


def address(rig: Rig, pool: Pool) -> str:
    """Where the pool says that its metrics are."""
    [line] = rig.until(lambda: pool.lines("metrics"), "the metrics are there")
    return "http://" + line.rpartition("address=")[2]


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def lint(text: str, families: Sequence[Metric]) -> None:
    """What `promtool check metrics` and a scrape look at."""
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a family stands twice"
    for family in families:
        assert family.documentation, family.name
        assert family.type != "unknown", family.name
        written = family.name + "_total" * (family.type == "counter")
        assert f"# TYPE {written} {family.type}\n" in text
        assert family.type == "counter" or not family.name.endswith(("_total", "_count", "_sum", "_bucket")), (
            family.name
        )
        assert not re.search(r"_(ms|milliseconds|minutes|kb|percent)\b", family.name), "a base unit"
        one = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples]
        assert len(one) == len(set(one)), "a sample stands twice"
        if family.type == "histogram":
            lint_histogram(family)


def lint_histogram(family: Metric) -> None:
    """Its buckets are sums, and the last of them is the count."""
    series: dict[tuple[tuple[str, str], ...], list[float]] = defaultdict(list)
    counts = {tuple(sorted(one.labels.items())): one.value for one in family.samples if one.name.endswith("_count")}
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            series[tuple(sorted((key, value) for key, value in sample.labels.items() if key != "le"))].append(
                sample.value
            )
    assert counts.keys() == series.keys()
    for labels, parts in series.items():
        assert parts == sorted(parts)
        assert parts[-1] == counts[labels]


def scrape(url: str) -> Samples:
    """Every sample, by name and labels. The text is read by Prometheus's own parser."""
    code, text = get(f"{url}/metrics")
    assert code == 200
    families = list(text_string_to_metric_families(text))
    lint(text, families)
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def of(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def test_the_numbers_agree_with_the_store(ports: Rig) -> None:
    """Counts and totals as `status` has them; attempts by outcome and histograms as the handlers ended."""
    rig = ports
    rig.enqueue_many("send", [(n,) for n in range(30)], queue="mail")
    for _ in range(4):
        rig.enqueue("wait", queue="slow")
    pool = rig.start("--metrics-port", "0", "-q", "mail,slow", n=2, queue="mail")
    url = address(rig, pool)
    rig.until_counts("mail", done=10, dead=20)
    rig.until_counts("slow", done=4)
    samples = scrape(url)
    for queue in ("mail", "slow"):
        stats = rig.stats(queue)
        for state, count in stats.counts.items():
            assert of(samples, "batchq_jobs", queue=queue, state=state) == count
        for event, total in stats.totals.items():
            assert of(samples, "batchq_queue_events_total", queue=queue, event=event) == total
    for outcome, count in {"completed": 10, "failed": 20, "buried": 10, "released": 0, "timed_out": 0}.items():
        assert of(samples, "batchq_attempts_total", queue="mail", handler="send", outcome=outcome) == count
    assert of(samples, "batchq_run_seconds_count", queue="mail", handler="send") == 40
    # Waits are those of first claims: one that was given back unstarted is none.
    assert 0 < of(samples, "batchq_wait_seconds_count", queue="mail", handler="send") <= 30
    assert of(samples, "batchq_run_seconds_bucket", queue="slow", handler="wait", le="0.05") == 0
    assert of(samples, "batchq_run_seconds_bucket", queue="slow", handler="wait", le="+Inf") == 4
    assert 0.24 <= of(samples, "batchq_run_seconds_sum", queue="slow", handler="wait") < 60
    parts = [of(samples, "batchq_run_seconds_bucket", queue="mail", handler="send", le=f"{le:g}") for le in BOUNDS_S]
    assert parts == sorted(parts)
    assert of(samples, "batchq_store_up") == 1
    assert of(samples, "batchq_workers_wanted") == 2
    assert sum(of(samples, "batchq_workers", state=state) for state in ("booting", "idle", "busy")) == 2


def test_counts_outlive_their_worker(ports: Rig) -> None:
    """A worker that is replaced takes nothing with it."""
    rig = ports
    rig.enqueue_many("send", [(2,)] * 10, queue="mail")
    pool = rig.start("--metrics-port", "0", "-q", "mail", "--max-jobs", "5", queue="mail")
    url = address(rig, pool)
    rig.until(lambda: pool.lines("recycled"), "the worker was replaced")
    rig.enqueue_many("send", [(2,)] * 20, queue="mail")
    rig.until_counts("mail", done=30)
    assert of(scrape(url), "batchq_attempts_total", queue="mail", handler="send", outcome="completed") == 30


def test_health(ports: Rig) -> None:
    """Alive while the loop answers, ready while jobs are taken; other paths and methods are refused."""
    rig = ports
    pool = rig.start("--metrics-port", "0", "-q", "slow", "--pid-file", str(rig.folder / "pid"), queue="slow")
    url = address(rig, pool)
    assert get(f"{url}/healthz") == (200, "running\n")
    assert rig.until(lambda: get(f"{url}/readyz") == (200, "ready\n"), "it is ready")
    assert get(f"{url}/nowhere")[0] == 404
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(f"{url}/metrics", data=b"x", timeout=10)
    job = rig.enqueue("stay", str(rig.folder / "go"), queue="slow")
    rig.until(lambda: rig.job(job, "slow").state == "active", "it runs")
    rig.until(lambda: of(scrape(url), "batchq_workers", state="busy") == 1, "it is seen")
    pool.process.terminate()
    rig.until(lambda: get(f"{url}/readyz") == (503, "stopping\n"), "it is not ready")
    assert get(f"{url}/healthz")[0] == 200
    (rig.folder / "go").touch()
    assert pool.wait() == 0


def test_a_port_that_is_taken(ports: Rig) -> None:
    """The start ends with what to do."""
    rig = ports
    first = rig.start("--metrics-port", "0", "-q", "mail", queue="mail")
    port = address(rig, first).rpartition(":")[2]
    second = rig.start("--metrics-port", port, "-q", "mail", ready=False)
    assert second.wait() == 2
    assert f"metrics_port: 127.0.0.1:{port} can't be listened at" in second.log()


@pytest.mark.parametrize("name", ["alerts.yml", "grafana.json", "metrics.md"])
def test_what_the_documents_name_is_there(redis_rig: Rig, name: str) -> None:
    """Each metric in alert rules, dashboard and reference is one that a pool shows; the reference has all."""
    rig = redis_rig
    rig.app(APP)
    rig.enqueue("send", 2, queue="mail")
    pool = rig.start("--metrics-port", "0", "-q", "mail", queue="mail")
    url = address(rig, pool)
    rig.until_counts("mail", done=1)
    there = {sample for sample, _ in scrape(url)}
    families = {re.sub(r"_(bucket|sum|count|created)$", "", sample) for sample in there}
    text = (Path(__file__).parents[2] / "docs" / name).read_text()
    named = set(re.findall(r"\bbatchq_[a-z_]+[a-z]\b", text))
    assert named
    assert named <= there | families
    if name == "metrics.md":
        assert families <= named
    if name == "grafana.json":
        json.loads(text)


def test_a_reload_serves_the_same_port(redis_rig: Rig) -> None:
    """The next image listens where the one before did; what handlers did is counted anew, the queues' totals go on."""
    rig = redis_rig
    rig.app(APP)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rig.enqueue("send", 2, queue="mail")
    pool = rig.start("--metrics-port", str(port), "-q", "mail", queue="mail")
    url = address(rig, pool)
    rig.until_counts("mail", done=1)
    pool.send(signal.SIGHUP)
    rig.until(lambda: pool.lines("reloaded"), "it is reloaded")
    rig.enqueue("send", 2, queue="mail")
    rig.until_counts("mail", done=2)
    samples = scrape(url)
    assert of(samples, "batchq_reloads_total") == 1
    assert of(samples, "batchq_queue_events_total", queue="mail", event="completed") == 2
    assert of(samples, "batchq_attempts_total", queue="mail", handler="send", outcome="completed") == 1
