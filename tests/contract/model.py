"""What a store should do, said a second time: plain lists and dicts that predict words, places and totals.

Written from the contract, not from a store. Time is a number that the test moves in big steps; within a step nothing
comes due, so that a clock that runs by itself (Redis') crosses no border. Jobs that come to an end in the same step
may stand in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from batchq.lifecycle import TOTALS

#: Errors that a job keeps, by the contract.
KEPT = 5


@dataclass
class ModelJob:
    id: str
    priority: int
    given: bool
    state: str = ""
    token: int = 0
    forgiven: int = 0
    crashes: int = 0
    lost: int = 0
    errors: list[str] = field(default_factory=list)
    marked: bool = False
    reason: str = ""
    holder: str = ""
    #: delayed: fire-time; completed: end of the retention; dead: time of death.
    at: int = 0
    batch: str = ""
    #: At gates, see at_gates. It has passed its own under this token.
    inside: bool = False
    #: Its place in a line; 0: none.
    turn: int = 0
    #: In the line of this gate.
    waits: str = ""
    #: Perhaps of another, or it was called since.
    unsure: bool = False
    #: By that gate, and has not asked yet.
    called: str = ""
    #: Delayed: when it is due, by the store's clock.
    fire_ms: int = 0


@dataclass
class ModelBatch:
    total: int = 0
    completed: int = 0
    dead: int = 0
    cancelled: int = 0
    closed: bool = False
    #: Has callbacks.
    calls: bool = False
    told: list[str] = field(default_factory=list)

    @property
    def pending(self) -> int:
        return self.total - self.completed - self.dead - self.cancelled


class Model:
    """One queue."""

    def __init__(self) -> None:
        self.now = 0
        self.jobs: dict[str, ModelJob] = {}
        #: In claim order within a priority.
        self.pending: list[str] = []
        #: In the order of arrival.
        self.delayed: list[str] = []
        self.alive: set[str] = set()
        self.sealed: set[str] = set()
        self.paused = False
        self.ended_given: set[str] = set()
        self.marks: dict[str, int] = {}
        self.batches: dict[str, ModelBatch] = {}
        self.totals = dict.fromkeys(TOTALS, 0)

    # -- what can be read ------------------------------------------------------------------------------------------

    def in_state(self, state: str) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.state == state]

    def held(self, worker: str) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.state == "active" and job.holder == worker]

    def pending_order(self) -> list[str]:
        return sorted(self.pending, key=lambda id: -self.jobs[id].priority)

    def delayed_order(self) -> list[str]:
        """But for those that wait at a gate: when they are due only the store knows."""
        return sorted((id for id in self.delayed if not self.jobs[id].waits), key=lambda id: self.jobs[id].at)

    # -- moves -----------------------------------------------------------------------------------------------------

    def enqueue(
        self, items: list[tuple[str, int, bool, int, str]], mark: tuple[str, int] | None, most: int
    ) -> list[str]:
        """Items: id, priority, given, delay, batch. One word alone: the call is refused."""
        if mark is not None and self.marks.get(mark[0], 0) >= mark[1]:
            return ["again"] * len(items)
        fresh: dict[str, tuple[int, str]] = {}
        for id, _, _, delay, batch in items:
            if id not in self.jobs and id not in self.ended_given:
                fresh.setdefault(id, (delay, batch))
        ready = sum(delay <= 0 for delay, _ in fresh.values())
        if most and ready and self.pending and len(self.pending) + ready > most:
            return ["full"]
        for _, batch in fresh.values():
            stands = self.batches.get(batch)
            if batch and (stands is None or (stands.closed and not stands.pending)):
                return ["over"]
        if mark is not None:
            self.marks[mark[0]] = mark[1]
        words = []
        for id, priority, given, delay, batch in items:
            if id in self.jobs or id in self.ended_given:
                words.append("known")
                continue
            words.append("ok")
            self.jobs[id] = ModelJob(id, priority, given, batch=batch)
            self.totals["enqueued"] += 1
            if batch:
                self.batches[batch].total += 1
            if delay > 0:
                self.delay(self.jobs[id], delay)
            else:
                self.ready(self.jobs[id])
        return words

    def register(self, worker: str) -> str:
        if worker in self.sealed:
            return "sealed"
        self.alive.add(worker)
        return "ok"

    def claim(self, worker: str, want: int, held: int) -> tuple[str, list[tuple[str, int, int, int, int]]]:
        """Claims: id, token, forgiven, crashes, lost."""
        if worker in self.sealed:
            return "sealed", []
        if worker not in self.alive:
            return "unknown", []
        mine = self.held(worker)
        if len(mine) != held:
            return "held", [(job.id, job.token, 0, 0, 0) for job in mine]
        if self.paused:
            return "paused", []
        claims = []
        for id in self.pending_order()[:want]:
            self.pending.remove(id)
            job = self.jobs[id]
            job.state, job.holder, job.token = "active", worker, job.token + 1
            job.waits, job.unsure = "", False
            claims.append((id, job.token, job.forgiven, job.crashes, job.lost))
        return "ok", claims

    def renew(self, workers: list[str]) -> tuple[list[str], set[tuple[str, str, int]]]:
        words = [
            "sealed" if worker in self.sealed else "ok" if worker in self.alive else "unknown" for worker in workers
        ]
        marks = {
            (worker, job.id, job.token)
            for worker, word in zip(workers, words, strict=True)
            if word == "ok"
            for job in self.held(worker)
            if job.marked
        }
        return words, marks

    def complete(self, job: ModelJob, keep: int) -> str:
        self.totals["completed"] += 1
        self._count(job, "completed")
        job.marked = False
        if keep > 0:
            self._leave(job)
            job.state, job.holder, job.at = "completed", "", self.now + keep
        else:
            self._gone(job)
        return "ok"

    def retry(self, job: ModelJob, delay: int, most: int, cause: str, crashes: int, error: str) -> str:
        if job.marked:
            return self.cancelled(job)
        self._note(job, error)
        if cause == "crashed":
            job.crashes += 1
        if cause != "failed":
            self.totals[cause] += 1
        if job.token - job.forgiven >= most:
            return self._die(job, "max_attempts" if cause == "failed" else cause)
        if job.crashes >= crashes:
            return self._die(job, "poison")
        self.totals["retried"] += 1
        self.delay(job, delay)
        return "ok"

    def bury(self, job: ModelJob, reason: str, error: str) -> str:
        if job.marked:
            return self.cancelled(job)
        self._note(job, error)
        self._die(job, reason)
        return "ok"

    def snooze(self, job: ModelJob, delay: int) -> str:
        if job.marked:
            return self.cancelled(job)
        job.forgiven += 1
        self.totals["snoozed"] += 1
        self.delay(job, delay)
        return "ok"

    def release(self, jobs: list[ModelJob], error: str) -> list[str]:
        words = []
        head: list[str] = []
        for job in jobs:
            if job.marked:
                words.append(self.cancelled(job))
                continue
            words.append("ok")
            if error:
                self._note(job, error)
            job.forgiven += 1
            self._leave(job)
            job.state, job.holder = "pending", ""
            self.totals["released"] += 1
            head.append(job.id)
        self.pending = head + self.pending
        return words

    def current(self, worker: str, id: str, token: int) -> ModelJob | None:
        """The job of a claim that is current, or None for a stale one."""
        job = self.jobs.get(id)
        if job is None or job.state != "active" or job.holder != worker or job.token != token:
            return None
        return job

    def stale(self, again: bool) -> str:
        if again:
            return "settled"
        self.totals["fenced"] += 1
        return "stale"

    def promote(self, limit: int) -> int:
        due = [id for id in self.delayed_order() if self.jobs[id].at <= self.now][:limit]
        for id in due:
            self.delayed.remove(id)
            self.ready(self.jobs[id])
        self.totals["promoted"] += len(due)
        return len(due)

    def seal(self, worker: str, right: bool) -> tuple[str, set[tuple[str, int]]]:
        """`right`: no lease end is expected, or the one that stands."""
        if worker not in self.alive and worker not in self.sealed:
            return "unknown", set()
        if worker in self.alive:
            if not right:
                return "renewed", set()
            self.alive.remove(worker)
            self.sealed.add(worker)
            self.totals["reaped"] += len(self.held(worker))
        return "ok", {(job.id, job.token) for job in self.held(worker)}

    def reap(self, worker: str, claims: list[tuple[str, int]], delay: int, most: int, error: str) -> int:
        if worker not in self.sealed:
            return -1
        for id, token in claims:
            job = self.current(worker, id, token)
            if job is None:
                continue
            if job.marked:
                self.cancelled(job)
                continue
            self._note(job, error)
            job.lost += 1
            job.forgiven += 1
            self.totals["lost"] += 1
            if job.lost >= most:
                self._die(job, "poison")
            else:
                self.delay(job, delay)
        left = len(self.held(worker))
        if left == 0:
            self.sealed.remove(worker)
        return left

    def cancel(self, id: str) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "unknown"
        if job.state == "active":
            job.marked = True
            return "marked"
        if job.state in ("dead", "completed"):
            return "finished"
        return self.cancelled(job)

    def requeue(self, id: str) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "unknown"
        if job.state not in ("dead", "completed"):
            return "refused"
        if job.batch:
            batch = self.batches[job.batch]
            setattr(batch, job.state, getattr(batch, job.state) - 1)
        job.forgiven, job.crashes, job.lost, job.reason = job.token, 0, 0, ""
        self.totals["requeued"] += 1
        self.ready(job)
        return "ok"

    def purge(self, state: str, ids: list[str]) -> int:
        count = 0
        for id in ids:
            job = self.jobs.get(id)
            if job is None or job.state != state or state == "active":
                continue
            count += 1
            self._gone(job)
            if state in ("pending", "delayed"):
                self.totals["purged"] += 1
                self._count(job, "cancelled")
        return count

    def begin(self, id: str, calls: bool) -> str:
        if id in self.batches:
            return "known"
        self.batches[id] = ModelBatch(calls=calls)
        return "ok"

    def conclude(self, id: str) -> str:
        if id not in self.batches:
            return "unknown"
        self.batches[id].closed = True
        self._call_back(id)
        return "ok"

    def _count(self, job: ModelJob, end: str) -> None:
        if job.batch:
            batch = self.batches[job.batch]
            setattr(batch, end, getattr(batch, end) + 1)
            self._call_back(job.batch)

    def _call_back(self, id: str) -> None:
        batch = self.batches[id]
        if batch.pending or not batch.closed:
            return
        for kind in ("complete", "success"):
            if kind in batch.told or (kind == "success" and batch.completed < batch.total):
                continue
            batch.told.append(kind)
            if batch.calls:
                self.jobs[f"{id}.{kind}"] = ModelJob(f"{id}.{kind}", 0, False)
                self.totals["enqueued"] += 1
                self.ready(self.jobs[f"{id}.{kind}"])

    # -- places ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _leave(job: ModelJob) -> None:
        if job.inside:
            job.inside, job.turn = False, 0

    def ready(self, job: ModelJob) -> None:
        self._leave(job)
        job.state, job.holder = "pending", ""
        self.pending.append(job.id)

    def delay(self, job: ModelJob, delay: int) -> None:
        self._leave(job)
        job.state, job.holder, job.at = "delayed", "", self.now + delay
        self.delayed.append(job.id)

    def _die(self, job: ModelJob, reason: str) -> str:
        self._leave(job)
        job.state, job.holder, job.reason, job.at = "dead", "", reason, self.now
        self.totals["dead"] += 1
        self._count(job, "dead")
        return "dead"

    def cancelled(self, job: ModelJob) -> str:
        self.totals["cancelled"] += 1
        self._gone(job)
        self._count(job, "cancelled")
        return "cancelled"

    def _gone(self, job: ModelJob) -> None:
        del self.jobs[job.id]
        for places in (self.pending, self.delayed):
            if job.id in places:
                places.remove(job.id)
        if job.given:
            self.ended_given.add(job.id)

    @staticmethod
    def _note(job: ModelJob, error: str) -> None:
        job.errors = [error, *job.errors][:KEPT]
