"""What attempts left behind, as the Redis store keeps it: a string a job, see lua/include/note.lua.

A job that waits for its second attempt stands in memory with its error, so that is written short: an array instead of
an object with names, its time counted from the job's first enqueue, and of a traceback what the error does not say
already. A traceback, with the kind of its error, may stand beside the notes, once for all jobs that failed the same
way, and so may the worker (lua/include/trace.lua): where the array ends is a reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from batchq.errors import Retry
from batchq.jsons import orjson

_HEAD = "Traceback (most recent call last):\n"
_FRAME = "  File "
#: An error that says nothing of its own: the text is left off.
_USUAL = ("Retry", str(Retry()))
#: How many fields a short one has at most; the last two are the worker and the traceback, the others each job's own.
_FIELDS = 8
_ITS_OWN = 6
#: Shorter tracebacks are not worth a reference.
_WORTH = 40
#: In the place of the kind: it stands in front of the traceback.
_IN_TRACE = 0
#: The kind of an error whose traceback is gone.
_UNKNOWN = "Error"
#: A row with its note before it.
_NEAR = re.compile(rb"(\d+(?: \d+ \d+ \d \d+ \S+)?(?:\n[^\n]+)*)\n\n(\{.*)", re.DOTALL)
#: How a row begins, with the time of its enqueue.
_CAME = re.compile(rb'\{"t":(\d+),')
#: What stands for an end that is shared.
_REF = re.compile(rb'\["([0-9a-f]+)"\]\]$')
_NONE_SHARED: dict[bytes, bytes | None] = {}
#: What every entry says.
_ALWAYS = {"kind", "error", "attempt", "at_ms"}


class Note(NamedTuple):
    forgiven: int = 0
    crashes: int = 0
    lost: int = 0
    cancel: int = 0
    #: Since when it is ready, ms.
    since: int = 0
    #: Why it is dead.
    reason: str = ""
    #: A line each, newest first.
    errors: tuple[bytes, ...] = ()


def read_note(note: bytes) -> Note:
    if not note:
        return Note()
    head, *errors = note.split(b"\n")
    if b" " not in head:
        return Note(since=int(head), errors=tuple(errors))
    forgiven, crashes, lost, cancel, since, reason = head.split(b" ")
    return Note(
        int(forgiven),
        int(crashes),
        int(lost),
        int(cancel),
        int(since),
        "" if reason == b"-" else reason.decode(),
        tuple(errors),
    )


def apart(row: bytes, note: bytes | None) -> tuple[bytes, bytes]:
    """The row and the note of a job, from what stands under its id in `rows` and in `notes`."""
    if near := _NEAR.fullmatch(row):
        note, row = near.groups()
    return row, note or b""


def shorten(entry: bytes, row: bytes) -> bytes:
    """An error entry (see job.pack_error; b"" for none) as the note of the job with that row holds it: still a line of
    JSON."""
    short = _short(entry, row)
    return entry if short is None else orjson.dumps(short)


def part(entry: bytes, row: bytes) -> bytes:
    """The same for a script that may keep worker and traceback once for many jobs: in the parts that it takes."""
    short = _short(entry, row)
    if short is None:
        return entry
    if len(short) <= _ITS_OWN:
        return orjson.dumps(short)
    trace = b""
    if len(short) == _FIELDS and len(short[-1]) >= _WORTH:
        text = short.pop()
        if "\n" not in short[0]:
            short[0], text = _IN_TRACE, f"{short[0]}\n{text}"
        trace = orjson.dumps(text) + b"]"
    front = orjson.dumps(short[:_ITS_OWN])[:-1] + b","
    worker = orjson.dumps(short[_ITS_OWN:])[1:-1] + (b"," if trace else b"]")
    return b"\n".join((front, worker, trace))


def _short(entry: bytes, row: bytes) -> list[Any] | None:
    """None: it stays as it is."""
    if not entry:
        return None
    error: dict[str, Any] = orjson.loads(entry)
    if not error.keys() >= _ALWAYS:
        return None
    at_ms, trace = error["at_ms"], error.get("trace", "")
    started_ms = error.get("started_ms")
    kind, text = error["kind"], error["error"]
    told = f"{kind}: {text}\n"
    if (kind, text) == _USUAL:
        text = None
    if trace.startswith(_HEAD + _FRAME) and trace.endswith(f"\n{told}"):
        trace = trace[len(_HEAD) : -len(told)]
    came = _CAME.match(row)
    came_ms = int(came[1]) if came else at_ms + 1
    short = [
        # A time below 0 is one more than the ms since the job came.
        *(kind, text, error["attempt"], at_ms if at_ms < came_ms else came_ms - at_ms - 1),
        # How long it took has fewer digits than when it began.
        None if started_ms is None else at_ms - started_ms,
        *(error.get("delay_ms"), error.get("worker", ""), trace),
    ]
    while short[-1] in (None, ""):
        short.pop()
    return short


def refs_in(lines: Iterable[bytes]) -> set[bytes]:
    """The ends that these lines, or ends, refer to."""
    return {found[1] for found in map(_REF.search, lines) if found}


def read_error(line: bytes, came_ms: int, shared: Mapping[bytes, bytes | None] = _NONE_SHARED) -> dict[str, Any]:
    """The entry again, of a job that came at that time. `shared`: the ends that it may refer to; one that nobody has
    any more is left off. What came from a spool stands there as it was."""
    for _ in range(2):
        if end := _REF.search(line):
            line = line[: end.start()] + (shared.get(end[1]) or b"null]")
    found = orjson.loads(line)
    if not isinstance(found, list):
        return dict(found)
    kind, text, attempt, at_ms, ran_ms, delay_ms, worker, trace = found + [None] * (_FIELDS - len(found))
    if kind == _IN_TRACE:
        kind, _, trace = (trace or _UNKNOWN).partition("\n")
    if text is None:
        text = _USUAL[1]
    if at_ms < 0:
        at_ms = came_ms - at_ms - 1
    error: dict[str, Any] = {"kind": kind, "error": text, "attempt": attempt, "at_ms": at_ms}
    if ran_ms is not None:
        error["started_ms"] = at_ms - ran_ms
    if delay_ms is not None:
        error["delay_ms"] = delay_ms
    if worker:
        error["worker"] = worker
    if trace:
        error["trace"] = f"{_HEAD}{trace}{kind}: {text}\n" if trace.startswith(_FRAME) else trace
    return error
