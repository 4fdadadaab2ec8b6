"""What a retry policy does over time: its curve attempt by attempt, and a herd of jobs that failed at once. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from batchq.backoff import Called, Curve
from batchq.errors import ConfigError

#: A policy written in Python says its range only by being asked so often.
ASKED = 200
#: What counts as the same time where a server is concerned.
WINDOW_MS = 100


class Step(NamedTuple):
    """What follows when this attempt has failed: delays, and the time since the first failure, in ms."""

    attempt: int
    base_ms: int
    low_ms: int
    high_ms: int
    #: When the next attempt begins, runs themselves taking no time: without jitter, at the earliest, at the latest.
    at_ms: int
    at_low_ms: int
    at_high_ms: int


def curve(policy: Curve | Called, attempts: int) -> list[Step]:
    """A step for each failed attempt that is followed by another. Raises ConfigError for a policy that raises."""
    steps: list[Step] = []
    at = at_low = at_high = 0
    for attempt in range(1, attempts):
        base, low, high = _delays(policy, attempt)
        at, at_low, at_high = at + base, at_low + low, at_high + high
        steps.append(Step(attempt, base, low, high, at, at_low, at_high))
    return steps


def _delays(policy: Curve | Called, attempt: int) -> tuple[int, int, int]:
    if isinstance(policy, Curve):
        return policy.base_ms(attempt), *policy.range_ms(attempt)
    rng = random.Random(attempt)
    try:
        asked = sorted(policy.delay_ms(attempt, None, rng) for _ in range(ASKED))
    except Exception as error:
        raise ConfigError(
            f"backoff: this policy is a function, and it raised for attempt {attempt} without an exception at hand: "
            f"{type(error).__name__}: {error}"
        ) from error
    return asked[ASKED // 2], asked[0], asked[-1]


def plain(policy: Curve | Called) -> Curve | Called:
    """The same without jitter, where that is known."""
    if isinstance(policy, Curve):
        return Curve(policy.steps_ms, policy.cap_ms, policy.doubling)
    return Called(policy.function, policy.cap_ms)


def herd(policy: Curve | Called, jobs: int, attempts: int, seed: int = 0) -> list[int]:
    """When so many jobs that failed at the same instant come back, in ms since then, again and again until their
    attempts are spent: what a server that is down meets."""
    rng = random.Random(seed)
    times: list[int] = []
    for _ in range(jobs):
        at = 0
        for attempt in range(1, attempts):
            at += policy.delay_ms(attempt, None, rng)
            times.append(at)
    return sorted(times)


def histogram(times: Sequence[int], end_ms: int, bins: int) -> list[int]:
    """How many fall into each of so many equal parts of 0..end."""
    counts = [0] * bins
    for at in times:
        counts[min(bins - 1, at * bins // max(1, end_ms + 1))] += 1
    return counts


def peak(times: Sequence[int], window_ms: int = WINDOW_MS) -> int:
    """The most that come within any window of that length. `times` are sorted."""
    most = first = 0
    for last, at in enumerate(times):
        while at - times[first] >= window_ms:
            first += 1
        most = max(most, last - first + 1)
    return most
