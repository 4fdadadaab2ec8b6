"""How much one step asks of a server that does nothing else meanwhile, however much there is."""

from __future__ import annotations

from typing import Any

import pytest

from batchq.job import Buried, Completed, Page
from batchq.lifecycle import State, Word
from batchq.master.sweeps import expire
from batchq.redis.store import RedisStore
from tests.contract.helpers import DAY_MS, Q, a_job, active, enlist, listed, nonzero
from tests.servers import Server


def test_what_is_cancelled_or_purged_is_looked_for_in_small_steps(
    redis_server: Server, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each id is found by a walk through all that is pending."""
    monkeypatch.setattr("batchq.redis.store.WALK", 5000)
    ids = [f"a{n}" for n in range(1000)]
    store.enqueue(Q, [a_job(id) for id in ids])

    def steps() -> int:
        return int(redis_server.client.info("commandstats")["cmdstat_evalsha"]["calls"])

    before = steps()
    assert store.cancel(Q, ids[900:]) == [Word.CANCELLED] * 100
    assert steps() - before >= 20
    before = steps()
    assert store.purge(Q, State.PENDING, ids[800:900]) == 100
    assert steps() - before >= 16
    assert listed(store, State.PENDING) == ids[:800]
    assert nonzero(store) == {"enqueued": 1000, "cancelled": 100, "purged": 100}


def test_ids_that_are_known_no_longer_go_some_at_a_time(redis_server: Server, store: RedisStore, prefix: str) -> None:
    """No master was there for days."""
    given = f"{prefix}:{{{Q}}}:given"
    # Most of them ended in one millisecond.
    redis_server.client.zadd(given, {f"id-{n}": 1000 + max(0, n - 20_000) for n in range(25_000)})
    left = [25_000]
    while left[-1]:
        store.promote(Q)
        left.append(redis_server.client.zcard(given))
    assert left == [25_000, 4999, 0]


class Reads(RedisStore):
    """Counts the jobs that are read."""

    jobs_read = 0

    def jobs(self, *args: Any, **kwargs: Any) -> Page:
        page = super().jobs(*args, **kwargs)
        self.jobs_read += len(page.jobs)
        return page


def test_a_sweep_for_what_is_over_reads_no_more_than_it_has_to(redis_server: Server, prefix: str) -> None:
    """Each minute, whatever they carry: one that is not over is enough to know."""
    store = Reads(redis_server.url, prefix=prefix)
    enlist(store)
    for n in range(20):
        store.bury(Q, "w1", [Buried(active(store, f"dead-{n}"), "buried", b"")])
        store.complete(Q, "w1", [Completed(active(store, f"done-{n}"), b"1", DAY_MS)])
    store.jobs_read = 0
    assert not +expire(store, Q, dead_keep_ms=DAY_MS, dead_limit=20)
    assert store.jobs_read == 2
    assert expire(store, Q, dead_keep_ms=DAY_MS, dead_limit=7)["dead"] == 13
    assert listed(store, State.DEAD) == [f"dead-{n}" for n in range(13, 20)]
    store.close()
