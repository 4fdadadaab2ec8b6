"""How many jobs a worker claims at a time, learned from what the last batches ran; and from which queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from batchq.worker.pace import MOST, RUSH, Order, Pace, Runtimes


@pytest.mark.parametrize(
    ("per_job_ms", "want"), [(0.01, MOST), (0.5, 100), (5.0, 10), (9.9, 5), (10.0, 1), (20.0, 1), (2000.0, 1)]
)
def test_batch_is_what_runs_in_fifty_milliseconds_and_one_where_jobs_are_not_short(
    per_job_ms: float, want: int
) -> None:
    """What is claimed behind a job of 20 ms would be given back before that runs: a round trip for nothing."""
    pace = Pace()
    for _ in range(12):
        pace.ran(pace.want, pace.want * per_job_ms)
    assert pace.want == want


def test_surprise_halves_the_batch_at_once_and_short_jobs_bring_it_back() -> None:
    """However small the average has become."""
    pace = Pace()
    for _ in range(12):
        pace.ran(pace.want, pace.want * 0.1)
    assert pace.want == MOST
    pace.ran(MOST, MOST * 0.2, surprise=True)
    assert pace.want == MOST // 2
    for _ in range(12):
        pace.ran(pace.want, pace.want * 0.1)
    assert pace.want == MOST


@pytest.mark.parametrize(("per_job_ms", "want"), [(0.5, 100), (9.9, 5), (12.0, 4), (20.0, 2), (25.0, 1), (2000.0, 1)])
def test_in_a_rush_jobs_that_are_not_quite_short_share_a_batch_too(per_job_ms: float, want: int) -> None:
    """Nobody is idle then who could have run what stands behind; when there was nothing to do, it is over."""
    pace = Pace()
    for _ in range(RUSH + 12):
        pace.ran(pace.want, pace.want * per_job_ms)
    assert pace.want == want
    limit = pace.short_ms
    pace.waited()
    assert pace.want == (want if per_job_ms < 10 else 1)
    assert pace.short_ms < limit
    pace.ran(pace.want, pace.want * per_job_ms)
    assert pace.want == (want if per_job_ms < 10 else 1)


def test_batch_that_did_not_come_whole_ends_a_rush() -> None:
    """There was less than was wanted, or some of it was given back."""
    pace = Pace()
    for _ in range(RUSH + 1):
        pace.ran(pace.want, pace.want * 20.0)
    assert pace.want == 2
    pace.ran(1, 20.0)
    assert pace.want == 1


def test_handler_is_short_by_its_recent_runs_and_by_the_moment() -> None:
    times = Runtimes()
    assert not times.is_short("h")
    assert not times.is_short("h", 25.0)
    times.ran("h", 15.0)
    assert not times.is_short("h")
    assert times.is_short("h", 25.0)
    times.ran("h", 400.0)
    assert not times.is_short("h", 25.0)
    for _ in range(40):
        times.ran("h", 1.0)
    assert times.is_short("h")


def drawn(order: Order, batch: Mapping[str, int], jobs: int, has: Mapping[str, bool] | None = None) -> Counter[str]:
    """What comes from each queue while so many jobs are drawn in batches of that size. `has`: who has any."""
    found: Counter[str] = Counter()
    while found.total() < jobs:
        for queue in order.next():
            got = batch[queue] if has is None or has[queue] else 0
            order.drew(queue, got)
            found[queue] += got
            if got:
                break
    return found


@pytest.mark.parametrize("batch", [{"a": 1, "b": 1, "c": 1}, {"a": 128, "b": 7, "c": 50}, {"a": 3, "b": 128, "c": 128}])
def test_jobs_are_shared_by_weight_whatever_the_batches_are(batch: Mapping[str, int]) -> None:
    """Within one batch of each, from wherever one looks."""
    weights = {"a": 5, "b": 2, "c": 1}
    order = Order(list(weights.items()))
    for jobs in (3000, 8000, 3000):
        found = drawn(order, batch, jobs)
        for queue, weight in weights.items():
            share = found.total() * weight / 8
            assert abs(found[queue] - share) <= 2 * max(batch.values()), (queue, found)


def test_jobs_that_were_given_back_are_not_counted() -> None:
    """A queue whose batches are cut short by a long job gets its share all the same."""
    order = Order([("long", 1), ("short", 1)])
    ran: Counter[str] = Counter()
    for _ in range(2000):
        queue = order.next()[0]
        order.drew(queue, 100)
        if queue == "long":
            order.drew(queue, -99)
        ran[queue] += 1 if queue == "long" else 100
    assert abs(ran["long"] - ran["short"]) <= 100


def test_queue_that_had_nothing_for_long_has_saved_up_nothing() -> None:
    """It gets its share from now on, not what it did not want before. While it is empty it is seldom asked in vain."""
    order = Order([("a", 1), ("b", 1)])
    batch = {"a": 10, "b": 10}
    assert drawn(order, batch, 5000, {"a": True, "b": False}) == {"a": 5000, "b": 0}
    found = drawn(order, batch, 200)
    assert abs(found["a"] - found["b"]) <= 20


@pytest.mark.parametrize("queues", [2, 10])
def test_empty_queues_are_asked_again_soon_and_not_always(queues: int) -> None:
    """Each at least every second round, where all have the same weight, and in no more."""
    order = Order([(f"q{n}", 1) for n in range(queues)])
    asked: Counter[str] = Counter()
    for _ in range(100):
        for queue in order.next():
            asked[queue] += 1
            order.drew(queue, 10 if queue == "q1" else 0)
            if queue == "q1":
                break
    assert asked["q1"] == 100
    assert all(49 <= asked[f"q{n}"] <= 51 for n in range(queues) if n != 1), asked


def test_strict_order_is_the_one_given() -> None:
    """Whatever was drawn."""
    order = Order([("a", 1), ("b", 9)], strict=True)
    order.drew("a", 100)
    assert order.next() == ["a", "b"]
