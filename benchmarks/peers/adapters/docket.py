"""Docket (pydocket)."""

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from peers.job import run

PACKAGES = ("pydocket==0.27.0", "hiredis")
ALSO = ("redis",)
ABOUT = {
    "wide": "N x docket worker, concurrency 50",
    "default": "N x docket worker, concurrency 10",
}
BEST = {"times": "default", "idle": "default", "heavy": "default"}
NOTE = "add_many in bulk; retries by Retry(attempts=3) without a delay."

from docket import Docket, Retry  # noqa: E402


async def work(job: dict) -> None:
    run(job)


async def fail(job: dict, retry: Retry = Retry(attempts=3)) -> None:  # noqa: B008
    run(job)


tasks = [work, fail]


def fleet(workers: int) -> list[list[str]]:
    command = [str(Path(sys.executable).parent / "docket"), "worker", "--tasks", "peers.adapters.docket:tasks"]
    command += ["--docket", "peers", "--url", os.environ["PEERS_URL"], "--logging-level", "CRITICAL"]
    command += ["--concurrency", "50" if os.environ["PEERS_CONFIGURATION"] == "wide" else "10"]
    return [[*command, "--name", f"worker-{place}"] for place in range(workers)]


class Producer:
    async def open(self) -> None:
        self._docket = Docket(name="peers", url=os.environ["PEERS_URL"])
        await self._docket.__aenter__()
        self._docket.register(work)
        self._docket.register(fail)

    def _task(self, job: dict):
        return fail if job["kind"] == "fail" else work

    async def one(self, job: dict, delay_s: float | None) -> None:
        when = None if delay_s is None else datetime.now(UTC) + timedelta(seconds=delay_s)
        await self._docket.add(self._task(job), when=when)(job)

    async def many(self, jobs: list[dict]) -> None:
        await self._docket.add_many([self._docket.call(self._task(job))(job) for job in jobs])

    async def close(self) -> None:
        await self._docket.__aexit__(None, None, None)
