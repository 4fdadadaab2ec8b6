"""How fast is the spool beside other queues that keep their jobs in files, durable against durable?

Each is installed into an environment of its own. Enqueue of one job a call, by one process and where that may be by
four at once; enqueue in bulk (one a call where it has no bulk); drain by one process. `flushed`: what was enqueued
outlives a power cut; the others have not told the disk when they answer. Only batchq and persist-queue's ack queue know
a job again whose worker was killed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import rig
from peers import environments

DEADLINE_S = 300
#: How many enqueue at once, where that is asked.
PRODUCERS = 4


class Peer(NamedTuple):
    """One system: what is installed, whether it flushes, how large its claims are, and how many jobs it can bear."""

    packages: tuple[str, ...]
    flushed: bool
    batches: tuple[int, ...] = (1,)
    #: Several processes may enqueue at once.
    shared: bool = False
    #: It is slow, or its drain takes a time that grows with the square of the backlog.
    most: int = 1 << 30


PEERS = {
    "batchq": Peer((), True, (1, 16, 64), shared=True),
    "batchq_process": Peer((), False, (1, 16, 64)),
    "sqlite_huey_fsync": Peer(("huey",), True, shared=True),
    "persist_ack": Peer(("persist-queue",), True, most=4000),
    "sqlite_huey": Peer(("huey",), False),
    "litequeue": Peer(("litequeue",), False),
    "persist_file": Peer(("persist-queue",), False),
    "file_huey": Peer(("huey",), False, most=1500),
    "dirq": Peer(("dirq",), False),
}


def run(name: str, interpreter: Path, jobs: int, what: str, batch: int = 1, fill: str = "", at_once: int = 1) -> float:
    """Jobs a second, in a new folder; `fill`: how it is filled before; `at_once`: processes that share the jobs."""
    with tempfile.TemporaryDirectory(prefix="batchq-peer-", dir=os.environ.get("TMPDIR")) as folder:
        if fill or at_once > 1:
            # Several at once can't all make it, with some of them.
            _child(name, interpreter, folder, jobs if fill else 0, fill or what, batch)
        with ThreadPoolExecutor(at_once) as threads:
            runs = [
                threads.submit(_child, name, interpreter, folder, jobs // at_once, what, batch) for _ in range(at_once)
            ]
            told = [one.result() for one in runs]
        jobs_done = sum(done for done, _ in told)
        if jobs_done != jobs // at_once * at_once:
            raise RuntimeError(f"{name}: {what} did {jobs_done} jobs of {jobs}")
        return jobs_done / max(seconds for _, seconds in told)


def _child(name: str, interpreter: Path, folder: str, jobs: int, what: str, batch: int) -> tuple[int, float]:
    command = [str(interpreter), "-m", "peers.file_queues", name, folder, str(jobs), what, str(batch)]
    done = subprocess.run(
        command, cwd=rig.HERE, capture_output=True, text=True, timeout=DEADLINE_S, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {what} ended with {done.returncode}: {done.stderr[-600:]}")
    told = json.loads(done.stdout)
    return told["jobs"], told["seconds"]


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    if store != "spool":
        return
    for name in args.systems:
        peer = PEERS[name]
        try:
            environment = f"file-{peer.packages[0]}" if peer.packages else ""
            interpreter = environments.python(environment, peer.packages) if peer.packages else Path(sys.executable)
        except environments.NotInstallable as error:
            print(f"{name}: left out, for it can't be installed here: {error}")
            continue
        jobs = min(args.jobs, peer.most)
        flushed = "flushed" if peer.flushed else "not flushed"
        cases = [("one a call", "fill", 1, "", 1), ("in bulk", "bulk", 1, "", 1)]
        if peer.shared:
            cases.insert(1, (f"{PRODUCERS} at once, one a call", "fill", 1, "", PRODUCERS))
        cases += [(f"drain, {batch} a claim", "drain", batch, "bulk", 1) for batch in peer.batches]
        for title, what, batch, fill, at_once in cases:
            try:
                runs = [run(name, interpreter, jobs, what, batch, fill, at_once) for _ in range(args.repeat)]
            except RuntimeError as error:
                if not peer.packages:
                    raise
                rig.row("spool", f"{name}: {title}", f"fails: {str(error).splitlines()[-1]:.100}")
                continue
            rig.row("spool", f"{name}: {title}", rig.rate(runs), flushed)


if __name__ == "__main__":
    rig.main(
        __doc__,
        measure,
        jobs=rig.Option(20_000, 300, "N", "jobs a run"),
        systems=rig.Option(list(PEERS), ["batchq"], "NAME", "which of them"),
    )
