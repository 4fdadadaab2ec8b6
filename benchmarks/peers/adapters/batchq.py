"""batchq on Redis."""

import os
import sys

from peers.job import run

PACKAGES = ()
ABOUT = {"default": "batchq start -n N"}
BEST: dict[str, str] = {}
NOTE = "Installed where the benchmark runs. Retries by fixed(0)."

# Behind the constants, which are read without it.
from batchq import App, fixed  # noqa: E402

app = App(os.environ.get("PEERS_URL"))


@app.job(backoff=fixed(0))
def work(job: dict) -> None:
    run(job)


def fleet(workers: int) -> list[list[str]]:
    os.environ["BATCHQ_URL"] = os.environ["PEERS_URL"]
    module = "peers.adapters.batchq:app"
    return [[sys.executable, "-m", "batchq", "start", "-n", str(workers), "--log-level", "error", module]]


class Producer:
    def open(self) -> None:
        assert app.store

    def one(self, job: dict, delay_s: float | None) -> None:
        if delay_s is None:
            work.enqueue(job)
        else:
            work.enqueue_in(delay_s, job)

    def many(self, jobs: list[dict]) -> None:
        work.enqueue_many((job,) for job in jobs)

    def close(self) -> None:
        app.close()
