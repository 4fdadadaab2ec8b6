"""HUP: the same process goes on with new code, its running jobs undisturbed, its capacity kept."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import batchq
from batchq.lifecycle import State
from batchq.system import scoreboard
from batchq.system.parent import birth_of
from batchq.system.scoreboard import Scoreboard
from tests.process.rig import Pool, Rig, let_pass, opened
from tests.servers import Server, flavours

APP = """
VERSION = %r
if os.path.exists("import.fifo"):
    # Until somebody opens it for writing.
    os.close(os.open("import.fifo", os.O_RDONLY))


@app.job
def gated():
    note("S")
    while not os.path.exists("gate"):
        time.sleep(0.01)
    note("E")


@app.job
def version():
    note("S" + VERSION)


@app.job
def work():
    note("S")
    time.sleep(0.004)
    note("E")


@app.job(timeout=2, max_attempts=1)
def slow():
    note("S")
    time.sleep(60)
"""


def write(rig: Rig, version: str) -> None:
    rig.app(APP % version)
    # Two versions written in one second, of one length, have one cached compilation: see PEP 552.
    for cached in (rig.folder / "__pycache__").glob("app.*"):
        cached.unlink()


def reload(rig: Rig, pool: Pool, times: int = 1) -> None:
    """One more, until all workers are of the new generation."""
    before = len(pool.lines("reloaded"))
    pool.send(signal.SIGHUP)
    rig.until(lambda: len(pool.lines("reloaded")) >= before + times, "it has reloaded", within=60)


def test_reload_runs_new_code_and_leaves_running_jobs_alone(rig: Rig) -> None:
    """Same pid, new handlers; the job that ran ends well in its old worker, renewed all the while."""
    write(rig, "1")
    job = rig.enqueue("gated")
    pid_file = rig.folder / "pool.pid"
    # Not shorter: a busy machine must not outlast half of it.
    pool = rig.start("--lease", "3s", "--pid-file", str(pid_file), n=2)
    worker = rig.until_started(job)
    first = rig.enqueue("version")
    rig.until(lambda: rig.ledger.entries("S1", first), "old code ran")
    write(rig, "2")
    reload(rig, pool)
    assert int(pid_file.read_text()) == pool.pid
    # What an idle one that leaves may have claimed is given back.
    rig.until(lambda: len(pool.workers()) == 3, "the other one of before is gone")
    second = rig.enqueue("version")
    rig.until(lambda: rig.ledger.entries("S2", second), "new code ran")
    # Longer than its lease.
    let_pass(4)
    assert worker in pool.workers()
    assert len(pool.workers()) == 3
    (rig.folder / "gate").touch()
    stats = rig.until_counts(done=3)
    rig.until(lambda: len(pool.workers()) == 2, "the old worker is gone")
    assert [(entry.pid, entry.token) for entry in rig.ledger.entries(job=job)] == [(worker, 1)] * 2
    assert not any(stats.totals[name] for name in ("lost", "crashed", "released", "fenced", "reaped"))
    assert pool.stop() == 0
    assert not list(rig.folder.glob("pool.pid*"))


def test_app_that_does_not_import_changes_nothing(rig: Rig) -> None:
    """The user's own line is in the log; the old code works on, and a later reload of mended code goes well."""
    write(rig, "1")
    pool = rig.start(n=2)
    workers = pool.workers()
    (rig.folder / "app.py").write_text("import batchq\nraise RuntimeError('a typo of mine')\n")
    pool.send(signal.SIGHUP)
    rig.until(lambda: pool.lines("reload_failed"), "it is refused")
    [line] = pool.lines("reload_failed")
    assert "a typo of mine" in line
    assert "app.py" in line
    assert pool.workers() == workers
    job = rig.enqueue("version")
    rig.until(lambda: rig.ledger.entries("S1", job), "old code ran")
    write(rig, "2")
    reload(rig, pool)
    job = rig.enqueue("version")
    rig.until(lambda: rig.ledger.entries("S2", job), "new code ran")
    assert pool.stop() == 0


def test_other_store_is_no_reload(redis_rig: Rig) -> None:
    """The workers so far hold jobs of the old one: it is refused, and says what to do."""
    redis_rig.app("app = App(prefix=open('prefix').read())\n@app.job\ndef noop(): note('S')\n")
    (redis_rig.folder / "prefix").write_text(redis_rig.prefix)
    pool = redis_rig.start(BATCHQ_PREFIX="")
    (redis_rig.folder / "prefix").write_text(redis_rig.prefix + "x")
    pool.send(signal.SIGHUP)
    redis_rig.until(lambda: pool.lines("reload_failed"), "it is refused")
    assert "prefix" in pool.lines("reload_failed")[0]
    assert pool.stop() == 0


def test_second_reload_during_a_reload_is_remembered(rig: Rig) -> None:
    """What was written last is what runs at the end."""
    write(rig, "1")
    pool = rig.start(n=2)
    write(rig, "2")
    pool.send(signal.SIGHUP)
    rig.until(lambda: pool.lines("reloading"), "it has begun")
    write(rig, "3")
    pool.send(signal.SIGHUP)
    rig.until(lambda: pool.lines("took_over"), "the next image has begun")
    write(rig, "4")
    pool.send(signal.SIGHUP)

    def runs_last() -> bool:
        job = rig.enqueue("version")
        rig.until(lambda: rig.ledger.entries(job=job), "it ran")
        return rig.ledger.entries(job=job)[0].kind == "S4"

    rig.until(runs_last, "the last version runs", within=20)
    assert pool.stop() == 0
    assert {entry.attempt for entry in rig.ledger.entries()} == {1}


def test_state_is_kept(rig: Rig) -> None:
    """The size that TTIN made, being quiet, and the time limit of a job that runs."""
    write(rig, "1")
    pool = rig.start("--grace", "1s", n=1)
    pool.send(signal.SIGTTIN)
    pool.wait_ready(2)
    job = rig.enqueue("slow")
    rig.until_started(job)
    pool.send(signal.SIGTSTP)
    rig.until(lambda: pool.lines("quiet"), "it is quiet")
    reload(rig, pool)
    waits = rig.enqueue("version")
    dead = rig.until(lambda: rig.job(job).state is State.DEAD and rig.job(job), "its time limit is kept")
    assert dead
    assert (dead.reason, dead.attempt) == ("timed_out", 1)
    assert rig.job(waits).state is State.PENDING
    pool.send(signal.SIGCONT)
    rig.until(lambda: rig.ledger.entries(job=waits), "it goes on")
    rig.until(lambda: len(pool.workers()) == 2, "two workers are left")
    assert pool.stop() == 0


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.15, 0.25, 0.4])
def test_stop_during_a_reload_is_not_lost(redis_rig: Rig, delay_s: float) -> None:
    """Before the exec, across it, behind it: the pool ends in order."""
    write(redis_rig, "1")
    pool = redis_rig.start(n=2)
    pool.send(signal.SIGHUP)
    let_pass(delay_s)
    pool.send(signal.SIGTERM)
    assert pool.wait() == 0
    redis_rig.until_clean()
    assert not redis_rig.store.leases("default").ends


def claimers(board: Scoreboard) -> int:
    """Workers that live and have begun to claim, by the scoreboard, all at one moment."""
    slots = [board.slot(place) for place in range(board.slots)]

    def look() -> list[tuple[int, bool]]:
        return [(slot.state, birth_of(slot.process[0]) == slot.process[1]) for slot in slots]

    seen = look()
    # One look takes a while on a busy machine: two that say the same are a moment.
    while seen != (seen := look()):
        pass
    return sum(lives and state in (scoreboard.IDLE, scoreboard.BUSY) for state, lives in seen)


@pytest.mark.parametrize(
    "reloads", [10, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(600)])], ids=["short", "full"]
)
def test_reloads_under_load_lose_and_double_nothing(rig: Rig, reloads: int) -> None:
    """One after the other while jobs flow: each job begins once and ends once, and capacity is kept."""
    write(rig, "1")
    n = 3
    pool = rig.start("--pid-file", str(rig.folder / "pool.pid"), n=n)
    ids: list[str] = []
    least = n
    board = Scoreboard.at(str(rig.folder / "pool.pid.board"))
    for number in range(reloads):
        pool.send(signal.SIGHUP)
        while len(pool.lines("reloaded")) <= number:
            if rig.stats().counts["pending"] < 200:
                ids += rig.enqueue_many("work", [()] * 200)
            least = min(least, claimers(board))
            assert pool.process.poll() is None, rig.logs()
    stats = rig.until_counts(within=60, done=len(ids))
    assert not any(stats.totals[name] for name in ("lost", "crashed", "fenced", "dead", "retried")), stats
    entries = rig.ledger.entries()
    assert sorted(entry.job for entry in entries if entry.kind == "S") == sorted(ids)
    assert sorted(entry.job for entry in entries if entry.kind == "E") == sorted(ids)
    assert {entry.attempt for entry in entries} == {1}
    assert least >= n - 1
    assert len(pool.lines("took_over")) == reloads
    rig.until(lambda: len(pool.workers()) == n, "the old ones are gone")
    assert pool.stop() == 0
    assert not rig.store.leases("default").ends
    print(f"{rig.kind}: {len(ids)} jobs over {reloads} reloads, at least {least} of {n} at work")


def test_descriptors_do_not_pile_up(redis_rig: Rig) -> None:
    """After some reloads master and workers hold as many as before."""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc on this system")
    write(redis_rig, "1")
    pool = redis_rig.start("--pid-file", str(redis_rig.folder / "pool.pid"), n=2)

    def held() -> list[int]:
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in (pool.pid, *pool.workers())]

    reload(redis_rig, pool)
    redis_rig.until(lambda: len(pool.workers()) == 2, "the old ones are gone")
    before = held()
    for _ in range(3):
        reload(redis_rig, pool)
    redis_rig.until(lambda: len(pool.workers()) == 2, "the old ones are gone")
    redis_rig.until(lambda: max(held()) <= max(before) + 1, "as many as before")
    assert pool.stop() == 0


def test_workers_that_cannot_start_leave_the_old_ones_at_work(rig: Rig) -> None:
    """The new code's start hook fails: the old generation serves on, and a reload of mended code replaces it."""
    write(rig, "1")
    pool = rig.start(n=2)
    old = pool.workers()
    broken = "\n\n@app.on_worker_start\ndef connect():\n    raise OSError('no database')\n"
    rig.app(APP % "2" + broken)
    pool.send(signal.SIGHUP)
    rig.until(lambda: len(pool.lines("worker_failed")) >= 3, "new workers fail")
    assert set(old) <= set(pool.workers())
    job = rig.enqueue("version")
    rig.until(lambda: rig.ledger.entries("S1", job), "old code runs")
    assert not pool.lines("reloaded")
    write(rig, "3")
    reload(rig, pool)
    job = rig.enqueue("version")
    rig.until(lambda: rig.ledger.entries("S3", job), "mended code runs")
    rig.until(lambda: not set(old) & set(pool.workers()), "the old ones are gone")
    assert pool.stop() == 0


@pytest.fixture
def own(tmp_path: Path, prefix: str) -> Iterator[tuple[Rig, Server]]:
    """On a server of its own that keeps what it acknowledged."""
    server = Server(flavours()[0], "--appendonly", "yes", "--appendfsync", "always")
    try:
        with opened(tmp_path, server.flavour, server.url, prefix) as rig:
            yield rig, server
    finally:
        server.stop()


def test_reload_while_the_store_is_away_forgets_no_death(own: tuple[Rig, Server]) -> None:
    """A worker died meanwhile: the next image reaps it when the store is back, and only what ran is charged."""
    rig, server = own
    write(rig, "1")
    job = rig.enqueue("gated", max_attempts=2)
    pool = rig.start("--lease", "60s", n=2)
    worker = rig.until_started(job)
    server.kill()
    os.kill(worker, signal.SIGKILL)
    rig.until(lambda: pool.lines("worker_died"), "it is seen")
    pool.send(signal.SIGHUP)
    rig.until(lambda: pool.lines("took_over"), "the next image is there", within=20)
    server.start()
    (rig.folder / "gate").touch()
    stats = rig.until_counts(done=1, within=30)
    assert (stats.totals["crashed"], stats.totals["lost"]) == (1, 0)
    assert [entry.attempt for entry in rig.ledger.starts(job)] == [1, 2]
    assert pool.stop() == 0


def start_by_link(rig: Rig) -> tuple[Pool, Path]:
    """A pool whose interpreter is a link, which can be taken away."""
    python = rig.folder / "python"
    python.symlink_to(os.path.realpath(sys.executable))
    root = str(Path(batchq.__file__).parents[1])
    paths = os.pathsep.join([root, *(path for path in sys.path if path.endswith("site-packages"))])
    enter = f'shift; exec {python} "$@"'
    return rig.start(n=2, before=("sh", "-c", enter, "sh"), PYTHONPATH=paths), python


def test_interpreter_that_is_gone_changes_nothing(redis_rig: Rig) -> None:
    """Its file was replaced in a deployment that went wrong: the old image works on until it is back."""
    write(redis_rig, "1")
    pool, python = start_by_link(redis_rig)
    python.unlink()
    pool.send(signal.SIGHUP)
    redis_rig.until(lambda: pool.lines("reload_failed"), "it is refused")
    assert "can't be started" in pool.lines("reload_failed")[0]
    job = redis_rig.enqueue("version")
    redis_rig.until(lambda: redis_rig.ledger.entries("S1", job), "old code runs")
    python.symlink_to(os.path.realpath(sys.executable))
    reload(redis_rig, pool)
    assert pool.stop() == 0


def test_exec_that_fails_after_a_good_check_changes_nothing(rig: Rig) -> None:
    """The interpreter goes between the two: the old image works on, hears signals, and reloads when it is back."""
    write(rig, "1")
    pool, python = start_by_link(rig)
    job = rig.enqueue("gated")
    rig.until_started(job)
    workers = pool.workers()
    fifo = rig.folder / "import.fifo"
    os.mkfifo(fifo)
    write(rig, "2")
    pool.send(signal.SIGHUP)

    def writer() -> int | None:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return None  # Nobody reads yet.

    let_on = rig.until(writer, "the check imports the app", within=20)
    assert let_on is not None
    python.unlink()
    fifo.unlink()
    os.close(let_on)
    rig.until(lambda: pool.lines("reload_failed"), "the exec fails", within=20)
    assert "the next image can't be started" in pool.lines("reload_failed")[0]
    assert pool.workers() == workers
    old = rig.enqueue("version")
    rig.until(lambda: rig.ledger.entries("S1", old), "old code runs")
    pool.send(signal.SIGTTIN)
    pool.wait_ready(3)
    python.symlink_to(os.path.realpath(sys.executable))
    reload(rig, pool)
    new = rig.enqueue("version")
    rig.until(lambda: rig.ledger.entries("S2", new), "new code runs")
    (rig.folder / "gate").touch()
    rig.until_counts(done=3)
    assert [entry.attempt for entry in rig.ledger.starts(job)] == [1]
    assert pool.stop() == 0


def test_folder_that_is_a_link_is_followed_anew(redis_rig: Rig) -> None:
    """A deployment that turns `current` to another folder: the next image is of that one."""
    for version in ("1", "2"):
        write(redis_rig, version)
        release = redis_rig.folder / f"release-{version}"
        release.mkdir()
        (redis_rig.folder / "app.py").rename(release / "app.py")
    current = redis_rig.folder / "current"
    current.symlink_to("release-1")
    pool = redis_rig.start(before=("sh", "-c", f'cd {current} && exec "$@"', "sh"))
    current.unlink()
    current.symlink_to("release-2")
    reload(redis_rig, pool)
    job = redis_rig.enqueue("version")
    redis_rig.until(lambda: redis_rig.ledger.entries("S2", job), "new code runs")
    assert pool.stop() == 0
