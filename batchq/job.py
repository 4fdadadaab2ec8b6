"""The values that stores, workers and people hand around: NewJob, Claim, the outcomes, Job. No I/O, no behaviour.

Values of the hot path are named tuples: as frozen as a frozen dataclass and three times as quick to make.
"""

from __future__ import annotations

import os
import re
import string
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from batchq.errors import ConfigError
from batchq.jsons import orjson
from batchq.lifecycle import State, Word

#: Queue names: they stand in Redis keys and on the command line.
QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: Ids given by callers: anything printable without spaces that a shell, a key and a log line carry unharmed.
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+=-]{0,199}")

PRIORITY_MIN, PRIORITY_MAX = -100, 100


def check_queue(name: object) -> str:
    """The name, if it is a queue's. Raises ConfigError."""
    if isinstance(name, str) and QUEUE.fullmatch(name):
        return name
    raise ConfigError(
        f"queue: {name!r:.100} is no queue name; use a letter or digit, then up to 63 letters, digits, '.', '_' or '-'"
    )


def check_id(job_id: object) -> str:
    """The id, if a caller may give it. Raises ConfigError."""
    if isinstance(job_id, str) and ID.fullmatch(job_id):
        return job_id
    raise ConfigError(
        f"job_id: {job_id!r:.100} is no id; use a letter or digit, then up to 199 letters, digits or "
        "any of . _ : @ / + = -"
    )


def check_priority(priority: object) -> int:
    """The priority, if it is one. Raises ConfigError."""
    if isinstance(priority, int) and not isinstance(priority, bool) and PRIORITY_MIN <= priority <= PRIORITY_MAX:
        return priority
    raise ConfigError(
        f"priority: expected a whole number from -100 to 100 (higher runs first), found {priority!r:.100}"
    )


class _Ids:
    """Time-ordered ids of 22 characters: ms of the clock, a counter within it, 64 random bits of the process.

    ULID's parts, in base 62 instead of 32: each place where Redis keeps an id is a quarter smaller by its allocator's
    classes. The random part is drawn anew after every fork.
    """

    #: In the order of ASCII: ids sort as they were made.
    _digits = string.digits + string.ascii_uppercase + string.ascii_lowercase
    #: Digits of the ms (they last until the year 8800), of the counter, and of the random part.
    _parts = (8, 3, 11)
    _most = len(_digits) ** _parts[1]

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.redraw()

    def redraw(self) -> None:
        """Draws the random part anew."""
        self._tail = self._written(int.from_bytes(os.urandom(8), "big"), self._parts[2])
        self._last_ms = 0
        self._count = 0
        #: All but the last digit of the counter, and the random part.
        self._head = ""

    def _written(self, number: int, width: int) -> str:
        digits = ""
        for _ in range(width):
            number, digit = divmod(number, 62)
            digits = self._digits[digit] + digits
        return digits

    def new(self) -> str:
        with self._lock:
            now = time.time_ns() // 1_000_000
            if now > self._last_ms:
                self._last_ms, self._count = now, 0
            else:
                # The clock stood or went back: order of creation is kept by the counter, and by the ms it spills into.
                self._count += 1
                if self._count >= self._most:
                    self._last_ms, self._count = self._last_ms + 1, 0
            last = self._count % 62
            if last == 0:
                others = self._written(self._count // 62, self._parts[1] - 1)
                self._head = self._written(self._last_ms, self._parts[0]) + others
            return self._head + self._digits[last] + self._tail


_ids = _Ids()
os.register_at_fork(after_in_child=_ids.redraw)
new_id = _ids.new


def random_name(characters: int = 13) -> str:
    """A random name for a lane, a worker, a parcel: 64 bits where 13 characters are asked for."""
    return os.urandom(8).hex()[:characters]


class Mark(NamedTuple):
    """(lane, call): names one enqueue call for ever, so that a late, repeated or spooled copy of it runs once."""

    lane: str
    call: int


class NewJob(NamedTuple):
    """What enqueue takes. `row` is the packed row (see pack_row)."""

    id: str
    row: bytes
    priority: int = 0
    #: From the store's now; 0 or less: at once.
    delay_ms: int = 0
    #: An absolute fire-time instead of a delay; past: at once.
    fire_ms: int | None = None
    #: The id was given by the caller: it is remembered for a while after the job's end.
    given: bool = False
    #: The batch that it joins; "" for none. It must have begun, on the same queue.
    batch: str = ""


def pack_row(
    job: str,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    max_attempts: int | None = None,
    timeout_ms: int | None = None,
    keep_ms: int | None = None,
) -> bytes:
    """The row of a job: JSON, written once, opaque to the stores. Only what differs from the handler's own is in it.

    The store puts `"t"` (its clock at enqueue, ms) and, for a delayed job, `"at"` (the fire-time) in front.
    """
    row: dict[str, Any] = {"job": job}
    if args:
        row["args"] = args
    if kwargs:
        row["kwargs"] = kwargs
    if max_attempts is not None:
        row["max"] = max_attempts
    if timeout_ms is not None:
        row["timeout"] = timeout_ms
    if keep_ms is not None:
        row["keep"] = keep_ms
    return orjson.dumps(row)


def stamp_row(row: bytes, now_ms: int, fire_ms: int | None) -> bytes:
    """The row with the store's times in front: what every store keeps."""
    at = b"" if fire_ms is None else b'"at":%d,' % fire_ms
    return b'{"t":%d,%b%b' % (now_ms, at, row[1:])


class Claim(NamedTuple):
    """One job in the hands of one worker, under one token."""

    queue: str
    id: str
    #: The fencing token: how often the job was claimed so far. It only grows.
    token: int
    #: The packed row; b"" where only the claim is named (an answer to `held`).
    row: bytes
    #: Claims that did not count (snoozed, released, lost, requeued).
    forgiven: int = 0
    crashes: int = 0
    lost: int = 0
    #: It may hold places at gates (see `gates`), which it leaves when it is settled.
    gated: bool = False

    @property
    def attempt(self) -> int:
        """Which try this is: what budgets and backoff count."""
        return self.token - self.forgiven


class Completed(NamedTuple):
    """The attempt went well. `keep_ms` > 0 keeps the row and the result (JSON bytes) that long."""

    claim: Claim
    result: bytes = b""
    keep_ms: int = 0


class Retried(NamedTuple):
    """The attempt failed. `cause` is counted: failed, crashed (also crashes += 1) or timed_out."""

    claim: Claim
    delay_ms: int
    max_attempts: int
    #: One line of JSON, see pack_error.
    error: bytes
    cause: str = "failed"
    max_crashes: int = 3

    @property
    def is_last(self) -> bool:
        """The job is dead by it, as the stores see it: its budget is spent, or it has crashed too often."""
        claim = self.claim
        return claim.attempt >= self.max_attempts or (self.cause == "crashed" and claim.crashes + 1 >= self.max_crashes)


class Buried(NamedTuple):
    """No retry can mend it. `reason` is a word without spaces; the text is in the error."""

    claim: Claim
    reason: str
    error: bytes


class Snoozed(NamedTuple):
    """Not a failure: forgiven, delayed by at least 100 ms."""

    claim: Claim
    delay_ms: int


class Released(NamedTuple):
    """Given back: never started, or cut off by a planned stop. An interrupted run leaves a note (`error`)."""

    claim: Claim
    error: bytes = b""


class Lost(NamedTuple):
    """Nobody knows whether it ran: lost += 1, forgiven, delayed; dead with reason `poison` at `max_lost`."""

    claim: Claim
    delay_ms: int
    max_lost: int
    error: bytes


Outcome = Completed | Retried | Buried | Snoozed | Released

#: The least delay of a snooze.
SNOOZE_MIN_MS = 100
#: Error entries that a job keeps, newest first.
ERRORS_KEPT = 5
#: Bytes of one error entry's text and traceback together.
ERROR_MAX = 8192


def pack_error(
    kind: str,
    text: str,
    *,
    attempt: int,
    at_ms: int,
    started_ms: int = 0,
    delay_ms: int | None = None,
    worker: str = "",
    trace: str = "",
) -> bytes:
    """One error entry: a line of JSON, bounded. Text that is no valid UTF-8 is kept as escapes.

    `started_ms`: when the attempt's handler was called (0: it was not, 1: nobody knows). `delay_ms`: what was asked for
    until the next attempt. Both are read by people; the stores never look into an entry.
    """
    text, trace = (part.encode("utf-8", "backslashreplace").decode() for part in (text, trace))
    entry: dict[str, Any] = {"kind": kind, "error": text[: ERROR_MAX // 2], "attempt": attempt, "at_ms": at_ms}
    if started_ms > 1:
        entry["started_ms"] = started_ms
    if delay_ms is not None:
        entry["delay_ms"] = delay_ms
    if worker:
        entry["worker"] = worker
    if trace:
        # The end of a traceback names the fault.
        entry["trace"] = trace[-(ERROR_MAX - min(len(text), ERROR_MAX // 2)) :]
    return orjson.dumps(entry)


class Claims(NamedTuple):
    """The answer to a claim. With HELD, `claims` are those the store counts for this worker, without rows."""

    word: Word
    claims: tuple[Claim, ...] = ()


class Exchange(NamedTuple):
    """The answer to an exchange: a word for each outcome, in order, and the new claims."""

    words: tuple[Word, ...]
    claimed: Claims


class Renewal(NamedTuple):
    """The answer to renew: a word a worker (OK, SEALED, UNKNOWN), and the marked claims as (worker, id, token)."""

    words: tuple[Word, ...]
    marks: tuple[tuple[str, str, int], ...] = ()


class Promoted(NamedTuple):
    """The answer to promote: how many moved, and in how many ms the next one is due (None: none stands there)."""

    moved: int
    next_in_ms: float | None


class Leases(NamedTuple):
    """The workers of a queue with the ends of their leases (store's ms; 0: sealed), and the store's now."""

    now_ms: int
    ends: dict[str, int]


class Sealed(NamedTuple):
    """The answer to seal: OK with what the worker held, RENEWED or UNKNOWN without."""

    word: Word
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """A job as people and programs see it: a reading, already past when it is looked at."""

    id: str
    queue: str
    #: The handler's name.
    job: str
    state: State
    #: The token: claims so far.
    attempts: int
    priority: int
    #: By the store's clock.
    enqueued_ms: int
    args: Sequence[Any] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    #: Since when it stands in this state; delayed, until when; pending and active, since when it is, or was, ready:
    #: a job that was given back counts from when it first was.
    since_ms: int = 0
    forgiven: int = 0
    crashes: int = 0
    lost: int = 0
    #: Why it is dead: max_attempts, crashed, timed_out, poison, no_handler, or a handler's own `buried`.
    reason: str = ""
    #: The last errors, newest first: kind, error, attempt, at_ms, and where there is one worker and trace.
    errors: tuple[dict[str, Any], ...] = ()
    #: Active: who holds it.
    worker: str = ""
    #: Active: cancelled, but still running.
    cancel: bool = False
    #: Kept and completed: what the handler returned.
    result: Any = None
    max_attempts: int | None = None
    #: The time limit and the retention of its result, where the job has its own.
    timeout_ms: int | None = None
    keep_ms: int | None = None
    #: The batch that it is in; "" for none.
    batch: str = ""

    @property
    def attempt(self) -> int:
        return self.attempts - self.forgiven

    def as_dict(self) -> dict[str, Any]:
        """The job as one JSON object; keys are stable."""
        out: dict[str, Any] = {
            "id": self.id,
            "queue": self.queue,
            "job": self.job,
            "state": self.state.value,
            "attempts": self.attempts,
            "attempt": self.attempt,
            "priority": self.priority,
            "enqueued_ms": self.enqueued_ms,
            "args": list(self.args),
            "kwargs": self.kwargs,
        }
        if self.batch:
            out["batch"] = self.batch
        if self.state is State.DELAYED:
            out["fire_ms"] = self.since_ms
        for name in ("forgiven", "crashes", "lost"):
            if getattr(self, name):
                out[name] = getattr(self, name)
        if self.errors:
            out["error"] = self.errors[0].get("error", "")
            out["errors"] = list(self.errors)
        if self.state is State.DEAD:
            out.setdefault("error", "")
            out["reason"] = self.reason
            out["died_ms"] = self.since_ms
        if self.state is State.ACTIVE:
            out["worker"] = self.worker
            out["cancel"] = self.cancel
        if self.state is State.COMPLETED:
            out["result"] = self.result
            out["expires_ms"] = self.since_ms
        return out


class Page(NamedTuple):
    """Some jobs of a list, and the cursor of the next page ("" at the end)."""

    jobs: tuple[Job, ...]
    cursor: str


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue at one instant: the counts and totals of one atomic look."""

    paused: bool
    counts: dict[str, int]
    totals: dict[str, int]
    oldest_pending_age_ms: int
