"""Pools that can't begin: each ends in bounded time with its own exit code and one reason."""

from __future__ import annotations

import time

from batchq.master.keeper import PUBLISH_S
from tests.process.rig import Rig
from tests.servers import free_port

NOOP = "@app.job\ndef noop(): note('S')\n"


def test_workers_that_cannot_start_end_the_pool(rig: Rig) -> None:
    """A start hook that raises each time: exit 3, with the hook's own error, in bounded time."""
    rig.app(NOOP + "\n@app.on_worker_start\ndef connect():\n    raise RuntimeError('no database at db:5432')\n")
    job = rig.enqueue("noop")
    began = time.monotonic()
    pool = rig.start(n=2, ready=False)
    assert pool.wait(15) == 3
    assert time.monotonic() - began < 10
    rig.until_clean()
    [line] = pool.lines("workers_cant_start")
    assert "70" in line
    assert "no database at db:5432" in pool.log()
    assert 5 <= len(pool.lines("worker_failed")) <= 10
    assert rig.job(job).attempt == 0


def test_a_pool_says_who_works_as_soon_as_somebody_does(rig: Rig) -> None:
    """Not only when it says so the next time: `batchq workers` would find nobody until then."""
    rig.app(NOOP)
    pool = rig.start()
    [told] = rig.until(lambda: [one for one in rig.store.masters() if one["workers"]], "its worker is told")
    assert [worker["pid"] for worker in told["workers"]] == pool.workers()
    assert told["at_ms"] - told["since_ms"] < PUBLISH_S * 1000


def test_one_worker_that_cannot_start_does_not_end_the_others(redis_rig: Rig) -> None:
    """Only the first gets through its hook; the other is tried again, ever later, while the first works."""
    redis_rig.app(
        NOOP
        + """
@app.on_worker_start
def be_first():
    os.close(os.open("first", os.O_CREAT | os.O_EXCL))
"""
    )
    pool = redis_rig.start(n=2, ready=False)
    redis_rig.until(lambda: len(pool.lines("worker_failed")) >= 5, "the other failed often", within=20)
    assert pool.process.poll() is None
    job = redis_rig.enqueue("noop")
    redis_rig.until_started(job)
    assert pool.stop() == 0


def test_hooks_run_in_each_worker_that_ends_by_itself(rig: Rig) -> None:
    """on_worker_start before the first job, on_worker_stop after the last, on_dead for each dead job."""
    rig.app(
        """
def tell(line):
    os.write(_ledger, f"{line} - 0 0 {os.getpid()} 0\\n".encode())

@app.on_worker_start
def begin():
    tell("start-hook")

@app.on_worker_stop
def finish():
    tell("stop-hook")

@app.on_dead
def mourn(job):
    tell(f"dead-hook:{job.id}")

@app.job(max_attempts=1)
def fails():
    note("S")
    raise ValueError("always")
"""
    )
    job = rig.enqueue("fails")
    rig.run_burst()
    assert [entry.kind for entry in rig.ledger.entries()] == ["start-hook", "S", f"dead-hook:{job}", "stop-hook"]
    assert len({entry.pid for entry in rig.ledger.entries()}) == 1


def test_app_that_does_not_import_is_one_clear_error(rig: Rig) -> None:
    """Exit 3 before any fork, and the user's own line."""
    rig.app("import no_such_module_anywhere\n")
    pool = rig.start(ready=False)
    assert pool.wait() == 3
    assert "no_such_module_anywhere" in pool.log()
    assert "Traceback" not in pool.log()


def test_store_that_is_away_at_the_start(redis_rig: Rig) -> None:
    """Without a fallback: exit 4, and the address."""
    redis_rig.app(NOOP)
    port = free_port()
    pool = redis_rig.start("--no-fallback", "--url", f"redis://127.0.0.1:{port}/0", ready=False)
    assert pool.wait() == 4
    assert str(port) in pool.log()


def test_store_of_one_process_is_refused(redis_rig: Rig) -> None:
    """memory: can't be shared with workers: wrong usage, said before any fork."""
    redis_rig.app(NOOP)
    pool = redis_rig.start("--url", "memory:", ready=False)
    assert pool.wait() == 2
    assert "memory" in pool.log()


def test_fork_that_fails_is_tried_again(redis_rig: Rig) -> None:
    """No memory for a process, say: those that there are work on, the missing one comes when it can."""
    redis_rig.app(
        NOOP
        + """
_fork, _forks = os.fork, []

def fork():
    _forks.append(1)
    if len(_forks) == 2:
        raise OSError(11, "Resource temporarily unavailable")
    return _fork()

os.fork = fork
"""
    )
    pool = redis_rig.start(n=2)
    [line] = pool.lines("fork_failed")
    assert "temporarily unavailable" in line
    job = redis_rig.enqueue("noop")
    redis_rig.until_started(job)
    assert pool.stop() == 0
