"""What a row becomes: a job for one handler, or in an envelope whatever it says of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any, NamedTuple

from batchq.arity import Arity
from batchq.clock import MAX_FIRE_MS
from batchq.errors import ConfigError
from batchq.handler import fire_ms_of
from batchq.importing.rows import shorten
from batchq.job import NewJob, check_id, check_priority, check_queue, new_id
from batchq.jsons import orjson
from batchq.kinds import MAX_COUNT
from batchq.payload import MAX_DEPTH
from batchq.registry import check_name

Placed = tuple[str, NewJob]
#: Makes a job of a row's value. Raises ValueError, TypeError or ConfigError with the reason why there is none.
Build = Callable[[Any], Placed]


@dataclass(frozen=True, slots=True)
class Terms:
    """Under what terms rows become jobs."""

    #: The handler's name; of envelopes that of the lines which name none.
    job: str | None
    queue: str
    #: The column whose cells are the jobs' ids.
    id_column: str | None = None
    priority: int = 0
    delay_ms: int = 0
    max_attempts: int | None = None
    max_payload: int = 1 << 20
    #: Envelopes: every job gets an id of its own.
    new_ids: bool = False
    #: When the import began: what a delay counts from where it is asked whether it can be stored.
    began_ms: int = 0
    #: What the handler takes, where its code is known.
    arity: Arity | None = None


def plain(terms: Terms) -> Build:
    """For rows that are arguments."""
    head = _head(terms.job or "", terms.max_attempts)
    queue, priority, delay_ms, most = terms.queue, terms.priority, terms.delay_ms, terms.max_payload
    id_column, arity = terms.id_column, terms.arity

    def build(value: Any) -> Placed:
        if arity is not None:
            _check_call(arity, value)
        if not value:
            row = head + b"}"
        else:
            row = b"%b,%b" % (head, _dumps({"kwargs" if type(value) is dict else "args": value})[1:])
        if len(row) > most:
            raise _too_large(row, most)
        if id_column is None:
            return queue, NewJob(new_id(), row, priority, delay_ms)
        return queue, NewJob(_id_of(value, id_column), row, priority, delay_ms, None, True)

    return build


def _head(job: str, max_attempts: int | None) -> bytes:
    row = {"job": job} if max_attempts is None else {"job": job, "max": max_attempts}
    return orjson.dumps(row)[:-1]


def _dumps(value: dict[str, Any]) -> bytes:
    """JSON of what came from JSON or text: only its depth can be too much, and no more than `payload.pack` allows."""
    try:
        return orjson.dumps(value)
    except TypeError:
        raise ValueError(
            f"nested deeper than {MAX_DEPTH} levels; flatten it, or store it elsewhere and send its path"
        ) from None


def _check_call(arity: Arity, value: Any) -> None:
    if type(value) is dict:
        arity.check((), value)
    else:
        arity.check(tuple(value), {})


def _too_large(row: bytes, most: int) -> ValueError:
    return ValueError(
        f"this job takes {len(row)} bytes, max_payload is {most}; store the data elsewhere and send its name"
    )


def _id_of(value: Any, column: str) -> str:
    """The id that a row names. Positional rows count their columns from 1."""
    try:
        found = value[column] if type(value) is dict else value[int(column) - 1]
    except (KeyError, IndexError):
        raise ValueError(f"there is no {shorten(column)!r}, which is to be the id") from None
    if type(found) is int:
        found = str(found)
    return check_id(found)


# -- envelopes -------------------------------------------------------------------------------------------------------


class _Key(NamedTuple):
    """One key of an envelope: what it must be, in words and as a test."""

    wanted: str
    fits: Callable[[Any], bool]


def _whole(least: int, most: int) -> _Key:
    return _Key(f"a whole number from {least} to {most}", lambda value: type(value) is int and least <= value <= most)


_TEXT = _Key("a string", lambda value: type(value) is str)
_ATTEMPTS = _whole(1, MAX_COUNT)
_SPAN = _whole(1, 3660 * 86_400_000)
_FIRE = _whole(0, MAX_FIRE_MS)

#: The keys of an envelope: those of a spool's parcel, and `delay` and `max_attempts` as people write them.
_KEYS: dict[str, _Key] = {
    "v": _Key("1", lambda value: type(value) is int and value == 1),
    "job": _TEXT,
    "args": _Key("a list", lambda value: type(value) is list),
    "kwargs": _Key("an object", lambda value: type(value) is dict),
    "id": _TEXT,
    "queue": _TEXT,
    "priority": _whole(-100, 100),
    "delay": _Key("seconds from 0", lambda value: type(value) in (int, float) and 0 <= value <= MAX_FIRE_MS // 1000),
    "delay_ms": _FIRE,
    "at": _Key("ms since 1970 or ISO 8601 with its zone", lambda value: type(value) is str or _FIRE.fits(value)),
    "fire_ms": _FIRE,
    "max": _ATTEMPTS,
    "max_attempts": _ATTEMPTS,
    "timeout": _SPAN,
    "keep": _whole(0, 3660 * 86_400_000),
    "given": _Key("true or false", lambda value: type(value) is bool),
}
#: What `batchq export` and `batchq jobs --json` say beside: how it went. A new job has no past.
IGNORED = frozenset(
    (
        *("state", "attempts", "attempt", "enqueued_ms", "forgiven", "crashes", "lost", "error", "errors", "reason"),
        *("died_ms", "worker", "cancel", "result", "expires_ms", "since", "t", "batch"),
    )
)
#: Keys that say the same: one of them.
_ONE_OF = (("delay", "delay_ms", "at", "fire_ms"), ("max", "max_attempts"))


def enveloped(terms: Terms) -> Build:
    """For lines that say of themselves what job they are."""

    def build(value: Any) -> Placed:
        if type(value) is not dict:
            raise ValueError("expected an envelope, an object with the key job")
        line = {key: one for key, one in value.items() if one is not None and key not in IGNORED}
        _check_keys(line)
        name = line.get("job", terms.job)
        if name is None:
            raise ValueError("job: expected the handler's name, found none; write it in the line, or give --job")
        kept = {"max": line.get("max", line.get("max_attempts", terms.max_attempts))}
        kept |= {key: line.get(key) for key in ("timeout", "keep")}
        row: dict[str, Any] = {"job": check_name(name)}
        row |= {key: line[key] for key in ("args", "kwargs") if line.get(key)}
        row |= {key: one for key, one in kept.items() if one is not None}
        packed = _dumps(row)
        if len(packed) > terms.max_payload:
            raise _too_large(packed, terms.max_payload)
        named = "id" in line and not terms.new_ids
        delay_ms, fire_ms = _time_of(line, terms.delay_ms)
        if delay_ms:
            check_delay(delay_ms, terms.began_ms)
        job = NewJob(
            check_id(line["id"]) if named else new_id(),
            packed,
            check_priority(line.get("priority", terms.priority)),
            delay_ms,
            fire_ms,
            # Also where the line was a generated id's: a second import of it is to be known.
            named,
        )
        return check_queue(line.get("queue", terms.queue)), job

    return build


def _check_keys(line: dict[str, Any]) -> None:
    for key, value in line.items():
        known = _KEYS.get(key)
        if known is None:
            near = get_close_matches(key, list(_KEYS), n=1)
            hint = f"did you mean {near[0]}?" if near else "arguments stand in args and kwargs"
            raise ValueError(f"{shorten(key)!r}: no key of an envelope; {hint}")
        if not known.fits(value):
            raise ValueError(f"{key}: expected {known.wanted}, found {shorten(repr(value))}")
    for names in _ONE_OF:
        given = [name for name in names if name in line]
        if len(given) > 1:
            raise ValueError(f"{', '.join(given)}: expected one of them")


def _time_of(line: dict[str, Any], default_ms: int) -> tuple[int, int | None]:
    """(delay, fire-time): one of the two counts."""
    at = line.get("at", line.get("fire_ms"))
    if isinstance(at, str):
        try:
            at = fire_ms_of(datetime.fromisoformat(at))
        except (ValueError, ConfigError) as error:
            raise ValueError(f"at: {error}") from None
    if at is not None:
        return 0, at
    if "delay" in line:
        return -int(-line["delay"] * 1000 // 1), None
    return line.get("delay_ms", default_ms), None


def check_delay(delay_ms: int, now_ms: int) -> None:
    """Raises ValueError for a delay that ends later than what can be stored."""
    if now_ms + delay_ms > MAX_FIRE_MS:
        raise ValueError("the job would run after 7 September 2039, the last time that can be stored")


# -- types from a handler --------------------------------------------------------------------------------------------


def types_of(function: Callable[..., Any], name: str, names: Sequence[str], *, positional: bool) -> dict[str, str]:
    """The types of the columns by the annotations of a handler. Raises ConfigError where these can't be read."""
    import inspect
    import typing

    try:
        hints = typing.get_type_hints(function)
    except Exception as error:
        raise ConfigError(
            f"--types handler: the annotations of {name} can't be read ({error}); write --types"
        ) from error
    parameters = [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]
    out = {}
    for place, column in enumerate(names):
        hint = hints.get(parameters[place] if positional and place < len(parameters) else column)
        out[column] = _kind_of(hint)
    return out


def _kind_of(hint: Any) -> str:
    import types
    import typing

    options = [hint]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = list(typing.get_args(hint))
    optional = "?" if type(None) in options else ""
    options = [one for one in options if one is not type(None)]
    if str in options or len(options) != 1:
        # What may be text stays text.
        return "str"
    base = typing.get_origin(options[0]) or options[0]
    for kind, word in ((bool, "bool"), (int, "int"), (float, "float")):
        if base is kind:
            return word + optional
    if base in (list, dict) or typing.is_typeddict(base):
        return "json" + optional
    return "str"
