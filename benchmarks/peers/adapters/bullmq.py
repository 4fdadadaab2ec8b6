"""BullMQ for Python."""

import asyncio
import os
import sys

from peers.job import run

PACKAGES = ("bullmq==3.4.4", "hiredis")
ALSO = ("redis",)
ABOUT = {
    "wide": "N processes of one Worker, concurrency 50, removeOnComplete",
    "default": "N processes of one Worker, concurrency 1, removeOnComplete",
}
BEST = {"times": "default", "idle": "default", "heavy": "default"}
NOTE = "addBulk in bulk; retries by attempts 2 without backoff."

from bullmq import Queue, Worker  # noqa: E402


def fleet(workers: int) -> list[list[str]]:
    return [[sys.executable, "-m", "peers.child", "bullmq", "work"] for _ in range(workers)]


def work_for_ever() -> None:
    async def process(job, token) -> None:
        run(job.data)

    async def for_ever() -> None:
        wide = os.environ["PEERS_CONFIGURATION"] == "wide"
        Worker("peers", process, {"connection": os.environ["PEERS_URL"], "concurrency": 50 if wide else 1})
        await asyncio.Event().wait()

    asyncio.run(for_ever())


def _terms(job: dict, delay_s: float | None = None) -> dict:
    terms: dict = {"removeOnComplete": True, "removeOnFail": True}
    if job["kind"] == "fail":
        terms["attempts"] = 2
    if delay_s is not None:
        terms["delay"] = round(delay_s * 1000)
    return terms


class Producer:
    async def open(self) -> None:
        self._queue = Queue("peers", {"connection": os.environ["PEERS_URL"]})

    async def one(self, job: dict, delay_s: float | None) -> None:
        await self._queue.add("work", job, _terms(job, delay_s))

    async def many(self, jobs: list[dict]) -> None:
        await self._queue.addBulk([{"name": "work", "data": job, "opts": _terms(job)} for job in jobs])

    async def close(self) -> None:
        await self._queue.close()
