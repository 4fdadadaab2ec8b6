"""taskiq with taskiq-redis."""

import asyncio
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from peers.job import arun

PACKAGES = ("taskiq==0.13.0", "taskiq-redis==1.2.4", "uvloop", "hiredis")
ALSO = ("redis",)
ABOUT = {
    "list": "ListQueueBroker (no acknowledgement), taskiq worker --workers N, 100 tasks each, uvloop",
    "stream": "RedisStreamBroker (acknowledged), the same",
}
BEST = {"idle": "stream", "heavy": "stream", "deliver": "stream"}
DELIVERS = ("httpx",)
NOTE = "No bulk call: 50 sends at a time. Delays need a scheduler process, which looks each second."

from taskiq import SimpleRetryMiddleware, TaskiqScheduler  # noqa: E402
from taskiq_redis import ListQueueBroker, ListRedisScheduleSource, RedisStreamBroker  # noqa: E402

URL = os.environ["PEERS_URL"]
STREAM = os.environ.get("PEERS_CONFIGURATION") == "stream"
broker = RedisStreamBroker(URL, consumer_id="0") if STREAM else ListQueueBroker(URL)
broker = broker.with_middlewares(SimpleRetryMiddleware(default_retry_count=3))
source = ListRedisScheduleSource(URL)
scheduler = TaskiqScheduler(broker, sources=[source])


@broker.task(task_name="work", retry_on_error=True)
async def work(job: dict) -> None:
    await arun(job)


def fleet(workers: int) -> list[list[str]]:
    command, quiet = str(Path(sys.executable).parent / "taskiq"), ["--log-level", "CRITICAL"]
    start = [command, "worker", "peers.adapters.taskiq:broker", "--workers", str(workers), "--no-parse"]
    commands = [[*start, "--max-async-tasks", "100", *quiet]]
    if os.environ["PEERS_QUESTION"] == "times":
        often = ["--update-interval", "1", "--loop-interval", "1"]
        commands.append([command, "scheduler", "peers.adapters.taskiq:scheduler", *often, *quiet])
    return commands


class Producer:
    async def open(self) -> None:
        await broker.startup()
        await source.startup()

    async def one(self, job: dict, delay_s: float | None) -> None:
        if delay_s is None:
            await work.kiq(job)
        else:
            await work.schedule_by_time(source, datetime.now(UTC) + timedelta(seconds=delay_s), job)

    async def many(self, jobs: list[dict]) -> None:
        for start in range(0, len(jobs), 50):
            await asyncio.gather(*[work.kiq(job) for job in jobs[start : start + 50]])

    async def close(self) -> None:
        await broker.shutdown()
