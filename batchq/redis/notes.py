"""What attempts left behind, as the Redis store keeps it: a string a job, see lua/include/note.lua.

A job that waits for its second attempt stands in memory with its error, so that is written short: an array instead of
an object with names, and of a traceback what the error does not say already. A traceback may stand beside the notes,
once for all jobs that failed the same way (lua/include/trace.lua): in the array is a reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from batchq.digest import blake2b
from batchq.errors import Retry
from batchq.jsons import orjson

_HEAD = "Traceback (most recent call last):\n"
_FRAME = "  File "
#: An error that says nothing of its own: the text is left off.
_USUAL = ("Retry", str(Retry()))
#: How many fields a short one has at most; the last is the traceback.
_FIELDS = 8
#: Shorter tracebacks are not worth a reference.
_WORTH = 40
#: How an entry ends that refers to its traceback.
_REF_END = b'"]]'
_NO_TRACES: dict[bytes, bytes | None] = {}
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


def shorten(entry: bytes) -> bytes:
    """An error entry (see job.pack_error; b"" for none) as a note holds it: still a line of JSON."""
    short = _short(entry)
    return entry if short is None else orjson.dumps(short)


def part(entry: bytes) -> bytes:
    """The same for a script that may keep the traceback beside others: `<front>\n<ref> <traceback>`, where it has one
    that is longer than what would stand for it."""
    short = _short(entry)
    if short is None:
        return entry
    if len(short) < _FIELDS or len(short[-1]) < _WORTH:
        return orjson.dumps(short)
    trace = orjson.dumps(short.pop())
    front = orjson.dumps(short)[:-1]
    return b"%b,\n%b %b" % (front, blake2b(trace, digest_size=6).hexdigest().encode(), trace)


def _short(entry: bytes) -> list[Any] | None:
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
    short = [
        *(kind, text, error["attempt"], at_ms),
        # How long it took has fewer digits than when it began.
        None if started_ms is None else at_ms - started_ms,
        *(error.get("delay_ms"), error.get("worker", ""), trace),
    ]
    while short[-1] in (None, ""):
        short.pop()
    return short


def refs_in(notes: Iterable[Note]) -> set[bytes]:
    """The tracebacks that their errors refer to."""
    return {line[line.rindex(b"[") + 2 : -3] for note in notes for line in note.errors if line.endswith(_REF_END)}


def read_error(line: bytes, traces: Mapping[bytes, bytes | None] = _NO_TRACES) -> dict[str, Any]:
    """The entry again. `traces`: what is known of what it may refer to; a traceback that nobody has any more is left
    off. What came from a spool, or from an older batchq, stands there as it was."""
    found = orjson.loads(line)
    if not isinstance(found, list):
        return dict(found)
    kind, text, attempt, at_ms, ran_ms, delay_ms, worker, trace = found + [None] * (_FIELDS - len(found))
    if isinstance(trace, list):
        kept = traces.get(trace[0].encode())
        trace = None if kept is None else orjson.loads(kept)
    if text is None:
        text = _USUAL[1]
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
