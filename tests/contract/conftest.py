"""One suite for all stores: each test of this folder runs on memory, on the spool and on every Redis flavour."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batchq.clock import ManualClock
from batchq.store import Limits, Store
from tests.contract.helpers import check_law
from tests.servers import Servers, flavours

STORES = ("memory", "spool", *flavours())


class Ground:
    """Opens stores of one kind for a test, all on one clock that the test moves."""

    def __init__(self, kind: str, folder: Path, prefix: str, servers: Servers) -> None:
        self.kind = kind
        self._folder = folder
        self._prefix = prefix
        self._servers = servers
        self._clock = ManualClock()
        self._pushes: list[Callable[[float], object]] = [self._clock.advance]
        self.opened: list[Store] = []

    def open(self, limits: Limits = Limits()) -> Store:  # noqa: B008 - a frozen value
        """A store of its own: nothing is in it."""
        store = self._open(limits)
        self.opened.append(store)
        return store

    def _open(self, limits: Limits) -> Store:
        number = len(self.opened)
        if self.kind == "memory":
            from batchq.memory_store import MemoryStore

            return MemoryStore(limits=limits, clock=self._clock)
        if self.kind == "spool":
            from batchq.spool import SpoolStore

            return SpoolStore(self._folder / f"spool-{number}", limits=limits, clock=self._clock)
        return self._open_redis(limits, f"{self._prefix}-{number}")

    def _open_redis(self, limits: Limits, prefix: str) -> Store:
        import redis

        from batchq.redis_store import RedisStore

        url = self._servers.get(self.kind).url
        client = redis.Redis.from_url(url)
        # The server's clock can't be moved: the scripts of such a store add this key to it, in microseconds.
        self._pushes.append(lambda ms: client.incrby(f"{prefix}:clock-offset", int(ms * 1000)))
        return RedisStore(url, prefix=prefix, limits=limits, clock_offset=True)

    def advance(self, ms: float) -> None:
        """Moves the clock of every store of this test. Redis' clock also runs by itself: stay away from the borders."""
        for push in self._pushes:
            push(ms)

    def close(self) -> None:
        for store in self.opened:
            store.close()


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
