"""How fast is the spool beside other queues that keep their jobs in files, durable against durable?

Each is installed into an environment of its own. Enqueue of one job a call, enqueue in bulk (one a call where it has no
bulk), and drain by one process. `flushed`: what was enqueued outlives a power cut; the others have not told the disk
when they answer. Only batchq and persist-queue's ack queue know a job again whose worker was killed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import rig
from peers import environments

DEADLINE_S = 300


class Peer(NamedTuple):
    """One system: what is installed, whether it flushes, how large its claims are, and how many jobs it can bear."""

    packages: tuple[str, ...]
    flushed: bool
    batches: tuple[int, ...] = (1,)
    #: Its drain takes a time that grows with the square of the backlog.
    most: int = 1 << 30


PEERS = {
    "batchq": Peer((), True, (1, 16, 64)),
    "batchq_process": Peer((), False, (1, 16, 64)),
    "sqlite_huey_fsync": Peer(("huey",), True),
    "persist_ack": Peer(("persist-queue",), True),
    "sqlite_huey": Peer(("huey",), False),
    "litequeue": Peer(("litequeue",), False),
    "persist_file": Peer(("persist-queue",), False),
    "file_huey": Peer(("huey",), False, most=1500),
    "dirq": Peer(("dirq",), False),
}


def run(name: str, interpreter: Path, jobs: int, what: str, batch: int = 1, fill: str = "") -> float:
    """Jobs a second, in a new folder; `fill`: how it is filled before."""
    with tempfile.TemporaryDirectory(prefix="batchq-peer-", dir=os.environ.get("TMPDIR")) as folder:
        if fill:
            _child(name, interpreter, folder, jobs, fill, batch)
        jobs_done, seconds = _child(name, interpreter, folder, jobs, what, batch)
        if jobs_done != jobs:
            raise RuntimeError(f"{name}: {what} did {jobs_done} jobs of {jobs}")
        return jobs / seconds


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
        cases = [("one a call", "fill", 1, ""), ("in bulk", "bulk", 1, "")]
        cases += [(f"drain, {batch} a claim", "drain", batch, "bulk") for batch in peer.batches]
        for title, what, batch, fill in cases:
            runs = [run(name, interpreter, jobs, what, batch, fill) for _ in range(args.repeat)]
            rig.row("spool", f"{name}: {title}", rig.rate(runs), flushed)


if __name__ == "__main__":
    rig.main(
        __doc__,
        measure,
        jobs=rig.Option(20_000, 300, "N", "jobs a run"),
        systems=rig.Option(list(PEERS), ["batchq"], "NAME", "which of them"),
    )
