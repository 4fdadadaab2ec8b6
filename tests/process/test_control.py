"""The control socket, and the commands that use it: for the master of this host, also while its store is away."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.errors import BatchqError
from batchq.master.control import ask
from batchq.master.loop_server import MOST_CLIENTS
from batchq.system.pidfile import PidFile
from tests.process.rig import Pool, Rig, opened
from tests.servers import Server, flavours

APP = """
@app.job
def run(seconds):
    note("S")
    time.sleep(seconds)
    note("E")


@app.job
def short():
    note("S")
    note("E")
"""


def start(rig: Rig, *args: str, n: int = 2) -> tuple[Pool, str]:
    rig.app(APP)
    pid_file = str(rig.folder / "pool.pid")
    return rig.start("--pid-file", pid_file, *args, n=n), pid_file


def batchq(rig: Rig, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "batchq", *args],
        cwd=rig.folder,
        env=rig.env(BATCHQ_PID_FILE=str(rig.folder / "pool.pid")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_socket_answers_and_obeys(redis_rig: Rig) -> None:
    """Status, size, quiet, reload and stop, for this user only; it goes with the master."""
    pool, pid_file = start(redis_rig)
    path = f"{pid_file}.sock"
    assert os.stat(path).st_mode & 0o777 == 0o600
    job = redis_rig.enqueue("run", 0.5)
    worker = redis_rig.until_started(job)
    status = ask(path, {"do": "status"})
    assert (status["pid"], status["state"], status["processes"]) == (pool.pid, "running", 2)
    [busy] = [told for told in ask(path, {"do": "workers"})["workers"] if told["job"] == job]
    assert (busy["pid"], busy["state"]) == (worker, "busy")
    ask(path, {"do": "resize", "processes": 3})
    pool.wait_ready(3)
    for wrong in ({"do": "resize", "processes": 0}, {"do": "resize"}, {"do": "dance"}, {}):
        with pytest.raises(BatchqError, match="expected"):
            ask(path, wrong)
    ask(path, {"do": "quiet"})
    assert ask(path, {"do": "status"})["state"] == "quiet"
    ask(path, {"do": "resume"})
    ask(path, {"do": "reload"})
    redis_rig.until(lambda: ask(path, {"do": "status"}, 10)["reloads"] == 1, "it has reloaded")
    redis_rig.until(lambda: ask(path, {"do": "status"})["state"] == "running", "it is over")
    assert ask(path, {"do": "status"})["pid"] == pool.pid
    redis_rig.until_counts(done=1)
    ask(path, {"do": "stop"})
    assert pool.wait() == 0
    assert not list(redis_rig.folder.glob("pool.pid*"))


def test_bad_clients_do_not_hurt(redis_rig: Rig) -> None:
    """Rubbish, floods, half a request, a crowd, one that never reads: jobs run on, and a good client is answered."""
    pool, pid_file = start(redis_rig)
    path = f"{pid_file}.sock"
    talks = []

    def talk(data: bytes) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.connect(path)
        made.settimeout(5)
        made.sendall(data)
        talks.append(made)
        return made

    assert b'"ok":false' in talk(b"\xff\x00{[\n").recv(1000)
    assert b'"ok":false' in talk(b"[" * 3000 + b"\n").recv(1000)
    assert b'"ok":false' in talk(b"[1]\n").recv(1000)
    assert b"no line yet" in talk(b"x" * 4097).recv(1000)
    many = talk(b'{"do":"quiet"}\n{"do":"resume"}\n' * 20)
    answers = b""
    while answers.count(b"\n") < 40:
        answers += many.recv(100_000)
    talk(b'{"do":')
    talk(b'{"do":"status"}\n').close()

    def flood() -> None:
        deaf = socket.socket(socket.AF_UNIX)
        deaf.connect(path)
        deaf.settimeout(0.5)
        talks.append(deaf)
        try:
            for _ in range(100_000):
                deaf.sendall(b'{"do":"status"}\n')
        except OSError:
            pass  # Nobody listens any more.

    flooding = threading.Thread(target=flood)
    flooding.start()
    for _ in range(3 * MOST_CLIENTS):
        talk(b"")
    began = time.monotonic()
    jobs = redis_rig.enqueue_many("short", [()] * 50)
    redis_rig.until_counts(done=50)
    assert ask(path, {"do": "status"})["state"] == "running"
    assert time.monotonic() - began < 3
    flooding.join()
    for made in talks:
        made.close()
    assert len(redis_rig.ledger.ends()) == len(jobs)
    assert pool.process.poll() is None
    assert not pool.lines("control_failed")
    assert pool.stop() == 0


def test_commands_steer_the_master(redis_rig: Rig) -> None:
    """quiet, unquiet, reload (refused and done) and stop, each with its exit code and one line."""
    pool, _ = start(redis_rig)
    assert batchq(redis_rig, "quiet").returncode == 0
    assert pool.lines("quiet")
    assert batchq(redis_rig, "unquiet").returncode == 0
    assert pool.lines("going_on")
    good = (redis_rig.folder / "app.py").read_text()
    (redis_rig.folder / "app.py").write_text("from batchq import *\nraise OSError('no such volume')\n")
    done = batchq(redis_rig, "reload")
    assert done.returncode == 1
    assert "no such volume" in done.stderr
    (redis_rig.folder / "app.py").write_text(good + "# mended\n")
    done = batchq(redis_rig, "reload")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert f"reloaded, pid {pool.pid}" in done.stderr
    job = redis_rig.enqueue("run", 30)
    redis_rig.until_started(job)
    done = batchq(redis_rig, "stop", "--wait", "300ms")
    assert done.returncode == 1
    assert "still" in done.stderr
    assert batchq(redis_rig, "stop", "--now").returncode == 0
    assert pool.wait() == 0
    assert redis_rig.job(job).attempt == 0
    for command in ("stop", "reload", "quiet", "unquiet"):
        done = batchq(redis_rig, command)
        assert done.returncode == 1
        assert "no master runs" in done.stderr
        assert done.stderr.count("\n") == 1


def test_commands_work_without_the_socket(redis_rig: Rig) -> None:
    """Somebody deleted it: the lock of the pid file leads to the process, and signals do the same."""
    pool, pid_file = start(redis_rig)
    os.unlink(f"{pid_file}.sock")
    assert PidFile(pid_file).holder() == pool.pid
    assert batchq(redis_rig, "quiet").returncode == 0
    redis_rig.until(lambda: pool.lines("quiet"), "it is quiet")
    assert batchq(redis_rig, "stop").returncode == 0
    assert pool.wait() == 0
    assert PidFile(pid_file).holder() is None


def test_pid_of_a_stranger_is_signalled_by_nobody(redis_rig: Rig) -> None:
    """The pid file of a killed master names a process that is another's by now: nobody holds its lock."""
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        (redis_rig.folder / "pool.pid").write_text(f"{stranger.pid}\n")
        assert batchq(redis_rig, "stop", "--now").returncode == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_long_path_has_a_socket_too(redis_rig: Rig) -> None:
    """Longer than the address of a Unix socket can be."""
    redis_rig.app(APP)
    folder = redis_rig.folder / ("d" * 120)
    folder.mkdir()
    pool = redis_rig.start("--pid-file", str(folder / "pool.pid"))
    assert ask(str(folder / "pool.pid.sock"), {"do": "status"})["pid"] == pool.pid
    assert pool.stop() == 0
    assert not list(folder.iterdir())


@pytest.fixture
def away(tmp_path: Path, prefix: str) -> Iterator[tuple[Rig, Server]]:
    server = Server(flavours()[0], "--appendonly", "yes", "--appendfsync", "always")
    try:
        with opened(tmp_path, server.flavour, server.url, prefix) as rig:
            yield rig, server
    finally:
        server.stop()


def test_commands_work_while_the_store_is_away(away: tuple[Rig, Server]) -> None:
    """`workers` and `status` fall back to the socket, status still ends with 4; quiet, unquiet, reload and stop are
    obeyed. A reload keeps the old workers until new ones can work."""
    rig, server = away
    pool, _ = start(rig)
    job = rig.enqueue("run", 30)
    rig.until_started(job)
    server.kill()
    done = batchq(rig, "workers", "--json")
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(worker["pid"] for worker in told) == pool.workers()
    assert [worker["job"] for worker in told if worker["job"]] == [job]
    assert "control socket" in done.stderr
    done = batchq(rig, "status", "--json")
    assert done.returncode == 4
    assert len(json.loads(done.stdout)["workers"]) == 2
    done = batchq(rig, "status")
    assert "1 busy, 1 idle" in done.stdout
    for command, line in (("quiet", "quiet"), ("unquiet", "going_on")):
        assert batchq(rig, command).returncode == 0
        assert len(pool.lines(line)) == 1
    done = batchq(rig, "reload", "--wait", "1s")
    assert (done.returncode, "not over yet" in done.stderr) == (1, True), done
    rig.until(lambda: pool.lines("took_over"), "the next image is there")
    old = {worker["pid"] for worker in told}
    rig.until(lambda: set(pool.workers()) > old, "new ones come, and no old one goes before one can work")
    assert batchq(rig, "stop", "--now").returncode == 0
    # What could not be given back.
    assert pool.wait() == 1
    server.start()
