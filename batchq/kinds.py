"""What may be written for a setting, what it is inside, and how it is shown: durations, sizes, counts, names.

A kind reads one value (from a flag, a variable, a file or code) or says what the value is not. It does not know the
setting's name nor its source: `config` adds both.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from batchq.errors import ConfigError, milliseconds
from batchq.job import check_queue

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
KIB, MIB = 1 << 10, 1 << 20
#: The greatest number of attempts, crashes, jobs.
MAX_COUNT = 2**31 - 1

_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|m|h|d)?", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGkmg]i?)?[Bb]?", re.ASCII)
# No leading zero, which others read as octal; no more digits than int() takes.
_COUNT = re.compile(r"0|[1-9]\d{0,18}", re.ASCII)
_UNITS_MS = {"ms": 1, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_UNITS_BYTES = {"": 1, "k": KIB, "m": MIB, "g": 1 << 30}


class Wrong(Exception):
    """What a value is not, and what to write instead. The reader adds the key and the source."""

    def __init__(self, what: str, write: str) -> None:
        super().__init__(what)
        self.what, self.write = what, write


def duration_ms(value: object) -> int:
    """Whole milliseconds of "30s", "5m", "1h", "2d", "500ms", a number of seconds or a timedelta, rounded up.

    Raises ValueError for what is no duration.
    """
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise ValueError("no duration")
        count, of = _exact(match[1])
        return -(-count * _UNITS_MS[match[2] or "s"] // of)
    if isinstance(value, timedelta) or (isinstance(value, int | float) and not isinstance(value, bool)):
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        if not math.isfinite(seconds) or seconds < 0:
            raise ValueError("negative or not finite")
        return milliseconds(value)
    raise ValueError("no duration")


def size_bytes(value: object) -> int:
    """Bytes of "64KiB", "1MiB", "1G" (1024 each) or a whole number. Raises ValueError for what is no size."""
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError("no size")
        count, of = _exact(match[1])
        return count * _UNITS_BYTES[(match[2] or "")[:1].lower()] // of
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError("no size")


def _exact(number: str) -> tuple[int, int]:
    """A decimal number as a fraction."""
    whole, _, parts = number.partition(".")
    return int(whole + parts), 10 ** len(parts)


def show_duration(ms: int) -> str:
    """The shortest way to write it: 30d, 1h, 90s, 1500ms."""
    for unit, size in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND)):
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms" if ms else "0s"


def show_size(size: int) -> str:
    """The shortest way to write it: 1MiB, 64KiB, 1000."""
    for unit, one in (("GiB", 1 << 30), ("MiB", MIB), ("KiB", KIB)):
        if size and size % one == 0:
            return f"{size // one}{unit}"
    return str(size)


@dataclass(frozen=True, slots=True)
class Duration:
    low: int = 1
    high: int = 366 * DAY
    optional: bool = False
    write: str = "30s or 30"

    def read(self, value: object, text: bool) -> int | None:
        if self.optional and _is_none(value):
            return None
        try:
            ms = duration_ms(value)
        except ValueError:
            raise Wrong("is no duration", self.write) from None
        if ms < self.low:
            raise Wrong("is too short", f"at least {show_duration(self.low)}")
        if ms > self.high:
            raise Wrong("is too long", f"at most {show_duration(self.high)}")
        return ms

    def show(self, value: Any) -> str:
        return "none" if value is None else show_duration(value)


@dataclass(frozen=True, slots=True)
class DurationOr:
    """A duration, or one of some words."""

    words: tuple[str, ...]

    def read(self, value: object, text: bool) -> str | int | None:
        if isinstance(value, str) and value.strip().lower() in self.words:
            return value.strip().lower()
        return Duration(write=f"{', '.join(self.words)}, 30s or 30").read(value, text)

    def show(self, value: Any) -> str:
        return value if isinstance(value, str) else show_duration(value)


@dataclass(frozen=True, slots=True)
class Size:
    low: int = 1
    high: int = 1 << 62
    optional: bool = False

    def read(self, value: object, text: bool) -> int | None:
        if self.optional and _is_none(value):
            return None
        try:
            size = size_bytes(value)
        except ValueError:
            raise Wrong("is no size", "64KiB, 1MiB or a number of bytes") from None
        if not self.low <= size <= self.high:
            raise Wrong("is out of range", f"{show_size(self.low)} to {show_size(self.high)}")
        return size

    def show(self, value: Any) -> str:
        return "none" if value is None else show_size(value)


@dataclass(frozen=True, slots=True)
class Count:
    low: int = 1
    high: int = MAX_COUNT
    optional: bool = False
    what: str = "whole number"
    #: An example for who gave none; else a small number.
    write: str = ""

    def read(self, value: object, text: bool) -> int | None:
        if self.optional and _is_none(value):
            return None
        if text and isinstance(value, str) and _COUNT.fullmatch(value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise Wrong(
                f"is no {self.what} from {self.low} to {self.high}", self.write or str(min(max(4, self.low), self.high))
            )
        return value

    def show(self, value: Any) -> str:
        return "none" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Flag:
    def read(self, value: object, text: bool) -> bool:
        if isinstance(value, bool):
            return value
        if text and isinstance(value, str) and value.strip().lower() in ("1", "true", "yes", "on"):
            return True
        if text and isinstance(value, str) and value.strip().lower() in ("0", "false", "no", "off"):
            return False
        raise Wrong("is neither true nor false", "true or false")

    def show(self, value: Any) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Choice:
    words: tuple[str, ...]

    def read(self, value: object, text: bool) -> str:
        if isinstance(value, str) and value.strip().lower() in self.words:
            return value.strip().lower()
        raise Wrong("is no choice", f"one of {', '.join(self.words)}")

    def show(self, value: Any) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Text:
    pattern: re.Pattern[str]
    what: str
    write: str
    optional: bool = False
    #: Relative to the file that names it, when it stands in a file.
    path: bool = False

    def read(self, value: object, text: bool) -> str | None:
        if self.optional and value is None:
            return None
        plain = os.fspath(value) if isinstance(value, os.PathLike) else value
        if isinstance(plain, str) and self.pattern.fullmatch(plain):
            return plain
        raise Wrong(f"is no {self.what}", self.write)

    def show(self, value: Any) -> str:
        return "none" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Queues:
    """`critical:5,default` in a variable, a list of `name[:weight]`, or a table of weights. Where `bare` is given the
    numbers are no weights: one alone is that of the queue `bare`, and a name needs one."""

    high: int = 100
    bare: str = ""
    example: str = "critical:5,default"

    def read(self, value: object, text: bool) -> tuple[tuple[str, int], ...]:
        out: dict[str, int] = {}
        for name, weight in self._pairs(value):
            if name in out:
                raise Wrong(f"names {name} twice", "each queue once")
            if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= self.high:
                what = "number" if self.bare else "weight"
                raise Wrong(f"gives {name} the {what} {weight!r:.40}", f"a whole number from 1 to {self.high}")
            try:
                out[name if name == self.bare else check_queue(name)] = weight
            except ConfigError as error:
                raise Wrong("holds what is no queue name", str(error).rpartition("; use ")[2]) from None
        return tuple(out.items())

    def _pairs(self, value: object) -> Iterator[tuple[Any, Any]]:
        if self.bare and isinstance(value, int):
            yield self.bare, value
            return
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",")]
        if isinstance(value, Mapping):
            yield from value.items()
        elif isinstance(value, Sequence):
            for item in value:
                yield self._pair(item)
        else:
            raise Wrong("is no list of queues", self.example)

    def _pair(self, item: object) -> tuple[Any, Any]:
        if isinstance(item, tuple) and len(item) == 2:
            return item
        if not isinstance(item, str):
            raise Wrong("is no list of queues", self.example)
        name, colon, weight = item.partition(":")
        if not colon and self.bare:
            return (self.bare, int(name)) if _COUNT.fullmatch(name) else (name, None)
        if not colon:
            return name, 1
        return name, int(weight) if _COUNT.fullmatch(weight) else weight

    def show(self, value: Any) -> str:
        if not value:
            return "none"
        return ",".join(str(weight) if name == self.bare else f"{name}:{weight}" for name, weight in value)


Kind = Duration | DurationOr | Size | Count | Flag | Choice | Text | Queues


def _is_none(value: object) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() == "none")
