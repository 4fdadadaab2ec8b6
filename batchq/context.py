"""Which job runs here: what a handler may ask about itself. Set by the runner, one job a thread or task.

Threads that a handler starts by itself do not inherit it; hand them what they need.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import NamedTuple

from batchq.errors import BatchqError


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


#: Set by a worker while an order for the job here (JobTimeout, say) waits for the end of a store's call: raises it.
#: An app looks here before its next call.
waiting_order: Callable[[], None] | None = None

_current: ContextVar[CurrentJob] = ContextVar("batchq.current_job")


def current_job() -> CurrentJob:
    """The job that runs here. Raises BatchqError outside a job."""
    job = _current.get(None)
    if job is None:
        raise BatchqError(
            "current_job: no job runs here; call it inside a handler, in the thread or task that batchq started it in"
        )
    return job


def job_here() -> CurrentJob | None:
    """The same; None outside a job."""
    return _current.get(None)


def enter(job: CurrentJob) -> Token[CurrentJob]:
    """Called by the runner before a handler; give the answer to `leave`."""
    return _current.set(job)


def leave(token: Token[CurrentJob]) -> None:
    """Called by the runner after a handler."""
    _current.reset(token)
