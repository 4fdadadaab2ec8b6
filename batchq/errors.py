"""Every error that batchq raises, and what handlers raise to steer their own job.

Messages have four parts: which job or setting, what was expected, what was found, what to do.
Branch on class and attributes, never on text.
"""

from __future__ import annotations

from datetime import timedelta


class BatchqError(Exception):
    """The root of all errors of this package."""


class ConfigError(BatchqError):
    """A setting or an argument of yours is wrong. Raised before anything was changed."""


class AppError(BatchqError):
    """The app could not be loaded: your module raised, or does not hold an App under that name."""


class UnknownHandler(BatchqError):
    """A job names a handler that this app does not have: the code that enqueued is newer or older than this one."""


class QueueFull(BatchqError):
    """Nothing more can be enqueued until something is worked off."""

    #: Of an enqueue whose earlier sending may have been done: see StoreUnavailable.
    mark: tuple[str, int] | None = None


class StoreError(BatchqError):
    """The store could not do what was asked. Nothing half-done is left behind."""


class StoreUnavailable(StoreError):
    """The store can't be reached: nobody's fault in this process. What was not acknowledged may be sent again."""

    #: The call may have been done all the same: its answer was lost.
    maybe: bool = False
    #: Of an enqueue with `maybe`: its (lane, number). A copy that carries it is not done twice.
    mark: tuple[str, int] | None = None


class StoreDenied(StoreUnavailable):
    """The store is there and refuses this user: a wrong password, or a right that is missing. The message names it."""


class StoreFull(StoreError, QueueFull):
    """The store has no room (memory limit, disk). Claims and settling go on, enqueue is refused."""


class SpoolError(StoreError):
    """The spool of this host can't be used as a fallback: its disk, its owner, or what lies there. Redis is not at
    fault."""


class StoreCorrupt(StoreError):
    """The store's data is not what batchq wrote. A person must look."""


class StoreVersion(StoreError):
    """The store is older or newer than this code can work with."""


class InternalError(BatchqError):
    """A bug of batchq. Please report it with the message."""


def milliseconds(duration: float | timedelta, name: str = "delay") -> int:
    """A duration of the public API (seconds or timedelta) in whole milliseconds, rounded up; a negative one is 0.

    Raises ConfigError for NaN, infinities, and what is no number.
    """
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ConfigError(f"{name}: expected seconds (a number) or a timedelta, found {type(duration).__name__}")
    if seconds != seconds or seconds in (float("inf"), float("-inf")):
        raise ConfigError(f"{name}: expected a finite number of seconds, found {seconds}; leave it out for none")
    if seconds <= 0:
        return 0
    # Integers stay integers: a huge one must reach the range check as it is, not as an overflow.
    if isinstance(seconds, int):
        return seconds * 1000
    return int(-(-round(seconds * 1_000_000) // 1000)) if seconds < 1e12 else int(seconds) * 1000


class Steer(BatchqError):
    """What a handler raises to say how its attempt ends. Not an error of the job."""


class Retry(Steer):
    """Raised by a handler: this attempt failed; run again after `after` seconds (clamped by the backoff's cap).

    Without `after` the handler's own backoff decides. It spends an attempt like any failure.
    """

    def __init__(self, message: str = "", *, after: float | timedelta | None = None) -> None:
        super().__init__(message or "retry asked for by the handler")
        self.after_ms: int | None = None if after is None else milliseconds(after, "Retry(after=)")


class Snooze(Steer):
    """Raised by a handler: not now, run again in `after` seconds (at least 0.1). No attempt is spent."""

    def __init__(self, after: float | timedelta, message: str = "") -> None:
        super().__init__(message or "snoozed by the handler")
        self.after_ms: int = milliseconds(after, "Snooze(after)")


class Dead(Steer):
    """Raised by a handler: no retry can mend this; to the morgue at once with this reason."""

    def __init__(self, reason: str = "given up by the handler") -> None:
        super().__init__(reason)


class JobTimeout(BatchqError):
    """Met inside a handler that ran past its time limit. The attempt counts as timed out whatever is returned."""


class JobCancelled(BatchqError):
    """Met inside a handler whose job was cancelled while it ran."""
