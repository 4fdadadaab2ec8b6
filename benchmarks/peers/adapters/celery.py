"""Celery on Redis."""

import os
import sys
from pathlib import Path
from typing import Any

from peers.job import run

PACKAGES = ("celery[redis]==5.7.0", "hiredis")
ALSO = ("kombu", "redis")
ABOUT = {
    "default": "prefork -c N, JSON, results off, no gossip, mingle or heartbeat",
    "solo": "N processes of -P solo, prefetch multiplier 64",
    "late": "prefork -c N, acks_late, prefetch multiplier 1",
    "threads": "N processes of -P threads -c 100, prefetch multiplier 1",
    "gevent": "N processes of -P gevent -c 100, prefetch multiplier 1",
}
BEST = {"drain": "solo", "heavy": "late", "deliver": "threads", "deliver_gevent": "gevent"}
DELIVERS = ("httpx", "gevent")
NOTE = "No bulk call: a loop over one producer connection. Delayed tasks are held in the workers' memory."

from celery import Celery  # noqa: E402

CONFIGURATION = os.environ.get("PEERS_CONFIGURATION", "default")
app = Celery("peers.adapters.celery", broker=os.environ.get("PEERS_URL"))
app.conf.update(
    task_ignore_result=True,
    task_serializer="json",
    accept_content=["json"],
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier={"solo": 64, "late": 1, "threads": 1, "gevent": 1}.get(CONFIGURATION, 4),
    task_acks_late=CONFIGURATION == "late",
)


@app.task(name="work")
def work(job: dict) -> None:
    run(job)


@app.task(name="fail", bind=True, max_retries=3)
def fail(self, job: dict) -> None:
    try:
        run(job)
    except ValueError as error:
        raise self.retry(exc=error, countdown=0) from error


def fleet(workers: int) -> list[list[str]]:
    command = [str(Path(sys.executable).parent / "celery"), "-A", "peers.adapters.celery:app", "worker"]
    command += ["-l", "CRITICAL", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    if CONFIGURATION in ("solo", "threads", "gevent"):
        places = [] if CONFIGURATION == "solo" else ["-c", "100"]
        return [[*command, "-P", CONFIGURATION, *places, "-n", f"worker{n}@%h"] for n in range(workers)]
    return [[*command, "-P", "prefork", "-c", str(workers)]]


def _task(job: dict) -> Any:
    return fail if job["kind"] in ("fail", "deliver") else work


class Producer:
    def open(self) -> None:
        self._pooled = app.producer_or_acquire()
        self._producer = self._pooled.__enter__()

    def one(self, job: dict, delay_s: float | None) -> None:
        _task(job).apply_async((job,), countdown=delay_s)

    def many(self, jobs: list[dict]) -> None:
        for job in jobs:
            _task(job).apply_async((job,), producer=self._producer)

    def close(self) -> None:
        self._pooled.__exit__(None, None, None)
