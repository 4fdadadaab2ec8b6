"""The server's clock jumps: nobody alive is taken for dead, nobody dead for alive, no delayed job is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from batchq import backoff
from batchq.job import Claim, NewJob, pack_row
from batchq.lifecycle import Word, unaccounted
from batchq.redis_store import RedisStore
from batchq.runner import Terms
from batchq.sweeps import LeaseWatch, reap_lost
from tests.servers import Server

Q = "mail"
LEASE_MS = 15_000
HOUR_MS = 3_600_000


@pytest.fixture
def store(redis_server: Server, prefix: str) -> Iterator[RedisStore]:
    """Its scripts add a key to the server's time."""
    made = RedisStore(redis_server.url, prefix=prefix, clock_offset=True)
    yield made
    stats = made.stats(Q)
    assert unaccounted(stats.counts, stats.totals) == 0
    made.close()


@pytest.fixture
def jump(redis_server: Server, prefix: str) -> Callable[[int], None]:
    """Moves the clock of the server by so many ms."""
    return lambda ms: redis_server.client.incrby(f"{prefix}:clock-offset", ms * 1000)  # type: ignore[no-any-return]


class Masters:
    """What masters do about leases, on a clock that the test moves: renew, and look, each third of a lease."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self.watch = LeaseWatch(LEASE_MS)
        self.at = 1000.0

    def turn(self, alive: list[str], *, look_first: bool) -> int:
        """A third of a lease later. Answers how many jobs were taken from workers."""
        self.at += LEASE_MS / 3000
        moved = 0
        if not look_first:
            self.store.renew(Q, alive, LEASE_MS)
        for worker, end in self.watch.look(Q, self.store.leases(Q), self.at):
            moved += reap_lost(self.store, Q, worker, end, _terms, 10)
        if look_first:
            self.store.renew(Q, alive, LEASE_MS)
        return moved


def _terms(claim: Claim) -> Terms:
    return Terms(max_attempts=5, backoff=backoff.fixed(1.0))


def _claimed(store: RedisStore, worker: str) -> Claim:
    assert store.register(Q, worker, LEASE_MS) is Word.OK
    store.enqueue(Q, [NewJob(f"of-{worker}", pack_row("send"))])
    [claim] = store.claim(Q, worker, 1, 0).claims
    return claim


@pytest.mark.parametrize("look_first", [True, False])
def test_clock_that_jumps_ahead_takes_no_job_from_a_living_worker(
    store: RedisStore, jump: Callable[[int], None], look_first: bool
) -> None:
    """All leases look expired at once; the renewals of the living come before anybody believes it."""
    _claimed(store, "w1")
    masters = Masters(store)
    masters.turn(["w1"], look_first=look_first)
    for _ in range(3):
        jump(HOUR_MS)
        assert masters.turn(["w1"], look_first=look_first) == 0
    assert store.stats(Q).counts["active"] == 1


def test_clock_that_jumps_back_leaves_no_lease_for_an_hour(store: RedisStore, jump: Callable[[int], None]) -> None:
    """A worker that died with its host before the jump is found dead after its lease, not an hour and a lease later."""
    _claimed(store, "gone")
    store.register(Q, "alive", LEASE_MS)
    masters = Masters(store)
    jump(-HOUR_MS)
    masters.turn(["alive"], look_first=False)
    assert store.leases(Q).ends["gone"] <= store.now_ms() + LEASE_MS + 100
    jump(LEASE_MS + 1000)
    masters.turn(["alive"], look_first=False)
    assert masters.turn(["alive"], look_first=False) == 1
    assert store.stats(Q).totals["lost"] == 1


def test_delayed_jobs_outlive_jumps_of_the_clock(store: RedisStore, jump: Callable[[int], None]) -> None:
    """Early by a jump ahead, late by a jump back; each comes once."""
    store.enqueue(Q, [NewJob(f"j{n}", pack_row("send"), 0, 1000 + n) for n in range(10)])
    jump(-HOUR_MS)
    assert store.promote(Q).moved == 0
    jump(2 * HOUR_MS)
    assert store.promote(Q).moved == 10
    jump(-HOUR_MS)
    assert store.promote(Q).moved == 0
    assert store.stats(Q).counts["pending"] == 10
