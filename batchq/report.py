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
    run = child.slot.run()
    under_way = run if run is not None and run.under_way else None
    return {
        "id": child.slot.worker,
        "host": platform.node(),
        "pid": child.pid,
        "state": scoreboard.STATES[child.slot.state],
        "job": under_way.id if under_way else None,
        "handler": under_way.handler if under_way else None,
        "queue": under_way.queue if under_way else None,
        "running_ms": _running_ms(under_way) if under_way else 0,
        "rss": rss_bytes(child.pid),
        "cpu_ms": cpu_ms(child.pid),
    }


def log_workers(children: Iterable[Child]) -> None:
    """A line a worker."""
    for child in children:
        run = child.slot.run()
        log.event(
            "info",
            "worker",
            pid=child.pid,
            worker=child.slot.worker,
            state=scoreboard.STATES[child.slot.state],
            retiring=child.retiring or None,
            claimed=child.slot.claimed,
            running_ms=_running_ms(run) if run is not None and run.under_way else None,
            **named(run),
        )


def _running_ms(run: Run) -> int:
    return (monotonic_ns() - run.started_ns) // 1_000_000
