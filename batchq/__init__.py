"""batchq: a job processor for jobs that must not be lost and must be fast.

Names are imported when they are used, so that `import batchq` and the command line stay quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchq.app import App as App
    from batchq.backoff import exponential as exponential
    from batchq.backoff import fixed as fixed
    from batchq.backoff import full_jitter as full_jitter
    from batchq.batch import Batch as Batch
    from batchq.batch import BatchGone as BatchGone
    from batchq.context import CurrentJob as CurrentJob
    from batchq.context import current_job as current_job
    from batchq.errors import AppError as AppError
    from batchq.errors import BatchqError as BatchqError
    from batchq.errors import ConfigError as ConfigError
    from batchq.errors import Dead as Dead
    from batchq.errors import InternalError as InternalError
    from batchq.errors import JobCancelled as JobCancelled
    from batchq.errors import JobTimeout as JobTimeout
    from batchq.errors import QueueFull as QueueFull
    from batchq.errors import Retry as Retry
    from batchq.errors import Snooze as Snooze
    from batchq.errors import SpoolError as SpoolError
    from batchq.errors import StoreCorrupt as StoreCorrupt
    from batchq.errors import StoreDenied as StoreDenied
    from batchq.errors import StoreError as StoreError
    from batchq.errors import StoreFull as StoreFull
    from batchq.errors import StoreUnavailable as StoreUnavailable
    from batchq.errors import StoreVersion as StoreVersion
    from batchq.errors import UnknownHandler as UnknownHandler
    from batchq.flow import Breaker as Breaker
    from batchq.flow import Limit as Limit
    from batchq.job import Job as Job
    from batchq.lifecycle import State as State
    from batchq.lifecycle import Word as Word
    from batchq.refs import Enqueued as Enqueued
    from batchq.refs import JobDead as JobDead
    from batchq.refs import JobRef as JobRef
    from batchq.refs import ResultGone as ResultGone
    from batchq.tally import BatchStats as BatchStats
    from batchq.worker.grouped import BatchJob as BatchJob

__version__ = "0.1.0"

_HOMES = {
    "batchq.app": ("App",),
    "batchq.backoff": ("exponential", "fixed", "full_jitter"),
    "batchq.batch": ("Batch", "BatchGone"),
    "batchq.context": ("CurrentJob", "current_job"),
    "batchq.errors": (
        "AppError",
        "BatchqError",
        "ConfigError",
        "Dead",
        "InternalError",
        "JobCancelled",
        "JobTimeout",
        "QueueFull",
        "Retry",
        "Snooze",
        "SpoolError",
        "StoreCorrupt",
        "StoreDenied",
        "StoreError",
        "StoreFull",
        "StoreUnavailable",
        "StoreVersion",
        "UnknownHandler",
    ),
    "batchq.worker.grouped": ("BatchJob",),
    "batchq.flow": ("Breaker", "Limit"),
    "batchq.job": ("Job",),
    "batchq.lifecycle": ("State", "Word"),
    "batchq.refs": ("Enqueued", "JobDead", "JobRef", "ResultGone"),
    "batchq.tally": ("BatchStats",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'batchq' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
