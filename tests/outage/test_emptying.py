"""A spool that was the store before: its ledger is emptied into Redis, each job once, with all that is behind it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from batchq.clock import ManualClock
from batchq.errors import SpoolError
from batchq.fallback.emptying import empty, left
from batchq.job import (
    Buried,
    Claim,
    Completed,
    Retried,
    Snoozed,
    new_id,
    pack_error,
    random_name,
)
from batchq.lifecycle import State, Word, unaccounted
from batchq.redis.store import RedisStore
from batchq.spool import SpoolStore, drop
from tests.servers import Server
from tests.unit.spool.helpers import a_job, end_at

Q = "mail"
HOUR_MS = 3_600_000

EMPTY = """
import sys
from batchq.fallback.emptying import empty
from batchq.redis.store import RedisStore
from batchq.spool import SpoolStore
for _ in empty(SpoolStore(sys.argv[3]), RedisStore(sys.argv[1], prefix=sys.argv[2])):
    pass
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def claim_all(store: RedisStore | SpoolStore, want: int = 100) -> list[Claim]:
    worker = random_name()
    store.register(Q, worker, 60_000)
    return list(store.claim(Q, worker, want, 0).claims)


def error(attempt: int) -> bytes:
    return pack_error("ValueError", f"no {attempt}", attempt=attempt, at_ms=1)


def test_jobs_carry_what_they_have_behind_them(store: RedisStore, path: Path) -> None:
    """Attempts, forgiven claims, crashes, errors, priority, given ids, delays and the time of the first enqueue."""
    clock = ManualClock(store.now_ms() - 2 * HOUR_MS)
    spool = SpoolStore(path, clock=clock)
    spool.register(Q, "w", 60_000)
    spool.enqueue(Q, [a_job("crashed", given=True), a_job("snoozed", priority=7), a_job("dead"), a_job("kept")])
    first_ms = spool.now_ms()
    by_id = {claim.id: claim for claim in spool.claim(Q, "w", 10, 0).claims}
    spool.retry(Q, "w", [Retried(by_id["crashed"], 0, 9, error(1), "crashed")])
    spool.snooze(Q, "w", [Snoozed(by_id["snoozed"], HOUR_MS)])
    spool.bury(Q, "w", [Buried(by_id["dead"], "buried", error(1))])
    spool.complete(Q, "w", [Completed(by_id["kept"], b"1", 10 * HOUR_MS)])
    clock.advance(1000)
    spool.promote(Q)
    spool.enqueue(Q, [a_job("plain"), a_job("later", delay_ms=3 * HOUR_MS)])
    clock.advance(HOUR_MS / 2)
    now = store.now_ms()
    assert sum(empty(spool, store, clock=clock)) == 4
    assert left(spool) == (0, 2)
    assert [job.id for job in store.jobs(Q, State.PENDING).jobs] == ["crashed", "plain"]
    crashed = store.get(Q, "crashed")
    assert crashed is not None
    assert (crashed.attempts, crashed.attempt, crashed.crashes, crashed.enqueued_ms) == (1, 1, 1, first_ms)
    assert crashed.errors[0]["error"] == "no 1"
    snoozed, later = sorted(store.jobs(Q, State.DELAYED).jobs, key=lambda job: job.id, reverse=True)
    assert (snoozed.id, snoozed.priority, snoozed.attempts, snoozed.forgiven) == ("snoozed", 7, 1, 1)
    assert snoozed.since_ms - now == pytest.approx(HOUR_MS / 2, abs=5000)
    assert later.since_ms - now == pytest.approx(2.5 * HOUR_MS, abs=5000)
    # The next claim goes on with the number, and the id is remembered.
    [claim, _] = claim_all(store)
    assert (claim.id, claim.token, claim.attempt, claim.crashes) == ("crashed", 2, 2, 1)
    assert store.enqueue(Q, [a_job("crashed", given=True)]) == [Word.KNOWN]
    assert store.stats(Q).totals["forwarded"] == 4
    stats = spool.stats(Q)
    assert unaccounted(stats.counts, stats.totals) == 0
    spool.close()


@pytest.mark.parametrize("meanwhile", ["stands", "is gone"])
def test_end_between_the_two_stores_doubles_nothing(
    redis_server: Server, prefix: str, store: RedisStore, path: Path, meanwhile: str
) -> None:
    """Adopted there and not yet purged here; also where it has run there by then, and left no trace."""
    spool = SpoolStore(path)
    ids = [new_id() for _ in range(150)]
    spool.enqueue(Q, [a_job(id) for id in ids[:100]])
    spool.enqueue(Q, [a_job(id, delay_ms=HOUR_MS) for id in ids[100:]])
    spool.close()
    end_at("A1", EMPTY, redis_server.url, prefix, str(path))
    done: list[str] = []
    if meanwhile == "is gone":
        worker = random_name()
        store.register(Q, worker, 60_000)
        claims = store.claim(Q, worker, 480, 0).claims
        store.complete(Q, worker, [Completed(claim) for claim in claims])
        done = [claim.id for claim in claims]
        assert len(done) == 100
    spool = SpoolStore(path)
    assert sum(empty(spool, store)) == 150
    assert left(spool) == (0, 0)
    spool.close()
    standing = [job.id for state in (State.PENDING, State.DELAYED) for job in store.jobs(Q, state, limit=500).jobs]
    assert sorted([*done, *standing]) == sorted(ids)
    assert store.stats(Q).totals["enqueued"] == 150


def test_what_a_lost_worker_held_comes_along(store: RedisStore, path: Path) -> None:
    """Nobody serves that spool any more: a claim whose lease is over counts as lost, one that runs is left."""
    clock = ManualClock(store.now_ms())
    spool = SpoolStore(path, clock=clock)
    spool.enqueue(Q, [a_job("gone"), a_job("runs")])
    spool.register(Q, "dead", 1000)
    spool.claim(Q, "dead", 1, 0)
    spool.register(Q, "alive", HOUR_MS)
    spool.claim(Q, "alive", 1, 0)
    clock.advance(2000)
    assert sum(empty(spool, store, clock=clock)) == 1
    assert left(spool) == (1, 0)
    gone = store.get(Q, "gone")
    assert gone is not None
    assert (gone.state, gone.lost, gone.attempts, gone.forgiven) == (State.DELAYED, 1, 1, 1)
    spool.close()


def test_spool_that_is_served_is_not_emptied(store: RedisStore, path: Path) -> None:
    """Its workers would run what moves."""
    spool = SpoolStore(path)
    spool.enqueue(Q, [a_job()])
    spool.publish("host.1", {"id": "host.1"}, 60_000)
    with pytest.raises(SpoolError, match=r"expected no master, found host\.1"):
        list(empty(spool, store))
    assert not spool.stats(Q).paused
    spool.close()


def test_full_server_takes_what_it_can_and_the_rest_stays(store: RedisStore, path: Path, redis_server: Server) -> None:
    """A second run goes on where the first stopped: here it has room from the beginning."""
    spool = SpoolStore(path)
    spool.enqueue(Q, [a_job() for _ in range(250)])
    moves = empty(spool, store)
    assert next(moves) == 100
    moves.close()
    assert spool.stats(Q).counts["pending"] == 150
    assert sum(empty(spool, store)) == 150
    assert store.stats(Q).totals["enqueued"] == 250
    spool.close()


def test_command_line_moves_a_ledger(redis_server: Server, prefix: str, store: RedisStore, path: Path) -> None:
    """`batchq spool forward --ledger`, and what it says of a directory that has none."""
    spool = SpoolStore(path)
    spool.enqueue(Q, [a_job() for _ in range(5)])
    spool.close()
    drop(path, [(Q, a_job())])

    def run(where: Path) -> subprocess.CompletedProcess[str]:
        command = ["spool", "forward", "--ledger", "--json", "--spool", str(where)]
        return subprocess.run(
            [sys.executable, "-m", "batchq", *command, "--url", redis_server.url, "--prefix", prefix],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )

    done = run(path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["moved"] == 6
    assert "queues are paused" in done.stderr
    assert store.stats(Q).counts["pending"] == 6
    nothing = run(path.parent / "none")
    assert nothing.returncode == 1
    assert "expected a ledger" in nothing.stderr
