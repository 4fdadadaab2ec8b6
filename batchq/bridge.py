"""From event loops to the store: calls of coroutines are gathered and handed over by one thread, many a step.

The loop never waits for the store, also not while it is away: the first call of an outage may take `enqueue_timeout`,
and it takes it in the thread; all that came meanwhile go to the fallback spool as one parcel. What a single client
with an async connection would send one by one goes in one round trip. Calls that may have to wait for room in a full
queue, or that belong to a batch, take threads of their own. Nothing here is in the way of a producer without a loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

from batchq.errors import BatchqError, InternalError, StoreError
from batchq.job import NewJob
from batchq.store import MAX_BYTES, MAX_JOBS

T = TypeVar("T")

#: (created, spooled) of a job.
Sent = tuple[bool, bool]
#: app.send: (queue, jobs) -> which are new, and whether they are spooled.
Send = Callable[[str, Sequence[NewJob]], tuple[list[bool], bool]]

#: Calls that take a thread of their own, at once.
THREADS = 8


class Bridge:
    """One for an app and a process."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._calls: SimpleQueue[tuple[str, NewJob, Future[Sent]]] = SimpleQueue()
        self._pool = ThreadPoolExecutor(THREADS, "batchq-producer")
        Thread(target=self._carry, name="batchq-bridge", daemon=True).start()

    async def send(self, queue: str, job: NewJob) -> Sent:
        """One job, gathered with those of other tasks. Where the task is cancelled it may be enqueued all the same."""
        done: Future[Sent] = Future()
        self._calls.put((queue, job, done))
        return await asyncio.wrap_future(done)

    async def run(self, call: Callable[[], T]) -> T:
        """A call that may take its time, in a thread that sees this task's context."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, copy_context().run, call)

    # -- the thread

    def _carry(self) -> None:
        while True:
            gathered = [self._calls.get()]
            size = len(gathered[0][1].row)
            try:
                while len(gathered) < MAX_JOBS and size < MAX_BYTES:
                    gathered.append(self._calls.get_nowait())
                    size += len(gathered[-1][1].row)
            except Empty:
                pass
            by_queue: dict[str, list[tuple[NewJob, Future[Sent]]]] = {}
            for queue, job, done in gathered:
                if done.set_running_or_notify_cancel():
                    by_queue.setdefault(queue, []).append((job, done))
            for queue, some in by_queue.items():
                self._hand_over(queue, some)

    def _hand_over(self, queue: str, some: list[tuple[NewJob, Future[Sent]]]) -> None:
        try:
            created, spooled = self._send(queue, [job for job, _ in some])
        except (StoreError, InternalError) as error:
            # Nobody knows more of one than of the other.
            for _, done in some:
                done.set_exception(error)
        except BatchqError as error:
            if len(some) == 1:
                some[0][1].set_exception(error)
                return
            # One of them is at fault, and nothing is enqueued yet: each speaks for itself.
            for one in some:
                self._hand_over(queue, [one])
        except BaseException as error:  # noqa: BLE001 - the thread serves others; whoever waits is told
            for _, done in some:
                done.set_exception(error if isinstance(error, Exception) else InternalError(repr(error)))
        else:
            for (_, done), new in zip(some, created, strict=True):
                done.set_result((new, spooled))
