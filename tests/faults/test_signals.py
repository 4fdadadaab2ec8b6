"""A signal's exception in the middle of a call: what is left unread is never taken for the answer to the next call."""

from __future__ import annotations

import gc
import os
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from batchq.job import NewJob, pack_row
from batchq.lifecycle import State, unaccounted
from batchq.redis.connect import Links
from batchq.redis.dial import Dialer
from batchq.redis.store import RedisStore
from tests.servers import Server

Q = "mail"


class Struck(Exception):
    """What the signal's handler raises."""


class Striker:
    """Strikes the main thread by SIGUSR2 a while after it was told to, if it is still wanted then."""

    def __init__(self) -> None:
        self.wanted = False
        self._orders: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (delay_s := self._orders.get()) is not None:
            time.sleep(delay_s)
            if self.wanted:
                os.kill(os.getpid(), signal.SIGUSR2)

    def order(self, delay_s: float) -> None:
        self.wanted = True
        self._orders.put(delay_s)

    def handle(self, signum: int, frame: FrameType | None) -> None:
        if self.wanted:
            self.wanted = False
            raise Struck

    def close(self) -> None:
        self._orders.put(None)
        self._thread.join(5)


@pytest.fixture
def striker() -> Iterator[Striker]:
    made = Striker()
    before = signal.signal(signal.SIGUSR2, made.handle)
    yield made
    made.wanted = False
    made.close()
    signal.signal(signal.SIGUSR2, before)


def test_exception_of_a_signal_never_gives_one_call_the_answer_of_another(
    redis_server: Server, prefix: str, striker: Striker
) -> None:
    """Reads and enqueues are struck at random instants; each answer that comes belongs to its own question."""
    store = RedisStore(redis_server.url, prefix=prefix)
    dice = random.Random(20260101)
    sure, struck = [], 0
    store.enqueue(Q, [NewJob("first", pack_row("send"))])
    for n in range(600):
        job = f"job-{n}"
        try:
            striker.order(dice.uniform(0.0, 0.0008))
            store.enqueue(Q, [NewJob(job, pack_row("send", [n]))])
            sure.append(job)
            found = store.get(Q, job)
            striker.wanted = False
        except Struck:
            struck += 1
        else:
            assert found is not None
            assert (found.id, found.args) == (job, [n])
        # Not struck: whatever the last one left behind must not be in the way.
        first = store.get(Q, "first")
        assert first is not None
        assert first.id == "first"
    assert struck > 50, "the strikes hit nothing"
    assert len(sure) > 50, "the strikes hit everything"
    stats = store.stats(Q)
    assert unaccounted(stats.counts, stats.totals) == 0
    names: list[str] = []
    cursor = ""
    while True:
        page = store.jobs(Q, State.PENDING, cursor=cursor, limit=200)
        names += [one.id for one in page.jobs]
        cursor = page.cursor
        if not cursor:
            break
    assert len(names) == len(set(names)) == stats.totals["enqueued"]
    assert set(sure) <= set(names)
    store.close()


def _strike_at(line: int) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that raises Struck at the n-th line that runs below `Links.run`."""
    seen = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal seen
        if frame.f_code.co_name == "__del__":
            # What is raised in a finalizer is lost, whoever raises it.
            return None
        if event == "line":
            seen += 1
            if seen == line:
                sys.settrace(None)
                raise Struck
        return trace

    return trace


@pytest.fixture
def no_collections() -> Iterator[None]:
    """What is raised in a callback of the garbage collection is lost, as in a finalizer."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("opened", [True, False], ids=["open", "opened by the call"])
def test_exception_at_any_line_of_a_call_leaves_no_answer_behind(redis_server: Server, opened: bool) -> None:
    """Every line that runs from the question to the last of its three answers is struck once; the handshake too."""
    links = Links(Dialer(redis_server.url, socket_timeout_s=5.0), patience_s=5.0)

    def ask(*words: str) -> list[bytes]:
        return links.run(lambda link, again: link.ask([("ECHO", word) for word in words]))

    ask("warm")
    struck = 0
    for line in range(1, 2000):
        if not opened:
            links.forget()
        before = sys.gettrace()
        sys.settrace(_strike_at(line))
        try:
            answer = ask(f"a{line}", f"b{line}", f"c{line}")
            sys.settrace(before)
        except Struck:
            struck += 1
        else:
            assert answer == [f"{x}{line}".encode() for x in "abc"]
            break
        finally:
            sys.settrace(before)
        assert ask(f"d{line}") == [f"d{line}".encode()], line
    assert struck > (20 if opened else 80), struck
    links.forget()
