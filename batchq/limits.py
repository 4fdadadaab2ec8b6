"""Time limits, orders and memory limits of workers: the master watches, the worker is told, then killed.

Soft: JobTimeout (or JobCancelled) is raised inside the handler. Hard, after the grace: SIGKILL of the whole group.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable

from batchq import log, scoreboard
from batchq.children import Child, named, signal_group, signal_one
from batchq.clock import SYSTEM, monotonic_ns
from batchq.config import Settings
from batchq.recycle import rss_bytes
from batchq.registry import Registry
from batchq.scoreboard import Run
from batchq.sweeps import Death
from batchq.worker import ORDER_SIGNAL


def give_order(child: Child, run: Run, order: int) -> None:
    """For this run and no other: TIMED_OUT, CANCEL or INTERRUPT."""
    child.ordered_run, child.ordered_at = run.number, SYSTEM.monotonic()
    child.slot.give_order(run.number, order)
    signal_one(child.pid, ORDER_SIGNAL)


class Limits:
    """Those of one pool."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self._settings = settings
        #: Some runs may have a time limit.
        self._times_out = settings.timeout_ms is not None or any(
            spec.timeout_ms for spec in map(registry.get, registry.names())
        )

    def is_pressing(self, children: Iterable[Child]) -> bool:
        """A run with a limit, or an order, is under way: the loop is to look often."""
        return any(child.ordered_run or self._limit_of(child) for child in children)

    @property
    def may_come(self) -> bool:
        """Such a run may begin at any time, or memory has a limit."""
        return self._times_out or bool(self._settings.max_rss_hard_bytes)

    def _limit_of(self, child: Child) -> int:
        run = child.slot.run()
        limit = run.timeout_ms if run is not None and run.under_way and not run.torn else 0
        # A call may have a limit where its handler has none: where one came, more may follow.
        self._times_out = self._times_out or limit > 0
        return limit

    def enforce(self, children: Collection[Child], *, stopping: bool) -> None:
        """`stopping`: handlers have been interrupted, and the stop kills who does not listen."""
        for child in children:
            self._enforce_time(child, stopping)
        most = self._settings.max_rss_hard_bytes
        if most:
            for child in children:
                _enforce_memory(child, most)

    def _enforce_time(self, child: Child, stopping: bool) -> None:
        run = child.slot.run()
        if run is None or not run.under_way:
            child.ordered_run = 0
        elif run.torn:
            return  # Its worker writes it just now: the next look sees it whole.
        elif child.ordered_run == run.number:
            if child.slot.heard != run.number:
                signal_one(child.pid, ORDER_SIGNAL)
            grace_s = self._settings.grace_ms / 1000
            if SYSTEM.monotonic() - child.ordered_at > grace_s and child.ended_by is None and not stopping:
                _kill(child, run)
        elif run.timeout_ms and monotonic_ns() - run.started_ns > run.timeout_ms * 1_000_000:
            log.event("warning", "timed_out", worker=child.slot.worker, **named(run))
            give_order(child, run, scoreboard.TIMED_OUT)


def _kill(child: Child, run: Run) -> None:
    cancelled = child.slot.order()[1] == scoreboard.CANCEL
    text = "killed: cancelled" if cancelled else f"killed: ran past its time limit of {run.timeout_ms / 1000:g} s"
    child.ended_by = Death("failed" if cancelled else "timed_out", text)
    log.event("warning", "killed", worker=child.slot.worker, why=text, **named(run))
    signal_group(child.pid, signal.SIGKILL)


def _enforce_memory(child: Child, most: int) -> None:
    """Above the limit: SIGKILL, and a crash of what ran."""
    rss = rss_bytes(child.pid)
    if rss > most and child.ended_by is None:
        text = f"killed: its memory of {rss >> 20} MiB was above max_rss_hard ({most >> 20} MiB)"
        child.ended_by = Death("crashed", text)
        log.event("error", "killed", worker=child.slot.worker, why=text, **named(child.slot.run()))
        signal_group(child.pid, signal.SIGKILL)
