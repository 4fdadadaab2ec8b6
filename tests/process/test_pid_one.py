"""A master that is PID 1 of its container, with nobody below it to collect the dead."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import psutil
import pytest

from tests.process.rig import Rig, is_running

NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")

APP = """
@app.job
def leaves_an_orphan():
    note("S")
    if os.fork() == 0:
        # A session of its own, so that it outlives its worker's group; its parent ends before it does.
        os.setsid()
        if os.fork() == 0:
            time.sleep(0.3)
        os._exit(0)
    os.wait()
    note("E")


@app.job
def run(seconds):
    note("S")
    time.sleep(seconds)
    note("E")
"""


def can_be_pid_one() -> bool:
    """Whether this host lets a user make a PID namespace."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not can_be_pid_one(), reason="this host allows no PID namespace")
def test_master_as_pid_one_reaps_strangers_and_stops_in_order(rig: Rig) -> None:
    """Orphans that it adopted leave no zombies; TERM stops it as anywhere else."""
    rig.app(APP)
    jobs = rig.enqueue_many("leaves_an_orphan", [()] * 5)
    shell = rig.start(ready=False, before=NAMESPACE)
    rig.until_counts(done=5)
    [master] = rig.until(lambda: psutil.Process(shell.pid).children(), "the master runs")
    assert "pid=1" in shell.lines("started")[0]

    def children() -> list[int]:
        return [child.pid for child in master.children()]

    rig.until(lambda: len(children()) == 1 and is_running(children()[0]), "only the worker is left, and no zombie")
    long = rig.enqueue("run", 0.4)
    rig.until_started(long)
    os.kill(master.pid, signal.SIGTERM)
    assert shell.wait() == 0
    assert rig.stats().totals["completed"] == 6
    assert len(rig.ledger.ends()) == len(jobs) + 1
    rig.until_clean()
