"""Dramatiq on Redis."""

import os
import sys
from pathlib import Path

from peers.job import run

PACKAGES = ("dramatiq[redis]==2.2.1", "hiredis")
ALSO = ("redis",)
ABOUT = {
    "default": "-p N, 8 threads each",
    "lean": "-p N, 2 threads each, prefetch 64, only the Retries middleware",
}
BEST = {"drain": "lean", "retry": "default", "heavy": "default"}
NOTE = "No bulk call: a loop of broker.enqueue. Retries after 1 ms, the least there is."

import dramatiq  # noqa: E402
from dramatiq.brokers.redis import RedisBroker  # noqa: E402
from dramatiq.middleware import Retries  # noqa: E402

LEAN = os.environ.get("PEERS_CONFIGURATION") == "lean"
broker = RedisBroker(url=os.environ.get("PEERS_URL"), **({"middleware": [Retries()]} if LEAN else {}))
dramatiq.set_broker(broker)


@dramatiq.actor(max_retries=1, min_backoff=1, max_backoff=1)
def work(job: dict) -> None:
    run(job)


def fleet(workers: int) -> list[list[str]]:
    before = ["env", "dramatiq_queue_prefetch=64"] if LEAN else []
    command = [str(Path(sys.executable).parent / "dramatiq"), "peers.adapters.dramatiq", "-p", str(workers)]
    return [[*before, *command, "-t", "2" if LEAN else "8", "--skip-logging"]]


class Producer:
    def open(self) -> None:
        pass

    def one(self, job: dict, delay_s: float | None) -> None:
        if delay_s is None:
            work.send(job)
        else:
            work.send_with_options(args=(job,), delay=int(delay_s * 1000))

    def many(self, jobs: list[dict]) -> None:
        for job in jobs:
            broker.enqueue(work.message(job))

    def close(self) -> None:
        broker.close()
