"""How many jobs a worker claims at a time: learned from what the last batches ran."""

from __future__ import annotations

import pytest

from batchq.worker.pace import MOST, Pace


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
