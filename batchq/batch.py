"""A batch as producers meet it: jobs of one queue that are counted together, and jobs that are called when they ended.

    with app.batch("nightly", on_success=publish) as batch:
        for row in rows:
            load.enqueue(row)
    batch.wait()

The numbers are kept by the store, in the step in which each job ends. Runs nothing and counts nothing itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextvars import ContextVar, Token
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from batchq.admin import Listing, queues_of
from batchq.errors import BatchqError, ConfigError, StoreError
from batchq.handler import Call
from batchq.job import Mark, NewJob, check_queue
from batchq.lifecycle import State, Word
from batchq.refs import Look, ResultGone
from batchq.registry import DEFAULT_QUEUE
from batchq.selection import Selection
from batchq.store import Store
from batchq.tally import BatchStats, NewBatch

if TYPE_CHECKING:
    from batchq.app import App

#: The batch that this code enqueues into.
around: ContextVar[Batch | None] = ContextVar("batchq.batch", default=None)


class BatchGone(BatchqError):
    """There is no such batch: it ended longer ago than batches are kept, or never began in this store."""


class Result(NamedTuple):
    """What one job of a batch returned."""

    #: The job's id.
    id: str
    value: Any


class Batch:
    """See the module. Made by `app.batch`; one that stands already by `app.get_batch`."""

    def __init__(
        self,
        app: App,
        id: str,
        *,
        name: str = "",
        queue: str | None = None,
        on_complete: Call[..., Any] | str | None = None,
        on_success: Call[..., Any] | str | None = None,
        stands: bool = False,
    ) -> None:
        self.id = id
        self.name = name
        #: Where its jobs are; None until the first one says so.
        self.queue = None if queue is None else check_queue(queue)
        self._app = app
        self._heads = [
            b"" if call is None else _call_of(app, call, word).callback_head(word, id, name)
            for word, call in (("on_complete", on_complete), ("on_success", on_success))
        ]
        self._stands = stands
        #: Threads may add to one batch.
        self._lock = threading.Lock()
        self._tokens: list[Token[Batch | None]] = []

    def __repr__(self) -> str:
        return f"<Batch {self.id} name={self.name!r} queue={self.queue}>"

    def is_of(self, app: App) -> bool:
        return self._app is app

    # -- adding --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._tokens.append(around.set(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        around.reset(self._tokens.pop())
        if error is not None:
            self._note_open(error)
            return
        try:
            self.conclude()
        except StoreError as away:
            self._note_open(away)
            raise

    def _note_open(self, error: BaseException) -> None:
        if self._stands:
            error.add_note(
                f"batch {self.id}: left open: what is in it runs, and nothing is called back until it is concluded "
                f"(app.get_batch({self.id!r}).conclude())"
            )

    def conclude(self) -> None:
        """Nothing more comes from here: callbacks are due with the end of its last job, now where all have ended.

        Called by the end of a `with` that raised nothing; repeating it changes nothing. Raises BatchGone.
        """
        self._begin(self.queue or DEFAULT_QUEUE)
        if self._app.store.conclude(self._queue(), self.id) is Word.UNKNOWN:
            raise self._gone()

    def send(self, store: Store, jobs: Iterable[NewJob], queue: str, mark: Mark | None, max_pending: int) -> list[Word]:
        """Called by the app: enqueues at most one step into the batch. Not by way of a fallback: what waits in a spool
        is counted by nobody."""
        self._begin(queue)
        if queue != self.queue:
            raise ConfigError(
                f"batch {self.id}: its jobs are in queue {self.queue}, this one is for {queue}; a batch is of one "
                f"queue: write .options(queue={self.queue!r}), or begin another batch"
            )
        return store.enqueue(queue, [job._replace(batch=self.id) for job in jobs], mark, max_pending=max_pending)

    def _begin(self, queue: str) -> None:
        with self._lock:
            if self.queue is None:
                self.queue = check_queue(queue)
            if not self._stands:
                self._app.store.begin(self.queue, NewBatch(self.id, self.name, *self._heads))
                self._stands = True

    # -- looking -------------------------------------------------------------------------------------------------

    def progress(self) -> BatchStats:
        """Its numbers at this instant. Raises BatchGone."""
        stats = self._app.store.batch(self._queue(), self.id)
        if stats is None:
            raise self._gone()
        return stats

    def wait(self, timeout: float | timedelta | None = None) -> BatchStats:
        """Waits until it is concluded and its last job has ended, looking ever less often, up to once a second.

        The dead and the cancelled have ended too: look at the numbers that it answers. Raises TimeoutError after
        `timeout` seconds (None: waits as long as it takes), BatchGone, and ConfigError inside its own `with`.
        """
        if self._tokens:
            raise ConfigError(f"batch {self.id}: wait() inside its `with` would never end; call it behind")
        look = Look(self._app, timeout)
        while not (stats := self.progress()).finished:
            look.again(f"batch {self.id}: not finished", f"{stats.pending} of {stats.total} jobs are pending")
        return stats

    def jobs(self, state: State | str | None = None) -> Listing:
        """Its jobs that still have a row: those that are still to end, the dead and the kept. Reads the lists of its
        queue."""
        return self._app.jobs(state=state, queue=self._queue(), chosen=Selection(batch=self.id))

    def results(self, timeout: float | timedelta | None = None) -> Iterator[Result]:
        """What its completed jobs returned, one by one, in constant memory, once the batch has ended (see `wait`).

        In the order in which they expire, which is that of their ends where all are kept equally long. The dead have
        none: see `jobs("dead")`. Raises ResultGone at the end where some were not kept, or are past their time.
        """
        stats = self.wait(timeout)
        found = 0
        for job in self.jobs(State.COMPLETED):
            found += 1
            yield Result(job.id, job.result)
        if found < stats.completed:
            raise ResultGone(
                f"batch {self.id}: {stats.completed - found} of {stats.completed} results are not there: past their "
                "time, purged, or never kept; write @app.job(result=True), or .options(result=3600)"
            )

    def cancel(self) -> int:
        """Cancels what is still to end, and answers how many jobs that were; those that run are marked."""
        store, queue, hit = self._app.store, self._queue(), 0
        for state in (State.PENDING, State.DELAYED, State.ACTIVE):
            ids = [job.id for job in self.jobs(state)]
            hit += sum(word in (Word.CANCELLED, Word.MARKED) for word in store.cancel(queue, ids))
        return hit

    def _queue(self) -> str:
        if self.queue is None:
            raise BatchGone(
                f"batch {self.id}: nothing was enqueued into it, and it was not concluded: it has not begun"
            )
        return self.queue

    def _gone(self) -> BatchGone:
        return BatchGone(
            f"batch {self.id}: not in queue {self.queue}; it ended longer ago than batches are kept (7 days), or began "
            "in another store"
        )


def find_batch(store: Store, batch_id: str, queue: str | None) -> BatchStats | None:
    """The batch of that id, or None. Without a queue all are asked."""
    for name in queues_of(store, queue):
        stats = store.batch(name, batch_id)
        if stats is not None:
            return stats
    return None


def list_batches(store: Store, queue: str | None, page: int = 100) -> Iterator[BatchStats]:
    """All batches, queue by queue: those under way first, then by their end, the latest first."""
    for name in queues_of(store, queue):
        skip = 0
        while found := store.batches(name, skip=skip, limit=page):
            yield from found
            skip += page


def _call_of(app: App, call: Call[..., Any] | str, word: str) -> Call[..., Any]:
    if isinstance(call, str):
        return app.call(call)
    if isinstance(call, Call):
        return call
    raise ConfigError(f"{word}: expected a handler or its name, found {call!r:.100}; register it with @app.job")
