"""Time limits, orders and memory limits of workers: the master watches, the worker is told, then killed.

Soft: JobTimeout (or JobCancelled) is raised inside the handler. Hard, after the grace: SIGKILL of the whole group.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable

from batchq import log
from batchq.clock import SYSTEM, monotonic_ns
from batchq.config import Settings
from batchq.master.children import Child, named, signal_group, signal_one
from batchq.master.sweeps import Death
from batchq.registry import Registry
from batchq.system import scoreboard
from batchq.system.scoreboard import Entry, Run
from batchq.worker.base import ORDER_SIGNAL
from batchq.worker.recycle import rss_bytes


def give_order(child: Child, entry: Entry, run: Run, order: int) -> None:
    """For this run and no other: TIMED_OUT, CANCEL or INTERRUPT."""
    child.orders[run.number] = SYSTEM.monotonic()
    entry.give_order(run.number, order)
    signal_one(child.pid, ORDER_SIGNAL)


def interrupt(child: Child) -> None:
    """A planned stop cuts off what runs there."""
    for entry, run in child.slot.under_way():
        give_order(child, entry, run, scoreboard.INTERRUPT)


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
        return any(child.orders or self._has_limit(child) for child in children)

    @property
    def may_come(self) -> bool:
        """Such a run may begin at any time, or memory has a limit."""
        return self._times_out or bool(self._settings.max_rss_hard_bytes)

    def _has_limit(self, child: Child) -> bool:
        limited = any(run.timeout_ms and not run.torn for run in child.runs())
        # A call may have a limit where its handler has none: where one came, more may follow.
        self._times_out = self._times_out or limited
        return limited

    def enforce(self, children: Collection[Child], *, stopping: bool) -> None:
        """`stopping`: handlers have been interrupted, and the stop kills who does not listen."""
        for child in children:
            self._enforce_time(child, stopping)
        most = self._settings.max_rss_hard_bytes
        if most:
            for child in children:
                _enforce_memory(child, most)

    def _enforce_time(self, child: Child, stopping: bool) -> None:
        under_way = child.slot.under_way()
        if child.orders:
            numbers = {run.number for _, run in under_way}
            child.orders = {number: at for number, at in child.orders.items() if number in numbers}
        for entry, run in under_way:
            # A torn one its worker writes just now: the next look sees it whole.
            if not run.torn:
                self._enforce_on(child, entry, run, stopping)

    def _enforce_on(self, child: Child, entry: Entry, run: Run, stopping: bool) -> None:
        ordered_at = child.orders.get(run.number)
        if ordered_at is not None:
            if entry.heard != run.number:
                signal_one(child.pid, ORDER_SIGNAL)
            grace_s = self._settings.grace_ms / 1000
            if SYSTEM.monotonic() - ordered_at > grace_s and child.ended_by is None and not stopping:
                _kill(child, entry, run)
        elif run.timeout_ms and monotonic_ns() - run.started_ns > run.timeout_ms * 1_000_000:
            log.event("warning", "timed_out", worker=child.slot.worker, **named([run]))
            give_order(child, entry, run, scoreboard.TIMED_OUT)


def _kill(child: Child, entry: Entry, run: Run) -> None:
    cancelled = entry.order()[1] == scoreboard.CANCEL
    if cancelled and run.on_thread:
        # Others run beside it, and would pay for it. It ends by itself, or by its time limit.
        return
    child.culprit = run.number
    text = "killed: cancelled" if cancelled else f"killed: ran past its time limit of {run.timeout_ms / 1000:g} s"
    child.ended_by = Death("failed" if cancelled else "timed_out", text)
    log.event("warning", "killed", worker=child.slot.worker, why=text, **named([run]))
    signal_group(child.pid, signal.SIGKILL)


def _enforce_memory(child: Child, most: int) -> None:
    """Above the limit: SIGKILL, and a crash of what ran."""
    rss = rss_bytes(child.pid)
    if rss > most and child.ended_by is None:
        text = f"killed: its memory of {rss >> 20} MiB was above max_rss_hard ({most >> 20} MiB)"
        child.ended_by = Death("crashed", text)
        log.event("error", "killed", worker=child.slot.worker, why=text, **named(child.runs()))
        signal_group(child.pid, signal.SIGKILL)
