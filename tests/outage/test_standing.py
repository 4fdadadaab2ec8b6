"""Standing claims: the server claims when the hint comes, and what nobody heard of is found by the next claim."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest

from batchq.job import Claims, Completed
from batchq.lifecycle import State, Word
from batchq.redis import waiting
from batchq.redis.store import RedisStore
from tests.contract.helpers import DEADLINE_S, LEASE_MS, Q, active, enlist, put, take
from tests.servers import Server


@pytest.fixture
def store(redis_server: Server, prefix: str) -> Iterator[RedisStore]:
    handle = RedisStore(redis_server.url, prefix=prefix)
    enlist(handle)
    # As a worker does before it waits: the server knows the script from then on.
    assert take(handle) == []
    yield handle
    handle.close()


def answered(standing: waiting.RedisStandingClaim) -> Claims | None:
    """What it brings, once it has been answered."""
    assert select.select([standing], [], [], DEADLINE_S)[0]
    standing.take()
    assert not standing.stands
    return standing.claims()


def standing_for(store: RedisStore, want: int = 1) -> waiting.RedisStandingClaim:
    standing = store.standing_claim(Q)
    standing.arm_for("w1", want, LEASE_MS)
    assert standing.stands
    return standing


def test_the_hint_brings_the_claim(store: RedisStore) -> None:
    """No second call is made, and it can stand again."""
    standing = standing_for(store, want=2)
    for name in ("a", "b"):
        put(store, name)
        came = answered(standing)
        assert came is not None
        assert came.word is Word.OK
        [claim] = came.claims
        assert claim.id == name
        assert store.jobs(Q, State.ACTIVE).jobs[0].worker == "w1"
        assert standing.claims() is None
        assert store.complete(Q, "w1", [Completed(claim)]) == [Word.OK]
        standing.arm_for("w1", 2, LEASE_MS)
    standing.close()


def test_a_wait_without_a_hint_ends_with_an_empty_claim(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look of an idle worker by itself costs no call more."""
    monkeypatch.setattr(waiting, "WAIT_S", 0.05)
    standing = standing_for(store)
    assert answered(standing) == Claims(Word.OK)
    standing.close()


def test_one_that_comes_while_the_worker_holds_something_takes_nothing(store: RedisStore) -> None:
    """A late one, of a worker that has claimed in another way since."""
    claim = active(store, "a")
    standing = standing_for(store)
    put(store, "b")
    came = answered(standing)
    assert came is not None
    assert came.word is Word.HELD
    assert [(one.id, one.token) for one in came.claims] == [(claim.id, claim.token)]
    assert [job.id for job in store.jobs(Q, State.PENDING).jobs] == ["b"]
    standing.close()


@pytest.mark.parametrize("end", ["closed", "overdue"])
def test_what_nobody_heard_of_is_found_by_the_next_claim(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The server has claimed, and its answer is never read."""
    standing = standing_for(store)
    put(store, "a")
    assert select.select([standing], [], [], DEADLINE_S)[0]
    assert not store.is_unsure
    if end == "closed":
        standing.close()
    else:
        now = waiting.monotonic()
        monkeypatch.setattr(waiting, "monotonic", lambda: now + 60)
        assert not standing.stands
        standing.arm_for("w1", 1, LEASE_MS)
    assert store.is_unsure
    answer = store.claim(Q, "w1", 1, 0)
    assert answer.word is Word.HELD
    assert [claim.id for claim in answer.claims] == ["a"]
    standing.close()


def test_a_claim_that_the_server_refuses_is_made_anew_in_the_ordinary_way(
    store: RedisStore, redis_server: Server
) -> None:
    """The script is not there any more, say: nothing was claimed, and the next call ships it again."""
    standing = standing_for(store)
    redis_server.client.script_flush()
    put(store, "a")
    assert answered(standing) is None
    assert [claim.id for claim in take(store)] == ["a"]
    standing.close()


def test_a_pool_that_is_not_renewed_keeps_no_job_from_others(store: RedisStore) -> None:
    """It may be frozen: once half of its lease is over nothing is taken. One that is awake claims anew."""
    standing = store.standing_claim(Q)
    # As if more than half of this lease were over.
    standing.arm_for("w1", 1, 4 * LEASE_MS)
    put(store, "a")
    assert answered(standing) is None
    assert [job.id for job in store.jobs(Q, State.PENDING).jobs] == ["a"]
    other = store.wake_waiter([Q])
    other.arm()
    assert select.select([other], [], [], DEADLINE_S)[0]
    assert other.take()
    other.close()
    assert [claim.id for claim in take(store)] == ["a"]
    standing.close()


def test_claims_that_are_heard_of_late_are_not_begun(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process was frozen meanwhile, and their lease may be over: the server is asked whose they are."""
    standing = standing_for(store)
    put(store, "a")
    assert select.select([standing], [], [], DEADLINE_S)[0]
    now = waiting.monotonic()
    monkeypatch.setattr(waiting, "monotonic", lambda: now + LEASE_MS / 2000)
    assert answered(standing) is None
    assert store.is_unsure
    answer = store.claim(Q, "w1", 1, 0)
    assert (answer.word, [claim.id for claim in answer.claims]) == (Word.HELD, ["a"])
    standing.close()
