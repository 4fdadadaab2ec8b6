"""How many jobs a second go the way of a failure: an attempt that raises, the delayed set, an attempt that goes well?

Each job fails once, with the shortest delay there is. Beside it the same number of jobs that go well at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import rig
import work

WORKERS = 2


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    found = {}
    for name in ("fail_once", "noop"):
        call = work.app.call(name)
        found[name] = [rig.drained(new_url(), work.app, call, args.jobs, WORKERS) for _ in range(args.repeat)]
        rates = [args.jobs / run.seconds for run in found[name]]
        cost = f"CPU of workers {rig.middle(run.workers_us for run in found[name]):.1f} us a job"
        served = rig.middle(run.redis_us for run in found[name])
        case = "jobs that fail once" if name == "fail_once" else "jobs that go well"
        rig.row(store, case, rig.rate(rates), cost, f"of Redis {served:.1f} us" if served else "")


if __name__ == "__main__":
    rig.main(__doc__, measure, jobs=rig.Option(10_000, 200, "N", "jobs of a run"))
