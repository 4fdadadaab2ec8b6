"""on_dead for jobs that died with their worker: called by a living worker, never by the master; once, and again only
where somebody was killed in the middle of it."""

from __future__ import annotations

import os
import signal

from batchq.lifecycle import State
from batchq.master.mourning import MOST_TRIES
from tests.process.rig import Rig

APP = """
def tell(line):
    os.write(_ledger, f"{line} 0 0 {os.getpid()} 0\\n".encode())


@app.on_dead
def mourn(job):
    if job.job == "cursed":
        tell(f"C {job.id}")
        os._exit(9)
    if os.path.exists("hold"):
        tell(f"H {job.id}")
        while os.path.exists("hold"):
            time.sleep(0.01)
    tell(f"D{job.reason} {job.id}")


@app.job(max_attempts=1)
def fails():
    raise ValueError("always")


@app.job(max_attempts=1)
def cursed():
    raise ValueError("always")


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


def test_hooks_survive_a_killed_master(rig: Rig) -> None:
    """The next start has them called: of a job whose worker was in the hook, of one that was asked for, of one that
    waited behind that. Nothing is called for a job that had been told."""
    rig.app(APP)
    options = ("--pid-file", str(rig.folder / "pool.pid"))
    pool = rig.start(*options, n=3)
    told = rig.enqueue("fails")
    rig.until(lambda: rig.ledger.entries("Dmax_attempts", told), "it is mourned")
    hold = rig.folder / "hold"
    hold.touch()
    own = rig.enqueue("fails")
    # Not before: it could be claimed with the first, and stand behind its hook.
    rig.until(lambda: rig.ledger.entries("H", own), "a worker is in its hook")
    asked = rig.enqueue("poison")
    rig.until(lambda: rig.ledger.entries("H", asked), "another is")
    waiting = rig.enqueue("poison")
    rig.until(lambda: rig.job(waiting).state is State.DEAD, "it is dead")
    os.kill(pool.pid, signal.SIGKILL)
    pool.wait()
    rig.until_clean()
    hold.unlink()
    again = rig.start(*options)
    rig.until(lambda: len(_told(rig)) == 4, "all are mourned")
    assert sorted(_told(rig)) == sorted([told, own, asked, waiting])
    assert again.stop() == 0
    assert not list(rig.folder.glob("pool.pid*"))


def test_hook_goes_on_where_its_worker_was_killed(redis_rig: Rig) -> None:
    """Another calls it, but not for ever one that takes its worker down; a pool that ends leaves it to the next."""
    rig = redis_rig
    rig.app(APP)
    options = ("--pid-file", str(rig.folder / "pool.pid"))
    pool = rig.start(*options, n=2)
    cursed = rig.enqueue("cursed")
    rig.until(lambda: pool.lines("hook_failed"), "its hook is given up")
    # The worker that settled it, and those that were asked.
    assert len(rig.ledger.entries("C", cursed)) == 1 + MOST_TRIES
    hold = rig.folder / "hold"
    hold.touch()
    job = rig.enqueue("fails")
    rig.until(lambda: rig.ledger.entries("H", job), "a worker is in its hook")
    os.kill(rig.ledger.entries("H", job)[0].pid, signal.SIGKILL)
    rig.until(lambda: len(rig.ledger.entries("H", job)) == 2, "another is")
    assert pool.stop(signal.SIGQUIT) == 0
    assert "next start" in pool.lines("hooks_not_called")[0]
    hold.unlink()
    again = rig.start(*options)
    rig.until(lambda: _told(rig) == [job], "it is mourned")
    assert again.stop() == 0
    assert not list(rig.folder.glob("pool.pid*"))


def _told(rig: Rig) -> list[str]:
    return [entry.job for entry in rig.ledger.entries() if entry.kind.startswith("D")]
