"""complete: active -> completed. The attempt went well."""

from __future__ import annotations

import pytest

from batchq.job import Claim, Completed, Released
from batchq.lifecycle import State, Word
from batchq.store import Store
from tests.contract.conftest import Ground
from tests.contract.helpers import (
    DRIFT_MS,
    OUTCOMES,
    Q,
    a_job,
    active,
    enlist,
    expire,
    listed,
    nonzero,
    put,
    read,
    settle,
    snapshot,
    state_of,
    take,
    totals,
)


def test_completed_job_leaves_only_its_count(store: Store) -> None:
    """The row goes, the total stays."""
    enlist(store)
    claim = active(store, "a")
    assert store.complete(Q, "w1", [Completed(claim)]) == [Word.OK]
    assert store.get(Q, "a") is None
    assert nonzero(store) == {"enqueued": 1, "completed": 1}
    assert not any(store.stats(Q).counts.values())


def test_no_outcomes_get_no_words(store: Store) -> None:
    """An empty batch is answered by an empty list."""
    enlist(store)
    assert store.complete(Q, "w1", []) == []


def test_kept_result_can_be_read_until_its_retention_is_over(store: Store, clock: Ground) -> None:
    """A kept job stands among the completed with its result; then it is gone without a trace but the total."""
    enlist(store)
    claim = active(store, "a", given=False)
    result = '{"n":[1.5,null,"ü"],"big":18446744073709551615}'.encode()
    before = store.now_ms()
    assert store.complete(Q, "w1", [Completed(claim, result, 600_000)]) == [Word.OK]
    job = read(store, "a")
    assert (job.state, job.attempts) == (State.COMPLETED, 1)
    assert job.result == {"n": [1.5, None, "ü"], "big": 18446744073709551615}
    assert before + 600_000 <= job.since_ms <= before + 600_000 + DRIFT_MS
    clock.advance(590_000)
    expire(store)
    assert read(store, "a").result is not None
    clock.advance(20_000)
    expire(store)
    assert store.get(Q, "a") is None
    assert store.stats(Q).counts["completed"] == 0
    assert nonzero(store) == {"enqueued": 1, "completed": 1}


def test_kept_job_without_a_result_reads_none(store: Store) -> None:
    """Keeping does not need a result."""
    enlist(store)
    assert settle(store, Completed(active(store, "a"), b"", 600_000)) is Word.OK
    assert read(store, "a").result is None
    assert settle(store, Completed(active(store, "b"), b"null", 600_000)) is Word.OK
    assert read(store, "b").result is None


def test_completed_are_listed_and_expire_by_the_end_of_their_retention(store: Store, clock: Ground) -> None:
    """Whoever was kept shorter goes first, whenever it was completed."""
    enlist(store)
    put(store, "a", "b", "c", "d")
    a, b, c, d = take(store, want=4)
    keeps = {a: 900_000, b: 300_000, c: 600_000, d: 0}
    assert store.complete(Q, "w1", [Completed(claim, b"1", keep) for claim, keep in keeps.items()]) == [Word.OK] * 4
    assert listed(store, State.COMPLETED) == ["b", "c", "a"]
    for left in (["c", "a"], ["a"], []):
        clock.advance(310_000)
        expire(store)
        assert listed(store, State.COMPLETED) == left


def test_cancel_mark_does_not_hinder_completion(store: Store) -> None:
    """What went well went well; the mark goes with the claim."""
    enlist(store)
    one, two = active(store, "a"), active(store, "b")
    assert store.cancel(Q, ["a", "b"]) == [Word.MARKED, Word.MARKED]
    assert settle(store, Completed(one)) is Word.OK
    assert settle(store, Completed(two, b"1", 600_000)) is Word.OK
    assert read(store, "b").cancel is False
    assert store.requeue(Q, ["b"]) == [Word.OK]
    [claim] = take(store)
    assert settle(store, Released(claim)) is Word.OK
    assert state_of(store, "b") is State.PENDING
    assert totals(store)["cancelled"] == 0


# -- the fence: all moves out of active share it ------------------------------------------------------------------


def other_worker(store: Store, clock: Ground, claim: Claim) -> tuple[str, Claim]:
    """Another worker names the claim."""
    enlist(store, "w2")
    return "w2", claim


def unregistered_worker(store: Store, clock: Ground, claim: Claim) -> tuple[str, Claim]:
    """A worker without a lease names the claim."""
    return "nobody", claim


def older_token(store: Store, clock: Ground, claim: Claim) -> tuple[str, Claim]:
    """The same worker has claimed the job again since."""
    assert settle(store, Released(claim)) is Word.OK
    take(store)
    return "w1", claim


def newer_token(store: Store, clock: Ground, claim: Claim) -> tuple[str, Claim]:
    """A token that was never minted."""
    return "w1", claim._replace(token=claim.token + 1)


def taken_over(store: Store, clock: Ground, claim: Claim) -> tuple[str, Claim]:
    """The worker was reaped, and another one runs the job."""
    enlist(store, "w2")
    store.seal(Q, "w1")
    assert settle(store, Released(claim)) is Word.OK
    take(store, "w2")
    return "w1", claim


def next_life(store: Store, clock: Ground, claim: Claim) -> tuple[str, Claim]:
    """The job was completed, its id enqueued anew, and claimed under the same number by another worker."""
    enlist(store, "w2")
    assert settle(store, Completed(claim)) is Word.OK
    assert active(store, "a", "w2").token == claim.token
    return "w1", claim


def gone(store: Store, clock: Ground, claim: Claim) -> tuple[str, Claim]:
    """The job is completed and gone."""
    assert settle(store, Completed(claim)) is Word.OK
    return "w1", claim


def delayed_again(store: Store, clock: Ground, claim: Claim) -> tuple[str, Claim]:
    """The attempt was retried: the job waits."""
    assert settle(store, OUTCOMES["retry"](claim)) is Word.OK
    return "w1", claim


def pending_again(store: Store, clock: Ground, claim: Claim) -> tuple[str, Claim]:
    """The claim was released: the job is ready."""
    assert settle(store, Released(claim)) is Word.OK
    return "w1", claim


def dead(store: Store, clock: Ground, claim: Claim) -> tuple[str, Claim]:
    """The job was buried."""
    assert settle(store, OUTCOMES["bury"](claim)) is Word.OK
    return "w1", claim


STALE = [
    other_worker,
    unregistered_worker,
    older_token,
    newer_token,
    taken_over,
    next_life,
    gone,
    delayed_again,
    pending_again,
    dead,
]


@pytest.mark.parametrize("verb", OUTCOMES)
@pytest.mark.parametrize("stale", STALE)
def test_stale_holder_changes_nothing(store: Store, clock: Ground, verb: str, stale) -> None:  # type: ignore[no-untyped-def]
    """Whoever lacks the newest claim is refused, counted, and leaves no trace; sent again, it is not counted."""
    enlist(store)
    worker, claim = stale(store, clock, active(store, "a", priority=2))
    put(store, a_job("neighbour"), a_job("later", delay_ms=60_000))
    before, fenced = snapshot(store), totals(store)["fenced"]
    outcome = OUTCOMES[verb](claim)
    assert settle(store, outcome, worker) is Word.STALE
    assert snapshot(store) == before
    assert totals(store)["fenced"] == fenced + 1
    assert settle(store, outcome, worker, again=True) is Word.SETTLED
    assert snapshot(store) == before
    assert totals(store)["fenced"] == fenced + 1


@pytest.mark.parametrize("verb", OUTCOMES)
def test_outcome_sent_again_is_settled_once(store: Store, verb: str) -> None:
    """The answer was lost, the work done: the second sending says `settled` and changes nothing."""
    enlist(store)
    outcome = OUTCOMES[verb](active(store, "a"))
    assert settle(store, outcome) is Word.OK
    before = snapshot(store)
    assert settle(store, outcome, again=True) is Word.SETTLED
    assert snapshot(store) == before
    assert totals(store)["fenced"] == 0


@pytest.mark.parametrize("verb", OUTCOMES)
def test_outcome_whose_first_sending_was_lost_is_done_by_the_second(store: Store, verb: str) -> None:
    """`again` only says that it may have been done; where it was not, it is done."""
    enlist(store)
    assert settle(store, OUTCOMES[verb](active(store, "a")), again=True) is Word.OK
    assert listed(store, State.ACTIVE) == []


@pytest.mark.parametrize("verb", OUTCOMES)
def test_claim_named_twice_in_a_batch_is_settled_once(store: Store, verb: str) -> None:
    """The first of the two ends the claim; one of them is stale."""
    enlist(store)
    outcome = OUTCOMES[verb](active(store, "a"))
    words = getattr(store, verb)(Q, "w1", [outcome, outcome])
    assert sorted(words) == [Word.OK, Word.STALE]
    assert totals(store)["fenced"] == 1


@pytest.mark.parametrize("verb", OUTCOMES)
def test_words_of_a_batch_come_in_its_order(store: Store, verb: str) -> None:
    """One refused outcome does not hinder its neighbours, and each knows its own word."""
    enlist(store)
    put(store, *(f"a{n}" for n in range(6)))
    claims = take(store, want=6)
    store.complete(Q, "w1", [Completed(claims[1]), Completed(claims[4])])
    words = getattr(store, verb)(Q, "w1", [OUTCOMES[verb](claim) for claim in claims])
    assert words == [Word.OK, Word.STALE, Word.OK, Word.OK, Word.STALE, Word.OK]
    assert listed(store, State.ACTIVE) == []
