"""Huey on SQLite."""

import os
import sys

from peers.job import run

PACKAGES = ("huey==3.5.4",)
ABOUT = {"default": "huey_consumer -k process -w N on SqliteHuey with fsync, results off, polled each 10 ms"}
BEST: dict[str, str] = {}
NOTE = "Jobs in files, synced to disk. No acknowledgement: a job whose worker is killed is lost."
SPOOL = True
ASKED = ("drain",)

from huey import SqliteHuey  # noqa: E402

SYNCED = os.environ.get("PEERS_SYNCED", "yes") == "yes"

file = os.environ.get("PEERS_URL", "").removeprefix("spool:") + ".db"
huey = SqliteHuey("peers", filename=file, fsync=SYNCED, results=False)


@huey.task()
def work(job: dict) -> None:
    run(job)


def fleet(workers: int) -> list[list[str]]:
    command = [sys.executable, "-m", "huey.bin.huey_consumer", "peers.adapters.huey_sqlite.huey"]
    return [[*command, "-w", str(workers), "-k", "process", "-q", "-n", "-d", "0.01", "-m", "0.05"]]


class Producer:
    def open(self) -> None:
        pass

    def one(self, job: dict, delay_s: float | None) -> None:
        work(job)

    def many(self, jobs: list[dict]) -> None:
        for job in jobs:
            work(job)

    def close(self) -> None:
        pass
