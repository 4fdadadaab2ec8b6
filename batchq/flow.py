"""Limits and breakers as users write them, and the gates that a claim has to pass because of them. No I/O.

@app.job(rate="100/s", limit=5, key=lambda url, **_: host(url), breaker=Breaker())
app.limit_queue("webhooks", limit=200)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from batchq.errors import ConfigError
from batchq.gates import Gate, gate_name, in_short_windows
from batchq.kinds import MAX_COUNT, duration_ms

_RATE = re.compile(r"(\d{1,9})/(?:(\d{1,9}(?:\.\d{1,3})?)?(ms|s|m|h|d))")


def parse_rate(text: object) -> tuple[int, int]:
    """(how many, in how many ms) of "100/s", "10/5s", "1000/m". Raises ValueError."""
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError("no rate")
    count, period = int(match[1]), duration_ms(f"{match[2] or '1'}{match[3]}")
    if count < 1 or period < 1:
        raise ValueError("no rate")
    return count, period


@cache
def _windows(rate: str) -> tuple[int, int]:
    """A rate as its gate counts it. There are few, and each job of their handlers asks."""
    return in_short_windows(*parse_rate(rate))


@dataclass(frozen=True, slots=True)
class Breaker:
    """A circuit breaker: opened by so many failures in a row, for so many seconds; then one job probes.

    While it is open its jobs wait, and none of them spends an attempt. Raises ConfigError.
    """

    failures: int = 5
    reset: float = 30.0

    def __post_init__(self) -> None:
        _check_count(self.failures, "breaker: failures")
        if not isinstance(self.reset, int | float) or isinstance(self.reset, bool) or not 0 < self.reset <= 86_400:
            raise ConfigError(f"breaker: reset: expected seconds up to a day, found {self.reset!r:.100}")


@dataclass(frozen=True, slots=True)
class Limit:
    """How many jobs may be begun in a time, and run at once, over all workers and hosts: of a handler, or of each key.

    `rate`: "100/s", "10/5s", "1000/m". `limit`: at once. `key`: called with the job's arguments, answers a string (or
    what str() makes one of); without it all jobs of the handler are counted together. `breaker`: see Breaker.
    `per_worker`: counted in each worker by itself. Raises ConfigError.
    """

    rate: str | None = None
    limit: int | None = None
    key: Callable[..., Any] | None = None
    breaker: Breaker | None = None
    per_worker: bool = False

    def __post_init__(self) -> None:
        if self.limit is not None:
            _check_count(self.limit, "limit")
        if self.rate is not None:
            try:
                parse_rate(self.rate)
            except ValueError:
                raise ConfigError(f"rate: {self.rate!r:.100} is no rate; write 100/s, 10/5s or 1000/m") from None
        if self.key is not None and not callable(self.key):
            raise ConfigError(f"key: expected a function of the job's arguments, found {self.key!r:.100}")
        if self.breaker is not None and not isinstance(self.breaker, Breaker):
            raise ConfigError(f"breaker: expected Breaker(...), found {self.breaker!r:.100}")
        if self.rate is None and self.limit is None and self.breaker is None:
            raise ConfigError("limits: expected a rate, a limit or a breaker; give one of them")

    def gate(self, name: str) -> Gate:
        count, period_ms = _windows(self.rate) if self.rate else (0, 0)
        threshold, reset_ms = (self.breaker.failures, int(self.breaker.reset * 1000)) if self.breaker else (0, 0)
        return Gate(gate_name(name), self.limit or 0, count, period_ms, threshold, reset_ms)


def _check_count(value: object, name: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_COUNT:
        raise ConfigError(f"{name}: expected a whole number from 1 to {MAX_COUNT}, found {value!r:.100}")


def make_limits(
    limits: Sequence[Limit],
    rate: str | None,
    limit: int | None,
    key: Callable[..., Any] | None,
    breaker: Breaker | None,
    concurrency: int | None,
) -> tuple[Limit, ...]:
    """All limits of a handler. Raises ConfigError."""
    made = list(limits)
    if not all(isinstance(one, Limit) for one in made):
        raise ConfigError(f"limits: expected a list of Limit(...), found {limits!r:.100}")
    if rate is not None or limit is not None or breaker is not None:
        made.append(Limit(rate, limit, key, breaker))
    elif key is not None:
        raise ConfigError("key: it names what a rate, a limit or a breaker is for; give one of them")
    if concurrency is not None:
        _check_count(concurrency, "concurrency")
        made.append(Limit(limit=concurrency, per_worker=True))
    return tuple(made)


def gates_of(
    limits: Sequence[Limit], handler: str, worker: str, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Gate, ...]:
    """The gates of one job. Raises what a key function raises."""
    found = []
    for number, limit in enumerate(limits):
        name = handler if number == 0 else f"{handler}/{number}"
        if limit.per_worker:
            name = f"{handler}@{worker}"
        elif limit.key is not None:
            name = f"{name}:{limit.key(*args, **kwargs)}"
        found.append(limit.gate(name))
    return tuple(found)
