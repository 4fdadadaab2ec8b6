"""What a master says of itself and of its workers: to the store and the control socket, and to the log."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from typing import Any

from batchq import __version__, log
from batchq.admin import spool_stats
from batchq.app import App
from batchq.clock import monotonic_ns
from batchq.config import Settings, masked
from batchq.master.children import Child, is_stopped, named
from batchq.system import scoreboard
from batchq.system.scoreboard import Run
from batchq.worker.recycle import cpu_ms, rss_bytes


def log_started(
    verb: str, app: App, settings: Settings, *, queues: Sequence[tuple[str, int]], processes: int, server: str
) -> None:
    """What it serves, with what; and which handlers may run for ever. On a terminal a block, else one line."""
    registry = app.registry
    limits = settings.limits()
    fallback = limits.pop("fallback")
    served = [name if weight == 1 else f"{name}:{weight}" for name, weight in queues]
    where, store = settings.app or app.name, masked(settings.store_url)
    many = settings.concurrency if settings.concurrency > 1 else None
    log.event(
        "info",
        verb,
        version=__version__,
        pid=os.getpid(),
        app=where,
        store=store,
        server=server or None,
        processes=processes,
        concurrency=many,
        queues=",".join(served),
        handlers=len(registry),
        **limits,
        fallback=fallback,
        block=[
            ("version", [f"batchq {__version__}", f"pid {os.getpid()}"]),
            ("app", [where, f"{len(registry)} handler{'' if len(registry) == 1 else 's'}"]),
            ("store", [store, *([f"({server})"] if server else [])]),
            ("queues", served),
            ("workers", [str(processes), *([f"each with {many} jobs at once"] if many else [])]),
            ("limits", [f"{key}={value}" for key, value in limits.items()]),
            ("fallback", ["none: the store is a spool itself" if settings.stores_in_spool else fallback]),
        ],
    )
    unlimited = [name for name in registry.names() if not registry.get(name).timeout_ms]
    if unlimited and settings.timeout_ms is None:
        log.event("info", "no_time_limit", handlers=",".join(unlimited))


def waiting_in_spool(settings: Settings) -> tuple[int, int, int] | None:
    """Files, jobs and bad files in the inbox of this host's spool; None where there is none."""
    found = spool_stats(settings.own_spool)
    return None if "error" in found else (found["files"], found["jobs"], found["bad"])


def workers_of(children: Iterable[Child]) -> list[dict[str, Any]]:
    """As `batchq workers --json` shows them."""
    return [_worker(child) for child in children]


def _worker(child: Child) -> dict[str, Any]:
    runs = sorted(child.runs(), key=lambda run: run.started_ns)
    oldest = runs[0] if runs else None
    return {
        "id": child.slot.worker,
        "host": platform.node(),
        "pid": child.pid,
        # Such a one says nothing itself.
        "state": "stopped" if is_stopped(child.pid) else scoreboard.STATES[child.slot.state],
        # Of several at once that which has run for longest.
        "job": oldest.id if oldest else None,
        "handler": oldest.handler if oldest else None,
        "queue": oldest.queue if oldest else None,
        "running_ms": _running_ms(oldest) if oldest else 0,
        "running": len(runs),
        "rss": rss_bytes(child.pid),
        "cpu_ms": cpu_ms(child.pid),
    }


def log_workers(children: Iterable[Child]) -> None:
    """A line a worker."""
    for child in children:
        runs = child.runs()
        log.event(
            "info",
            "worker",
            pid=child.pid,
            worker=child.slot.worker,
            state=scoreboard.STATES[child.slot.state],
            retiring=child.retiring or None,
            claimed=child.slot.claimed,
            running_ms=max(map(_running_ms, runs)) if runs else None,
            **named(runs),
        )


def _running_ms(run: Run) -> int:
    return (monotonic_ns() - run.started_ns) // 1_000_000
