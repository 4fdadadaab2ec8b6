"""A parcel: one file of the inbox, its name and its lines. FORMAT.md is the text to this module; it touches no file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

from batchq.clock import MAX_FIRE_MS, Clock, fire_ms
from batchq.digest import sha256
from batchq.errors import ConfigError
from batchq.job import Mark, NewJob, check_id, check_priority, check_queue
from batchq.jsons import orjson
from batchq.payload import parse

#: What one file may hold.
MAX_LINES = 1000
MAX_FILE = 16 << 20

_LANE = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_COUNT = re.compile(r"\.(\d{1,4})\.ndjson$")
#: Whose it is: a parcel that waits for a server names it by a hash; one without belongs to whoever serves the spool.
_TO = re.compile(r"\.to-([0-9a-f]{12})\.")

#: The keys of a line that say where a job goes; all others stand in its row. `t` is the store's to give.
ROUTE = frozenset(("v", "id", "queue", "priority", "at", "delay_ms", "since", "given", "mark", "maybe", "t"))


class Entry(NamedTuple):
    """One line of a parcel."""

    queue: str
    job: NewJob
    #: The enqueue call whose outcome stayed unknown, where the line is a copy of it.
    mark: Mark | None = None
    #: That call may have been done.
    maybe: bool = False
    #: The fire-time counts from when the file was made or taken, by this host's clock: it was given as a delay.
    relative: bool = False
    #: When the call was made, as far as the line tells; else when the file was taken.
    since_ms: int = 0


class Parcel(NamedTuple):
    """A file under work/."""

    name: str
    u: str
    size: int
    entries: list[Entry]


# -- names -----------------------------------------------------------------------------------------------------------

_drops = 0


def address_of(destination: str) -> str:
    """Twelve characters that stand for a server in the names of files."""
    return sha256(destination.encode()).hexdigest()[:12]


def addressee(name: str) -> str:
    """The address in a file's name, new or taken; "" where there is none."""
    found = _TO.search(name)
    return found[1] if found else ""


def jobs_in(name: str) -> int:
    """How many jobs a file has by its name; one that somebody dropped by hand counts as one."""
    count = _COUNT.search(name)
    return int(count[1]) if count else 1


def without_address(name: str) -> str:
    """The same file's name for a spool that serves it whatever server it waited for."""
    return _TO.sub(".", name)


def new_name(count: int, to: str, clock: Clock) -> str:
    """`<us, 16 hex>-<pid>-<n>[.to-<address>].<count>.ndjson`: sorts by time, unique in this process."""
    global _drops
    _drops += 1
    address = f".to-{to}" if to else ""
    return f"{clock.now_us():016x}-{os.getpid()}-{_drops}{address}.{count}.ndjson"


# -- writing ---------------------------------------------------------------------------------------------------------


def pack(jobs: Iterable[tuple[str, NewJob]], mark: Mark | None, maybe: bool, clock: Clock) -> Iterable[list[bytes]]:
    lines: list[bytes] = []
    size = 0
    for queue, job in jobs:
        line = _line(queue, job, mark, maybe, clock)
        if len(line) > MAX_FILE:
            raise ConfigError(
                f"job {job.id}: takes {len(line)} bytes, a spool's file holds {MAX_FILE}; lower max_payload"
            )
        if lines and (len(lines) >= MAX_LINES or size + len(line) > MAX_FILE):
            yield lines
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    if lines:
        yield lines


def _line(queue: str, job: NewJob, mark: Mark | None, maybe: bool, clock: Clock) -> bytes:
    head: dict[str, Any] = {"v": 1, "id": job.id, "queue": check_queue(queue)}
    if not job.given:
        head["given"] = False
    if job.priority:
        head["priority"] = job.priority
    if job.fire_ms is not None:
        head["at"] = job.fire_ms
    elif job.delay_ms > 0:
        head["delay_ms"] = job.delay_ms
        # Rounded up, so that nothing runs early.
        head["since"] = fire_ms(clock.now_us(), 0)
    if mark is not None:
        head["mark"] = list(mark)
        head.setdefault("since", clock.now_us() // 1000)
    if maybe:
        head["maybe"] = True
    return orjson.dumps(head)[:-1] + b"," + job.row[1:] + b"\n"


# -- reading ---------------------------------------------------------------------------------------------------------


def read_parcel(data: bytes, u: str, taken_ms: int) -> list[Entry]:
    """The jobs of a parcel. A delay in it begins when it was made, or where that is not known when it was taken:
    reading it again changes nothing.

    Raises ValueError that names the line and what is wrong with it.
    """
    lines = [(number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    if not lines:
        raise ValueError("expected at least one job, found an empty file")
    if len(lines) > 1 and _is_one_object(data):
        # Somebody dropped one pretty-printed object.
        lines = [(1, data)]
    if len(lines) > MAX_LINES:
        raise ValueError(f"expected at most {MAX_LINES} lines, found {len(lines)}; split the file")
    entries = []
    for number, line in lines:
        try:
            entries.append(_read_line(line, f"{u}:{number}", taken_ms))
        except (ValueError, TypeError, ConfigError) as error:
            raise ValueError(f"line {number}: {error}") from error
    return entries


def _is_one_object(data: bytes) -> bool:
    try:
        return isinstance(parse(data), dict)
    except (ValueError, TypeError):
        return False


def _read_line(line: bytes, default_id: str, taken_ms: int) -> Entry:
    fields = parse(line)
    if not isinstance(fields, dict):
        raise ValueError(f"expected an object, found {type(fields).__name__}")
    if fields.get("v", 1) != 1:
        raise ValueError(f"v: expected 1, found {fields['v']!r:.40}; a newer batchq wrote it")
    if not isinstance(fields.get("job"), str) or not fields["job"]:
        _want(fields, "job", "the handler's name, a string")
    row = {"job": fields["job"]} | {key: value for key, value in fields.items() if key not in ROUTE}
    _check(row, "args", list, "a list")
    _check(row, "kwargs", dict, "an object")
    for name, least in (("max", 1), ("timeout", 1), ("keep", 0)):
        _whole(row, name, least, 2**53)
    since = _whole(fields, "since", 0, MAX_FIRE_MS)
    begun = taken_ms if since is None else since
    at, delay = _whole(fields, "at", 0, MAX_FIRE_MS), _whole(fields, "delay_ms", 0, MAX_FIRE_MS - begun)
    if delay is not None:
        if at is not None:
            raise ValueError("at, delay_ms: expected one of the two, found both")
        at = begun + delay
    named = "id" in fields
    for name in ("given", "maybe"):
        _check(fields, name, bool, "true or false")
    return Entry(
        queue=check_queue(fields.get("queue", "default")),
        job=NewJob(
            id=check_id(fields["id"]) if named else default_id,
            row=orjson.dumps(row),
            priority=check_priority(fields.get("priority", 0)),
            fire_ms=at,
            given=named and fields.get("given", True),
        ),
        mark=_mark(fields.get("mark")),
        maybe=fields.get("maybe", False),
        relative=delay is not None,
        since_ms=begun,
    )


def _mark(value: Any) -> Mark | None:
    match value:
        case None:
            return None
        case [str(lane), int(call)] if _LANE.fullmatch(lane) and type(call) is int and 0 <= call < 2**53:
            return Mark(lane, call)
    raise ValueError(f"mark: expected [lane, call], found {value!r:.60}")


def _check(fields: dict[str, Any], name: str, kind: type, wanted: str) -> None:
    if name in fields and not isinstance(fields[name], kind):
        _want(fields, name, wanted)


def _whole(fields: dict[str, Any], name: str, least: int, most: int) -> int | None:
    value = fields.get(name)
    if name in fields and (type(value) is not int or not least <= value <= most):
        _want(fields, name, f"a whole number from {least} to {most}")
    return value


def _want(fields: dict[str, Any], name: str, wanted: str) -> NoReturn:
    found = repr(fields[name])[:60] if name in fields else "none"
    raise ValueError(f"{name}: expected {wanted}, found {found}")
