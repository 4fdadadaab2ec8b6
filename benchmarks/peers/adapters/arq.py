"""arq."""

import asyncio
import os
import sys
from pathlib import Path

from peers.job import arun

PACKAGES = ("arq==0.28.0", "hiredis", "uvloop")
ALSO = ("redis",)
ABOUT = {
    "tuned": "N x arq, max_jobs 50, poll_delay 0.02, results off",
    "default": "N x arq (max_jobs 10, poll_delay 0.5), results off",
    "wide": "N x arq, max_jobs 100, poll_delay 0.02, results off",
}
BEST = {"idle": "default", "heavy": "default", "deliver": "wide"}
DELIVERS = ("httpx",)
NOTE = "No bulk call: 50 sends at a time. Workers poll."

from arq import Retry, create_pool  # noqa: E402
from arq.connections import RedisSettings  # noqa: E402
from arq.worker import func  # noqa: E402

SETTINGS = RedisSettings.from_dsn(os.environ["PEERS_URL"])
CONFIGURATION = os.environ.get("PEERS_CONFIGURATION")
TUNED = CONFIGURATION in ("tuned", "wide")
LOG = {"version": 1, "disable_existing_loggers": False, "loggers": {"arq": {"level": "ERROR"}}}


async def work(context: dict, job: dict) -> None:
    try:
        await arun(job)
    except ValueError as error:
        raise Retry(defer=0) from error


class WorkerSettings:
    functions = (func(work, name="work", keep_result=0),)
    redis_settings = SETTINGS
    max_jobs = 100 if CONFIGURATION == "wide" else 50 if TUNED else 10
    poll_delay = 0.02 if TUNED else 0.5
    log_results = False


def fleet(workers: int) -> list[list[str]]:
    command = [str(Path(sys.executable).parent / "arq"), "peers.adapters.arq.WorkerSettings"]
    return [[*command, "--custom-log-dict", "peers.adapters.arq.LOG"] for _ in range(workers)]


class Producer:
    async def open(self) -> None:
        self._pool = await create_pool(SETTINGS)

    async def one(self, job: dict, delay_s: float | None = None) -> None:
        await self._pool.enqueue_job("work", job, _defer_by=delay_s)

    async def many(self, jobs: list[dict]) -> None:
        for start in range(0, len(jobs), 50):
            await asyncio.gather(*[self.one(job) for job in jobs[start : start + 50]])

    async def close(self) -> None:
        await self._pool.aclose()
