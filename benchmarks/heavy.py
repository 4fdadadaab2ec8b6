"""How near to the machine's own speed do jobs of 20 ms of pure Python run, with as many workers as cores and with more?

The time from resume to the last completion, by what all cores would take for the work alone. A job burns CPU time of
its own thread, so that waiting for a core shows; what other processes used of the machine is printed beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import rig
import work

JOB_S = 0.02


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    cores = rig.cores()
    for workers in args.workers:
        found, disturbed = [], []
        for _ in range(args.repeat):
            with rig.others() as used:
                run = rig.drained(new_url(), work.app, work.burn, args.jobs, workers)
                disturbed.append(used())
            found.append(run.seconds / (args.jobs * JOB_S / min(workers, cores)))
        told = f"{rig.middle(found):.2f} of ideal  ({min(found):.2f}-{max(found):.2f})"
        rig.row(
            store, f"jobs of 20 ms CPU, {workers} workers", told, f"others used {rig.middle(disturbed):.0f} % of a core"
        )


if __name__ == "__main__":
    rig.main(
        __doc__,
        measure,
        jobs=rig.Option(300, 10, "N", "jobs of a run"),
        workers=rig.Option([2, 8], [1, 2], "N", "numbers of workers"),
    )
