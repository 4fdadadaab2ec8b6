"""10,000 deliveries that fail at one moment: their retries come back spread as the policy says."""

from __future__ import annotations

from collections import Counter

import pytest

from batchq import App
from batchq.lifecycle import State

JOBS = 10_000
#: Of the default policy: 1 s at the first retry, 2 s at the second, each a fifth more or less.
FIRST, SECOND = (800, 1200), (1600, 2400)


def fire_times(app: App) -> list[int]:
    """When each delayed job is due, from now, in ms."""
    now = app.store.now_ms()
    return [job.since_ms - now for job in app.jobs(state=State.DELAYED)]


def check_spread(times: list[int], low: int, high: int) -> None:
    """Even over the whole range: no slice of twenty holds much more than its share, and none is empty."""
    assert len(times) == JOBS
    assert low <= min(times) <= low + 4
    assert high - 4 <= max(times) <= high + 1
    slices = Counter(min(19, (at - low) * 20 // (high - low)) for at in times)
    share = JOBS / 20
    # Even numbers stray by their root: four of these are one draw in a thousand for all twenty.
    assert max(slices.values()) < share + 4 * share**0.5
    assert min(slices.values()) > share - 4 * share**0.5
    middle = sum(times) / JOBS
    assert middle == pytest.approx((low + high) / 2, rel=0.01)


def test_retries_of_a_herd_are_spread_as_the_policy_says() -> None:
    """The first retries over 0.8 to 1.2 s, the second over twice that; the greatest crowd in any 10 ms shrinks."""
    app = App("memory:")

    @app.job
    def deliver(number: int) -> None:
        raise OSError("no route")

    with app.testing() as jobs:
        deliver.enqueue_many((n,) for n in range(JOBS))
        assert len(jobs.run_pending(JOBS + 1)) == JOBS
        first = fire_times(app)
        check_spread(first, *FIRST)
        # All are due at one moment again: the worst that can be.
        jobs.advance(1.3)
        jobs.run_pending(JOBS + 1)
        check_spread(fire_times(app), *SECOND)
        crowd = max(Counter(at // 10 for at in first).values())
        assert crowd < JOBS * 10 / (FIRST[1] - FIRST[0]) * 1.5
