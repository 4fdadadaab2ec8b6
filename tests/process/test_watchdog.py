"""A pool that is alive and consumes nothing: the watchdog connects it anew, replaces its workers, or gives up."""

from __future__ import annotations

import os
import signal

from batchq.system.scoreboard import IDLE, Scoreboard
from tests.process.rig import Rig

APP = """
@app.job
def short():
    note("S")
    note("E")
"""

#: A worker that has lost its way to the jobs, and does not notice.
DEAF = """
from batchq.redis.store import RedisStore
from batchq.worker.worker import Worker

RedisStore.standing_claim = lambda self, queue: None
_exchange = Worker._exchange
Worker._exchange = lambda self, queue, want: () if deaf() else _exchange(self, queue, want)
"""

MENDED_BY_A_NEW_CONNECTION = """
_close, _closed = RedisStore.close, []
RedisStore.close = lambda self: (_closed.append(os.getpid()), _close(self))
deaf = lambda: os.getpid() not in _closed
"""


def steps(rig: Rig) -> list[str]:
    return [line.split("step=")[1].split(" ")[0] for line in rig.pools[0].lines("stalled")]


def test_worker_that_lost_its_connection_gets_a_new_one(redis_rig: Rig) -> None:
    """It is told, connects anew, and works on; nobody is replaced."""
    redis_rig.app(APP + DEAF + MENDED_BY_A_NEW_CONNECTION)
    pool = redis_rig.start("--watchdog", "400ms")
    workers = pool.workers()
    redis_rig.enqueue("short")
    redis_rig.until_counts(done=1)
    assert steps(redis_rig) == ["reconnect"]
    assert pool.workers() == workers
    assert pool.stop() == 0


def test_idle_worker_that_hangs_is_replaced(rig: Rig) -> None:
    """Stopped, so that neither order nor TERM reaches it: it is killed, and the next one does the work."""
    rig.app(APP)
    pool = rig.start("--watchdog", "400ms", "--grace", "300ms", "--pid-file", str(rig.folder / "pool.pid"))
    [worker] = pool.workers()
    slot = Scoreboard.at(str(rig.folder / "pool.pid.board")).slot(0)
    rig.until(lambda: slot.state == IDLE, "it is idle")
    os.kill(worker, signal.SIGSTOP)
    job = rig.enqueue("short")
    assert rig.until_started(job) != worker
    assert steps(rig) == ["reconnect", "replace"]
    rig.until(lambda: len(pool.workers()) == 1, "the one that hangs is killed")
    stats = rig.until_counts(done=1)
    assert (stats.totals["crashed"], stats.totals["lost"]) == (0, 0)
    assert pool.stop() == 0


def test_pool_that_nothing_mends_gives_up(redis_rig: Rig) -> None:
    """Exit 5, and the job is as it was."""
    redis_rig.app(APP + DEAF + "deaf = lambda: True\n")
    job = redis_rig.enqueue("short")
    pool = redis_rig.start("--watchdog", "400ms", n=2)
    assert pool.wait() == 5
    assert steps(redis_rig) == ["reconnect", "replace", "give_up"]
    assert redis_rig.job(job).attempts == 0


def test_pools_that_have_a_reason_to_claim_nothing_are_left_alone(redis_rig: Rig) -> None:
    """A paused queue, a quiet pool, an empty queue, the watchdog off."""
    redis_rig.app(APP)
    pool = redis_rig.start("--watchdog", "100ms", n=1)
    redis_rig.store.pause("default")
    redis_rig.enqueue("short")
    pool.send(signal.SIGUSR1)
    redis_rig.until(lambda: redis_rig.stats().oldest_pending_age_ms > 1000, "some time has gone by")
    assert not pool.lines("stalled")
    pool.send(signal.SIGTSTP)
    redis_rig.until(lambda: pool.lines("quiet"), "it is quiet")
    redis_rig.store.resume("default")
    redis_rig.until(lambda: redis_rig.stats().oldest_pending_age_ms > 2000, "some time has gone by")
    assert not pool.lines("stalled")
    pool.send(signal.SIGCONT)
    redis_rig.until_counts(done=1)
    redis_rig.enqueue("short")
    redis_rig.until_counts(done=2)
    assert not pool.lines("stalled")
    assert pool.stop() == 0
