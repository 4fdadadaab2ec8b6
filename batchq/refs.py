"""What an enqueue answers: a handle on one job, or the sum of many."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from batchq.errors import BatchqError, milliseconds
from batchq.job import Job
from batchq.lifecycle import State

if TYPE_CHECKING:
    from batchq.app import App

R = TypeVar("R")

#: Waits between two looks at a result, in seconds: they grow from the first to the last.
FIRST_WAIT_S, LAST_WAIT_S = 0.01, 1.0


class Look:
    """Looks at something ever less often, until it is as it should be or the time is over."""

    def __init__(self, app: App, timeout: float | timedelta | None) -> None:
        self._app = app
        self._left = None if timeout is None else milliseconds(timeout, "timeout") / 1000
        self._started = app.clock.monotonic()
        self._wait = FIRST_WAIT_S

    def again(self, what: str, stands: str) -> None:
        """Pauses before the next look. Where the time is over: TimeoutError, `<what> within 5 s; <stands>`."""
        if self._left is None:
            self._app.pause_s(self._wait)
        else:
            passed = self._app.clock.monotonic() - self._started
            if passed >= self._left:
                raise TimeoutError(f"{what} within {self._left:g} s; {stands}")
            self._app.pause_s(min(self._wait, self._left - passed))
        self._wait = min(self._wait * 1.5, LAST_WAIT_S)


class JobDead(BatchqError):
    """The job whose result was asked for is dead: its handler failed. `job` has the errors, `reason` says why."""

    def __init__(self, job: Job) -> None:
        error = str(job.errors[0].get("error", "")) if job.errors else ""
        super().__init__(
            f"job {job.id}: {job.job} is dead ({job.reason or 'unknown reason'}): {error or 'no error text'}"
        )
        self.job = job
        self.reason = job.reason
        self.error = error


class ResultGone(BatchqError):
    """There is no result to wait for: it is not kept, it is past its time, or the job was cancelled or purged."""


class JobRef(Generic[R]):
    """A job that was enqueued."""

    __slots__ = ("_app", "_keeps", "created", "id", "queue", "spooled")

    def __init__(
        self, app: App, id: str, queue: str, *, created: bool = True, spooled: bool = False, keeps: bool | None = None
    ) -> None:
        self.id = id
        self.queue = queue
        #: False: a job of that id stood there already, or is still remembered; nothing was changed.
        self.created = created
        #: It waits in the fallback spool, on this host's disk, until the store is back.
        self.spooled = spooled
        self._app = app
        self._keeps = keeps

    def __repr__(self) -> str:
        return f"JobRef(id={self.id!r}, queue={self.queue!r}, created={self.created}, spooled={self.spooled})"

    def get(self) -> Job | None:
        """The job as it stands now; None where it has left no row (completed, cancelled, purged, still spooled)."""
        return self._app.store.get(self.queue, self.id)

    def status(self) -> State | None:
        """Where the job stands now; None where it has left no row."""
        job = self.get()
        return None if job is None else job.state

    def result(self, timeout: float | timedelta | None = None) -> R:
        """What the handler returned, as JSON gives it back. Waits, looking ever less often, up to once a second.

        Raises JobDead with the error's text, TimeoutError after `timeout` seconds (None: waits as long as it takes),
        ResultGone where the handler's results are not kept or the job has left no row.
        """
        if self._keeps is False:
            raise ResultGone(
                f"job {self.id}: results of this handler are not kept; "
                "write @app.job(result=True), or .options(result=True) for one call"
            )
        look = Look(self._app, timeout)
        while True:
            job = self.get()
            if job is not None and job.state is State.COMPLETED:
                return cast("R", job.result)
            self._check_alive(job)
            stands = "spooled" if job is None else job.state.value
            look.again(f"job {self.id}: no result", f"it is {stands}")

    def _check_alive(self, job: Job | None) -> None:
        if job is None and not self.spooled:
            raise ResultGone(
                f"job {self.id}: it has left no row in queue {self.queue}; its result is past its time or was not "
                "kept, or the job was cancelled or purged"
            )
        if job is not None and job.state is State.DEAD:
            raise JobDead(job)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The sum of an enqueue_many."""

    #: New jobs.
    created: int
    #: Jobs whose id stood there already or is remembered: nothing was changed.
    known: int
    #: How many of the new ones wait in the fallback spool.
    spooled: int
    #: The ids in the order of the items, where they were asked for (`ids=True`).
    ids: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return self.created + self.known
