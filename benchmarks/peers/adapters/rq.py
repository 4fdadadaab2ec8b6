"""RQ."""

import os
import sys
from datetime import timedelta
from pathlib import Path

from peers.job import run

PACKAGES = ("rq==3.0.0", "redis[hiredis]")
ABOUT = {
    "simple": "rq worker-pool -n N with SimpleWorker, result_ttl 0",
    "default": "rq worker-pool -n N (a fork for each job), result_ttl 0",
}
BEST = {"idle": "default"}
NOTE = "enqueue_many in bulk; enqueue_in cuts due times to whole seconds, so that jobs run early as well."

from redis import Redis  # noqa: E402
from rq import Queue, Retry  # noqa: E402


def fleet(workers: int) -> list[list[str]]:
    command = [str(Path(sys.executable).parent / "rq"), "worker-pool", "default", "-n", str(workers)]
    command += ["-l", "WARNING", "-u", os.environ["PEERS_URL"]]
    simple = os.environ["PEERS_CONFIGURATION"] == "simple"
    return [[*command, "-w", "rq.worker.SimpleWorker"] if simple else command]


def _terms(job: dict) -> dict:
    retry = Retry(max=1, interval=0) if job["kind"] == "fail" else None
    return {"result_ttl": 0, "failure_ttl": 60, "retry": retry}


class Producer:
    def open(self) -> None:
        self._queue = Queue("default", connection=Redis.from_url(os.environ["PEERS_URL"]))

    def one(self, job: dict, delay_s: float | None) -> None:
        if delay_s is None:
            self._queue.enqueue(run, job, **_terms(job))
        else:
            self._queue.enqueue_in(timedelta(seconds=delay_s), run, job, **_terms(job))

    def many(self, jobs: list[dict]) -> None:
        self._queue.enqueue_many([Queue.prepare_data(run, (job,), **_terms(job)) for job in jobs])

    def close(self) -> None:
        pass
