"""Huey on Redis."""

import os
import sys

from peers.job import run

PACKAGES = ("huey==3.5.4", "redis[hiredis]")
ABOUT = {"default": "huey_consumer -k process -w N, results off"}
BEST: dict[str, str] = {}
NOTE = "No acknowledgement: a job whose worker is killed is lost. No bulk call: a loop. A scheduler looks each second."

from huey import RedisHuey  # noqa: E402

huey = RedisHuey("peers", url=os.environ.get("PEERS_URL"), results=False)


@huey.task()
def work(job: dict) -> None:
    run(job)


@huey.task(retries=1, retry_delay=0)
def fail(job: dict) -> None:
    run(job)


def fleet(workers: int) -> list[list[str]]:
    command = [sys.executable, "-m", "huey.bin.huey_consumer", "peers.adapters.huey.huey"]
    return [[*command, "-w", str(workers), "-k", "process", "-q", "-n"]]


class Producer:
    def open(self) -> None:
        pass

    def one(self, job: dict, delay_s: float | None) -> None:
        if delay_s is None:
            (fail if job["kind"] == "fail" else work)(job)
        else:
            work.schedule((job,), delay=delay_s)

    def many(self, jobs: list[dict]) -> None:
        for job in jobs:
            self.one(job, None)

    def close(self) -> None:
        pass
