"""streaQ."""

import os
import sys
from datetime import timedelta
from pathlib import Path

from peers.job import run

PACKAGES = ("streaq==7.2.0", "uvloop")
ALSO = ("coredis",)
ABOUT = {
    "default": "streaq run -w N, concurrency 16, ttl 0",
    "wide": "streaq run -w N, concurrency 50, ttl 0",
}
BEST = {"retry": "wide"}
NOTE = "enqueue_many in bulk; retries by StreaqRetry without a delay."

from streaq import StreaqRetry, Worker  # noqa: E402

WIDE = os.environ.get("PEERS_CONFIGURATION") == "wide"
worker = Worker(redis_url=os.environ["PEERS_URL"], concurrency=50 if WIDE else 16)


@worker.task(ttl=0, silent=True)
async def work(job: dict) -> None:
    try:
        run(job)
    except ValueError as error:
        raise StreaqRetry("again", delay=timedelta(0)) from error


def fleet(workers: int) -> list[list[str]]:
    return [[str(Path(sys.executable).parent / "streaq"), "run", "-w", str(workers), "peers.adapters.streaq:worker"]]


class Producer:
    async def open(self) -> None:
        await worker.__aenter__()

    async def one(self, job: dict, delay_s: float | None) -> None:
        task = work.enqueue(job)
        await (task if delay_s is None else task.start(delay=timedelta(seconds=delay_s)))

    async def many(self, jobs: list[dict]) -> None:
        await worker.enqueue_many([work.enqueue(job) for job in jobs])

    async def close(self) -> None:
        await worker.__aexit__(None, None, None)
