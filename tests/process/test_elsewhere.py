"""Pools on systems that lack something that most have: on macOS, without /proc, with many files open."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.rig import Rig, is_running, until

APP = """
@app.job(backoff=fixed(0.2))
def run(seconds):
    note("S")
    if current_job().token == 1:
        time.sleep(seconds)
    note("E")


@app.job(timeout=0.2, max_attempts=1)
def late():
    note("S")
    time.sleep(60)


@app.job
def spawns():
    note("S")
    if current_job().token == 1:
        child = subprocess.Popen(["sleep", "300"])
        with open("child", "w") as file:
            file.write(str(child.pid))
        os.rename("child", "child.pid")
        time.sleep(300)
    note("E")
"""

#: For every Python of a pool: it takes the ways of macOS, and what that system, or its Python, lacks is not there.
MACOS = """
import fcntl, os, sys
# These look at the system when they are imported.
import ctypes, psutil, selectors, subprocess

lacks = ["fdatasync", "memfd_create", "posix_fallocate", "sched_getaffinity"]
for name in lacks + ["waitid"] * (sys.version_info < (3, 13)):
    delattr(os, name)
fcntl.F_FULLFSYNC = 51
_fcntl = fcntl.fcntl
fcntl.fcntl = lambda fd, command, *rest: os.fsync(fd) if command == 51 else _fcntl(fd, command, *rest)
sys.platform = "darwin"
"""

#: Nothing stands in /proc for what is started by this.
HIDDEN = ("sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


@pytest.fixture
def macos(tmp_path: Path) -> dict[str, str]:
    """The environment of such a pool."""
    shim = tmp_path / "macos"
    shim.mkdir()
    (shim / "sitecustomize.py").write_text(MACOS)
    return {"PYTHONPATH": str(shim)}


def can_hide_proc() -> bool:
    return (
        shutil.which("unshare") is not None
        and subprocess.run([*NAMESPACE, *HIDDEN, "true"], capture_output=True).returncode == 0
    )


def test_macos_worker_that_dies_is_seen_and_its_job_charged(rig: Rig, macos: dict[str, str]) -> None:
    """The job is tried again by another worker; a time limit is kept; a stop is in order."""
    rig.app(APP)
    pool = rig.start(n=2, **macos)
    job, late = rig.enqueue("run", 60), rig.enqueue("late")
    os.kill(rig.until_started(job), signal.SIGKILL)
    stats = rig.until_counts(done=1, dead=1)
    assert (stats.totals["crashed"], stats.totals["timed_out"]) == (1, 1)
    assert [entry.attempt for entry in rig.ledger.starts(job)] == [1, 2]
    assert "JobTimeout" in str(rig.job(late).errors[0])
    assert pool.stop() == 0


def test_macos_pool_of_a_killed_master_ends_and_the_next_start_reaps(rig: Rig, macos: dict[str, str]) -> None:
    """Its workers see the end of a pipe, its guardian takes what a handler started, the board tells the next start."""
    rig.app(APP)
    options = ("--pid-file", str(rig.folder / "pool.pid"), "--lease", "60s")
    pool = rig.start(*options, **macos)
    rig.guardian()
    job = rig.enqueue("spawns")
    rig.until_started(job)
    made = rig.folder / "child.pid"
    rig.until(made.exists, "its program runs")
    child = int(made.read_text())
    pool.send(signal.SIGKILL)
    pool.wait()
    rig.until_clean()
    assert not is_running(child)
    again = rig.start(*options, **macos)
    rig.until_counts(done=1, lost=1)
    assert again.stop() == 0


def test_macos_pool_is_reloaded(rig: Rig, macos: dict[str, str]) -> None:
    """The board, which has no name, is handed to the next image; what runs goes on."""
    rig.app(APP)
    pool = rig.start(**macos)
    [worker] = pool.workers()
    pool.send(signal.SIGHUP)
    rig.until(lambda: pool.lines("reloaded"), "the reload is over")
    rig.until(lambda: not is_running(worker), "the old worker is gone")
    job = rig.enqueue("run", 0)
    rig.until_started(job)
    rig.until_counts(done=1)
    assert pool.stop() == 0


@pytest.mark.skipif(not can_hide_proc(), reason="this host lets nobody hide /proc")
def test_without_proc_jobs_run_and_the_next_start_takes_over(rig: Rig) -> None:
    """Nobody can tell a worker that is left from a stranger: none is killed, and the claims are reaped."""
    rig.app(APP)
    pid_file = rig.folder / ("p" * 100)
    options = ("--pid-file", str(pid_file), "--lease", "60s")
    pool = rig.start(*options, before=(*NAMESPACE, *HIDDEN))
    crashed = rig.enqueue("run", 60)
    os.kill(rig.until_started(crashed), signal.SIGKILL)
    rig.until_counts(done=1, crashed=1)
    [no_control] = pool.lines("no_control")
    assert "too long for a socket here" in no_control
    job = rig.enqueue("run", 60)
    rig.until_started(job)
    pool.send(signal.SIGKILL)
    pool.wait()
    again = rig.start(*options, before=(*NAMESPACE, *HIDDEN))
    rig.until_counts(done=2, lost=1)
    assert [entry.attempt for entry in rig.ledger.starts(job)] == [1, 1]
    assert again.stop() == 0


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 1300, reason="no so many files may be open here")
def test_an_app_that_holds_a_thousand_files_open(rig: Rig) -> None:
    """The workers' own come behind them, with numbers that select takes no more."""
    rig.app(
        """
import resource
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
"""
        + APP
    )
    pool = rig.start()
    job = rig.enqueue("run", 0)
    rig.until_started(job)
    rig.until_counts(done=1)
    assert not pool.lines("worker_failed")
    assert pool.stop() == 0


FORBIDDEN = """
import os, signal
from batchq.system import parent

parent._prctl = lambda *arguments: -1
pipe = os.pipe()
me = os.getpid()
if os.fork() == 0:
    parent.die_with(*pipe, parent=me)
    print(os.getpid(), flush=True)
signal.pause()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is always so")
def test_a_child_dies_with_its_parent_where_the_kernel_is_not_to_see_to_it() -> None:
    """A sandbox may forbid the call: the pipe does it then."""
    with subprocess.Popen([sys.executable, "-c", FORBIDDEN], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    try:
        until(lambda: not is_running(child), "the child is gone")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
