"""Gates: limits of rate and of jobs at once, and circuit breakers, that jobs pass between their claim and their run.

A gate has a name in its queue and is exact over all workers and hosts: its state stands in the store. A job that may
not pass waits: delayed, its claim forgiven, in the order of the gate. When a job leaves, the next is called to the head
of the queue; where time decides, the first that waits has the right fire-time. So nobody claims in vain.

    closed    jobs pass; failures in a row are counted
    open      nobody passes, until its time is over; what fails meanwhile spends no attempt
    probing   one has passed: it closes the gate by its success, or opens it again, and is forgiven

This module is the rule; the spool and memory keep their state through `Hall`, `lua/include/gate.lua` says the same.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, NamedTuple

from batchq.digest import blake2b
from batchq.job import Buried, Claim, Completed, Outcome, Retried

#: The first that waits looks again by itself after so long, the others after so much: nobody is forgotten.
HEAD_MS, FALLBACK_MS = 5_000, 300_000
#: Who was called and has not come within this has been called in vain.
CALLED_MS = 5_000
#: What a gate knows of failures is forgotten when nobody has come for so long.
FORGET_MS = 86_400_000
#: A gate is looked after so long behind the time that its first has.
BEHIND_MS = 1_000
#: So many are called at most at once; and by one sweep, or little more.
CALLS, MOST_CALLS = 100, 1000
#: A window is so much longer than it says, or a tenth where that is less: between the step that admits a job and what
#: its handler does lies a time that is never the same, and what began later must not catch up.
SLACK_MS = 100
#: Where that took longer, the job has missed its turn.
LATE_MS = SLACK_MS // 2
#: Characters of a gate's name.
MOST_NAME = 200
#: A greater rate is counted in shorter windows.
MOST_COUNT = 1000

CLOSED, OPEN, PROBING = "closed", "open", "probing"

_NO_TEXT = re.compile(r"[\x00-\x1f\ud800-\udfff]")


class Gate(NamedTuple):
    """A gate that a job has to pass, and its terms as the worker knows them. 0: no such limit."""

    name: str
    #: Jobs at once.
    limit: int = 0
    #: So many in each period.
    rate: int = 0
    period_ms: int = 0
    #: Failures in a row that open it, and how long.
    threshold: int = 0
    reset_ms: int = 0


class Admission(NamedTuple):
    """A claimed job and its gates. It passes all of them, or waits at the first that refuses it."""

    claim: Claim
    gates: tuple[Gate, ...]


class GateState(NamedTuple):
    """A gate as people see it."""

    name: str
    #: Jobs that have passed and not ended.
    busy: int
    waiting: int
    #: closed, open or probing.
    phase: str
    failures: int
    #: Open: until when, by the store's clock; else 0.
    until_ms: int
    limit: int
    rate: int
    period_ms: int


class Verdict(Enum):
    """What the end of an attempt says about the other side."""

    #: It answered, be it with a refusal that no retry mends.
    GOOD = "good"
    BAD = "bad"
    #: Nothing: a snooze, a release, a crash of our own.
    NONE = "none"


def verdict_of(outcome: object) -> Verdict:
    if isinstance(outcome, Completed | Buried):
        return Verdict.GOOD
    if isinstance(outcome, Retried) and outcome.cause in ("failed", "timed_out"):
        return Verdict.BAD
    return Verdict.NONE


def gate_name(text: str) -> str:
    """A name that any store can hold: no control characters, at most 200 characters. Where that takes something away a
    hash stands for it, so that no two keys meet."""
    name = _NO_TEXT.sub("?", text)
    if name == text and len(name) <= MOST_NAME:
        return name
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return f"{name[: MOST_NAME - 33]}~{digest}"


def in_short_windows(count: int, period_ms: int) -> tuple[int, int]:
    """The same rate, never more, with at most MOST_COUNT in a window."""
    parts = -(-count // MOST_COUNT)
    return max(1, count // parts), -(-period_ms // parts)


def window_us(period_ms: int) -> int:
    return (period_ms + min(SLACK_MS, period_ms // 10)) * 1000


@dataclass(slots=True)
class Door:
    """The state of one gate."""

    name: str
    busy: int = 0
    called: int = 0
    #: When jobs were called last; where nobody is there, since when.
    since_ms: int = 0
    failures: int = 0
    phase: str = CLOSED
    ends_ms: int = 0
    limit: int = 0
    count: int = 0
    period_ms: int = 0
    threshold: int = 0
    reset_ms: int = 0

    def take_terms(self, gate: Gate) -> None:
        self.limit, self.count, self.period_ms = gate.limit, gate.rate, gate.period_ms
        self.threshold, self.reset_ms = gate.threshold, gate.reset_ms

    @property
    def is_idle(self) -> bool:
        return self.phase == CLOSED and not (self.busy or self.called or self.failures)

    @property
    def visit_ms(self) -> int | None:
        """When it has to be looked after though nobody may come any more; None: never."""
        if self.called:
            return self.since_ms + CALLED_MS + 1
        if self.busy:
            return None
        if self.phase != CLOSED or self.failures:
            return max(self.since_ms, self.ends_ms) + FORGET_MS
        return self.since_ms + window_us(self.period_ms) // 1000 + 1 if self.count else None

    def open(self, now_ms: int) -> None:
        self.phase, self.ends_ms, self.failures = OPEN, now_ms + self.reset_ms, 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def state_of(door: Door, waiting: int) -> GateState:
    return GateState(
        *(door.name, door.busy, waiting, door.phase, door.failures),
        *(door.ends_ms if door.phase == OPEN else 0, door.limit, door.count, door.period_ms),
    )


class Pass(NamedTuple):
    """What a store notes of a job at gates. `flag`: a admitted, w waiting, c called."""

    flag: str
    token: int
    place: int
    #: Where it waits or has waited.
    at: str
    #: Which it has passed.
    names: tuple[str, ...] = ()


class Waiting(NamedTuple):
    """One that waits at a gate."""

    place: int
    id: str


class Hall(ABC):
    """Where the state of a queue's gates is kept. All of it is read and written in one step of the store."""

    now_us: int

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    @abstractmethod
    def door(self, name: str) -> Door:
        """A new one where there is none."""

    @abstractmethod
    def is_there(self, name: str) -> bool:
        """It is kept, and no new one."""

    def put(self, door: Door) -> None:
        """Forgets one that is idle and at which nobody waits."""
        if not (door.busy or door.called):
            door.since_ms = self.now_ms
        if (at := door.visit_ms) is not None:
            self.visit(door.name, at)
        self.keep(door, forget=door.is_idle and self.first(door.name) is None)

    @abstractmethod
    def keep(self, door: Door, *, forget: bool) -> None: ...

    @abstractmethod
    def visit(self, name: str, at_ms: int) -> None:
        """A gate is to be looked after then, and not at the time that was said before."""

    @abstractmethod
    def visits(self, limit: int) -> list[str]:
        """The gates that are to be looked after now, at most so many, the earliest first."""

    @abstractmethod
    def visited(self, name: str) -> None: ...

    @abstractmethod
    def pass_of(self, job_id: str) -> Pass | None: ...

    @abstractmethod
    def give_pass(self, job_id: str, given: Pass | None) -> None:
        """None: takes it away."""

    @abstractmethod
    def first(self, name: str) -> Waiting | None:
        """The first that waits. Forgets those that were claimed, cancelled or purged meanwhile, by their token."""

    @abstractmethod
    def wait(self, name: str, place: int, token: int, job_id: str) -> None: ...

    @abstractmethod
    def wait_no_more(self, name: str, place: int) -> None: ...

    @abstractmethod
    def new_place(self) -> int: ...

    @abstractmethod
    def passed(self, name: str, since_us: int) -> list[int]:
        """When jobs have passed since then, the oldest first. Forgets those before."""

    @abstractmethod
    def forget_passed(self, name: str) -> None: ...

    @abstractmethod
    def note_passed(self, name: str, job_id: str, token: int) -> None: ...

    @abstractmethod
    def call(self, ids: Sequence[str]) -> None:
        """delayed -> pending, to the head, in this order."""

    @abstractmethod
    def set_fire(self, job_id: str, fire_ms: int) -> None:
        """A delayed job is due then."""


def room(hall: Hall, door: Door) -> tuple[int, int]:
    """How many may pass now by the rate, and when the next may (0: now)."""
    if not door.count:
        return CALLS, 0
    window = window_us(door.period_ms)
    passed = hall.passed(door.name, hall.now_us - window)
    left = door.count - len(passed)
    return left, 0 if left > 0 else -(-(passed[-left] + window) // 1000)


def _refusal(hall: Hall, door: Door, place: int | None) -> int | None:
    """None: it may pass. Else when it may look again; 0: nobody knows."""
    if door.phase == OPEN and hall.now_ms < door.ends_ms:
        return door.ends_ms
    if door.phase == PROBING:
        return 0
    first = hall.first(door.name)
    if first is not None and (place is None or first.place < place):
        return 0
    if door.limit and door.busy >= door.limit:
        return 0
    left, next_ms = room(hall, door)
    return None if left > 0 else next_ms


def admit(hall: Hall, job_id: str, token: int, gates: Sequence[Gate], touched: set[str]) -> int | None:
    """None where the job passes all gates; else its fire-time: it waits. `tend` what is touched after a batch of these.

    Without gates: whoever asks knows of none any more, and where the job has waited for its turn nobody minds.
    """
    known = hall.pass_of(job_id)
    if known is not None and known.flag == "a" and known.token == token:
        return None
    place = known.place if known is not None and known.flag != "a" else None
    if known is not None and known.flag == "a":
        # The claim before was given back by somebody who did not know of its places.
        _leave_doors(hall, known.names, Verdict.NONE)
    elif known is not None and known.flag == "c":
        door = hall.door(known.at)
        door.called = max(0, door.called - 1)
        hall.put(door)
    elif known is not None and known.flag == "w":
        hall.wait_no_more(known.at, known.place)
    touched |= {gate.name for gate in gates}
    if not gates:
        if known is not None:
            hall.give_pass(job_id, None)
            if known.at:
                touched.add(known.at)
                _throw_open(hall, known.at)
        return None
    doors = []
    for gate in gates:
        door = hall.door(gate.name)
        door.take_terms(gate)
        doors.append(door)
    for door in doors:
        again_ms = _refusal(hall, door, place)
        if again_ms is not None:
            return _park(hall, door, job_id, token, place, again_ms)
    for door in doors:
        door.busy += 1
        if door.phase == OPEN:
            door.phase = PROBING
        if door.count:
            hall.note_passed(door.name, job_id, token)
        hall.put(door)
    hall.give_pass(job_id, Pass("a", token, 0, "", tuple(door.name for door in doors)))
    return None


def _throw_open(hall: Hall, name: str) -> None:
    """Until somebody comes who has terms for it."""
    door = hall.door(name)
    door.take_terms(Gate(name))
    door.phase, door.ends_ms, door.failures = CLOSED, 0, 0
    hall.put(door)


def _park(hall: Hall, door: Door, job_id: str, token: int, place: int | None, again_ms: int) -> int:
    first = hall.first(door.name)
    if place is None:
        place = hall.new_place()
    is_first = first is None or place < first.place
    hall.wait(door.name, place, token, job_id)
    hall.give_pass(job_id, Pass("w", token, place, door.name))
    hall.put(door)
    if not is_first:
        return hall.now_ms + FALLBACK_MS
    return again_ms or hall.now_ms + HEAD_MS


def tend(hall: Hall, name: str) -> int:
    """Calls those that wait and may pass, and gives the first that has to wait for a time that time. Answers how many
    were called."""
    door = hall.door(name)
    now, free, wait_ms = hall.now_ms, CALLS, 0
    if door.called and now - door.since_ms > CALLED_MS:
        door.called = 0
    if door.phase == OPEN:
        free, wait_ms = (1 - door.called, 0) if now >= door.ends_ms else (0, door.ends_ms)
    elif door.phase == PROBING:
        free = 0
    else:
        free -= door.called
    if door.limit:
        free = min(free, door.limit - door.busy - door.called)
    if free > 0:
        left, next_ms = room(hall, door)
        free = min(free, left - door.called) if door.count else free
        wait_ms = wait_ms or next_ms
    called: list[str] = []
    while len(called) < free and (first := hall.first(name)) is not None:
        hall.wait_no_more(name, first.place)
        called.append(first.id)
        known = hall.pass_of(first.id)
        if known is not None:
            hall.give_pass(first.id, known._replace(flag="c"))
    if called:
        door.called, door.since_ms = door.called + len(called), now
        hall.call(called)
    hall.put(door)
    if wait_ms and (first := hall.first(name)) is not None:
        hall.set_fire(first.id, wait_ms)
        if not door.called:
            # Should that one be cancelled, or late, the others are not forgotten.
            hall.visit(name, wait_ms + BEHIND_MS)
    return len(called)


def look_after(hall: Hall, limit: int) -> None:
    """Looks after some gates whose time has come, and forgets what is of no use any more. Called by sweeps."""
    calls = 0
    for name in sorted(hall.visits(limit)):
        if calls >= MOST_CALLS:
            # The next sweep goes on.
            return
        hall.visited(name)
        if not hall.is_there(name):
            hall.forget_passed(name)
            continue
        door = hall.door(name)
        nobody = not (door.busy or door.called) and hall.first(name) is None
        if nobody and door.visit_ms is not None and door.visit_ms <= hall.now_ms:
            door.phase, door.ends_ms, door.failures = CLOSED, 0, 0
            hall.put(door)
        calls += tend(hall, name)


def judge(hall: Hall, outcome: Outcome) -> int | None:
    """Before an attempt that went badly is settled. A fire-time where it is forgiven: a gate that it has passed is not
    closed any more, and there it waits again, behind the others. None: it is settled as it says, then it leaves."""
    claim = outcome.claim
    known = hall.pass_of(claim.id)
    if verdict_of(outcome) is not Verdict.BAD or known is None or (known.flag, known.token) != ("a", claim.token):
        return None
    shut: Door | None = None
    for name in known.names:
        door = hall.door(name)
        if door.phase != CLOSED:
            if door.phase == PROBING:
                door.open(hall.now_ms)
            shut = shut or door
        elif door.threshold:
            door.failures += 1
            if door.failures >= door.threshold:
                door.open(hall.now_ms)
        hall.put(door)
    if shut is None:
        return None
    _leave_doors(hall, known.names, Verdict.NONE)
    return _park(hall, hall.door(shut.name), claim.id, claim.token, None, shut.ends_ms)


def leave(hall: Hall, claim: Claim, verdict: Verdict) -> None:
    """After an attempt was settled, in whatever way. Does nothing where that claim holds no place."""
    known = hall.pass_of(claim.id)
    if known is None or (known.flag, known.token) != ("a", claim.token):
        return
    hall.give_pass(claim.id, None)
    _leave_doors(hall, known.names, verdict)


def gone(hall: Hall, job_id: str) -> None:
    """A job's row is gone: nobody waits for it. One that has passed is left to whoever settles it."""
    known = hall.pass_of(job_id)
    if known is not None and known.flag != "a":
        if known.flag == "w":
            hall.wait_no_more(known.at, known.place)
        hall.give_pass(job_id, None)


def _leave_doors(hall: Hall, names: Sequence[str], verdict: Verdict) -> None:
    for name in names:
        door = hall.door(name)
        door.busy = max(0, door.busy - 1)
        if verdict is Verdict.GOOD:
            door.failures = 0
            if door.phase == PROBING:
                door.phase, door.ends_ms = CLOSED, 0
        elif door.phase == PROBING and not door.busy:
            # The probe was cut off: the next may go at once.
            door.phase, door.ends_ms = OPEN, hall.now_ms
        hall.put(door)
        tend(hall, name)


def trip(hall: Hall, name: str, for_ms: int) -> None:
    """Opened by hand."""
    _switch(hall, name, OPEN, hall.now_ms + for_ms)


def mend(hall: Hall, name: str) -> None:
    """Closed by hand."""
    _switch(hall, name, CLOSED, 0)


def _switch(hall: Hall, name: str, phase: str, ends_ms: int) -> None:
    door = hall.door(name)
    door.phase, door.ends_ms, door.failures = phase, ends_ms, 0
    hall.put(door)
    tend(hall, name)
