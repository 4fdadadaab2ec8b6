"""When a worker makes room for a new one: after so many jobs, or above so much memory. With jitter, so that a pool does
not do it all at once.
"""

from __future__ import annotations

import os
import random

import psutil

from batchq.clock import SYSTEM
from batchq.config import Settings

#: Seconds between two looks at the memory.
LOOK_S = 0.5
#: Limits are drawn from this part below what was set up to it.
JITTER = 0.25


def rss_bytes(pid: int) -> int:
    """Resident memory of a process; 0 where it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def cpu_ms(pid: int) -> int:
    """The time that a process has spent on a CPU so far; 0 where it is gone."""
    try:
        spent = psutil.Process(pid).cpu_times()
        return int((spent.user + spent.system) * 1000)
    except psutil.Error:
        return 0


class Recycling:
    """Made in the worker, after its random state was drawn."""

    def __init__(self, settings: Settings) -> None:
        self._jobs = _jittered(settings.max_jobs)
        self._rss = _jittered(settings.max_rss_bytes)
        self._look_at = 0.0

    def due(self, claimed: int) -> str | None:
        """Why this worker should end between two batches, or None."""
        if self._jobs is not None and claimed >= self._jobs:
            return f"max_jobs: {claimed} claimed"
        if self._rss is None or SYSTEM.monotonic() < self._look_at:
            return None
        self._look_at = SYSTEM.monotonic() + LOOK_S
        rss = rss_bytes(os.getpid())
        return f"max_rss: {rss >> 20} MiB" if rss > self._rss else None


def _jittered(limit: int | None) -> int | None:
    return None if limit is None else max(1, round(limit * random.uniform(1 - JITTER, 1)))
