"""A master that was killed: the next one on this host finds its scoreboard, ends what it left, and reaps at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.master.leavings import clear_away, end_left
from batchq.system.parent import birth_of
from batchq.system.scoreboard import Owner, Scoreboard
from batchq.worker.desk import boot_id
from tests.process.rig import Rig, is_running, is_stopped, opened
from tests.servers import Server, flavours

APP = """
@app.job(backoff=fixed(0.2))
def run(seconds):
    note("S")
    if current_job().token == 1:
        time.sleep(seconds)
    note("E")


@app.job
def short():
    note("S")
    note("E")


@app.job
def spawns():
    note("S")
    if current_job().token == 1:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        with open("child", "w") as file:
            file.write(str(child.pid))
        os.rename("child", "child.pid")
        time.sleep(300)
    note("E")
"""


def test_next_start_reaps_at_once_what_a_killed_master_left(rig: Rig) -> None:
    """Long before the lease is over: what had started is lost, what stood behind it released; no attempt is spent."""
    rig.app(APP)
    pid_file = rig.folder / "pool.pid"
    options = ("--pid-file", str(pid_file), "--lease", "60s")
    warm = rig.enqueue_many("short", [()] * 40)
    pool = rig.start(*options, n=1)
    rig.until_counts(done=40)
    rig.store.pause("default")
    job = rig.enqueue("run", 60)
    behind = rig.enqueue_many("short", [()] * 3)
    rig.store.resume("default")
    rig.until_started(job)
    board = rig.folder / "pool.pid.board"
    assert board.stat().st_mode & 0o777 == 0o600
    pool.send(signal.SIGKILL)
    pool.wait()
    rig.until_clean()
    assert rig.stats().counts["active"] >= 1

    began = time.monotonic()
    again = rig.start(*options, n=1)
    stats = rig.until_counts(done=44)
    assert time.monotonic() - began < 10
    assert (stats.totals["lost"], stats.totals["crashed"], stats.totals["retried"]) == (1, 0, 0)
    assert [(entry.attempt, entry.token) for entry in rig.ledger.starts(job)] == [(1, 1), (1, 2)]
    for other in (*behind, *warm):
        assert {entry.attempt for entry in rig.ledger.starts(other)} == {1}
    [line] = again.lines("reaped_lost")
    assert "its master was killed" in line
    assert again.stop() == 0
    assert not board.exists()
    assert not pid_file.exists()
    assert not rig.store.leases("default").ends


def test_programs_of_a_killed_pool_are_ended_by_the_next_start(rig: Rig) -> None:
    """Where the guardian hangs, which keeps no lock: the next start ends them before the job runs again. When the
    guardian goes on it finds another's board, and does nothing."""
    rig.app(APP)
    options = ("--pid-file", str(rig.folder / "pool.pid"), "--lease", "60s")
    job = rig.enqueue("spawns")
    pool = rig.start(*options)
    rig.until_started(job)
    made = rig.folder / "child.pid"
    rig.until(made.exists, "its program runs")
    child = int(made.read_text())
    guardian = rig.guardian()
    os.kill(guardian, signal.SIGSTOP)
    rig.until(lambda: is_stopped(guardian), "the guardian is stopped")
    pool.send(signal.SIGKILL)
    pool.wait()
    rig.until(lambda: rig.processes() == [child], "only the handler's program is left")
    again = rig.start(*options)
    assert not is_running(child)
    rig.until_counts(done=1)
    assert rig.ledger.ends(job)[0].token == 2
    workers = again.workers()
    os.kill(guardian, signal.SIGCONT)
    rig.until(lambda: not is_running(guardian), "the guardian is gone")
    assert again.workers() == workers
    assert again.stop() == 0


def test_next_start_gives_back_what_a_stop_without_its_store_could_not(tmp_path: Path, prefix: str) -> None:
    """The stop ends with 1, and leaves the scoreboard; the start after that reaps long before the leases are over."""
    server = Server(flavours()[0], "--appendonly", "yes", "--appendfsync", "always")
    try:
        with opened(tmp_path, server.flavour, server.url, prefix) as rig:
            rig.app(APP)
            options = ("--pid-file", str(tmp_path / "pool.pid"), "--lease", "60s")
            job = rig.enqueue("run", 60)
            pool = rig.start(*options)
            rig.until_started(job)
            server.kill()
            assert pool.stop(signal.SIGQUIT) == 1
            assert "the next start" in pool.lines("not_given_back")[0]
            server.start()
            again = rig.start(*options)
            rig.until_counts(done=1)
            assert [(entry.attempt, entry.token) for entry in rig.ledger.starts(job)] == [(1, 1), (1, 2)]
            assert again.stop() == 0
            assert not list(tmp_path.glob("pool.pid*"))
    finally:
        server.stop()


def test_board_of_a_master_that_lives_is_not_touched(redis_rig: Rig) -> None:
    """Its pid file was deleted by hand: a second master is refused, and the first works on."""
    redis_rig.app(APP)
    pid_file = redis_rig.folder / "pool.pid"
    first = redis_rig.start("--pid-file", str(pid_file))
    pid_file.unlink()
    second = redis_rig.start("--pid-file", str(pid_file), ready=False)
    assert second.wait() == 2
    assert str(first.pid) in second.log()
    assert not pid_file.exists()
    redis_rig.enqueue("short")
    redis_rig.until_counts(done=1)
    assert len(first.workers()) == 1
    assert first.stop() == 0


def test_what_is_no_board_is_wiped(redis_rig: Rig) -> None:
    """Another layout, or rubbish: the pool starts all the same."""
    redis_rig.app(APP)
    for rubbish in (b"batchq00" + b"x" * 10_000, b"", os.urandom(600_000)):
        (redis_rig.folder / "pool.pid.board").write_bytes(rubbish)
        pool = redis_rig.start("--pid-file", str(redis_rig.folder / "pool.pid"))
        assert pool.stop() == 0


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], process_group=0)
    yield process
    process.kill()
    process.wait()


def test_only_what_surely_is_a_worker_is_ended(sleeper: subprocess.Popen[bytes]) -> None:
    """A pid that another process has by now, or that means something on another boot, is left alone."""
    me = Owner(os.getpid(), birth_of(os.getpid()), os.getsid(0), boot_id())
    birth = birth_of(sleeper.pid)
    for written, boot in ((birth - 1, me.boot), (birth + 1, me.boot), (birth, "another")):
        board = Scoreboard()
        board.own(me._replace(boot=boot))
        board.slot(3).be(sleeper.pid, written)
        board.slot(3).enter("host.boot.1.x")
        assert [left.worker for left in clear_away(board, me, "x")] == ["host.boot.1.x"]
        assert sleeper.poll() is None
    board = Scoreboard()
    board.own(me)
    board.slot(3).be(sleeper.pid, birth)
    # As the guardian of another master, or of one that had the same pid.
    end_left(board, me.pid + 1, me.birth)
    end_left(board, me.pid, me.birth - 1)
    assert sleeper.poll() is None
    clear_away(board, me, "x")
    assert sleeper.wait(5) == -signal.SIGKILL


def test_board_is_found_again_as_it_was_left(tmp_path: os.PathLike[str]) -> None:
    """Owner, quiet and slots stand in the file; a new owner has an empty one."""
    path = os.path.join(tmp_path, "b")
    board = Scoreboard.at(path)
    assert board.owner is None
    me = Owner(17, 4711, 3, "abcdefgh")
    board.own(me)
    board.quiet = True
    board.slot(511).enter("w")
    again = Scoreboard.at(path)
    assert (again.owner, again.quiet, again.slot(511).worker) == (me, True, "w")
    assert again.slot(0).pool_is_quiet
    again.own(me)
    assert (board.quiet, board.slot(511).worker) == (False, "")
