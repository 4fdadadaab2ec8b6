"""The guardian: what handlers started goes with a master that is killed, without a pid file and a next start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.process.rig import Pool, Rig, is_running

APP = """
if os.path.exists("import.fifo"):
    open(f"import-{os.getpid()}", "w").close()
    # Until somebody opens it for writing.
    os.close(os.open("import.fifo", os.O_RDONLY))


@app.job
def spawns():
    note("S")
    script = "sleep 300 & sleep 300 & (sleep 300; sleep 300) & echo x > made.part; mv made.part made; wait"
    subprocess.run(["sh", "-c", script])


@app.job
def short():
    note("S")
    note("E")
"""


def reload(rig: Rig, pool: Pool) -> None:
    before = rig.guardian()
    pool.send(signal.SIGHUP)
    rig.until(lambda: pool.lines("reloaded"), "it has reloaded")
    rig.guardian(before)


def begin_reload(rig: Rig, pool: Pool) -> None:
    """The next image imports the app."""
    before = rig.guardian()
    fifo = rig.folder / "import.fifo"
    os.mkfifo(fifo)
    pool.send(signal.SIGHUP)
    rig.until(lambda: list(rig.folder.glob("import-*")), "the check imports")
    os.close(os.open(fifo, os.O_WRONLY))
    rig.until((rig.folder / f"import-{pool.pid}").exists, "the next image imports")
    assert rig.guardians() == [before]


def replace(rig: Rig, pool: Pool) -> None:
    before = rig.guardian()
    os.kill(before, signal.SIGKILL)
    rig.guardian(before)
    assert pool.lines("guardian_ended")


def nothing(rig: Rig, pool: Pool) -> None:
    pass


@pytest.mark.parametrize("before", [nothing, begin_reload, reload, replace])
def test_programs_of_handlers_go_with_a_killed_master(redis_rig: Rig, before: object) -> None:
    """Also within a reload and after it, those of the old generation; and where the first guardian was killed."""
    assert callable(before)
    redis_rig.app(APP)
    job = redis_rig.enqueue("spawns")
    pool = redis_rig.start(n=2)
    redis_rig.until_started(job)
    redis_rig.until((redis_rig.folder / "made").exists, "its programs run")
    before(redis_rig, pool)
    redis_rig.guardian()
    # The shell, three that sleep, and the shell of one of them.
    redis_rig.until(lambda: len({*redis_rig.processes()} - {pool.pid, *pool.workers()}) == 5, "five programs run")
    pool.send(signal.SIGKILL)
    pool.wait()
    redis_rig.until_clean()


def test_guardian_lives_as_long_as_its_pool_and_costs_next_to_nothing(redis_rig: Rig) -> None:
    """It is no child of the master, has no terminal and none of its files, passes signals over, and a stop ends it."""
    redis_rig.app(APP)
    pool = redis_rig.start("--pid-file", str(redis_rig.folder / "pool.pid"), n=2)
    guardian = redis_rig.guardian()
    process = psutil.Process(guardian)
    assert os.getsid(guardian) != os.getsid(pool.pid)
    assert process.terminal() is None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGUSR1):
        process.send_signal(number)
    if sys.platform == "linux":
        assert process.memory_full_info().pss < 1 << 20
        files = {os.readlink(f"/proc/{guardian}/fd/{fd}") for fd in os.listdir(f"/proc/{guardian}/fd")}
        named = {file for file in files if not file.startswith("socket:")}
        assert named == {"/dev/null", str(redis_rig.folder / "pool.pid.board")}
        assert len(files) == 3, "one socket"
    # Signals have been taken by the time this has run.
    redis_rig.enqueue("short")
    redis_rig.until_counts(done=1)
    assert redis_rig.guardians() == [guardian]
    assert pool.stop() == 0
    assert not redis_rig.guardians()
    redis_rig.until(lambda: not is_running(guardian), "it is no zombie")


WITHOUT_ROOM = """
import os, resource, selectors
from batchq import log
from batchq.master.guardian import Guardian
from batchq.system.parent import birth_of
from batchq.system.scoreboard import Owner, Scoreboard
from tests.process.rig import until

log.setup("text", "info")
me = Owner(os.getpid(), birth_of(os.getpid()), os.getsid(0), "boot")
guardian = Guardian(Scoreboard().fd, me, selectors.DefaultSelector())
before = len(os.listdir("/dev/fd"))
most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (10, most[1]))
guardian.keep()
guardian.keep()
assert guardian.fd is None
resource.setrlimit(resource.RLIMIT_NOFILE, most)
assert len(os.listdir("/dev/fd")) == before
until(lambda: guardian.keep() or guardian.fd, "there is one")
assert len(os.listdir("/dev/fd")) == before + 1
guardian.close()
assert len(os.listdir("/dev/fd")) == before
"""


def test_guardian_that_can_not_be_started_is_told_and_tried_again() -> None:
    """There is no room for a descriptor: none is lost by that, and the master goes on."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_ROOM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(" no_guardian ") == 1
