"""When a failed attempt runs again. Pure arithmetic: it gives a `delay_ms`, to which the store adds its own clock.

The curve is clamped by `cap` before the jitter. Two jitters are in the field's use:

- proportional, fraction j of (0, 1] (BullMQ's): lo = trunc(d * (1 - j)); lo + uniform integer in 0..trunc(d * j * 2)
- full (AWS Architecture Blog, "Exponential Backoff And Jitter"): uniform integer in 0..d
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

from batchq.errors import ConfigError, milliseconds

Duration = float | timedelta

#: The cap where none is given: one hour.
DEFAULT_CAP_MS = 3_600_000


class Backoff(Protocol):
    """A policy. `attempt` is the number of the attempt that failed, from 1."""

    @property
    def cap_ms(self) -> int: ...

    def delay_ms(self, attempt: int, error: BaseException | None = None, rng: random.Random | None = None) -> int:
        """The delay before the next attempt, in whole milliseconds, never negative."""
        ...


_shared = random.Random()


def reseed() -> None:
    """Draws the shared random state anew. A forked child calls it, or all children would jitter alike."""
    _shared.seed()


@dataclass(frozen=True, slots=True)
class Curve:
    """A declarative policy: delays known beforehand, a cap, a jitter."""

    #: Delays by attempt; the last one goes on. Doubled from there on where `doubling`.
    steps_ms: tuple[int, ...]
    cap_ms: int = DEFAULT_CAP_MS
    doubling: bool = False
    #: 0 for none.
    jitter: float = 0.0
    full: bool = False

    def base_ms(self, attempt: int) -> int:
        """The clamped delay without jitter."""
        n = max(1, attempt)
        if not self.doubling:
            return min(self.steps_ms[min(n, len(self.steps_ms)) - 1], self.cap_ms)
        # 2^(n-1) for n = 10^6 is a number of 300,000 digits: past 64 doublings only the cap is left.
        return min(self.steps_ms[0] << min(n - 1, 64), self.cap_ms)

    def range_ms(self, attempt: int) -> tuple[int, int]:
        """The least and the greatest delay under the jitter, both ends included."""
        d = self.base_ms(attempt)
        if self.full:
            return 0, d
        if self.jitter == 0.0:
            return d, d
        low = math.trunc(d * (1 - self.jitter))
        return low, low + math.trunc(d * self.jitter * 2)

    def delay_ms(self, attempt: int, error: BaseException | None = None, rng: random.Random | None = None) -> int:
        low, high = self.range_ms(attempt)
        return low if low == high else (rng or _shared).randint(low, high)


@dataclass(frozen=True, slots=True)
class Called:
    """A policy written in Python: (attempt, exception) -> seconds. Runs in the worker only."""

    function: Callable[[int, BaseException | None], Duration]
    cap_ms: int = DEFAULT_CAP_MS
    full: bool = False

    def delay_ms(self, attempt: int, error: BaseException | None = None, rng: random.Random | None = None) -> int:
        delay = min(milliseconds(self.function(attempt, error), "backoff"), self.cap_ms)
        return (rng or _shared).randint(0, delay) if self.full else delay


BackoffLike = Backoff | Sequence[Duration] | Callable[[int, BaseException | None], Duration]


def _checked(value: Duration, name: str) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds) or seconds < 0:
        raise ConfigError(f"backoff: {name} must be a finite number of seconds >= 0, found {value!r}")
    return milliseconds(value, f"backoff {name}")


def _jitter(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"backoff: jitter must be a fraction from 0 to 1, found {value!r}; 0.2 means 20 % either way")
    return float(value)


def fixed(base: Duration, *, cap: Duration | None = None, jitter: float = 0.0) -> Curve:
    """The same delay each time, in seconds. Raises ConfigError for a negative or non-finite one."""
    return Curve(
        (_checked(base, "base"),), DEFAULT_CAP_MS if cap is None else _checked(cap, "cap"), jitter=_jitter(jitter)
    )


def exponential(base: Duration = 1.0, *, cap: Duration = 3600, jitter: float = 0.2) -> Curve:
    """base * 2^(n-1) seconds after the n-th attempt failed, clamped by `cap`, then jittered.

    Raises ConfigError for a jitter outside [0, 1] and for a negative or non-finite base or cap.
    """
    return Curve((_checked(base, "base"),), _checked(cap, "cap"), doubling=True, jitter=_jitter(jitter))


def full_jitter(inner: BackoffLike) -> Curve | Called:
    """A uniform delay between 0 and what the inner policy says: spreads a herd the widest."""
    policy = as_backoff(inner)
    if isinstance(policy, Curve):
        return replace(policy, full=True, jitter=0.0)
    return replace(policy, full=True)


def as_backoff(policy: BackoffLike) -> Curve | Called:
    """Takes what a user may write for `backoff=`: a policy, a list of seconds, or (attempt, error) -> seconds."""
    if isinstance(policy, Curve | Called):
        return policy
    if isinstance(policy, Sequence) and not isinstance(policy, str | bytes):
        if not policy:
            raise ConfigError("backoff: an empty list has no delay; write [1, 5, 30] or leave it out")
        steps = tuple(_checked(delay, f"delay {i}") for i, delay in enumerate(policy, 1))
        return Curve(steps, max(DEFAULT_CAP_MS, *steps))
    if callable(policy):
        return Called(policy)
    raise ConfigError(f"backoff: expected a policy, a list of seconds or a function, found {type(policy).__name__}")


DEFAULT = exponential()
