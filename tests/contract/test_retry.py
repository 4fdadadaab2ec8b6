"""retry: active -> delayed by its backoff; -> dead when the budget is spent."""

from __future__ import annotations

import pytest

from batchq.clock import MAX_FIRE_MS
from batchq.job import ERRORS_KEPT, Released, Retried, Snoozed
from batchq.lifecycle import State, Word
from batchq.store import Store
from tests.contract.conftest import Ground
from tests.contract.helpers import (
    Q,
    a_job,
    active,
    an_error,
    enlist,
    listed,
    nonzero,
    put,
    read,
    retried,
    settle,
    take,
    totals,
)


def again(store: Store, clock: Ground, id: str = "a") -> object:
    """The next claim of a job whose delay is over."""
    clock.advance(20_000)
    claims = {claim.id: claim for claim in take(store, want=10)}
    return claims[id]


def test_failed_attempt_is_delayed_by_what_the_caller_computed(store: Store) -> None:
    """Fire-time: the store's now plus the delay, never less."""
    enlist(store)
    claim = active(store, "a")
    before = store.now_ms()
    assert store.retry(Q, "w1", [retried(claim, 45_678)]) == [Word.OK]
    job = read(store, "a")
    assert (job.state, job.attempts, job.worker) == (State.DELAYED, 1, "")
    assert before + 45_678 <= job.since_ms <= store.now_ms() + 45_679
    assert nonzero(store) == {"enqueued": 1, "retried": 1}


def test_retry_is_nothing_but_a_delayed_job(store: Store, clock: Ground) -> None:
    """Retries and first-time schedules stand in one order and are promoted alike."""
    enlist(store)
    claim = active(store, "retry", priority=0)
    put(store, a_job("sooner", delay_ms=30_000), a_job("later", delay_ms=50_000))
    store.retry(Q, "w1", [retried(claim, 40_000)])
    assert listed(store, State.DELAYED) == ["sooner", "retry", "later"]
    clock.advance(60_000)
    store.promote(Q)
    assert listed(store, State.PENDING) == ["sooner", "retry", "later"]


def test_retry_keeps_its_priority(store: Store, clock: Ground) -> None:
    """A retried job goes back to its priority's place."""
    enlist(store)
    claim = active(store, "a", priority=5)
    store.retry(Q, "w1", [retried(claim)])
    put(store, a_job("five", priority=5), a_job("plain"))
    clock.advance(20_000)
    store.promote(Q)
    assert listed(store, State.PENDING) == ["five", "a", "plain"]
    assert read(store, "a").priority == 5


def test_delay_of_zero_is_due_at_once(store: Store, clock: Ground) -> None:
    """No delay means the next sweep."""
    enlist(store)
    claim = active(store, "a")
    assert store.retry(Q, "w1", [retried(claim, 0)]) == [Word.OK]
    clock.advance(5)
    store.promote(Q)
    assert listed(store, State.PENDING) == ["a"]


def test_delay_past_the_end_of_time_ends_there(store: Store) -> None:
    """An outcome is never refused for its delay."""
    enlist(store)
    claim = active(store, "a")
    assert store.retry(Q, "w1", [retried(claim, 10**15)]) == [Word.OK]
    assert read(store, "a").since_ms == MAX_FIRE_MS
    put(store, a_job("b", delay_ms=60_000))
    assert listed(store, State.DELAYED) == ["b", "a"]


def test_batch_of_one_delay_keeps_its_order(store: Store, clock: Ground) -> None:
    """A herd that failed together comes back in the order in which it was settled."""
    enlist(store)
    put(store, *(f"{chr(122 - n)}" for n in range(20)))
    claims = take(store, want=20)
    store.retry(Q, "w1", [retried(claim) for claim in claims])
    clock.advance(20_000)
    assert [claim.id for claim in take(store, want=20)] == [claim.id for claim in claims]


# -- budgets -------------------------------------------------------------------------------------------------------


def test_job_is_dead_when_its_attempts_are_spent(store: Store, clock: Ground) -> None:
    """max_attempts = 3: two retries, then the morgue, with the reason and all errors."""
    enlist(store)
    claim = active(store, "a")
    for n in (1, 2):
        assert settle(store, retried(claim, max_attempts=3, error=an_error(f"e{n}", attempt=n))) is Word.OK
        claim = again(store, clock)  # type: ignore[assignment]
    before = store.now_ms()
    assert settle(store, retried(claim, max_attempts=3, error=an_error("e3", attempt=3))) is Word.DEAD
    job = read(store, "a")
    assert (job.state, job.reason, job.attempts, job.attempt) == (State.DEAD, "max_attempts", 3, 3)
    assert before <= job.since_ms <= store.now_ms()
    assert [(error["error"], error["attempt"]) for error in job.errors] == [("e3", 3), ("e2", 2), ("e1", 1)]
    assert nonzero(store) == {"enqueued": 1, "retried": 2, "promoted": 2, "dead": 1}


@pytest.mark.parametrize(
    ("cause", "reason"), [("failed", "max_attempts"), ("crashed", "crashed"), ("timed_out", "timed_out")]
)
def test_reason_of_the_dead_is_the_cause_of_the_last_attempt(store: Store, cause: str, reason: str) -> None:
    """What spent the last attempt is what the morgue names."""
    enlist(store)
    claim = active(store, "a")
    assert settle(store, retried(claim, max_attempts=1, cause=cause, max_crashes=3)) is Word.DEAD
    assert read(store, "a").reason == reason
    assert totals(store)["dead"] == 1
    assert totals(store)["retried"] == 0


def test_job_that_crashes_its_workers_is_poison(store: Store, clock: Ground) -> None:
    """max_crashes ends it before its attempts do."""
    enlist(store)
    claim = active(store, "a")
    for n in (1, 2):
        assert settle(store, retried(claim, cause="crashed", max_crashes=3, max_attempts=10)) is Word.OK
        claim = again(store, clock)  # type: ignore[assignment]
        assert (claim.crashes, claim.attempt) == (n, n + 1)
    assert settle(store, retried(claim, cause="crashed", max_crashes=3, max_attempts=10)) is Word.DEAD
    job = read(store, "a")
    assert (job.reason, job.crashes) == ("poison", 3)
    assert totals(store)["crashed"] == 3


def test_failures_and_timeouts_are_no_crashes(store: Store, clock: Ground) -> None:
    """Only a worker's death counts against max_crashes; each cause has its own total."""
    enlist(store)
    claim = active(store, "a")
    for cause in ("failed", "timed_out", "failed", "timed_out", "crashed"):
        assert settle(store, retried(claim, cause=cause, max_crashes=2, max_attempts=10)) is Word.OK
        claim = again(store, clock)  # type: ignore[assignment]
    assert claim.crashes == 1
    assert {name: totals(store)[name] for name in ("timed_out", "crashed", "retried")} == {
        "timed_out": 2,
        "crashed": 1,
        "retried": 5,
    }


def test_forgiven_claims_spend_no_attempt(store: Store, clock: Ground) -> None:
    """The budget counts tries, not claims: what was released or snoozed does not count."""
    enlist(store)
    claim = active(store, "a")
    settle(store, Released(claim))
    [claim] = take(store)
    settle(store, Snoozed(claim, 10_000))
    claim = again(store, clock)  # type: ignore[assignment]
    assert (claim.token, claim.forgiven, claim.attempt) == (3, 2, 1)
    assert settle(store, retried(claim, max_attempts=2)) is Word.OK
    claim = again(store, clock)  # type: ignore[assignment]
    assert (claim.token, claim.attempt) == (4, 2)
    assert settle(store, retried(claim, max_attempts=2)) is Word.DEAD
    assert read(store, "a").attempt == 2


@pytest.mark.parametrize("cause", ["crashed", "timed_out"])
def test_marked_job_counts_as_cancelled_only(store: Store, cause: str) -> None:
    """A crash or a timeout of a cancelled run is not held against the queue."""
    enlist(store)
    claim = active(store, "a")
    store.cancel(Q, ["a"])
    assert settle(store, retried(claim, cause=cause)) is Word.CANCELLED
    assert nonzero(store) == {"enqueued": 1, "cancelled": 1}


def test_batch_is_judged_job_by_job(store: Store) -> None:
    """Delayed, dead, cancelled and stale in one call, each with its own delay and budget."""
    enlist(store)
    put(store, "delayed", "spent", "marked", "gone", "poison")
    delayed, spent, marked, gone, poison = take(store, want=5)
    store.cancel(Q, ["marked"])
    settle(store, Released(gone))
    words = store.retry(
        Q,
        "w1",
        [
            retried(delayed, 30_000),
            retried(spent, max_attempts=1),
            retried(marked, max_attempts=1),
            retried(gone),
            retried(poison, cause="crashed", max_crashes=1),
        ],
    )
    assert words == [Word.OK, Word.DEAD, Word.CANCELLED, Word.STALE, Word.DEAD]
    assert listed(store, State.DELAYED) == ["delayed"]
    assert sorted(listed(store, State.DEAD)) == ["poison", "spent"]
    assert store.get(Q, "marked") is None
    assert [totals(store)[name] for name in ("retried", "dead", "cancelled", "fenced")] == [1, 2, 1, 1]


# -- errors --------------------------------------------------------------------------------------------------------


def test_errors_are_kept_newest_first_and_bounded(store: Store, clock: Ground) -> None:
    """The last few errors tell the story; a job that fails for ever does not grow for ever."""
    enlist(store)
    claim = active(store, "a")
    for n in range(1, ERRORS_KEPT + 4):
        assert settle(store, retried(claim, max_attempts=99, error=an_error(f"e{n}", attempt=n))) is Word.OK
        kept = [error["attempt"] for error in read(store, "a").errors]
        assert kept == list(range(n, max(0, n - ERRORS_KEPT), -1))
        claim = again(store, clock)  # type: ignore[assignment]


@pytest.mark.parametrize(
    "text", ["", "ü€\U0001f40d", "a\nb\r\nc\x00d\x1f", '"quoted" \\back', "%s %d {} %%", "x" * 9000]
)
def test_error_text_passes_unchanged(store: Store, clock: Ground, text: str) -> None:
    """An error is opaque to the store, over a second one in front of it as well."""
    enlist(store)
    claim = active(store, "a")
    assert settle(store, retried(claim, error=an_error(text))) is Word.OK
    assert settle(store, retried(again(store, clock), error=an_error("second"))) is Word.OK  # type: ignore[arg-type]
    [newest, oldest] = read(store, "a").errors
    assert newest["error"] == "second"
    assert oldest["error"] == text[:4096]


def test_retry_without_an_error_adds_no_entry(store: Store) -> None:
    """No error bytes, no entry."""
    enlist(store)
    assert settle(store, Retried(active(store, "a"), 10_000, 5, b"")) is Word.OK
    assert read(store, "a").errors == ()


def test_retry_pushes_the_next_due_job_of_a_busy_queue(store: Store, clock: Ground) -> None:
    """Whether a retry sweeps on its way or not, a due job is pending after the next promote."""
    enlist(store)
    claim = active(store, "a")
    put(store, a_job("due", delay_ms=10_000))
    clock.advance(20_000)
    assert settle(store, retried(claim, 60_000)) is Word.OK
    store.promote(Q)
    assert listed(store, State.PENDING) == ["due"]
    assert totals(store)["promoted"] == 1
