"""on_dead for jobs that died with their worker: called once, by a living worker, never by the master."""

from __future__ import annotations

import os
import signal

from batchq.lifecycle import State
from tests.process.rig import Rig

APP = """
def tell(line):
    os.write(_ledger, f"{line} 0 0 {os.getpid()} 0\\n".encode())


@app.on_dead
def mourn(job):
    tell(f"D{job.reason} {job.id}")


@app.job(max_attempts=1)
def poison():
    note("S")
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(max_attempts=1)
def slow():
    note("S")
    time.sleep(60)


@app.job(max_attempts=1, timeout=0.3)
def deaf():
    note("S")
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass


@app.job
def busy():
    note("S")
    while not os.path.exists("gate"):
        time.sleep(0.01)
    note("E")
"""


def test_hook_is_called_for_jobs_that_took_their_worker_down(rig: Rig) -> None:
    """Crashes and hard time limits: once a job, in a worker, before a burst ends."""
    rig.app(APP)
    jobs = [rig.enqueue("poison") for _ in range(5)]
    late = rig.enqueue("deaf")
    pool = rig.run_burst("--grace", "200ms", n=2)
    mourned = {entry.job: entry for entry in rig.ledger.entries() if entry.kind.startswith("D")}
    assert sorted(mourned) == sorted([*jobs, late])
    assert sum(entry.kind.startswith("D") for entry in rig.ledger.entries()) == 6
    assert mourned[late].kind == "Dtimed_out"
    assert mourned[jobs[0]].kind == "Dcrashed"
    assert pool.pid not in {entry.pid for entry in mourned.values()}
    assert all(rig.job(job).state is State.DEAD for job in jobs)


def test_hook_waits_for_no_long_job(redis_rig: Rig) -> None:
    """All workers are busy: the first that becomes idle calls it."""
    redis_rig.app(APP)
    pool = redis_rig.start(n=2)
    long = redis_rig.enqueue("busy")
    redis_rig.until_started(long)
    job = redis_rig.enqueue("poison")
    redis_rig.until(lambda: redis_rig.ledger.entries("Dcrashed", job), "it is mourned")
    assert not redis_rig.ledger.ends(long)
    (redis_rig.folder / "gate").touch()
    assert pool.stop() == 0


def test_hook_of_a_job_that_was_lost_too_often(redis_rig: Rig) -> None:
    """Its master was killed: the next one has the hook called."""
    redis_rig.app(APP)
    options = ("--pid-file", str(redis_rig.folder / "pool.pid"), "--max-lost", "1")
    job = redis_rig.enqueue("slow")
    pool = redis_rig.start(*options)
    redis_rig.until_started(job)
    os.kill(pool.pid, signal.SIGKILL)
    pool.wait()
    again = redis_rig.start(*options)
    redis_rig.until(lambda: redis_rig.ledger.entries("Dpoison", job), "it is mourned")
    assert redis_rig.job(job).reason == "poison"
    assert again.stop() == 0
