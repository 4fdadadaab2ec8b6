"""The crash tables of FORMAT.md: a process ends at each named point of taking and forwarding a parcel, and of dropping
one. What is left is well by `batchq spool check`, and the next one does the rest, each job once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from batchq.fallback.forward import Forwarder
from batchq.job import Completed, NewJob
from batchq.redis.store import RedisStore
from batchq.redis.sync import Confirm
from batchq.spool import SpoolStore, inbox
from batchq.spool.check import Level, check, is_well
from batchq.spool.parcel import address_of
from batchq.store import Limits, Store
from tests.servers import Server
from tests.unit.spool.helpers import end_at, wait_for

Q = "mail"
N = 60

DROP = """
import sys
from batchq.job import NewJob
from batchq.spool import drop
drop(sys.argv[3], [("mail", NewJob(f"a{n}", b'{"job":"send"}')) for n in range(60)], to=sys.argv[4])
"""
INGEST = """
import sys
from batchq.spool import SpoolStore
SpoolStore(sys.argv[3]).sweep_inbox()
"""
FORWARD = """
import sys
from batchq.fallback.forward import Forwarder
from batchq.redis.store import RedisStore
from batchq.store import Limits
store = RedisStore(sys.argv[1], prefix=sys.argv[2])
forwarder = Forwarder(store, sys.argv[3], Limits(), confirm=sys.argv[5], stands_s=0.0)
while forwarder.waiting() + forwarder.unconfirmed():
    forwarder.sweep()
"""

POINTS = [
    *(("drop", point, "stands") for point in ("P1", "P2", "P3", "P4", "P5", "P6")),
    *(("ingest", point, "is gone") for point in ("I1", "I2", "T3", "T4", "I4", "I5")),
    *(("reply", point, "is gone") for point in ("I1", "W1", "W2", "W3", "W5")),
    *((how, point, "is gone") for how in ("waitaof", "grace") for point in ("W1", "W2", "W3", "W4", "W5")),
]


@pytest.fixture(scope="module")
def syncing_server() -> Iterator[Server]:
    """One that can say what is on its disk, whatever the others are."""
    server = Server("valkey", "--appendonly", "yes", "--appendfsync", "always")
    yield server
    server.stop()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


def work_off(store: Store) -> list[str]:
    """Runs what is pending and forgets it."""
    worker = f"w-{os.urandom(4).hex()}"
    store.register(Q, worker, 60_000)
    ran = []
    while claims := store.claim(Q, worker, 480, 0).claims:
        ran += [claim.id for claim in claims]
        store.complete(Q, worker, [Completed(claim) for claim in claims])
    return ran


@pytest.mark.parametrize(("what", "point", "meanwhile"), POINTS)
def test_what_a_crash_leaves_is_well_and_goes_on(
    redis_server: Server, syncing_server: Server, prefix: str, path: Path, what: str, point: str, meanwhile: str
) -> None:
    """Twice at the same point; `is gone`: what came through is run and forgotten before the next one goes on."""
    server = syncing_server if what == "waitaof" else redis_server
    remote = RedisStore(server.url, prefix=prefix)
    address = "" if what == "ingest" else address_of(remote.destination)
    args = (server.url, prefix, str(path), address, what)
    code = {"drop": DROP, "ingest": INGEST}.get(what, FORWARD)
    store: Store = remote
    confirm: Any = what if what in get_args(Confirm) else "reply"
    sweep: Callable[[], object] = Forwarder(remote, path, Limits(), confirm=confirm, stands_s=0.0).sweep
    if what == "ingest":
        local = SpoolStore(path)
        store, sweep = local, local.sweep_inbox
    if what != "drop":
        # Three files: there is one left at each point.
        for part in range(3):
            inbox.drop(path, [(Q, one) for one in _jobs()[part::3]], to=address)
    ran: list[str] = []
    for _ in range(2):
        end_at(point, code, *args)
        found = check(str(path))
        assert is_well(found), found
        if meanwhile == "is gone":
            ran += work_off(store)
    wait_for(lambda: (sweep(), inbox.census(path))[1][:2] == (0, 0) and not inbox.census(path).sent, "all is taken")
    ran += work_off(store)
    found = check(str(path), repair=True)
    assert {one.level for one in found} <= {Level.NOTE, Level.MENDED}, found
    arrived = what != "drop" or point in ("P5", "P6")
    expected = [f"a{n}" for n in range(N)] if arrived else []
    # Repeated under the same ids, a drop that came through adds nothing while those are known.
    assert sorted(set(ran)) == sorted(expected)
    if what != "drop":
        assert len(ran) == len(expected)
    assert inbox.census(path) == inbox.Census(0, 0, 0)
    store.close()


def _jobs() -> list[NewJob]:
    return [NewJob(f"a{n}", b'{"job":"send"}') for n in range(N)]
