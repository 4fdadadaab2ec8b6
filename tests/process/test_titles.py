"""What ps shows, where setproctitle is installed: who is who, and what each does."""

from __future__ import annotations

import signal

import psutil

from tests.process.rig import Rig

APP = """
@app.job
def gated():
    note("S")
    while not os.path.exists("gate"):
        time.sleep(0.01)
"""


def title(pid: int) -> str:
    return " ".join(psutil.Process(pid).cmdline()).strip()


def test_titles_name_state_and_job(redis_rig: Rig) -> None:
    """The master its state and size, a worker that it is idle or quiet, or the job that it runs."""
    redis_rig.app(APP)
    # As a pool runs in earnest: its titles have the room of its environment.
    pool = redis_rig.start(n=2, before=("env", "-u", "SPT_NOENV"))
    until = redis_rig.until
    until(lambda: title(pool.pid) == "batchq: master of batchq: running, 2 workers", "the master's")
    until(lambda: {title(pid) for pid in pool.workers()} == {"batchq: worker of batchq: idle"}, "the workers'")
    job = redis_rig.enqueue("gated")
    worker = redis_rig.until_started(job)
    assert title(worker) == f"batchq: worker of batchq: gated {job} of default"
    pool.send(signal.SIGTSTP)
    until(lambda: title(pool.pid) == "batchq: master of batchq: quiet, 2 workers", "it is quiet")
    (redis_rig.folder / "gate").touch()
    until(lambda: {title(pid) for pid in pool.workers()} == {"batchq: worker of batchq: quiet"}, "so are they")
    assert pool.stop() == 0
