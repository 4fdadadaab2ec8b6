"""Who may send what: the sources of an ingress, read from a TOML file or made of flags. Opens no socket.

[[source]]
path = "webhooks/github_event"      # queue/job; * stands for any
signature = "github"                # standard, github, stripe, or none
secrets = ["env:GITHUB_SECRET"]     # env:NAME is read from the environment
"""

from __future__ import annotations

import hmac
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from batchq.clock import monotonic
from batchq.errors import ConfigError
from batchq.flow import parse_rate
from batchq.kinds import MIB, size_bytes
from batchq.signatures import STYLES, standard_key

#: Which header names the delivery, by the style of the signature. Stripe has none: the event's id is in its body.
DELIVERY_ID = {"standard": "webhook-id", "github": "x-github-delivery"}

#: What is kept of the headers where a source names none.
KEPT = ("content-type", "user-agent")


class Bucket:
    """How often something may be done in this process: so many at once, refilled evenly. Threads share it not."""

    def __init__(self, count: int, period_ms: int) -> None:
        self._most = float(count)
        self._per_s = count * 1000 / period_ms
        self._left = self._most
        self._at = monotonic()

    def take(self) -> float:
        """0 where it may be done now, else in how many seconds."""
        now = monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self._per_s


@dataclass(frozen=True, slots=True)
class Source:
    """One sender, and what it may send."""

    #: queue/job, with * for any.
    path: str = "*/*"
    name: str = "default"
    #: standard, github, stripe; "": none is asked for.
    signature: str = ""
    secrets: tuple[str, ...] = ()
    #: Bearer tokens; () where none is asked for.
    tokens: tuple[str, ...] = ()
    #: Lower-case names of the headers that the job gets; a trailing * stands for any.
    headers: tuple[str, ...] = KEPT
    #: The header that names the delivery, beside Idempotency-Key.
    id_header: str = ""
    max_body: int = MIB // 2
    #: (how many, in how many ms); None: any.
    rate: tuple[int, int] | None = None
    bucket: Bucket | None = field(default=None, compare=False)

    def fits(self, queue: str, job: str) -> bool:
        return fnmatchcase(f"{queue}/{job}", self.path)

    def knows(self, authorization: str) -> bool:
        """Whether the header carries a token of this source. In constant time for each."""
        kind, _, token = authorization.partition(" ")
        matches = [hmac.compare_digest(token.strip().encode(), known.encode()) for known in self.tokens]
        return kind.lower() == "bearer" and any(matches)

    def keeps(self, header: str) -> bool:
        return any(fnmatchcase(header, pattern) for pattern in self.headers)

    @property
    def is_open(self) -> bool:
        """Anybody may send."""
        return not self.signature and not self.tokens


def _strings(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(one, str) and one for one in value):
        return tuple(value)
    raise ValueError("no list of strings")


def _string(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise ValueError("no string")


#: Key of a source -> how it is read, and what to write.
_KEYS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "path": (_string, '"webhooks/event", or "webhooks/*"'),
    "name": (_string, '"github"'),
    "signature": (_string, "one of standard, github, stripe"),
    "secrets": (_strings, '["env:SECRET"]'),
    "tokens": (_strings, '["env:TOKEN"]'),
    "headers": (lambda value: tuple(one.lower() for one in _strings(value)), '["content-type", "x-github-*"]'),
    "id_header": (lambda value: _string(value).lower(), '"x-request-id"'),
    "max_body": (size_bytes, '"512KiB"'),
    "rate": (parse_rate, '"100/s"'),
}


def read_sources(path: str, environ: Mapping[str, str]) -> list[Source]:
    """The sources of a file. Raises ConfigError that names file, source and key."""
    try:
        told = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"sources: {path} can't be read ({error.strerror}); name another file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"sources: {path} is no TOML: {error}") from None
    tables = told.pop("source", None)
    if told or not isinstance(tables, list) or not tables:
        raise ConfigError(f"sources: {path}: expected [[source]] tables and nothing else; write one a sender")
    return [make_source(table, environ, f"{path}, source {n}") for n, table in enumerate(tables, 1)]


def make_source(told: Mapping[str, object], environ: Mapping[str, str], where: str) -> Source:
    """A source of its keys. Raises ConfigError."""
    values: dict[str, Any] = {}
    for key, value in told.items():
        if key not in _KEYS:
            raise ConfigError(f"{key:.60}: no such key ({where}); known are {', '.join(_KEYS)}")
        read, write = _KEYS[key]
        try:
            values[key] = read(value)
        except (ValueError, TypeError):
            shown = "what it is" if key in ("secrets", "tokens") else repr(value)
            raise ConfigError(f"{key}: {shown:.100} can't be read ({where}); write {write}") from None
    for key in ("secrets", "tokens"):
        values[key] = tuple(_reveal(one, environ, key, where) for one in values.get(key, ()))
    style = values.get("signature", "")
    if style and style not in STYLES:
        raise ConfigError(f"signature: {style!r:.60} is no style ({where}); write one of {', '.join(STYLES)}")
    if bool(style) != bool(values["secrets"]):
        raise ConfigError(f"secrets: a signature needs secrets, and secrets a signature ({where}); give both or none")
    if style == "standard":
        for secret in values["secrets"]:
            standard_key(secret)
    values.setdefault("id_header", DELIVERY_ID.get(style, ""))
    rate = values.get("rate")
    return Source(**values, bucket=Bucket(*rate) if rate else None)


def _reveal(text: str, environ: Mapping[str, str], key: str, where: str) -> str:
    """What stands in a file as env:NAME stands in the environment."""
    if not text.startswith("env:"):
        return text
    value = environ.get(text[4:], "")
    if not value:
        raise ConfigError(f"{key}: {text} is not set in the environment ({where}); set {text[4:]}")
    return value


def retry_after(seconds: float) -> str:
    """A Retry-After header: whole seconds, at least one."""
    return str(max(1, math.ceil(seconds)))
