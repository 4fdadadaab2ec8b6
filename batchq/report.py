"""What a master says of its workers: to the store and the control socket, and to the log."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from typing import Any

from batchq import log, scoreboard
from batchq.children import Child, named
from batchq.clock import monotonic_ns
from batchq.recycle import cpu_ms, rss_bytes
from batchq.scoreboard import Run


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
        "state": scoreboard.STATES[child.slot.state],
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
