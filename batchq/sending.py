"""One step of jobs into a queue that may be full, or into a batch: what the producer wants done about no room.

A queue is full when `max_pending` jobs are pending in it; the store looks in the same step that enqueues. Then the call
is refused (QueueFull), waits for room, or goes to the fallback spool, whose forwarder waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from batchq.errors import ConfigError, QueueFull, StoreFull
from batchq.job import Mark, NewJob
from batchq.lifecycle import Word
from batchq.store import Store

if TYPE_CHECKING:
    from batchq.batch import Batch
    from batchq.fallback.producer import Fallback

#: Waits between two tries, in seconds: they grow from the first to the last.
FIRST_WAIT_S, LAST_WAIT_S = 0.01, 0.5


def send(
    store: Store,
    fallback: Fallback | None,
    batch: Batch | None,
    queue: str,
    jobs: Sequence[NewJob],
    *,
    max_pending: int,
    when_full: str | int,
    pause_s: Callable[[float], None],
    monotonic: Callable[[], float],
) -> list[Word] | None:
    """At most one step. None where the jobs wait in the spool now. `when_full`: raise, spool, or ms to wait.

    Raises QueueFull with nothing enqueued; its `mark`, where it has one, names a call that may still come through.
    """
    wait_s, until = FIRST_WAIT_S, monotonic() + (when_full / 1000 if isinstance(when_full, int) else 0)
    mark: Mark | None = None
    while True:
        try:
            if batch is not None:
                return batch.send(store, jobs, queue, mark, max_pending)
            if fallback is not None:
                return fallback.enqueue(queue, jobs, mark, max_pending=max_pending)
            return store.enqueue(queue, jobs, mark, max_pending=max_pending)
        except StoreFull:
            raise
        except QueueFull as full:
            if when_full == "spool":
                _to_spool(fallback, batch, queue, jobs, full)
                return None
            if full.mark is not None:
                # A copy of this call may still come through: the next one carries its name.
                mark = Mark(*full.mark)
            left = until - monotonic()
            if left <= 0:
                raise
        pause_s(min(wait_s, left))
        wait_s = min(wait_s * 1.5, LAST_WAIT_S)


def _to_spool(
    fallback: Fallback | None, batch: Batch | None, queue: str, jobs: Sequence[NewJob], full: QueueFull
) -> None:
    """Raises QueueFull where the jobs can't wait in a spool."""
    if batch is not None:
        # What waits in a spool is counted by no batch.
        raise full
    if fallback is None:
        raise ConfigError(
            f"when_full: spool needs the fallback spool of a store on Redis (fallback = true); {full}"
        ) from full
    fallback.spool(queue, jobs, full)
