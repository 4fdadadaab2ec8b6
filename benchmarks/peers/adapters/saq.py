"""SAQ."""

import asyncio
import os
import sys
import time
from pathlib import Path

from peers.job import arun

# It imports typing_extensions without asking for it.
PACKAGES = ("saq[redis,hiredis]==0.26.4", "typing_extensions", "uvloop")
ALSO = ("redis",)
ABOUT = {
    "wide": "saq --workers N, concurrency 50, results off",
    "default": "saq --workers N, concurrency 10, results off",
    "wider": "saq --workers N, concurrency 100, results off",
}
BEST = {"times": "default", "idle": "default", "heavy": "default", "deliver": "wider"}
DELIVERS = ("httpx",)
NOTE = "No bulk call: 50 sends at a time. Due times are whole seconds: lateness is counted from the second asked for."

from saq import Job, Queue  # noqa: E402

queue = Queue.from_url(os.environ["PEERS_URL"])


async def work(context: dict, *, job: dict) -> None:
    await arun(job)


settings = {
    "queue": queue,
    "functions": [work],
    "concurrency": {"wide": 50, "wider": 100}.get(os.environ.get("PEERS_CONFIGURATION", ""), 10),
}


def fleet(workers: int) -> list[list[str]]:
    return [[str(Path(sys.executable).parent / "saq"), "peers.adapters.saq.settings", "--workers", str(workers), "-q"]]


def _made(job: dict, delay_s: float | None = None) -> Job:
    made = Job("work", kwargs={"job": job}, ttl=-1)
    if job["kind"] in ("fail", "deliver"):
        made.retries = 4
    if delay_s is not None:
        made.scheduled = int(time.time() + delay_s) + 1
        job["at_ns"] = made.scheduled * 1_000_000_000
    return made


class Producer:
    async def open(self) -> None:
        await queue.connect()

    async def one(self, job: dict, delay_s: float | None) -> None:
        await queue.enqueue(_made(job, delay_s))

    async def many(self, jobs: list[dict]) -> None:
        for start in range(0, len(jobs), 50):
            await asyncio.gather(*[queue.enqueue(_made(job)) for job in jobs[start : start + 50]])

    async def close(self) -> None:
        await queue.disconnect()
