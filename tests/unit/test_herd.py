"""The retry curve over time, and a herd of jobs under it: against the formula, with and without jitter."""

from __future__ import annotations

import pytest

from batchq.backoff import as_backoff, exponential, fixed, full_jitter
from batchq.errors import ConfigError
from batchq.herd import curve, herd, histogram, peak, plain


def test_the_curve_is_the_formula() -> None:
    """Delays double up to the cap, the range is the jitter's, times add up."""
    steps = curve(exponential(1.0, cap=5, jitter=0.2), 6)
    assert [step.base_ms for step in steps] == [1000, 2000, 4000, 5000, 5000]
    assert [(step.low_ms, step.high_ms) for step in steps[:3]] == [(800, 1200), (1600, 2400), (3200, 4800)]
    assert [step.at_ms for step in steps] == [1000, 3000, 7000, 12000, 17000]
    assert steps[-1].at_low_ms == sum(step.low_ms for step in steps)
    assert steps[-1].at_high_ms == sum(step.high_ms for step in steps)


def test_one_attempt_has_no_retry() -> None:
    """The last attempt is followed by none."""
    assert curve(fixed(1), 1) == []
    assert herd(fixed(1), 10, 1) == []


def test_a_function_is_asked() -> None:
    """A policy in Python shows what it answers; one that needs the exception says so."""
    assert [step.base_ms for step in curve(as_backoff(lambda n, error: n * 2.5), 4)] == [2500, 5000, 7500]
    step = curve(full_jitter(lambda n, error: 10), 2)[0]
    assert 0 <= step.low_ms < 2000 < 8000 < step.high_ms <= 10_000
    with pytest.raises(ConfigError, match=r"attempt 1 .*AttributeError"):
        curve(as_backoff(lambda n, error: error.after), 3)  # type: ignore[union-attr]


def test_a_herd_is_spread_by_jitter() -> None:
    """Without jitter all come at once, with it they do not; nobody is lost, and a seed repeats it."""
    policy = full_jitter(fixed(10))
    together, spread = herd(plain(policy), 1000, 3), herd(policy, 1000, 3)
    assert len(together) == len(spread) == 2000
    assert set(together) == {10_000, 20_000}
    assert peak(together) == 1000
    assert peak(spread) < 50
    assert spread == herd(policy, 1000, 3) != herd(policy, 1000, 3, seed=1)


def test_histogram_and_peak() -> None:
    """Each time falls into one part; the peak is of any window, not of a grid."""
    assert histogram([0, 1, 50, 99, 100], 100, 2) == [3, 2]
    assert histogram([], 0, 3) == [0, 0, 0]
    assert peak([0, 95, 105, 150, 400], 100) == 3
    assert peak([]) == 0
