"""How many jobs a second go into the inbox of a spool, and out of it into the ledger or to Redis?

Parcels of one job and of a hundred, dropped by one producer and flushed as always; then taken by one sweeper: into the
ledger beside the inbox (`spool`), or forwarded to the server (`redis`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import rig

from batchq.config import Settings
from batchq.fallback.forward import Forwarder
from batchq.job import NewJob, new_id, pack_row
from batchq.redis.store import RedisStore
from batchq.spool import drop
from batchq.spool.parcel import address_of
from batchq.store import Ingested, Limits, Store
from batchq.stores import open_store

Q = "default"


def dropped(path: Path, jobs: int, size: int, to: str) -> float:
    """Jobs a second."""
    parcels = [
        [(Q, NewJob(new_id(), pack_row("noop", (n, rig.PAD)))) for n in range(size)] for _ in range(jobs // size)
    ]
    began = time.perf_counter()
    for parcel in parcels:
        drop(path, parcel, to=to)
    return jobs / (time.perf_counter() - began)


def taken(sweep: Callable[[], Ingested], store: Store, jobs: int) -> float:
    """Jobs a second. All of them stand in the store afterwards."""
    began = time.perf_counter()
    while sweep().files:
        pass
    seconds = time.perf_counter() - began
    if store.stats(Q).counts["pending"] != jobs:
        raise RuntimeError(f"expected {jobs} jobs, found {store.stats(Q).counts}")
    return jobs / seconds


def measure(args: argparse.Namespace, kind: str, new_url: Callable[[], str]) -> None:
    for size, title in ((1, "of one"), (100, "of a hundred")):
        jobs = args.jobs if size == 1 else 10 * args.jobs
        drops, takes = [], []
        for _ in range(args.repeat):
            url = new_url()
            store = open_store(url, Settings())
            with TemporaryDirectory(dir=args.folder) as folder:
                path, to, sweep = Path(url.removeprefix("spool:")), "", store.sweep_inbox
                if isinstance(store, RedisStore):
                    path = Path(folder) / "outbox"
                    sweep, to = Forwarder(store, path, Limits()).sweep, address_of(store.destination)
                drops.append(dropped(path, jobs, size, to))
                takes.append(taken(sweep, store, jobs))
            store.close()
        rig.row(kind, f"parcels {title}, dropped", rig.rate(drops))
        rig.row(kind, f"parcels {title}, " + ("forwarded" if kind == "redis" else "taken in"), rig.rate(takes))


if __name__ == "__main__":
    rig.main(__doc__, measure, jobs=rig.Option(5_000, 200, "N", "jobs in parcels of one; by a hundred ten times"))
