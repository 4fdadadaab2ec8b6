"""The store in this process's memory: for tests, and the readable reference of what every store does.

It keeps the contract of `store.py` whole, but outlives nothing and is seen by no other process. One lock makes each
move one step; every list is a sorted list, so that its order can be read off one key. No I/O but the pipes of waiters.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from batchq import gates
from batchq.clock import MAX_FIRE_MS, SYSTEM, Clock, due_ms, fire_ms
from batchq.errors import ConfigError, InternalError, QueueFull, StoreCorrupt
from batchq.gates import Admission, GateState
from batchq.job import (
    ERRORS_KEPT,
    SNOOZE_MIN_MS,
    Buried,
    Claim,
    Claims,
    Completed,
    Exchange,
    Job,
    Leases,
    Lost,
    Mark,
    NewJob,
    Outcome,
    Page,
    Promoted,
    QueueStats,
    Released,
    Renewal,
    Retried,
    Sealed,
    Snoozed,
    stamp_row,
)
from batchq.jsons import orjson
from batchq.lifecycle import COUNTED, TOTALS, State, Word
from batchq.store import MAX_BYTES, MAX_JOBS, PROMOTE_LIMIT, Limits, Store, StoreInfo, Traits
from batchq.tally import BatchStats, NewBatch, Tally, full, over, stats_of

# -- what stands in a queue --------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """Where a job stands in the list of its state: by rank, then by arrival."""

    #: pending: -priority. delayed: fire-time. completed: end of the retention. dead: time of death.
    rank: int
    #: Grows with every arrival at a tail; below zero for those put back at a head.
    arrival: int
    id: str


@dataclass(slots=True)
class _Entry:
    """A job and all that its attempts left behind."""

    id: str
    row: bytes
    priority: int
    given: bool
    enqueued_ms: int
    state: State
    place: _Place
    since_ms: int
    attempts: int = 0
    forgiven: int = 0
    crashes: int = 0
    lost: int = 0
    #: Packed, newest first.
    errors: list[bytes] = field(default_factory=list)
    worker: str = ""
    cancel: bool = False
    reason: str = ""
    result: bytes = b""

    def note(self, error: bytes) -> None:
        """Keeps an error entry: the newest first, the oldest drops out."""
        if error:
            self.errors = [error, *self.errors[: ERRORS_KEPT - 1]]

    def claim(self, queue: str, *, row: bool = True) -> Claim:
        return Claim(
            queue,
            self.id,
            self.attempts,
            self.row if row else b"",
            forgiven=self.forgiven,
            crashes=self.crashes,
            lost=self.lost,
        )


@dataclass(slots=True)
class _Worker:
    """A lease, and what stands under it."""

    lease_ms: int
    #: 0: sealed, for good.
    end_ms: int
    #: In the order of the claims; a dict, because it is a set that keeps its order.
    claims: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Batch:
    """A batch as it began, and its numbers."""

    new: NewBatch
    tally: Tally


class _Bell:
    """Hints of one kind on one queue: each rouses one waiter; one that nobody waits for is kept for the next."""

    def __init__(self) -> None:
        self.rung = False
        self.waiting: list[_Waiter] = []

    def ring(self) -> None:
        if self.waiting:
            self.waiting[0].rouse()
        else:
            self.rung = True


class _Queue:
    """Everything under one queue's name."""

    def __init__(self, name: str, remember_ms: int) -> None:
        self.name = name
        self._remember_ms = remember_ms
        #: Something was enqueued here once, or a batch has begun.
        self.known = False
        self.paused = False
        self.jobs: dict[str, _Entry] = {}
        #: The lists of the states, each in its order. Active jobs stand among their worker's claims.
        self.lists: dict[State, list[_Place]] = {
            state: [] for state in (State.PENDING, State.DELAYED, State.COMPLETED, State.DEAD)
        }
        self.workers: dict[str, _Worker] = {}
        #: Given ids whose jobs have ended -> until when they are known.
        self.remembered: dict[str, int] = {}
        self.totals = dict.fromkeys(TOTALS, 0)
        #: Gates, the passes of jobs at them, and who waits at which: (gate, place) -> (token, id).
        self.doors: dict[str, gates.Door] = {}
        self.passes: dict[str, gates.Pass] = {}
        self.waiters: dict[tuple[str, int], tuple[int, str]] = {}
        #: When jobs have passed a gate with a rate.
        self.passed: dict[str, list[int]] = {}
        #: When gates are looked after.
        self.visits: dict[str, int] = {}
        self.turns = 0
        self.batches: dict[str, _Batch] = {}
        #: Jobs whose rows stand -> the batch they are in.
        self.batched: dict[str, str] = {}
        self.wake = _Bell()
        self.timer = _Bell()
        self._tail = 0
        self._head = 0

    def put(self, entry: _Entry, state: State, rank: int, now: int, *, head: bool = False) -> None:
        """Stands a job, which stands nowhere, in a state's list: at the tail of its rank, or at its head."""
        if head:
            self._head -= 1
        else:
            self._tail += 1
        entry.state, entry.place = state, _Place(rank, self._head if head else self._tail, entry.id)
        entry.since_ms = now if state in (State.PENDING, State.DEAD) else rank
        insort(self.lists[state], entry.place)
        if state is State.PENDING:
            self.wake.ring()
        elif state is State.DELAYED and self.lists[state][0] is entry.place:
            self.timer.ring()

    def take(self, entry: _Entry) -> None:
        """Takes a job out of the list where it stands."""
        if entry.state is State.ACTIVE:
            del self.workers[entry.worker].claims[entry.id]
            entry.worker = ""
            return
        places = self.lists[entry.state]
        del places[bisect_left(places, entry.place)]

    def put_pending(self, entry: _Entry, now: int, *, head: bool = False) -> None:
        self.put(entry, State.PENDING, -entry.priority, now, head=head)

    def put_delayed(self, entry: _Entry, now_us: int, delay_ms: int) -> None:
        # An outcome must never be refused: a delay past the end of time ends there.
        fire = min(fire_ms(now_us, max(0, delay_ms)), MAX_FIRE_MS)
        self.put(entry, State.DELAYED, fire, due_ms(now_us))

    def put_dead(self, entry: _Entry, reason: str, now: int) -> None:
        self.count(entry.id, "", "dead", now)
        entry.reason = reason
        self.end(entry, now)
        self.put(entry, State.DEAD, now, now)
        self.totals["dead"] += 1

    def count(self, id: str, before: str, after: str, now: int, *, gone: bool = False) -> None:
        """Counts a job in its batch, if it is in one: out of a column and into another. `gone`: its row goes."""
        batch = self.batches.get(self.batched.get(id, ""))
        if gone:
            self.batched.pop(id, None)
        if batch is not None and before != after:
            batch.tally.count(before, -1)
            batch.tally.count(after, 1)
            self.look(batch, now)

    def look(self, batch: _Batch, now: int) -> None:
        """The numbers of a batch have changed: enqueues the callbacks that are due."""
        for kind in batch.tally.look(now):
            head = batch.new.on_complete if kind == "complete" else batch.new.on_success
            id = f"{batch.new.id}.{kind}"
            if head and id not in self.jobs:
                self.add(id, batch.tally.row(head, now), now)
                self.put_pending(self.jobs[id], now)

    def add(self, id: str, row: bytes, now: int, *, priority: int = 0, given: bool = False) -> _Entry:
        """A new job, which stands in no list yet."""
        entry = self.jobs[id] = _Entry(id, row, priority, given, now, State.PENDING, _Place(0, 0, ""), now)
        self.totals["enqueued"] += 1
        return entry

    def end(self, entry: _Entry, now: int) -> None:
        """A job has ended: a given id stays known for a while from now on, whenever its row goes."""
        if entry.given:
            self.remembered.pop(entry.id, None)
            self.remembered[entry.id] = now + self._remember_ms


class _Hall(gates.Hall):
    """The gates of a queue, at one instant."""

    def __init__(self, q: _Queue, now_us: int) -> None:
        self._q = q
        self.now_us = now_us

    def door(self, name: str) -> gates.Door:
        return self._q.doors.get(name) or gates.Door(name)

    def is_there(self, name: str) -> bool:
        return name in self._q.doors

    def keep(self, door: gates.Door, *, forget: bool) -> None:
        self._q.doors[door.name] = door
        if forget:
            del self._q.doors[door.name]

    def visit(self, name: str, at_ms: int) -> None:
        self._q.visits[name] = at_ms

    def visits(self, limit: int) -> list[str]:
        found = sorted((at, name) for name, at in self._q.visits.items() if at <= self.now_ms)[:limit]
        return [name for _, name in found]

    def visited(self, name: str) -> None:
        del self._q.visits[name]

    def pass_of(self, job_id: str) -> gates.Pass | None:
        return self._q.passes.get(job_id)

    def parked_at(self, job_id: str) -> list[str]:
        """Where a job waits."""
        return [name for (name, _), (_, waiting) in self._q.waiters.items() if waiting == job_id]

    def give_pass(self, job_id: str, given: gates.Pass | None) -> None:
        self._q.passes.pop(job_id, None)
        if given is not None:
            self._q.passes[job_id] = given

    def first(self, name: str) -> gates.Waiting | None:
        for gate, place in sorted(self._q.waiters):
            if gate != name:
                continue
            token, job_id = self._q.waiters[gate, place]
            entry = self._q.jobs.get(job_id)
            if entry is not None and entry.attempts == token:
                return gates.Waiting(place, job_id)
            del self._q.waiters[gate, place]
        return None

    def wait(self, name: str, place: int, token: int, job_id: str) -> None:
        self._q.waiters[name, place] = token, job_id

    def wait_no_more(self, name: str, place: int) -> None:
        self._q.waiters.pop((name, place), None)

    def new_place(self) -> int:
        self._q.turns += 1
        return self._q.turns

    def passed(self, name: str, since_us: int) -> list[int]:
        stamps = [at for at in self._q.passed.get(name, []) if at >= since_us]
        self._q.passed[name] = stamps
        return stamps

    def forget_passed(self, name: str) -> None:
        self._q.passed.pop(name, None)

    def note_passed(self, name: str, job_id: str, token: int) -> None:
        self._q.passed.setdefault(name, []).append(self.now_us)

    def call(self, ids: Sequence[str]) -> None:
        entries = [self._q.jobs[job_id] for job_id in ids]
        for entry in reversed([one for one in entries if one.state is State.DELAYED]):
            self._q.take(entry)
            self._q.put_pending(entry, self.now_ms, head=True)
            self._q.totals["promoted"] += 1

    def set_fire(self, job_id: str, fire_ms: int) -> None:
        entry = self._q.jobs[job_id]
        if entry.state is State.DELAYED:
            self._q.take(entry)
            self._q.put(entry, State.DELAYED, fire_ms, self.now_ms)


# -- waiting -----------------------------------------------------------------------------------------------------


class _Waiter:
    """A pipe that becomes readable with the first hint of some bells."""

    def __init__(self, lock: threading.RLock, bells: list[_Bell]) -> None:
        self._lock = lock
        self._bells = bells
        self._read, self._write = os.pipe()
        self._armed = False
        self._roused = False

    def arm(self) -> None:
        with self._lock:
            if self._armed:
                return
            self._armed = True
            for bell in self._bells:
                if bell.rung:
                    bell.rung = False
                    self.rouse()
                    return
            for bell in self._bells:
                bell.waiting.append(self)

    def rouse(self) -> None:
        """A bell rings for this waiter; it waits no more."""
        self._leave()
        self._roused = True
        os.write(self._write, b".")

    def fileno(self) -> int:
        return self._read

    def take(self) -> bool:
        with self._lock:
            roused = self._roused
            self._leave()
            self._armed = self._roused = False
            if roused:
                os.read(self._read, 1)
            return roused

    def close(self) -> None:
        with self._lock:
            if self._read < 0:
                return
            self._leave()
            if self._roused:
                # A hint that this one did not act on is another's.
                for bell in self._bells:
                    bell.ring()
            os.close(self._read)
            os.close(self._write)
            self._read = self._write = -1

    def _leave(self) -> None:
        for bell in self._bells:
            if self in bell.waiting:
                bell.waiting.remove(self)


# -- the store ---------------------------------------------------------------------------------------------------


class MemoryStore(Store):
    """See the module. Threads may share it."""

    traits = Traits(kind="memory", shared=False, durable=False, idle_wait_s=5.0)

    def __init__(self, *, limits: Limits = Limits(), clock: Clock = SYSTEM) -> None:  # noqa: B008 - a frozen value
        self._limits = limits
        self._clock = clock
        self._lock: threading.RLock = threading.RLock()
        self._queues: dict[str, _Queue] = {}
        #: Lane -> the last call done on it, and until when that is known.
        self._marks: dict[tuple[str, str], tuple[int, int]] = {}
        self._masters: dict[str, tuple[dict[str, Any], int]] = {}

    # -- moves ---------------------------------------------------------------------------------------------------

    def enqueue(
        self, queue: str, jobs: Sequence[NewJob], mark: Mark | None = None, *, max_pending: int = 0
    ) -> list[Word]:
        if mark is not None:
            _check_one_step(jobs)
        with self._lock:
            q, now_us = self._at(queue)
            now = due_ms(now_us)
            fires = [_fire_of(new, now_us) for new in jobs]
            if mark is not None and self._done_before(queue, mark, now):
                return [Word.AGAIN] * len(jobs)
            self._check_room(q, jobs, fires, now, max_pending)
            if mark is not None:
                self._marks.pop((queue, mark.lane), None)
                self._marks[queue, mark.lane] = mark.call, now + self._limits.mark_ttl_ms
            q.known = True
            return [self._enqueue(q, new, fire, now) for new, fire in zip(jobs, fires, strict=True)]

    def _check_room(self, q: _Queue, jobs: Sequence[NewJob], fires: Sequence[int], now: int, most: int) -> None:
        """Raises QueueFull, and ConfigError for a batch that takes no jobs."""
        fresh: dict[str, tuple[NewJob, int]] = {}
        for new, fire in zip(jobs, fires, strict=True):
            if not self._is_known(q, new, now):
                # Of an id that stands twice in a call the first is taken.
                fresh.setdefault(new.id, (new, fire))
        ready = sum(fire <= now for _, fire in fresh.values())
        stand = len(q.lists[State.PENDING])
        if most and ready and stand and stand + ready > most:
            raise QueueFull(full(q.name, stand, most))
        for new, _ in fresh.values():
            if new.batch and (new.batch not in q.batches or q.batches[new.batch].tally.is_over):
                raise ConfigError(over(new.batch, q.name))

    def _is_known(self, q: _Queue, new: NewJob, now: int) -> bool:
        return new.id in q.jobs or q.remembered.get(new.id, 0) > now

    def _enqueue(self, q: _Queue, new: NewJob, fire: int, now: int) -> Word:
        if self._is_known(q, new, now):
            return Word.KNOWN
        waits = fire > now
        row = stamp_row(new.row, now, fire if waits else None)
        entry = q.add(new.id, row, now, priority=new.priority, given=new.given)
        if new.batch:
            q.batched[new.id] = new.batch
            q.count(new.id, "", "total", now)
        if waits:
            q.put(entry, State.DELAYED, fire, now)
        else:
            q.put_pending(entry, now)
        return Word.OK

    def _done_before(self, queue: str, mark: Mark, now: int) -> bool:
        call, until = self._marks.get((queue, mark.lane), (-1, 0))
        return call >= mark.call and until > now

    def register(self, queue: str, worker: str, lease_ms: int) -> Word:
        with self._lock:
            q, now_us = self._at(queue)
            standing = q.workers.get(worker)
            if standing is None:
                q.workers[worker] = _Worker(lease_ms, due_ms(now_us) + lease_ms)
                return Word.OK
            if not standing.end_ms:
                return Word.SEALED
            # The same call, sent again.
            standing.lease_ms, standing.end_ms = lease_ms, due_ms(now_us) + lease_ms
            return Word.OK

    def claim(self, queue: str, worker: str, want: int, held: int) -> Claims:
        with self._lock:
            q, now_us = self._at(queue)
            return self._claim(q, worker, want, held, due_ms(now_us))

    def _claim(self, q: _Queue, worker: str, want: int, held: int, now: int) -> Claims:
        holder = q.workers.get(worker)
        if holder is None:
            return Claims(Word.UNKNOWN)
        if not holder.end_ms:
            return Claims(Word.SEALED)
        if held != len(holder.claims):
            return Claims(Word.HELD, tuple(q.jobs[id].claim(q.name, row=False) for id in holder.claims))
        if q.paused:
            return Claims(Word.PAUSED)
        self._promote(q, PROMOTE_LIMIT, now)
        pending = q.lists[State.PENDING]
        claims: list[Claim] = []
        size = 0
        while pending and len(claims) < want:
            entry = q.jobs.get(pending[0].id)
            size += len(entry.row) if entry is not None else 0
            if claims and size > MAX_BYTES:
                break
            place = pending.pop(0)
            if entry is None:
                # A claim never invents a job.
                q.totals["dropped"] += 1
                q.count(place.id, "", "cancelled", now, gone=True)
                continue
            entry.attempts += 1
            entry.state, entry.worker = State.ACTIVE, worker
            holder.claims[entry.id] = None
            claims.append(entry.claim(q.name))
        if pending:
            # One hint rouses one worker; each passes it on while there is more.
            q.wake.ring()
        return Claims(Word.OK, tuple(claims))

    def renew(self, queue: str, workers: Sequence[str], lease_ms: int) -> Renewal:
        with self._lock:
            q, now_us = self._at(queue)
            now = due_ms(now_us)
            words = tuple(self._renew(q, worker, lease_ms, now) for worker in workers)
            alive = [holder for holder in q.workers.values() if holder.end_ms]
            longest = max([lease_ms, *(holder.lease_ms for holder in alive)])
            for holder in alive:
                holder.end_ms = min(holder.end_ms, now + longest)
            return Renewal(words, tuple(self._marks_of(q, workers)))

    def _renew(self, q: _Queue, worker: str, lease_ms: int, now: int) -> Word:
        holder = q.workers.get(worker)
        if holder is None:
            return Word.UNKNOWN
        if not holder.end_ms:
            return Word.SEALED
        holder.lease_ms, holder.end_ms = lease_ms, now + lease_ms
        return Word.OK

    def _marks_of(self, q: _Queue, workers: Sequence[str]) -> Iterable[tuple[str, str, int]]:
        for worker in workers:
            holder = q.workers.get(worker)
            for id in holder.claims if holder else ():
                if q.jobs[id].cancel:
                    yield worker, id, q.jobs[id].attempts

    def complete(self, queue: str, worker: str, outcomes: Sequence[Completed], *, again: bool = False) -> list[Word]:
        return self._settle(queue, worker, outcomes, again)

    def _complete(self, q: _Queue, entry: _Entry, outcome: Completed, now_us: int) -> Word:
        now = due_ms(now_us)
        q.totals["completed"] += 1
        q.count(entry.id, "", "completed", now, gone=outcome.keep_ms <= 0)
        q.end(entry, now)
        if outcome.keep_ms <= 0:
            _take_away(q, entry.id, now_us)
            return Word.OK
        entry.cancel = False
        entry.result = outcome.result
        q.put(entry, State.COMPLETED, now + outcome.keep_ms, now)
        return Word.OK

    def retry(self, queue: str, worker: str, outcomes: Sequence[Retried], *, again: bool = False) -> list[Word]:
        return self._settle(queue, worker, outcomes, again)

    def _retry(self, q: _Queue, entry: _Entry, outcome: Retried, now_us: int) -> Word:
        if entry.cancel:
            return self._end_cancelled(q, entry, now_us)
        if outcome.cause == "crashed":
            entry.crashes += 1
        if outcome.cause in ("crashed", "timed_out"):
            q.totals[outcome.cause] += 1
        entry.note(outcome.error)
        if entry.attempts - entry.forgiven >= outcome.max_attempts:
            reason = outcome.cause if outcome.cause in ("crashed", "timed_out") else "max_attempts"
            q.put_dead(entry, reason, due_ms(now_us))
            return Word.DEAD
        if entry.crashes >= outcome.max_crashes:
            q.put_dead(entry, "poison", due_ms(now_us))
            return Word.DEAD
        q.totals["retried"] += 1
        q.put_delayed(entry, now_us, outcome.delay_ms)
        return Word.OK

    def bury(self, queue: str, worker: str, outcomes: Sequence[Buried], *, again: bool = False) -> list[Word]:
        return self._settle(queue, worker, outcomes, again)

    def _bury(self, q: _Queue, entry: _Entry, outcome: Buried, now_us: int) -> Word:
        if entry.cancel:
            return self._end_cancelled(q, entry, now_us)
        entry.note(outcome.error)
        q.put_dead(entry, outcome.reason, due_ms(now_us))
        return Word.OK

    def snooze(self, queue: str, worker: str, outcomes: Sequence[Snoozed], *, again: bool = False) -> list[Word]:
        return self._settle(queue, worker, outcomes, again)

    def _snooze(self, q: _Queue, entry: _Entry, outcome: Snoozed, now_us: int) -> Word:
        if entry.cancel:
            return self._end_cancelled(q, entry, now_us)
        entry.forgiven += 1
        q.totals["snoozed"] += 1
        q.put_delayed(entry, now_us, max(outcome.delay_ms, SNOOZE_MIN_MS))
        return Word.OK

    def release(self, queue: str, worker: str, outcomes: Sequence[Released], *, again: bool = False) -> list[Word]:
        return self._settle(queue, worker, outcomes, again)

    def _release(self, q: _Queue, entry: _Entry, outcome: Released, now_us: int) -> Word:
        if entry.cancel:
            return self._end_cancelled(q, entry, now_us)
        entry.note(outcome.error)
        entry.forgiven += 1
        q.totals["released"] += 1
        q.put_pending(entry, entry.since_ms, head=True)
        return Word.OK

    def admit(self, queue: str, worker: str, admissions: Sequence[Admission], *, again: bool = False) -> list[Word]:
        words, touched = [], set[str]()
        with self._lock:
            q, now_us = self._at(queue)
            hall = _Hall(q, now_us)
            for claim, doors in admissions:
                entry = self._held(q, worker, claim)
                if entry is None:
                    words.append(Word.SETTLED if again else Word.STALE)
                    continue
                fire = gates.admit(hall, claim.id, claim.token, doors, touched)
                words.append(Word.OK if fire is None else self._park(q, entry, fire, now_us))
            for name in sorted(touched):
                gates.tend(hall, name)
            # New gates come as fast as jobs: old ones go as fast.
            gates.look_after(hall, 10 + 2 * len(words))
        return words

    def _park(self, q: _Queue, entry: _Entry, fire: int, now_us: int) -> Word:
        q.take(entry)
        if entry.cancel:
            return self._end_cancelled(q, entry, now_us)
        entry.forgiven += 1
        q.put(entry, State.DELAYED, fire, due_ms(now_us))
        return Word.PARKED

    def trip(self, queue: str, gate: str, for_ms: int) -> None:
        with self._lock:
            gates.trip(_Hall(*self._at(queue)), gate, for_ms)

    def mend(self, queue: str, gate: str) -> None:
        with self._lock:
            gates.mend(_Hall(*self._at(queue)), gate)

    def gates(self, queue: str, *, closed: bool = True) -> list[GateState]:
        with self._lock:
            q, _ = self._at(queue)
            at = [name for name, _ in q.waiters]
            shown = [one for one in sorted(q.doors.items()) if closed or one[1].phase != "closed"]
            return [gates.state_of(door, at.count(name)) for name, door in shown]

    def exchange(
        self, queue: str, worker: str, outcomes: Sequence[Outcome], want: int, held: int, *, again: bool = False
    ) -> Exchange:
        with self._lock:
            words = tuple(self._settle(queue, worker, outcomes, again))
            return Exchange(words, self.claim(queue, worker, want, held) if want else Claims(Word.OK))

    def _settle(self, queue: str, worker: str, outcomes: Sequence[Outcome], again: bool) -> list[Word]:
        """Every move out of active by its holder: fenced first, then done."""
        words = [Word.OK] * len(outcomes)
        with self._lock:
            q, now_us = self._at(queue)
            hall = _Hall(q, now_us)
            # Gates are looked after when all has moved.
            left: dict[int, Outcome] = {}
            tended: list[str] = []
            # Releases go to the head one by one, so the last goes first: the batch keeps its order.
            order = [i for i, outcome in enumerate(outcomes) if not isinstance(outcome, Released)]
            order += [i for i in reversed(range(len(outcomes))) if isinstance(outcomes[i], Released)]
            for i in order:
                outcome = outcomes[i]
                entry = self._held(q, worker, outcome.claim)
                if entry is None:
                    words[i] = Word.SETTLED if again else Word.STALE
                    q.totals["fenced"] += not again
                    continue
                # One that ends because it was cancelled says nothing about the other side.
                fire = gates.judge(hall, outcome) if outcome.claim.gated and not entry.cancel else None
                if fire is not None:
                    # Forgiven: it waits again.
                    word = self._park(q, entry, fire, now_us)
                    words[i] = Word.OK if word is Word.PARKED else word
                    tended += hall.parked_at(outcome.claim.id)
                    continue
                q.take(entry)
                words[i] = self._end(q, entry, outcome, now_us)
                left[i] = outcome
            for _, outcome in sorted(left.items()):
                if outcome.claim.gated:
                    gates.leave(hall, outcome.claim, gates.verdict_of(outcome))
            for name in tended:
                gates.tend(hall, name)
        return words

    def _held(self, q: _Queue, worker: str, claim: Claim) -> _Entry | None:
        """The job of a claim that is current: it stands among the worker's claims, under this token."""
        holder = q.workers.get(worker)
        if holder is None or claim.id not in holder.claims:
            return None
        entry = q.jobs[claim.id]
        return entry if entry.attempts == claim.token else None

    def _end(self, q: _Queue, entry: _Entry, outcome: Outcome, now_us: int) -> Word:
        match outcome:
            case Completed():
                return self._complete(q, entry, outcome, now_us)
            case Retried():
                return self._retry(q, entry, outcome, now_us)
            case Buried():
                return self._bury(q, entry, outcome, now_us)
            case Snoozed():
                return self._snooze(q, entry, outcome, now_us)
            case Released():
                return self._release(q, entry, outcome, now_us)
        raise InternalError(f"outcome: expected one of the five, found {type(outcome).__name__}; this is a bug")

    def _end_cancelled(self, q: _Queue, entry: _Entry, now_us: int) -> Word:
        q.totals["cancelled"] += 1
        q.count(entry.id, "", "cancelled", due_ms(now_us), gone=True)
        q.end(entry, due_ms(now_us))
        _take_away(q, entry.id, now_us)
        return Word.CANCELLED

    def promote(self, queue: str, limit: int = PROMOTE_LIMIT) -> Promoted:
        with self._lock:
            q, now_us = self._at(queue)
            gates.look_after(_Hall(q, now_us), 500)
            moved = self._promote(q, limit, due_ms(now_us))
            oldest = due_ms(now_us) - self._limits.batch_keep_ms
            for id in [id for id, one in q.batches.items() if one.tally.ended <= oldest]:
                del q.batches[id]
            if q.lists[State.PENDING]:
                q.wake.ring()
            delayed = q.lists[State.DELAYED]
            return Promoted(moved, delayed[0].rank - now_us / 1000 if delayed else None)

    def _promote(self, q: _Queue, limit: int, now: int) -> int:
        delayed = q.lists[State.DELAYED]
        due = min(limit, bisect_right(delayed, now, key=lambda place: place.rank))
        for place in delayed[:due]:
            entry = q.jobs[place.id]
            q.take(entry)
            q.put_pending(entry, place.rank)
        q.totals["promoted"] += due
        return due

    def seal(self, queue: str, worker: str, expected_ms: int | None = None) -> Sealed:
        with self._lock:
            q, _ = self._at(queue)
            holder = q.workers.get(worker)
            if holder is None:
                return Sealed(Word.UNKNOWN)
            if holder.end_ms:
                if expected_ms is not None and holder.end_ms != expected_ms:
                    return Sealed(Word.RENEWED)
                holder.end_ms = 0
                q.totals["reaped"] += len(holder.claims)
            held = (q.jobs[id].claim(q.name) for id in holder.claims)
            return Sealed(Word.OK, tuple(claim._replace(gated=True) for claim in held))

    def reap(self, queue: str, worker: str, outcomes: Sequence[Lost]) -> int:
        with self._lock:
            q, now_us = self._at(queue)
            holder = q.workers.get(worker)
            if holder is None or holder.end_ms:
                return -1
            for outcome in outcomes:
                entry = self._held(q, worker, outcome.claim)
                if entry is not None:
                    q.take(entry)
                    self._reap(q, entry, outcome, now_us)
                    gates.leave(_Hall(q, now_us), outcome.claim, gates.Verdict.NONE)
            if not holder.claims:
                del q.workers[worker]
            return len(holder.claims)

    def _reap(self, q: _Queue, entry: _Entry, outcome: Lost, now_us: int) -> None:
        if entry.cancel:
            self._end_cancelled(q, entry, now_us)
            return
        q.totals["lost"] += 1
        entry.lost += 1
        entry.forgiven += 1
        entry.note(outcome.error)
        if entry.lost >= outcome.max_lost:
            q.put_dead(entry, "poison", due_ms(now_us))
        else:
            q.put_delayed(entry, now_us, outcome.delay_ms)

    def cancel(self, queue: str, ids: Sequence[str]) -> list[Word]:
        with self._lock:
            q, now_us = self._at(queue)
            return [self._cancel(q, id, now_us) for id in ids]

    def _cancel(self, q: _Queue, id: str, now_us: int) -> Word:
        entry = q.jobs.get(id)
        if entry is None:
            return Word.UNKNOWN
        if entry.state is State.ACTIVE:
            entry.cancel = True
            return Word.MARKED
        if entry.state in (State.COMPLETED, State.DEAD):
            return Word.FINISHED
        q.take(entry)
        return self._end_cancelled(q, entry, now_us)

    def requeue(self, queue: str, ids: Sequence[str]) -> list[Word]:
        with self._lock:
            q, now_us = self._at(queue)
            return [self._requeue(q, id, due_ms(now_us)) for id in ids]

    def _requeue(self, q: _Queue, id: str, now: int) -> Word:
        entry = q.jobs.get(id)
        if entry is None:
            return Word.UNKNOWN
        if entry.state not in (State.DEAD, State.COMPLETED):
            return Word.REFUSED
        q.count(id, entry.state.value, "", now)
        q.take(entry)
        # The token keeps counting; what was spent is forgiven, what went wrong can still be read.
        entry.forgiven, entry.crashes, entry.lost = entry.attempts, 0, 0
        entry.reason, entry.result = "", b""
        q.put_pending(entry, now)
        q.totals["requeued"] += 1
        return Word.OK

    def purge(self, queue: str, state: State, ids: Sequence[str]) -> int:
        if state not in (State.PENDING, State.DELAYED, State.COMPLETED, State.DEAD):
            # Active jobs are their holder's: cancel them.
            return 0
        with self._lock:
            q, now_us = self._at(queue)
            purged, unfinished = 0, state in (State.PENDING, State.DELAYED)
            for id in ids:
                entry = q.jobs.get(id)
                if entry is None or entry.state is not state:
                    continue
                q.take(entry)
                _take_away(q, id, now_us)
                purged += 1
                # What had ended is counted already.
                q.count(id, "", "cancelled" if unfinished else "", due_ms(now_us), gone=True)
                if unfinished:
                    q.end(entry, due_ms(now_us))
            if unfinished:
                q.totals["purged"] += purged
            return purged

    def pause(self, queue: str) -> None:
        with self._lock:
            self._at(queue)[0].paused = True

    def resume(self, queue: str) -> None:
        with self._lock:
            q, _ = self._at(queue)
            q.paused = False
            q.wake.ring()

    def begin(self, queue: str, batch: NewBatch) -> Word:
        with self._lock:
            q, now_us = self._at(queue)
            q.known = True
            if batch.id in q.batches:
                return Word.KNOWN
            # Nothing is pending in it: should nobody ever add a job, it is forgotten like one that has ended.
            now = due_ms(now_us)
            q.batches[batch.id] = _Batch(batch, Tally(began=now, ended=now))
            return Word.OK

    def conclude(self, queue: str, batch_id: str) -> Word:
        with self._lock:
            q, now_us = self._at(queue)
            batch = q.batches.get(batch_id)
            if batch is None:
                return Word.UNKNOWN
            batch.tally.closed = True
            q.look(batch, due_ms(now_us))
            return Word.OK

    # -- reads ---------------------------------------------------------------------------------------------------

    def queues(self) -> list[str]:
        with self._lock:
            return sorted(name for name, q in self._queues.items() if q.known)

    def stats(self, queue: str) -> QueueStats:
        with self._lock:
            q, now_us = self._at(queue)
            counts = {state.value: len(q.lists.get(state, ())) for state in COUNTED}
            counts[State.ACTIVE.value] = sum(len(holder.claims) for holder in q.workers.values())
            waiting = [q.jobs[place.id].since_ms for place in q.lists[State.PENDING]]
            age = max(0, due_ms(now_us) - min(waiting)) if waiting else 0
            return QueueStats(q.paused, counts, dict(q.totals), age)

    def get(self, queue: str, job_id: str) -> Job | None:
        with self._lock:
            q, _ = self._at(queue)
            entry = q.jobs.get(job_id)
            return None if entry is None else _job(q, entry)

    def jobs(self, queue: str, state: State, *, cursor: str = "", limit: int = 100) -> Page:
        if state not in COUNTED:
            return Page((), "")
        with self._lock:
            q, _ = self._at(queue)
            places = q.lists[state] if state is not State.ACTIVE else _active(q)
            start = bisect_right(places, _place_of(cursor, state), key=tuple) if cursor else 0
            page = places[start : start + max(1, limit)]
            more = start + len(page) < len(places)
            jobs = tuple(_job(q, q.jobs[place[-1]]) for place in page)
            return Page(jobs, orjson.dumps([state.value, *page[-1]]).decode() if more else "")

    def batch(self, queue: str, batch_id: str) -> BatchStats | None:
        with self._lock:
            q, _ = self._at(queue)
            found = q.batches.get(batch_id)
            return None if found is None else stats_of(batch_id, queue, found.new.name, found.tally)

    def batches(self, queue: str, *, skip: int = 0, limit: int = 100) -> list[BatchStats]:
        with self._lock:
            q, _ = self._at(queue)
            order = sorted(((one.tally.ended, id) for id, one in q.batches.items()), reverse=True)
            return [
                stats_of(id, queue, q.batches[id].new.name, q.batches[id].tally) for _, id in order[skip : skip + limit]
            ]

    def leases(self, queue: str) -> Leases:
        with self._lock:
            q, now_us = self._at(queue)
            return Leases(due_ms(now_us), {worker: holder.end_ms for worker, holder in q.workers.items()})

    def now_ms(self) -> int:
        return due_ms(self._clock.now_us())

    def info(self) -> StoreInfo:
        return StoreInfo("memory:", "memory", "1")

    # -- waiting, and the life of the handle -----------------------------------------------------------------------

    def wake_waiter(self, queues: Sequence[str]) -> _Waiter:
        return self._waiter(queues, lambda q: q.wake)

    def timer_waiter(self, queues: Sequence[str]) -> _Waiter:
        return self._waiter(queues, lambda q: q.timer)

    def _waiter(self, queues: Sequence[str], bell: Callable[[_Queue], _Bell]) -> _Waiter:
        with self._lock:
            return _Waiter(self._lock, [bell(self._at(queue)[0]) for queue in queues])

    def publish(self, master: str, status: dict[str, Any], ttl_ms: int) -> None:
        with self._lock:
            self._masters.pop(master, None)
            if status:
                self._masters[master] = status, self.now_ms() + ttl_ms

    def masters(self) -> list[dict[str, Any]]:
        with self._lock:
            now = self.now_ms()
            return [status for status, until in self._masters.values() if until > now]

    def before_fork(self) -> None:
        """Nothing here minds a fork."""

    def after_fork(self) -> None:
        """The child has a copy of its own. A thread that held the lock did not come along."""
        self._lock = threading.RLock()

    def close(self) -> None:
        """Nothing is open."""

    # -- time ------------------------------------------------------------------------------------------------------

    def _at(self, queue: str) -> tuple[_Queue, int]:
        """The queue as it stands now, and the now (in microseconds): what is over by then is gone."""
        now_us = self._clock.now_us()
        q = self._queues.get(queue)
        if q is None:
            q = self._queues[queue] = _Queue(queue, self._limits.remember_ms)
        now = due_ms(now_us)
        completed = q.lists[State.COMPLETED]
        for place in completed[: bisect_right(completed, now, key=lambda place: place.rank)]:
            entry = q.jobs[place.id]
            q.take(entry)
            _take_away(q, place.id, now_us)
            q.batched.pop(place.id, None)
        _drop_past(q.remembered, now, lambda until: until)
        _drop_past(self._marks, now, lambda mark: mark[1])
        return q, now_us


# -- helpers -----------------------------------------------------------------------------------------------------


def _check_one_step(jobs: Sequence[NewJob]) -> None:
    size = sum(len(new.row) for new in jobs)
    if len(jobs) > MAX_JOBS or (len(jobs) > 1 and size > MAX_BYTES):
        raise ValueError(
            f"enqueue: one mark covers at most {MAX_JOBS} jobs or {MAX_BYTES} bytes, found {len(jobs)} jobs of "
            f"{size} bytes; split them and give each part a mark"
        )


def _fire_of(new: NewJob, now_us: int) -> int:
    """When a new job is due. Raises ConfigError beyond the last fire-time."""
    if new.fire_ms is None and new.delay_ms <= 0:
        # At once: rounded up it would stand among the delayed for the rest of this millisecond.
        return due_ms(now_us)
    fire = new.fire_ms if new.fire_ms is not None else fire_ms(now_us, new.delay_ms)
    if fire > MAX_FIRE_MS:
        raise ConfigError(
            f"job {new.id}: fires at {fire} ms since 1970, the latest possible is {MAX_FIRE_MS} (7 September 2039); "
            "choose an earlier time"
        )
    return fire


def _take_away(q: _Queue, id: str, now_us: int) -> None:
    """The job, for good: nobody waits for it at a gate."""
    del q.jobs[id]
    gates.gone(_Hall(q, now_us), id)


def _drop_past(table: dict[Any, Any], now: int, until: Callable[[Any], int]) -> None:
    """Forgets from the front, where the oldest stand, what is known no longer."""
    while table:
        oldest = next(iter(table))
        if until(table[oldest]) > now:
            return
        del table[oldest]


def _active(q: _Queue) -> list[Any]:
    return sorted((worker, id) for worker, holder in q.workers.items() for id in holder.claims)


def _place_of(cursor: str, state: State) -> tuple[Any, ...]:
    """The place after which the next page begins. Raises ConfigError for a cursor of another list or store."""
    kinds = [str, str, str] if state is State.ACTIVE else [str, int, int, str]
    try:
        parts = orjson.loads(cursor)
    except orjson.JSONDecodeError:
        _refuse(cursor, state)
    if not isinstance(parts, list) or [type(part) for part in parts] != kinds or parts[0] != state.value:
        _refuse(cursor, state)
    return tuple(parts[1:])


def _refuse(cursor: str, state: State) -> NoReturn:
    raise ConfigError(
        f"cursor: {cursor!r:.100} is none of the {state.value} list of this store; pass on the one of the last page, "
        'or "" to begin'
    )


def _job(q: _Queue, entry: _Entry) -> Job:
    try:
        row = orjson.loads(entry.row)
        errors = tuple(orjson.loads(error) for error in entry.errors)
        result = orjson.loads(entry.result) if entry.result else None
    except orjson.JSONDecodeError as error:
        raise StoreCorrupt(f"job {entry.id}: its row, errors or result are no JSON ({error}); purge it") from error
    return Job(
        id=entry.id,
        queue=q.name,
        job=row.get("job", ""),
        state=entry.state,
        attempts=entry.attempts,
        priority=entry.priority,
        enqueued_ms=entry.enqueued_ms,
        args=row.get("args", ()),
        kwargs=row.get("kwargs", {}),
        since_ms=entry.since_ms,
        forgiven=entry.forgiven,
        crashes=entry.crashes,
        lost=entry.lost,
        reason=entry.reason,
        errors=errors,
        worker=entry.worker,
        cancel=entry.cancel,
        result=result,
        max_attempts=row.get("max"),
        timeout_ms=row.get("timeout"),
        keep_ms=row.get("keep"),
        batch=q.batched.get(entry.id, ""),
    )
