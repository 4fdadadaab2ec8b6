"""Pools without a stdin, with a log that nobody reads or that is full, and with few descriptors: no job is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.master.control import ask
from batchq.master.newborn import SPARE_FDS
from tests.process.rig import Pool, Rig

APP = """
print("imported")


@app.job(backoff=fixed(0.05))
def prints(number):
    note("S")
    print("x" * 20_000, flush=True)
    print("y" * 20_000, file=sys.stderr)
    note("E")


@app.job(backoff=fixed(0.05))
def crashes():
    note("S")
    if current_job().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    note("E")


@app.job(max_attempts=1)
def reads_and_opens():
    note("S")
    said = subprocess.run([sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"], capture_output=True)
    assert said.stdout.strip() == b"''", said
    # The first descriptors are nobody's file.
    for fd in (0, 1, 2):
        name = os.readlink(f"/proc/self/fd/{fd}")
        assert name == os.devnull or name.endswith(".log"), name
    note("E")
"""


def redirected(how: str) -> tuple[str, ...]:
    """What starts a pool with its streams as the shell says."""
    return ("sh", "-c", f'exec "$@" {how}', "sh")


def go_through_life(rig: Rig, pool: Pool) -> None:
    """Jobs that print, one that takes its worker down, a reload, jobs again; then it stops, and says so by its code."""
    ids = rig.enqueue_many("prints", [(number,) for number in range(20)])
    crash = rig.enqueue("crashes")
    rig.until_counts(done=21, within=30)
    before = status(rig)["reloads"]
    pool.send(signal.SIGHUP)
    rig.until(lambda: (told := status(rig))["reloads"] > before and told["state"] == "running", "reloaded", within=30)
    ids += rig.enqueue_many("prints", [(number,) for number in range(20)])
    rig.until_counts(done=41, within=30)
    assert all([entry.attempt for entry in rig.ledger.starts(job)] == [1] for job in ids)
    assert [entry.attempt for entry in rig.ledger.starts(crash)] == [1, 2]
    assert pool.stop() == 0
    rig.until_clean()
    assert not rig.store.leases("default").ends


def status(rig: Rig) -> dict[str, int]:
    return ask(str(rig.folder / "pool.pid.sock"), {"do": "status"}, 20)


def start(rig: Rig, how: str) -> Pool:
    rig.app(APP)
    pid_file = str(rig.folder / "pool.pid")
    pool = rig.start("--pid-file", pid_file, n=2, ready=False, before=redirected(how))
    return pool.wait_ready(2, within=30)


@pytest.mark.parametrize("how", ["<&-", "<&- >&- 2>&-"], ids=["no-stdin", "none"])
def test_closed_streams_are_nobodys_file(redis_rig: Rig, how: str) -> None:
    """Nothing that the pool opens gets their numbers: what is printed goes nowhere, what is read is at its end."""
    pool = start(redis_rig, how)
    redis_rig.enqueue("reads_and_opens")
    redis_rig.until_counts(done=1)
    pool.send(signal.SIGHUP)
    redis_rig.until(lambda: status(redis_rig)["reloads"] == 1, "it has reloaded", within=20)
    redis_rig.enqueue("reads_and_opens")
    redis_rig.until_counts(done=2, within=20)
    assert pool.stop() == 0


def test_reader_of_the_log_that_is_gone_disturbs_nothing(rig: Rig) -> None:
    """stdout and stderr are a pipe without a reader: jobs that print, deaths, a reload and the stop go well."""
    pipe = rig.folder / "log.pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    pool = start(rig, f">{pipe} 2>&1")
    assert b"started" in os.read(reader, 65536)
    os.close(reader)
    go_through_life(rig, pool)


def test_full_disk_behind_the_log_disturbs_nothing(rig: Rig) -> None:
    """Nothing can be written from the first line on."""
    go_through_life(rig, start(rig, ">/dev/full 2>&1"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"NO FILE SYSTEM CAN BE MOUNTED HERE: {made.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_log_goes_on_when_its_disk_has_room_again(redis_rig: Rig, small_disk: Path) -> None:
    """What was lost is counted, and the first line after that is whole."""
    log = small_disk / "log"
    pool = start(redis_rig, f">>{log} 2>&1")
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 512)
    redis_rig.enqueue_many("prints", [(number,) for number in range(5)])
    redis_rig.until_counts(done=5)
    # An event that has no room.
    pool.send(signal.SIGTTIN)
    pool.wait_ready(3)
    filler.unlink()
    # The handlers' words have filled the rest of it.
    os.truncate(log, 0)
    pool.send(signal.SIGTTOU)
    redis_rig.until(lambda: "output_lost" in log.read_text(errors="replace"), "the loss is told")
    [line] = [line for line in log.read_text(errors="replace").splitlines() if "output_lost" in line]
    assert " warning output_lost bytes=" in line
    assert "No space left on device" in line
    assert pool.stop() == 0


FORKS = """
import os, sys, threading, time
from batchq.system import streams

streams.secure()


def chatter():
    while True:
        sys.stderr.write("x" * 50 + chr(10))


for _ in range(2):
    threading.Thread(target=chatter, daemon=True).start()
for _ in range(40):
    pid = os.fork()
    if pid == 0:
        print("mine", file=sys.stderr, flush=True)
        os._exit(0)
    until = time.monotonic() + 20
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > until:
            os.kill(pid, 9)
            os._exit(9)
        time.sleep(0.002)
os._exit(0)
"""


def test_thread_that_prints_hangs_no_fork() -> None:
    """One of the app's that always writes: who is forked in the middle of it can write as well."""
    done = subprocess.run([sys.executable, "-c", FORKS], stderr=subprocess.DEVNULL, timeout=100, check=False)
    assert done.returncode == 0, "a child hangs"


def limited(files: int) -> tuple[str, ...]:
    return ("sh", "-c", f'ulimit -n {files}; exec "$@"', "sh")


def fewest_descriptors(pid: int) -> int:
    """Of several looks: a master has some more open for a moment, while it starts and whenever it looks around."""
    looks = []
    for _ in range(30):
        looks.append(len(os.listdir(f"/proc/{pid}/fd")))
        time.sleep(0.02)
    return min(looks)


def test_few_descriptors_mean_few_workers(rig: Rig) -> None:
    """Those for which there is room do all the work, also over a reload; the missing ones are named."""
    rig.app(APP)
    options = ("--pid-file", str(rig.folder / "pool.pid"))
    pool = rig.start(*options, n=6, ready=False).wait_ready(6, within=30)
    enough_for_some = fewest_descriptors(pool.pid) - 3 + SPARE_FDS
    assert pool.stop() == 0
    pool = rig.start(*options, n=6, ready=False, before=limited(enough_for_some))
    rig.until(lambda: pool.lines("fork_failed"), "some can't be forked", within=30)
    assert "Too many open files" in pool.lines("fork_failed")[0]
    assert "ulimit -n" in pool.lines("fork_failed")[0]
    rig.until(lambda: 2 <= len(pool.registered("default")) <= 4, "some can")
    old = pool.workers()
    ids = rig.enqueue_many("prints", [(number,) for number in range(50)])
    rig.until_counts(done=50, within=30)
    pool.send(signal.SIGHUP)
    rig.until(lambda: not set(old) & set(pool.workers()), "all have been replaced", within=40)
    ids += rig.enqueue_many("prints", [(number,) for number in range(50)])
    rig.until_counts(done=100, within=30)
    assert all([entry.attempt for entry in rig.ledger.starts(job)] == [1] for job in ids)
    assert not pool.lines("store_unavailable")
    assert pool.stop() == 0


@pytest.mark.parametrize("files", [12, 20])
def test_too_few_descriptors_for_any_worker_end_the_pool(redis_rig: Rig, files: int) -> None:
    """The reason and an exit code instead of a pool that does nothing."""
    redis_rig.app(APP)
    pool = redis_rig.start("--pid-file", str(redis_rig.folder / "pool.pid"), ready=False, before=limited(files))
    assert pool.wait(30) in (1, 3, 4)
    assert "Too many open files" in pool.log()
    assert "Traceback" not in pool.log()
