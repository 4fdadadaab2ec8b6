"""Notices a call that blocks the event loop of a worker, and names it in the log while it lasts.

A thread looks whether the loop still turns. Where it does not, the stack of the loop's thread says which handler stands
in the way, and at which line. Ends nothing: that is the time limit's business. C code that holds the interpreter is
named when it lets go.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from types import FrameType
from typing import Any

from batchq import log
from batchq.clock import monotonic
from batchq.worker.runner import Prepared, Runner

#: The loop says so often that it turns.
BEAT_S = 0.1
#: Without such a sign for so long it is blocked.
BLOCKED_S = 0.25
#: The same place is named once in this time.
AGAIN_S = 60.0

_CALLER = Runner.acall.__code__
_LOOP_FILES = os.path.dirname(asyncio.__file__)


class LoopWatch:
    """Made in the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._beat = monotonic()
        #: (handler, place) -> when it was named last.
        self._told: dict[tuple[str, str], float] = {}

    def start(self) -> None:
        self._turn()
        threading.Thread(target=self._watch, name="batchq-loop-watch", daemon=True).start()

    def _turn(self) -> None:
        self._beat = monotonic()
        self._loop.call_later(BEAT_S, self._turn)

    def _watch(self) -> None:
        named = 0.0
        while True:
            time.sleep(BEAT_S)
            beat = self._beat
            if monotonic() - beat > BLOCKED_S and beat != named:
                named = beat
                self._name(beat)

    def _name(self, since: float) -> None:
        frame = sys._current_frames().get(self._thread)
        place, ready = where(frame)
        handler = ready.spec.name if ready is not None else ""
        now = monotonic()
        if now - self._told.get((handler, place), -AGAIN_S) < AGAIN_S:
            return
        self._told[handler, place] = now
        told: dict[str, Any] = {}
        if ready is not None:
            told = {"queue": ready.claim.queue, "job": ready.claim.id, "token": ready.claim.token, "handler": handler}
        log.event(
            "warning",
            "loop_blocked",
            pid=os.getpid(),
            **told,
            for_ms=int((now - since) * 1000),
            at=place,
            why="a call that blocks stops every job of this worker; await it, or use asyncio.to_thread",
        )


def where(frame: FrameType | None) -> tuple[str, Prepared | None]:
    """The innermost line of a thread's stack, and the job whose handler it is in: None for a task that a handler has
    made, or for none."""
    place = ""
    while frame is not None:
        code = frame.f_code
        if code is _CALLER:
            ready = frame.f_locals.get("ready")
            return place, ready if isinstance(ready, Prepared) else None
        if not place and not code.co_filename.startswith(_LOOP_FILES):
            place = f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return place, None
