"""The only module that reads the time. Everything stored is whole milliseconds since the epoch."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of both times: the wall clock for what is stored, the monotonic one for waits."""

    def now_us(self) -> int: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The clocks of this machine."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands until it is advanced: for tests."""

    def __init__(self, now_ms: int = 1_767_225_600_000) -> None:
        self._us = now_ms * 1000
        self._mono = 1000.0

    def now_us(self) -> int:
        return self._us

    def monotonic(self) -> float:
        return self._mono

    def advance(self, ms: float) -> None:
        """Moves both clocks on by so many milliseconds."""
        self.jump(ms)
        self._mono += ms / 1000

    def jump(self, ms: float) -> None:
        """Sets the wall clock on, or back: the other one goes on as if nothing had been."""
        self._us += int(ms * 1000)


#: The latest fire-time in ms: a score is fire_ms * 4096 + seq, and a double is exact to 2^53. 7 September 2039.
MAX_FIRE_MS = 2**41 - 1

SYSTEM = SystemClock()

#: The monotonic clock in whole nanoseconds; all processes of a host share it. The hot path calls it twice a job.
monotonic_ns = time.monotonic_ns
#: The same in seconds.
monotonic = time.monotonic


def wall_ms(then_ns: int) -> int:
    """What the wall clock showed, as it goes now, at that instant of the monotonic clock."""
    return (time.time_ns() - time.monotonic_ns() + then_ns) // 1_000_000


def due_ms(now_us: int) -> int:
    """The latest fire-time that is due at this instant: rounded down, so that nothing runs early."""
    return now_us // 1000


def fire_ms(now_us: int, delay_ms: int) -> int:
    """The fire-time of a delay that begins at this instant: rounded up, so that nothing runs early."""
    return -(-now_us // 1000) + delay_ms
