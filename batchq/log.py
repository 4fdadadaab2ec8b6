"""Log lines are events: one line, the verb first, then key=value, the same keys everywhere. Never payloads.

    reaped queue=mail job=01h... token=3 attempt=2 late_ms=4120 why=worker_killed signal=9

They go through logging, under the logger `batchq`: a program that has its own logging gets them there as text, the
command line calls `setup`. As JSON an event is one object a line. What handlers log by themselves is an event too,
`message`, with the logger's name and the keys of the job that runs: `JobFilter` puts them onto every record.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import IO, Any, Literal

from batchq import context

logger = logging.getLogger("batchq")

Level = Literal["debug", "info", "warning", "error"]

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

#: Characters of one value; what is longer is cut.
VALUE_MAX = 2000


#: Rows under an event's first line on a terminal: a name, and parts, between which a row may be folded.
Block = Sequence[tuple[str, Sequence[str]]]


def event(
    level: Level, verb: str, /, *, exc: BaseException | None = None, block: Block | None = None, **keys: object
) -> None:
    """Logs one event. Keys whose value is None are left out. `exc` adds its traceback. `block` is what a person on a
    terminal reads in place of the keys; files, pipes and JSON have the keys, on one line.

    info: what goes well. warning: what was repaired. error: what a person must see.
    """
    number = _LEVELS[level]
    if logger.isEnabledFor(number):
        keys = {key: value for key, value in keys.items() if value is not None}
        info = None if exc is None else (type(exc), exc, exc.__traceback__)
        logger.log(number, "%s", Event(verb, keys, block), exc_info=info)


class Event:
    """An event whose text is made when a handler writes it."""

    __slots__ = ("block", "keys", "verb")

    def __init__(self, verb: str, keys: dict[str, object], block: Block | None = None) -> None:
        self.verb = verb
        self.keys = keys
        self.block = block

    def __str__(self) -> str:
        return " ".join([self.verb, *(f"{key}={show(value)}" for key, value in self.keys.items())])


def show(value: object) -> str:
    """A value as it stands behind `key=`: quoted when it is empty or holds spaces, quotes, = or control characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = _cut(str(value))
    if text and text.isprintable() and not any(mark in text for mark in " \"'=\\"):
        return text
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _printable(text: str) -> str:
    return text if text.isprintable() else show(text)


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_MAX else text[:VALUE_MAX] + "..."


_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}


def _escaped(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if character.isprintable():
        return character
    # Control characters, also those that begin a terminal's escapes; line separators; lone surrogates.
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _plain(value: object) -> Any:
    """The value for JSON: numbers and lists stay, all else is text."""
    if value is None or isinstance(value, bool | int):
        return value if not isinstance(value, int) or -(2**53) <= value <= 2**53 else str(value)
    if isinstance(value, float):
        # JSON has no NaN.
        return value if abs(value) < float("inf") else str(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return _cut(str(value))


class JobFilter(logging.Filter):
    """Puts `queue`, `job` (the id), `token`, `attempt` and `handler` of the job that runs here onto each record: "-"
    and 0 outside of jobs. Lets every record pass.

    For logging that an app sets up by itself: `"%(asctime)s %(job)s %(message)s"`. `batchq start` adds it to the
    handlers of the root logger; others need `handler.addFilter(batchq.log.JobFilter())`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        for key, value in {**_NO_JOB, **job_keys()}.items():
            # What was given as `extra` is the program's own.
            if not hasattr(record, key):
                setattr(record, key, value)
        return True


_NO_JOB: dict[str, object] = {"queue": "-", "job": "-", "token": 0, "attempt": 0, "handler": "-"}


def job_keys() -> dict[str, object]:
    """The keys by which events name the job that runs here; none outside of jobs."""
    job = context.job_here()
    if job is None:
        return {}
    return {"queue": job.queue, "job": job.id, "token": job.token, "attempt": job.attempt, "handler": job.name}


class _Format(logging.Formatter):
    """What both formats share: the time in UTC, with milliseconds."""

    def time_of(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{seconds}.{int(record.msecs):03d}Z"

    def event_of(self, record: logging.LogRecord) -> Event | None:
        args = record.args
        if isinstance(args, tuple) and len(args) == 1 and isinstance(args[0], Event):
            return args[0]
        if record.name == logger.name or record.name.startswith(f"{logger.name}."):
            return None
        return Event("message", {"logger": record.name, **job_keys(), "text": record.getMessage()})

    def trace_of(self, record: logging.LogRecord) -> str:
        if not record.exc_info or record.exc_info[1] is None:
            return ""
        return "".join(traceback.format_exception(record.exc_info[1])).rstrip()


class TextFormat(_Format):
    """`2026-01-01T00:00:00.000Z info reaped queue=mail ...`, then the traceback's lines, if there is one."""

    def __init__(self, terminal: int | None = None) -> None:
        """`terminal`: the descriptor, where a person reads; events that have a block are shown by it then."""
        super().__init__()
        self._terminal = terminal

    def format(self, record: logging.LogRecord) -> str:
        found = self.event_of(record)
        # Foreign lines through this logger are kept on one line as well.
        text = str(found) if found else show(record.getMessage())
        if self._terminal is not None and found and found.block is not None:
            text = "\n".join([found.verb, *fold(found.block, width_of(self._terminal))])
        line = f"{self.time_of(record)} {record.levelname.lower()} {text}"
        trace = self.trace_of(record)
        return f"{line}\n{trace}" if trace else line


def width_of(terminal: int) -> int:
    """Its columns; 80 where it does not tell."""
    try:
        return os.get_terminal_size(terminal).columns or 80
    except OSError:
        return 80


def fold(block: Block, columns: int) -> Iterator[str]:
    """The lines of a block: names in one column, parts beside them, and below where there is no more room."""
    wide = max((len(name) for name, _ in block), default=0)
    for name, parts in block:
        line = f"  {name:<{wide}}"
        for at, part in enumerate(map(_printable, parts)):
            if at and len(line) + 2 + len(part) > columns:
                yield line
                line = f"  {'':<{wide}}"
            line += f"  {part}"
        yield line


class JsonFormat(_Format):
    """One object a line: time, level, event, then the event's keys, and `trace` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        found = self.event_of(record)
        out: dict[str, Any] = {"time": self.time_of(record), "level": record.levelname.lower()}
        if found:
            out["event"] = found.verb
            out |= {key: _plain(value) for key, value in found.keys.items() if key not in out}
        else:
            out |= {"event": "message", "text": _plain(record.getMessage())}
        trace = self.trace_of(record)
        if trace:
            out["trace"] = _plain(trace)
        # All but ASCII as escapes: line separators and terminal controls beyond ASCII are plain text to JSON.
        return json.dumps(out).replace("\x7f", "\\u007f")


def setup(format: str = "text", level: str = "info", stream: IO[str] | None = None) -> logging.Handler:
    """Writes the events to a stream (stderr). For programs of ours: it replaces what an earlier call put there."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormat() if format == "json" else TextFormat(_terminal(handler.stream)))
    handler.set_name("batchq")
    for other in list(logger.handlers):
        if other.get_name() == "batchq":
            logger.removeHandler(other)
    logger.addHandler(handler)
    logger.setLevel(_LEVELS[level])
    logger.propagate = False
    return handler


def _terminal(stream: IO[str]) -> int | None:
    """The descriptor of a stream that a person reads."""
    try:
        return stream.fileno() if stream.isatty() else None
    except (OSError, ValueError):
        return None


def setup_all(format: str = "text", level: str = "info") -> None:
    """The same for a pool, and what its app logs by itself: written alike where the app has set up no logging; else its
    own handlers learn which job runs."""
    handler = setup(format, level)
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(handler)
        root.setLevel(_LEVELS[level])
    for one in root.handlers:
        if one is not handler and not any(isinstance(kept, JobFilter) for kept in one.filters):
            one.addFilter(JobFilter())
