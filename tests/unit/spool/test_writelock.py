"""The gate: who holds it is told, and whoever may give up does."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.errors import StoreFull, StoreUnavailable
from batchq.job import Completed
from batchq.lifecycle import Word
from batchq.spool import SpoolStore, fs, wal, writelock
from batchq.spool.check import Level, check
from batchq.spool.writelock import WriteLock
from tests.unit.spool.helpers import Q, a_job, check_books, fork, wait, wait_for

#: Begins a transaction and stops itself inside the gate, as a debugger or SIGSTOP would.
STOPS_INSIDE = """
import os, signal, sys
from batchq.spool import SpoolStore, fs
from batchq.job import NewJob
store = SpoolStore(sys.argv[1])
fs.passed = lambda point: os.kill(os.getpid(), signal.SIGSTOP) if point == "T3" else None
store.enqueue("mail", [NewJob("stopped", b'{"job":"x"}')])
fs.passed = lambda point: None
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    SpoolStore(tmp_path / "s").close()
    return tmp_path / "s"


@pytest.fixture
def stopped(path: Path) -> Iterator[int]:
    """A process that is stopped inside the gate; it goes on at the end of the test."""
    process = subprocess.Popen([sys.executable, "-c", STOPS_INSIDE, str(path)])
    try:
        pid, status = os.waitpid(process.pid, os.WUNTRACED)
        assert pid == process.pid
        assert os.WIFSTOPPED(status), status
        yield process.pid
    finally:
        process.send_signal(signal.SIGCONT)
        assert process.wait(20) == 0


linux = pytest.mark.skipif(sys.platform != "linux", reason="NAMES NOBODY: no /proc/locks here")


@linux
def test_stopped_holder_is_named_to_those_who_wait(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A writer that was at it already waits for as long as it takes, and its log says for whom."""
    monkeypatch.setattr(writelock, "HELD_S", 0.2)
    monkeypatch.setattr(writelock, "_LOOK_S", 0.05)
    caplog.set_level(logging.WARNING, "batchq")
    store = SpoolStore(path)
    process = subprocess.Popen([sys.executable, "-c", STOPS_INSIDE, str(path)])
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    words: list[Word] = []
    writer = threading.Thread(target=lambda: words.extend(store.enqueue(Q, [a_job("waits")])))
    writer.start()
    try:
        wait_for(lambda: "gate_held" in caplog.text, "the holder is named")
        assert f"pid {process.pid} ({sys.executable}" in caplog.text
        assert ", stopped)" in caplog.text
        # Told once, not at every look.
        assert caplog.text.count("gate_held") == 1
    finally:
        process.send_signal(signal.SIGCONT)
        assert process.wait(20) == 0
        writer.join(20)
    assert words == [Word.OK]
    assert "gate_free" in caplog.text
    store.close()
    check_books(path)


@linux
def test_opening_behind_a_stopped_holder_fails_and_names_it(
    path: Path, stopped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command must not hang without a word. What gave up holds nothing later."""
    monkeypatch.setattr(writelock, "OPEN_S", 0.2)
    with pytest.raises(StoreUnavailable, match=rf"(?s)held for more than 0\.2 s by pid {stopped} \(.*, stopped\)"):
        SpoolStore(path)
    # Nor does a look whether all is well.
    [fault] = [one for one in check(str(path)) if one.level is Level.FAULT]
    assert f"by pid {stopped} (" in fault.text


def test_after_the_holder_goes_on_all_is_well(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that still stands in the queue for one that gave up gives the lock back at once."""
    monkeypatch.setattr(writelock, "OPEN_S", 0.1)
    process = subprocess.Popen([sys.executable, "-c", STOPS_INSIDE, str(path)])
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="held for more than"):
            SpoolStore(path)
    process.send_signal(signal.SIGCONT)
    assert process.wait(20) == 0
    monkeypatch.undo()
    store = SpoolStore(path)
    assert store.enqueue(Q, [a_job("after")]) == [Word.OK]
    assert store.stats(Q).counts["pending"] == 2
    store.close()
    check_books(path)


def test_no_thread_is_running_at_a_fork(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who wait for the gate are watched by a thread: it ends before a fork, on either side one begins anew."""
    monkeypatch.setattr(writelock, "_LOOK_S", 30.0)
    store = SpoolStore(path)
    other = writelock.WriteLock(str(path / "gate"))
    other.open()
    other.lock()
    writer = threading.Thread(target=lambda: store.enqueue(Q, [a_job()]))
    writer.start()
    wait_for(lambda: writelock._watcher is not None, "somebody waits")
    other.unlock()
    writer.join(20)

    def child() -> None:
        assert writelock._watcher is None
        assert threading.active_count() == 1
        assert store.enqueue(Q, [a_job()]) == [Word.OK]

    assert wait(fork(child)) == 0
    assert writelock._watcher is None
    other.close()
    store.close()


def test_eight_processes_are_served_alike(path: Path) -> None:
    """They queue in the kernel: nobody is passed by again and again, as those are who sleep between two tries."""
    jobs, processes = 3000, 8
    store = SpoolStore(path, durability="process")
    store.pause(Q)
    store.enqueue(Q, [a_job() for _ in range(jobs)])

    def work() -> None:
        own, worker, done = SpoolStore(path, durability="process"), f"w{os.getpid()}", 0
        own.register(Q, worker, 60_000)
        (path.parent / f"{worker}.ready").touch()
        while (first := own.claim(Q, worker, 1, 0)).word is Word.PAUSED:
            # Until all of them are there.
            time.sleep(0.001)
        claims = first.claims
        while claims:
            done += len(claims)
            claims = own.exchange(Q, worker, [Completed(claim) for claim in claims], 1, 0).claimed.claims
        (path.parent / f"{worker}.done").write_text(str(done))

    children = [fork(work) for _ in range(processes)]
    wait_for(lambda: len(list(path.parent.glob("*.ready"))) == processes, "all are there")
    store.resume(Q)
    assert [wait(child) for child in children] == [0] * processes
    shares = sorted(int(file.read_text()) for file in path.parent.glob("*.done"))
    print(f"jobs of each of {processes}: {shares}")
    assert sum(shares) == jobs
    assert shares[0] > jobs / processes / 10
    store.close()


def test_long_reader_is_named_and_the_log_stays_bounded(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A shell that reads in one transaction keeps the log from beginning anew: it is told who, and from some size on
    nothing more is accepted. Claims go on, and when it has gone the log is small again."""
    monkeypatch.setattr(wal, "LONG_BYTES", 8 << 20)
    monkeypatch.setattr(wal, "MOST_BYTES", 24 << 20)
    caplog.set_level(logging.WARNING, "batchq")
    store = SpoolStore(path)
    store.enqueue(Q, [a_job("first")])
    code = "import sqlite3,sys; db=sqlite3.connect(sys.argv[1]); db.execute('BEGIN');"
    code += "print(db.execute('SELECT count(*) FROM job').fetchall(), flush=True); sys.stdin.read()"
    reader = subprocess.Popen(
        [sys.executable, "-c", code, str(path / "queue.db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"[(1,)]\n"
    row = b'{"job":"x","args":["' + b"y" * 60_000 + b'"]}'

    def enqueue_on() -> None:
        for _ in range(1000):
            store._ledger._room_until = 0.0
            store.enqueue(Q, [a_job()._replace(row=row)])

    with pytest.raises(StoreFull, match="somebody reads in one transaction"):
        enqueue_on()
    assert "log_grows" in caplog.text
    if sys.platform == "linux":
        assert f"pid {reader.pid} " in caplog.text
    store.register(Q, "w1", 15_000)
    assert len(store.claim(Q, "w1", 5, 0).claims) == 5
    reader.communicate()
    store._ledger._room_until = 0.0
    for _ in range(40):
        store.pause(Q)
        store.resume(Q)
    assert store.enqueue(Q, [a_job()]) == [Word.OK]
    assert (path / "queue.db-wal").stat().st_size <= 17 << 20
    store.close()
    check_books(path)


def test_a_look_that_a_signal_handler_ends_leaves_the_gate_free(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, other = WriteLock(str(path / "gate")), WriteLock(str(path / "gate"))
    lock.open()
    other.open()
    taken = fs.try_lock

    def interrupted(fd: int) -> bool:
        taken(fd)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fs, "try_lock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.is_free()
    assert other.is_free()
    other.lock()
    assert not lock.is_free()
    # Nor does the look take anything from who has it.
    assert not lock.is_free()
    other.close()
    lock.close()
