"""How near to the machine's own speed do jobs of 20 ms of pure Python run, with as many workers as cores and with more?

The time from resume to the last completion, by what all cores would take for the work alone. A job burns CPU time of
its own thread, so that waiting for a core shows; what other processes used of the machine is printed beside it, and
what bare processes need for the same jobs: where they share them beforehand, and where each job is finished and the
next one claimed in one call of the store (bare.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import bare
import rig
import work

JOB_S = 0.02


def burn_all(jobs: int) -> int:
    for n in range(jobs):
        work.burn(n, "")
    return jobs


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    cores = rig.cores()
    for workers in args.workers:
        found, disturbed, shared, claimed = [], [], [], []
        at_best = args.jobs * JOB_S / min(workers, cores)
        for _ in range(args.repeat):
            with rig.others() as used:
                run = rig.drained(new_url(), work.app, work.burn, args.jobs, workers)
                disturbed.append(used())
            found.append(run.seconds / at_best)
            shared.append(rig.race(workers, partial(burn_all, args.jobs // workers))[0] / at_best)
            claimed.append(bare.race(store, new_url(), args.jobs, workers, "burn", batch=1) / at_best)
        told = f"{rig.middle(found):.2f} of ideal  ({min(found):.2f}-{max(found):.2f})"
        told_bare = f"bare {rig.middle(shared):.2f}, that claims {rig.middle(claimed):.2f}"
        others = f"others used {rig.middle(disturbed):.0f} % of a core"
        rig.row(store, f"jobs of 20 ms CPU, {workers} workers", told, told_bare, others)


if __name__ == "__main__":
    rig.main(
        __doc__,
        measure,
        jobs=rig.Option(300, 10, "N", "jobs of a run"),
        workers=rig.Option([2, 8], [1, 2], "N", "numbers of workers"),
    )
