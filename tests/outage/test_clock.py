"""The store's clock jumps: nobody alive is taken for dead, nobody dead for alive, no delayed job is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batchq import backoff
from batchq.clock import ManualClock
from batchq.job import Claim, Completed, Mark, NewJob, pack_row
from batchq.lifecycle import Word, unaccounted
from batchq.master.sweeps import LeaseWatch, reap_lost
from batchq.redis.store import RedisStore
from batchq.spool import SpoolStore
from batchq.store import Store
from batchq.worker.runner import Terms
from tests.servers import Servers, flavours

Q = "mail"
LEASE_MS = 15_000
HOUR_MS = 3_600_000


class Jumping:
    """A store, and its clock."""

    def __init__(self, store: Store, jump: Callable[[int], object]) -> None:
        self.store = store
        #: Moves it by so many ms.
        self.jump = jump


@pytest.fixture(params=(*flavours(), "spool"))
def jumping(request: pytest.FixtureRequest, servers: Servers, prefix: str, tmp_path: Path) -> Iterator[Jumping]:
    """The scripts of such a Redis add a key to the server's time; the spool's clock is the test's own."""
    if request.param == "spool":
        clock = JumpingClock()
        made = Jumping(SpoolStore(tmp_path / "s", clock=clock), clock.jump)
    else:
        server = servers.get(request.param)
        made = Jumping(
            RedisStore(server.url, prefix=prefix, clock_offset=True),
            lambda ms: server.client.incrby(f"{prefix}:clock-offset", ms * 1000),
        )
    yield made
    stats = made.store.stats(Q)
    assert unaccounted(stats.counts, stats.totals) == 0
    made.store.close()


class JumpingClock(ManualClock):
    """Its wall clock jumps, its monotonic one never does."""

    def jump(self, ms: int) -> None:
        self._us += ms * 1000


@pytest.fixture
def store(jumping: Jumping) -> Store:
    return jumping.store


@pytest.fixture
def jump(jumping: Jumping) -> Callable[[int], object]:
    return jumping.jump


class Masters:
    """What masters do about leases, on a clock that the test moves: renew, and look, each third of a lease."""

    def __init__(self, store: Store) -> None:
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


def _claimed(store: Store, worker: str) -> Claim:
    assert store.register(Q, worker, LEASE_MS) is Word.OK
    store.enqueue(Q, [NewJob(f"of-{worker}", pack_row("send"))])
    [claim] = store.claim(Q, worker, 1, 0).claims
    return claim


@pytest.mark.parametrize("look_first", [True, False])
def test_clock_that_jumps_ahead_takes_no_job_from_a_living_worker(
    store: Store, jump: Callable[[int], object], look_first: bool
) -> None:
    """All leases look expired at once; the renewals of the living come before anybody believes it."""
    _claimed(store, "w1")
    masters = Masters(store)
    masters.turn(["w1"], look_first=look_first)
    for _ in range(3):
        jump(HOUR_MS)
        assert masters.turn(["w1"], look_first=look_first) == 0
    assert store.stats(Q).counts["active"] == 1


def test_clock_that_jumps_back_leaves_no_lease_for_an_hour(store: Store, jump: Callable[[int], object]) -> None:
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


def test_delayed_jobs_outlive_jumps_of_the_clock(store: Store, jump: Callable[[int], object]) -> None:
    """Early by a jump ahead, late by a jump back; each comes once."""
    store.enqueue(Q, [NewJob(f"j{n}", pack_row("send"), 0, 1000 + n) for n in range(10)])
    jump(-HOUR_MS)
    assert store.promote(Q).moved == 0
    jump(2 * HOUR_MS)
    assert store.promote(Q).moved == 10
    jump(-HOUR_MS)
    assert store.promote(Q).moved == 0
    assert store.stats(Q).counts["pending"] == 10


def test_order_marks_and_ids_hold_over_jumps_of_the_clock(store: Store, jump: Callable[[int], object]) -> None:
    """First come, first served, whatever the clock said; calls and ids that are known stay so."""
    for n, ms in enumerate((0, -HOUR_MS, 3 * HOUR_MS, -HOUR_MS)):
        jump(ms)
        assert store.enqueue(Q, [NewJob(f"j{n}", pack_row("send"), given=True)], Mark("lane", n)) == [Word.OK]
    jump(-2 * HOUR_MS)
    assert store.enqueue(Q, [NewJob("j9", pack_row("send"))], Mark("lane", 3)) == [Word.AGAIN]
    store.register(Q, "w", LEASE_MS)
    claims = store.claim(Q, "w", 9, 0).claims
    assert [claim.id for claim in claims] == ["j0", "j1", "j2", "j3"]
    jump(HOUR_MS)
    assert set(store.complete(Q, "w", [Completed(claim) for claim in claims])) == {Word.OK}
    jump(-HOUR_MS)
    assert store.enqueue(Q, [NewJob("j0", pack_row("send"), given=True)]) == [Word.KNOWN]
