"""Which job runs here: what a handler may ask about itself. Set by the runner, one job a thread or task.

Threads that a handler starts by itself do not inherit it; hand them what they need.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import NamedTuple, Protocol

from batchq.clock import monotonic_ns, wall_ms
from batchq.errors import BatchqError
from batchq.job import Claim


class CurrentJob(NamedTuple):
    """The job under way, as its handler sees it."""

    id: str
    queue: str
    #: The handler's name.
    name: str
    #: The fencing token: greater than that of every earlier attempt of this job. For external systems that compare it.
    token: int
    #: Which try this is, from 1.
    attempt: int
    max_attempts: int
    #: By the store's clock.
    enqueued_ms: int
    #: When this attempt began, by this machine's clock.
    started_ms: int = 0


class Ready(Protocol):
    """What the runner knows of the job under way."""

    @property
    def claim(self) -> Claim: ...
    @property
    def handler(self) -> str: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def enqueued_ms(self) -> int: ...


#: Set by a worker while an order for the job here (JobTimeout, say) waits for the end of a store's call: raises it.
#: An app looks here before its next call.
waiting_order: Callable[[], None] | None = None

#: The job, and when its attempt began on the monotonic clock. Few handlers ask, so that nothing is made of it before.
_current: ContextVar[tuple[Ready, int]] = ContextVar("batchq.current_job")


def current_job() -> CurrentJob:
    """The job that runs here. Raises BatchqError outside a job."""
    job = job_here()
    if job is None:
        raise BatchqError(
            "current_job: no job runs here; call it inside a handler, in the thread or task that batchq started it in "
            "(a batch handler has its jobs in its argument)"
        )
    return job


def job_here() -> CurrentJob | None:
    """The same; None outside a job."""
    running = _current.get(None)
    if running is None:
        return None
    ready, began_ns = running
    claim = ready.claim
    return CurrentJob(
        claim.id,
        claim.queue,
        ready.handler,
        claim.token,
        claim.attempt,
        ready.max_attempts,
        ready.enqueued_ms,
        wall_ms(began_ns),
    )


def enter(ready: Ready) -> Token[tuple[Ready, int]]:
    """Called by the runner before a handler; give the answer to `leave`."""
    return _current.set((ready, monotonic_ns()))


def leave(token: Token[tuple[Ready, int]]) -> None:
    """Called by the runner after a handler."""
    _current.reset(token)
