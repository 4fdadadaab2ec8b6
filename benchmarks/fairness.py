"""Does a short job wait behind a long one while another worker is idle?

One job in 200 takes 2 s, the others 1 ms; they come 5 ms apart, so that of four workers two are idle nearly always.
Twice: long and short jobs of different handlers, and of one handler, whose name does not tell. The wait of the short
ones is from the call of enqueue to the handler's first line; an idle pool with short jobs alone stands beside it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import latency
import rig
import work

WORKERS, ONE_IN = 4, 200


def waits(url: str, jobs: int, send: Callable[[int], None]) -> list[float]:
    """The waits of the short ones, in ms."""
    work.app.configure({"url": url})
    with TemporaryDirectory() as folder:
        out = Path(folder) / "stamps"
        with rig.workers(url, WORKERS, work.app, out):
            for n in range(jobs):
                send(n)
                time.sleep(0.005)
            short = jobs - len(range(ONE_IN // 2, jobs, ONE_IN))
            rig.wait_until(lambda: len(latency.read(out)) >= short, "the short ones began", look_s=0.05)
        found = latency.read(out)
    work.app.close()
    return found


def is_long(n: int) -> bool:
    return n % ONE_IN == ONE_IN // 2


def by_handler(n: int) -> None:
    (work.lengthy if is_long(n) else work.brief).enqueue(time.time_ns())


def by_argument(n: int) -> None:
    work.either.enqueue(time.time_ns(), is_long(n))


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    alone = waits(new_url(), args.jobs, lambda n: None if is_long(n) else by_handler(n))
    rig.row(store, "short jobs alone", latency.told(alone))
    for case, send in (("beside long ones of another name", by_handler), ("beside long ones of the same", by_argument)):
        rig.row(store, case, latency.told(waits(new_url(), args.jobs, send)))


if __name__ == "__main__":
    rig.main(__doc__, measure, jobs=rig.Option(2_000, 120, "N", "jobs of a run"))
