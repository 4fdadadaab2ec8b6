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


def one_other(rig: Rig, before: int) -> int:
    """The guardian that has come after that one."""

    def other() -> int:
        there = rig.guardians()
        return there[0] if len(there) == 1 and there != [before] else 0

    return rig.until(other, "there is another guardian, and only that")


def reload(rig: Rig, pool: Pool) -> None:
    [before] = rig.guardians()
    pool.send(signal.SIGHUP)
    rig.until(lambda: pool.lines("reloaded"), "it has reloaded")
    one_other(rig, before)


def begin_reload(rig: Rig, pool: Pool) -> None:
    """The next image imports the app."""
    before = rig.guardians()
    fifo = rig.folder / "import.fifo"
    os.mkfifo(fifo)
    pool.send(signal.SIGHUP)
    rig.until(lambda: list(rig.folder.glob("import-*")), "the check imports")
    os.close(os.open(fifo, os.O_WRONLY))
    rig.until((rig.folder / f"import-{pool.pid}").exists, "the next image imports")
    assert rig.guardians() == before


def replace(rig: Rig, pool: Pool) -> None:
    [before] = rig.guardians()
    os.kill(before, signal.SIGKILL)
    one_other(rig, before)
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
    # The shell, three that sleep, and the shell of one of them.
    programs = set(redis_rig.processes()) - {pool.pid, *pool.workers()}
    assert len(programs) == 5
    pool.send(signal.SIGKILL)
    pool.wait()
    redis_rig.until_clean()


def test_guardian_lives_as_long_as_its_pool_and_costs_next_to_nothing(redis_rig: Rig) -> None:
    """It is no child of the master, has no terminal and none of its files, passes signals over, and a stop ends it."""
    redis_rig.app(APP)
    pool = redis_rig.start("--pid-file", str(redis_rig.folder / "pool.pid"), n=2)
    [guardian] = redis_rig.guardians()
    process = psutil.Process(guardian)
    assert process.ppid() != pool.pid
    assert guardian not in pool.workers()
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
