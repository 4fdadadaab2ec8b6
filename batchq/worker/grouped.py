"""Handlers that take many jobs at a time: `@app.job(batch=500, linger=0.2)`. What they see, and how each job ends.

    @app.job(batch=500, linger=0.2)
    def load(jobs: list[BatchJob]) -> None:
        with database:
            database.executemany("INSERT ...", [job.kwargs for job in jobs])

A handler that returns has completed all of them; one that raises has failed all to which it gave no answer. Knows no
store and no process: claims in, outcomes out. The worker gathers (see `gather`), and runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from batchq.clock import monotonic
from batchq.errors import Dead, JobCancelled, JobTimeout, Retry, Snooze
from batchq.job import Outcome

if TYPE_CHECKING:
    from batchq.worker.runner import Prepared, Runner


#: How often a worker looks for more while it lingers.
LOOKS = 4

#: Calls a handler; `enter` is called just before user code.
Calling = Callable[[Callable[[], None] | None], list[Outcome]]
#: Makes such a call for the jobs of a group, with its marks and limits.
Attempt = Callable[[Sequence["Prepared"], Calling], list[Outcome]]


class _Nothing:
    """No answer was given."""


_NOTHING = _Nothing()


class BatchJob:
    """One of the jobs that a batch handler is called with. What it is told of one stands, whatever the handler does
    then; the others end as the handler does."""

    __slots__ = ("_answer", "_ready", "args", "kwargs")

    def __init__(self, ready: Prepared) -> None:
        self.args: list[Any] = ready.args
        self.kwargs: dict[str, Any] = ready.kwargs
        self._ready = ready
        self._answer: object = _NOTHING

    def __repr__(self) -> str:
        return f"BatchJob(id={self.id!r}, args={self.args!r:.100}, kwargs={self.kwargs!r:.100})"

    @property
    def id(self) -> str:
        return self._ready.claim.id

    @property
    def queue(self) -> str:
        return self._ready.claim.queue

    @property
    def token(self) -> int:
        """The fencing token, see `CurrentJob`."""
        return self._ready.claim.token

    @property
    def attempt(self) -> int:
        """Which try this is, from 1."""
        return self._ready.claim.attempt

    @property
    def max_attempts(self) -> int:
        return self._ready.max_attempts

    @property
    def enqueued_ms(self) -> int:
        return self._ready.enqueued_ms

    def done(self, result: object = None) -> None:
        """This one is completed; `result` is kept where the handler keeps results."""
        self._answer = result

    def fail(self, error: BaseException | str = "failed by the handler") -> None:
        """This one failed: tried again by its backoff, dead after its last attempt. `Dead(...)`, `Retry(after=)` and
        `Snooze(...)` mean what they mean when they are raised."""
        self._answer = error if isinstance(error, BaseException) else JobFailed(error)

    def retry(self, after: float | timedelta | None = None, message: str = "") -> None:
        """This one failed, and is tried again in `after` seconds."""
        self.fail(Retry(message, after=after))

    def dead(self, reason: str = "given up by the handler") -> None:
        """No retry can mend this one."""
        self.fail(Dead(reason))

    def snooze(self, after: float | timedelta, message: str = "") -> None:
        """Not now: this one is back in `after` seconds, no attempt spent."""
        self.fail(Snooze(after, message))


class JobFailed(Exception):
    """What `job.fail("why")` says: the text is the error."""


#: What is meant for all of them: their halves are not tried.
_FOR_ALL = (JobTimeout, JobCancelled, Retry, Snooze, Dead)


class Group:
    """Some jobs of one handler, for one call of it."""

    def __init__(self, runner: Runner, group: Sequence[Prepared]) -> None:
        self._runner = runner
        self._spec = group[0].spec
        self._jobs = [BatchJob(ready) for ready in group]
        #: What the handler raised.
        self._error: BaseException | None = None

    def call(self, enter: Callable[[], None] | None = None) -> list[Outcome]:
        """Calls the handler once, with all of them, and catches every end. An outcome a job, in their order. `enter`
        is called just before user code."""
        try:
            if enter is not None:
                enter()
            # A list of its own: what the handler does with it is no matter of ours.
            self._take(self._runner.result_of(self._spec, self._spec.function(list(self._jobs))))
        except BaseException as error:  # noqa: BLE001 - SystemExit in a handler is a failed attempt, not the worker's end
            self._error = error
        return [self._outcome_of(job) for job in self._jobs]

    def _take(self, answer: object) -> None:
        """What the handler returned: None, or an answer for each. Raises TypeError, ValueError."""
        if answer is None:
            return
        if not isinstance(answer, list | tuple):
            raise TypeError(
                "a batch handler returns None (all are done) or a list with an answer for each job, not "
                f"{type(answer).__name__}"
            )
        if len(answer) != len(self._jobs):
            raise ValueError(f"the handler was called with {len(self._jobs)} jobs and returned {len(answer)} answers")
        for job, one in zip(self._jobs, answer, strict=True):
            if isinstance(job._answer, _Nothing):
                job._answer = one

    def _outcome_of(self, job: BatchJob) -> Outcome:
        """By its own answer, else as the handler ended."""
        answer = self._error if isinstance(job._answer, _Nothing) else job._answer
        if isinstance(answer, BaseException):
            return self._runner.outcome_of(job._ready, answer)
        try:
            return self._runner.completed(job._ready, answer)
        except Exception as refused:  # noqa: BLE001 - a result that can't be kept is this job's failure alone
            return self._runner.outcome_of(job._ready, refused)

    def to_halve(self) -> list[int]:
        """The places of those that failed with the others, and may be well without some of these."""
        if not self._spec.bisect or not isinstance(self._error, Exception) or isinstance(self._error, _FOR_ALL):
            return []
        return [n for n, job in enumerate(self._jobs) if isinstance(job._answer, _Nothing)]


def run_group(runner: Runner, group: Sequence[Prepared], attempt: Attempt) -> Iterator[list[Outcome]]:
    """Calls the handler with all of them, by way of `attempt`. With `bisect`, where it raised, with each half of those
    that had no answer, down to single jobs: only those that fail alone have failed. Yields outcomes as they stand: an
    outcome a job in all."""
    one = Group(runner, group)
    outcomes = attempt(group, one.call)
    again = one.to_halve()
    halved = set(again)
    if len(again) < 2:
        yield outcomes
        return
    if done := [outcome for n, outcome in enumerate(outcomes) if n not in halved]:
        yield done
    half = len(again) // 2
    for places in (again[:half], again[half:]):
        yield from run_group(runner, [group[n] for n in places], attempt)


def gather(
    first: Prepared, tail: deque[Prepared], claim_more: Callable[[int, int], bool], pause: Callable[[float], bool]
) -> list[Prepared]:
    """The first one, and those that can run with it: from the tail, then as they come, for as long as the handler
    lingers. What else comes stays in the tail.

    `claim_more(n, held)` puts at most n jobs of this queue into the tail, beside those held, and says whether any came;
    `pause` waits so many seconds, and says whether to go on. A job that crashed its worker runs alone: the others are
    not to be charged for it again.
    """
    spec, group = first.spec, [first]
    if first.claim.crashes:
        return group
    until = monotonic() + spec.linger_ms / 1000
    _move(group, tail)
    while len(group) < spec.batch and len(tail) < spec.batch:
        came = claim_more(spec.batch - len(group), len(group) + len(tail))
        _move(group, tail)
        if not came:
            left = until - monotonic()
            if left <= 0 or not pause(min(left, spec.linger_ms / 1000 / LOOKS)):
                break
    return group


def _move(group: list[Prepared], tail: deque[Prepared]) -> None:
    """Out of the tail into the group, as many as it takes."""
    first = group[0]
    for _ in range(len(tail)):
        ready = tail.popleft()
        if len(group) < first.spec.batch and not ready.claim.crashes and _alike(ready, first):
            group.append(ready)
        else:
            tail.append(ready)


def _alike(ready: Prepared, first: Prepared) -> bool:
    return ready.spec is first.spec and ready.timeout_ms == first.timeout_ms
