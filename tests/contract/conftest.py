"""One suite for all stores: each test of this folder runs on memory, on the spool and on every Redis flavour."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.clock import ManualClock
from batchq.memory_store import MemoryStore
from batchq.redis.store import RedisStore
from batchq.spool import SpoolStore
from batchq.store import Limits, Store
from tests.contract.helpers import check_law
from tests.process.rig import check_spool
from tests.servers import FLAVOURS, Servers, flavours

STORES = ("memory", "spool", *flavours())


class Ground:
    """Opens stores of one kind for a test, all on one clock that the test moves."""

    def __init__(self, kind: str, folder: Path, prefix: str, servers: Servers) -> None:
        self.kind = kind
        self._folder = folder
        self._prefix = prefix
        self._servers = servers
        self._clock = ManualClock()
        self._made = 0
        #: Open stores -> the name of their data, and further handles on the same.
        self.opened: dict[Store, str] = {}
        self._handles: list[Store] = []

    def open(self, limits: Limits = Limits()) -> Store:  # noqa: B008 - a frozen value
        """A store of its own: nothing is in it."""
        self._made += 1
        name = f"{self._prefix}-{self._made}"
        store = self._open(limits, name)
        self.opened[store] = name
        return store

    def another(self, store: Store) -> Store:
        """A second handle on the same data, as another process would have; in memory there is only the one."""
        if self.kind == "memory":
            return store
        self._handles.append(self._open(Limits(), self.opened[store]))
        return self._handles[-1]

    def _open(self, limits: Limits, name: str) -> Store:
        if self.kind == "memory":
            return MemoryStore(limits=limits, clock=self._clock)
        if self.kind == "spool":
            return SpoolStore(self._folder / name, limits=limits, clock=self._clock)
        return RedisStore(self._servers.get(self.kind).url, prefix=name, limits=limits, clock_offset=True)

    def advance(self, ms: float) -> None:
        """Moves the clock of every store of this test. Redis' clock also runs by itself: stay away from the borders."""
        self._clock.advance(ms)
        if self.kind in FLAVOURS:
            # The server's clock can't be moved: the scripts of such a store add this key to it, in microseconds.
            for name in self.opened.values():
                self._servers.get(self.kind).client.incrby(f"{name}:clock-offset", int(ms * 1000))

    def lose_row(self, store: Store, queue: str, id: str) -> None:
        """Damage from outside: the id stands in its list, its row is gone."""
        if isinstance(store, MemoryStore):
            del store._queues[queue].jobs[id]
        elif self.kind in FLAVOURS:
            assert self._servers.get(self.kind).client.hdel(f"{self.opened[store]}:{{{queue}}}:rows", id) == 1
        else:
            pytest.skip("a job of the spool is its row: there is no list that could name it without")

    def at_gates(self, store: Store, queue: str) -> int:
        """How much the store keeps about gates."""
        if isinstance(store, MemoryStore):
            q = store._queues[queue]
            return sum(map(len, (q.doors, q.passes, q.waiters, q.visits, *q.passed.values())))
        if isinstance(store, SpoolStore):
            with sqlite3.connect(self._folder / self.opened[store] / "queue.db") as db:
                tables = ("gate", "guest", "waiter", "visit", "passed")
                return sum(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)
        keys = (f"{self.opened[store]}:{{{queue}}}:{key}" for key in ("gates", "passes", "waiters", "visits", "passed"))
        return sum(map(self._servers.get(self.kind).client.exists, keys))

    def discard(self, store: Store) -> None:
        """Done with this one before the end of the test: the law holds, then it is closed."""
        try:
            check_law(store)
        finally:
            del self.opened[store]
            store.close()

    def close(self) -> None:
        for store in (*self._handles, *self.opened):
            store.close()
            if isinstance(store, SpoolStore):
                check_spool(store.path)


@pytest.fixture(params=STORES)
def ground(request: pytest.FixtureRequest, tmp_path: Path, prefix: str, servers: Servers) -> Iterator[Ground]:
    """Where the stores of this test stand. Whatever the test did, the law of the totals holds at its end."""
    made = Ground(request.param, tmp_path, prefix, servers)
    yield made
    try:
        for store in made.opened:
            check_law(store)
    finally:
        made.close()


@pytest.fixture
def store(ground: Ground) -> Store:
    """An empty store."""
    return ground.open()


@pytest.fixture
def clock(ground: Ground) -> Ground:
    """The clock of the test's stores: `advance(ms)`. What it says is `store.now_ms()`."""
    return ground
