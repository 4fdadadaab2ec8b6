"""exchange: settles a batch and claims the next one in one round trip."""

from __future__ import annotations

from batchq.job import Buried, Claims, Completed, Exchange, Outcome, Released, Snoozed
from batchq.lifecycle import State, Word
from batchq.store import Store
from tests.contract.helpers import (
    OUTCOMES,
    Q,
    an_error,
    enlist,
    listed,
    nonzero,
    put,
    retried,
    snapshot,
    state_of,
    take,
    totals,
)


def test_settles_and_claims_in_one_call(store: Store) -> None:
    """`held` counts after the settling; the new claims are those behind."""
    enlist(store)
    put(store, "a", "b", "c", "d")
    claims = take(store, want=2)
    answer = store.exchange(Q, "w1", [Completed(claim) for claim in claims], 5, 0)
    assert answer.words == (Word.OK, Word.OK)
    assert answer.claimed.word is Word.OK
    assert [(claim.id, claim.token) for claim in answer.claimed.claims] == [("c", 1), ("d", 1)]
    assert listed(store, State.ACTIVE) == ["c", "d"]


def test_outcomes_of_all_kinds_settle_in_one_call(store: Store) -> None:
    """A batch of mixed ends is the usual one; words come in its order."""
    enlist(store)
    put(store, "ok", "failed", "spent", "bad", "later", "back", "marked", "gone", "ok2", "behind")
    claims = {claim.id: claim for claim in take(store, want=9)}
    store.cancel(Q, ["marked"])
    store.complete(Q, "w1", [Completed(claims["gone"])])
    outcomes: list[Outcome] = [
        Completed(claims["ok"]),
        retried(claims["failed"], 60_000),
        retried(claims["spent"], max_attempts=1),
        Buried(claims["bad"], "buried", an_error()),
        Snoozed(claims["later"], 50_000),
        Released(claims["back"]),
        Released(claims["marked"]),
        Completed(claims["gone"]),
        Completed(claims["ok2"]),
    ]
    answer = store.exchange(Q, "w1", outcomes, 0, 0)
    ok, stale = Word.OK, Word.STALE
    assert answer.words == (ok, ok, Word.DEAD, ok, ok, ok, Word.CANCELLED, stale, ok)
    assert answer.claimed == Claims(Word.OK)
    assert listed(store, State.PENDING) == ["back", "behind"]
    assert listed(store, State.DELAYED) == ["later", "failed"]
    assert sorted(listed(store, State.DEAD)) == ["bad", "spent"]
    assert nonzero(store) == {
        "enqueued": 10,
        "completed": 3,
        "retried": 1,
        "dead": 2,
        "snoozed": 1,
        "released": 1,
        "cancelled": 1,
        "fenced": 1,
    }


def test_released_jobs_can_be_claimed_by_the_same_call(store: Store) -> None:
    """The settling is done before the claim, the batch keeps its order."""
    enlist(store)
    put(store, "a", "b", "c")
    a, b = take(store, want=2)
    answer = store.exchange(Q, "w1", [Released(a), Released(b)], 3, 0)
    assert [(claim.id, claim.token) for claim in answer.claimed.claims] == [("a", 2), ("b", 2), ("c", 1)]


def test_nothing_wanted_claims_nothing(store: Store) -> None:
    """want = 0 settles only, and asks neither lease nor count."""
    enlist(store)
    put(store, "a", "b")
    [claim] = take(store)
    assert store.exchange(Q, "w1", [Completed(claim)], 0, 7) == Exchange((Word.OK,), Claims(Word.OK))
    assert state_of(store, "b") is State.PENDING


def test_nothing_to_settle_only_claims(store: Store) -> None:
    """An idle worker's exchange is a claim."""
    enlist(store)
    put(store, "a")
    answer = store.exchange(Q, "w1", [], 5, 0)
    assert answer.words == ()
    assert [claim.id for claim in answer.claimed.claims] == ["a"]


def test_settles_where_nothing_can_be_claimed(store: Store) -> None:
    """A pause or a seal stops the claim, not the settling."""
    enlist(store)
    put(store, "a", "b", "c")
    one, two = take(store, want=2)
    store.pause(Q)
    assert store.exchange(Q, "w1", [Completed(one)], 5, 1) == Exchange((Word.OK,), Claims(Word.PAUSED))
    store.resume(Q)
    store.seal(Q, "w1")
    assert store.exchange(Q, "w1", [Completed(two)], 5, 0) == Exchange((Word.OK,), Claims(Word.SEALED))
    assert listed(store, State.PENDING) == ["c"]


def test_unregistered_worker_is_told_so(store: Store) -> None:
    """Its outcomes are stale, its claim unknown."""
    enlist(store)
    put(store, "a", "b")
    [claim] = take(store)
    answer = store.exchange(Q, "nobody", [Completed(claim)], 5, 0)
    assert answer == Exchange((Word.STALE,), Claims(Word.UNKNOWN))


def test_difference_in_held_settles_and_lists(store: Store) -> None:
    """The outcomes are done; then both sides compare what is left."""
    enlist(store)
    put(store, "a", "b", "c", "d")
    claims = take(store, want=3)
    answer = store.exchange(Q, "w1", [Completed(claims[0])], 5, 0)
    assert answer.words == (Word.OK,)
    assert answer.claimed.word is Word.HELD
    assert {(claim.id, claim.token) for claim in answer.claimed.claims} == {("b", 1), ("c", 1)}
    assert state_of(store, "d") is State.PENDING


def test_exchange_sent_again_settles_nothing_twice(store: Store) -> None:
    """After a lost answer: `settled`, nothing counted, and the claims of the first sending are listed by `held`."""
    enlist(store)
    put(store, "a", "b", "c", "d", "e", "f", "g")
    outcomes = [make(claim) for make, claim in zip(OUTCOMES.values(), take(store, want=5), strict=True)]
    first = store.exchange(Q, "w1", outcomes, 1, 0)
    assert first.words == (Word.OK,) * 5
    before = snapshot(store)
    second = store.exchange(Q, "w1", outcomes, 1, 0, again=True)
    assert second.words == (Word.SETTLED,) * 5
    assert second.claimed.word is Word.HELD
    assert [claim[1:3] for claim in second.claimed.claims] == [claim[1:3] for claim in first.claimed.claims]
    assert snapshot(store) == before
    assert totals(store)["fenced"] == 0


def test_large_exchange_is_one_call_for_the_caller(store: Store) -> None:
    """More outcomes than one step carries, of three kinds, and more claims than one step answers."""
    enlist(store)
    ids = [f"a{n}" for n in range(1200)]
    for start in range(0, 1200, 480):
        put(store, *ids[start : start + 480])
    claims = take(store, want=480)
    claims += store.claim(Q, "w1", 480, len(claims)).claims
    done = claims[:700]
    kinds = [OUTCOMES[name] for name in ("complete", "retry", "release")]
    outcomes = [kinds[n % 3](claim) for n, claim in enumerate(done)]
    answer = store.exchange(Q, "w1", outcomes, 10, len(claims) - 700)
    assert answer.words == (Word.OK,) * 700
    assert [claim.id for claim in answer.claimed.claims] == [claim.id for claim in done[2::3]][:10]
    assert [claim.id for claim in answer.claimed.claims] == ids[2:30:3]
