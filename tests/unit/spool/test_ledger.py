"""Transactions, flushes, errors and forks of the ledger."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.errors import ConfigError, QueueFull, StoreError, StoreFull, StoreUnavailable
from batchq.gates import Admission, Gate
from batchq.job import Completed, Mark, Retried
from batchq.lifecycle import Word
from batchq.spool import SpoolStore, fs, ledger, opening, wal, writelock
from tests.unit.spool.helpers import LEASE_MS, Q, a_job, check_books, claim_all, fork, run, wait


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def store(path: Path) -> Iterator[SpoolStore]:
    opened = SpoolStore(path)
    yield opened
    opened.close()


# -- flushes -------------------------------------------------------------------------------------------------------


class Flushes:
    """Counts the flushes of the log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n = 0
        self._flush = fs.flush
        monkeypatch.setattr(fs, "flush", self)

    def __call__(self, fd: int) -> None:
        self.n += 1
        self._flush(fd)


@pytest.mark.parametrize(
    ("durability", "accepting", "settling"), [("power", 1, 0), ("strict", 1, 1), ("process", 0, 0)]
)
def test_each_mode_flushes_what_it_promises(
    path: Path, monkeypatch: pytest.MonkeyPatch, durability: ledger.Durability, accepting: int, settling: int
) -> None:
    """power: what was accepted. strict: every move. process: nothing."""
    store = SpoolStore(path, durability=durability)
    flushes = Flushes(monkeypatch)
    store.enqueue(Q, [a_job("a"), a_job("b")])
    assert flushes.n == accepting
    [a, _] = claim_all(store, "w1")
    flushes.n = 0
    store.complete(Q, "w1", [Completed(a)])
    assert flushes.n == settling
    store.close()


def test_unknown_durability_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="durability: expected power, strict or process, found 'paranoid'"):
        SpoolStore(path, durability="paranoid")  # type: ignore[arg-type]
    assert not path.exists()


def test_one_flush_serves_all_that_committed_before_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Group commit: while one thread flushes, the others commit, and share the next flush."""
    store = SpoolStore(path)
    flushing, go_on = threading.Event(), threading.Event()
    n = 0

    def flush(fd: int) -> None:
        nonlocal n
        n += 1
        flushing.set()
        assert go_on.wait(20)

    monkeypatch.setattr(fs, "flush", flush)
    threads = [threading.Thread(target=store.enqueue, args=(Q, [a_job(f"a{i}")])) for i in range(6)]
    threads[0].start()
    assert flushing.wait(20)
    for thread in threads[1:]:
        thread.start()
    reader = SpoolStore(path)
    deadline = threading.Event()
    while reader.stats(Q).counts["pending"] < 6:
        assert not deadline.wait(0.002)
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert n == 2
    reader.close()
    store.close()


def test_failed_flush_is_an_error_and_never_tried_again(
    store: SpoolStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed fsync the next one succeeds and lies. The caller hears of it; the mark makes a repeat safe."""

    def flush(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(fs, "flush", flush)
        with pytest.raises(StoreError, match="could not be flushed"):
            store.enqueue(Q, [a_job("a")], Mark("lane", 1))
    assert store.enqueue(Q, [a_job("a")], Mark("lane", 1)) == [Word.AGAIN]
    check_books(path)


def test_log_does_not_grow_for_ever(store: SpoolStore, path: Path) -> None:
    """It is moved into the database while the store is at work."""
    row = b'{"job":"x","args":["' + b"y" * 50_000 + b'"]}'
    for _ in range(400):
        store.enqueue(Q, [a_job()._replace(row=row)])
    assert (path / "queue.db-wal").stat().st_size < 16 << 20
    assert (path / "queue.db").stat().st_size > 8 << 20


def test_log_is_moved_when_it_is_long_again_and_is_flushed_before_anybody_waits(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file never shrinks: that it was long once must not move it for ever after. And a flush takes its time."""
    monkeypatch.setattr(wal, "MOVE_BYTES", 2 << 20)
    store = SpoolStore(path, durability="process")
    moved: list[str] = []
    store._ledger._opened().set_trace_callback(lambda text: moved.append(text) if "checkpoint" in text else None)
    gate = writelock.WriteLock(str(path / "gate"))
    gate.open()
    free = []

    def flush(fd: int) -> None:
        # Whether another could have the gate now.
        free.append(fs.try_lock(gate._fd))
        gate.unlock()

    monkeypatch.setattr(fs, "flush", flush)
    for _ in range(480):
        store.enqueue(Q, [a_job()])
    # Some twenty kilobytes each: about a hundred fill it.
    assert 2 <= len(moved) <= 8
    assert free == [True] * len(moved)
    gate.close()
    store.close()
    check_books(path)


def test_log_is_moved_by_one_process_unless_that_is_stopped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush takes its time: others don't wait for one too. But the log must not grow for want of one that acts."""
    monkeypatch.setattr(wal, "MOVE_BYTES", 256 << 10)
    store = SpoolStore(path, durability="process")
    moved: list[str] = []
    store._ledger._opened().set_trace_callback(lambda text: moved.append(text) if "checkpoint" in text else None)
    other = fs.Log(str(path / "queue.db-wal"))
    store.enqueue(Q, [a_job()])
    assert other.claim()
    # Between 16 and 20 KiB each.
    for _ in range(22):
        store.enqueue(Q, [a_job()])
    assert other.is_longer(256 << 10)
    assert not moved
    for _ in range(40):
        store.enqueue(Q, [a_job()])
    assert moved
    other.close()
    store.close()
    check_books(path)


def test_log_that_can_not_be_flushed_is_not_moved(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk fails under a move that promised no flush: it is done all the same, and the log tells."""
    caplog.set_level(logging.ERROR, "batchq")
    monkeypatch.setattr(wal, "MOVE_BYTES", 1 << 16)
    store = SpoolStore(path, durability="process")
    moved: list[str] = []
    store._ledger._opened().set_trace_callback(lambda text: moved.append(text) if "checkpoint" in text else None)

    def flush(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(fs, "flush", flush)
        words = [store.enqueue(Q, [a_job()]) for _ in range(wal.LOOK_EVERY)]
    assert words == [[Word.OK]] * wal.LOOK_EVERY
    assert "flush_failed" in caplog.text
    assert not moved
    assert store.stats(Q).counts["pending"] == wal.LOOK_EVERY
    store.close()
    check_books(path)


# -- errors --------------------------------------------------------------------------------------------------------


def test_full_disk_refuses_enqueue_and_lets_claims_go_on(
    store: SpoolStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finishing what is there needs a little room: enqueue leaves it."""
    store.enqueue(Q, [a_job("a")])
    store.close()
    store = SpoolStore(path)
    monkeypatch.setattr(fs, "free_bytes", lambda path: 1 << 20)
    with pytest.raises(StoreFull, match="expected at least 16 MiB free, found 1; make room"):
        store.enqueue(Q, [a_job("b")])
    with pytest.raises(QueueFull):
        store.enqueue(Q, [a_job("b")])
    [claim] = claim_all(store, "w1")
    assert store.complete(Q, "w1", [Completed(claim)]) == [Word.OK]
    store.close()
    check_books(path)


def test_ledger_without_room_says_full_and_keeps_its_books(store: SpoolStore, path: Path) -> None:
    """SQLite's own word for it: nothing of the call is left behind, and what stands can be worked off."""
    store.enqueue(Q, [a_job("a")])
    db = store._ledger._opened()
    [[pages]] = db.execute("PRAGMA page_count")
    db.execute(f"PRAGMA max_page_count={pages + 2}")
    large = a_job()._replace(row=b'{"job":"x","args":["' + b"y" * 90_000 + b'"]}')
    with pytest.raises(StoreFull, match="the disk is full"):
        store.enqueue(Q, [large])
    check_books(path)
    for claim in claim_all(store, "w1"):
        assert store.complete(Q, "w1", [Completed(claim)]) == [Word.OK]
    check_books(path)


def test_full_ledger_does_not_wait_for_readers(store: SpoolStore, path: Path) -> None:
    """Its log can't be given back while somebody reads: that is known at once, not after the patience with locks."""
    store.enqueue(Q, [a_job("a")])
    reader = sqlite3.connect(path / "queue.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM job").fetchall()
    store.enqueue(Q, [a_job("b")])
    db = store._ledger._opened()
    [[pages]] = db.execute("PRAGMA page_count")
    db.execute(f"PRAGMA max_page_count={pages + 2}")
    began = time.monotonic()
    with pytest.raises(StoreFull, match="the disk is full"):
        store.enqueue(Q, [a_job()._replace(row=b'{"job":"x","args":["' + b"y" * 90_000 + b'"]}')])
    assert time.monotonic() - began < opening.BUSY_S / 2
    assert db.execute("PRAGMA busy_timeout").fetchall() == [(30_000,)]
    reader.close()
    assert len(claim_all(store, "w1")) == 2
    store.close()
    check_books(path)


def test_foreign_lock_is_waited_for_and_then_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that holds a write lock is not behind the gate."""
    monkeypatch.setattr(opening, "BUSY_S", 0.05)
    store = SpoolStore(path)
    shell = sqlite3.connect(path / "queue.db", isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="not behind the gate"):
        store.enqueue(Q, [a_job("a")])
    shell.execute("ROLLBACK")
    shell.close()
    assert store.enqueue(Q, [a_job("a")]) == [Word.OK]
    store.close()


def test_call_from_inside_a_transaction_is_refused(
    store: SpoolStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler that enqueues while its own thread is in a move must not end that move's transaction."""
    tried = []

    def passed(point: str) -> None:
        if point == "T3" and not tried:
            tried.append(point)
            with pytest.raises(StoreError, match="inside its own transaction"):
                store.enqueue(Q, [a_job("inner")])

    monkeypatch.setattr(fs, "passed", passed)
    assert store.enqueue(Q, [a_job("outer")]) == [Word.OK]
    assert tried
    assert store.get(Q, "inner") is None
    check_books(path)


def test_exception_inside_a_transaction_undoes_it_and_frees_the_gate(
    store: SpoolStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever passes through (a time limit, a Ctrl-C), others go on at once."""

    def passed(point: str) -> None:
        if point == "T3":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fs, "passed", passed)
        with pytest.raises(KeyboardInterrupt):
            store.enqueue(Q, [a_job("a")])
    other = SpoolStore(path)
    assert other.enqueue(Q, [a_job("b")]) == [Word.OK]
    assert other.get(Q, "a") is None
    other.close()
    check_books(path)


@pytest.mark.parametrize("point", ["T3", "T4"])
def test_killed_writer_leaves_a_whole_transaction_or_none(path: Path, point: str) -> None:
    """And no lock."""
    code = """
    import sys, os
    from batchq.spool import SpoolStore, fs
    from batchq.job import NewJob, Mark
    store = SpoolStore(sys.argv[1])
    store.enqueue("mail", [NewJob("a", b'{"job":"x"}')])
    fs.passed = lambda here: os.kill(os.getpid(), 9) if here == sys.argv[2] else None
    store.enqueue("mail", [NewJob(f"b{i}", b'{"job":"x"}') for i in range(300)], Mark("lane", 1))
    """
    assert run(code, str(path), point).returncode == -9
    check_books(path)
    store = SpoolStore(path)
    assert store.stats(Q).counts["pending"] == (1 if point == "T3" else 301)
    words = store.enqueue(Q, [a_job(f"b{i}") for i in range(300)], Mark("lane", 1))
    assert set(words) == {Word.OK if point == "T3" else Word.AGAIN}
    assert store.stats(Q).counts["pending"] == 301
    store.close()


# -- fencing -------------------------------------------------------------------------------------------------------


def test_stopped_worker_can_not_finish_a_later_life_of_its_id(store: SpoolStore, path: Path) -> None:
    """Stopped past its lease, its job done by another, the same id enqueued again and claimed: it is refused."""
    store.enqueue(Q, [a_job("a")])
    [late] = claim_all(store, "sleeper")
    [held] = store.seal(Q, "sleeper").claims
    assert store.release(Q, "sleeper", [_released(held)]) == [Word.OK]
    assert store.reap(Q, "sleeper", []) == 0
    [second] = claim_all(store, "other")
    assert store.complete(Q, "other", [Completed(second)]) == [Word.OK]
    store.enqueue(Q, [a_job("a")])
    [newer] = store.claim(Q, "other", 1, 0).claims
    assert newer.token == late.token == 1
    assert store.complete(Q, "sleeper", [Completed(late)]) == [Word.STALE]
    assert store.stats(Q).totals["fenced"] == 1
    assert store.complete(Q, "other", [Completed(newer)]) == [Word.OK]
    check_books(path)


def _released(claim: object) -> object:
    from batchq.job import Released

    return Released(claim)  # type: ignore[arg-type]


def test_row_number_that_is_used_again_carries_no_note(store: SpoolStore) -> None:
    """The rows of notes and of jobs share their numbers: a new job must not inherit the errors of a dead one."""
    from batchq.job import Buried
    from batchq.lifecycle import State

    store.enqueue(Q, [a_job("a")])
    [claim] = claim_all(store, "w1")
    store.bury(Q, "w1", [Buried(claim, "bad", b'{"error":"boom"}')])
    assert store.purge(Q, State.DEAD, ["a"]) == 1
    store.enqueue(Q, [a_job("b")])
    job = store.get(Q, "b")
    assert job is not None
    assert (job.errors, job.reason) == ((), "")


def test_completed_jobs_leave_nothing_behind(store: SpoolStore, path: Path) -> None:
    """Neither the note of an earlier attempt nor a place at a gate that its handler no longer has."""
    store.enqueue(Q, [a_job(name) for name in "abcd"])
    a, b, c, d = claim_all(store, "w1")
    store.retry(Q, "w1", [Retried(a, 0, 9, b'{"error":"boom"}')])
    limit = Gate("one", limit=1)
    words = store.admit(Q, "w1", [Admission(claim, (limit,)) for claim in (b, c)])
    assert words == [Word.OK, Word.PARKED]
    assert store.complete(Q, "w1", [Completed(b._replace(gated=True)), Completed(d)]) == [Word.OK] * 2
    # Taken by workers whose code has the gate no more.
    store.promote(Q)
    done = []
    while claims := store.claim(Q, "w1", 1, 0).claims:
        assert store.complete(Q, "w1", [Completed(claims[0])]) == [Word.OK]
        done.append(claims[0].id)
    assert sorted(done) == ["a", "c"]
    db = sqlite3.connect(path / "queue.db")
    left = {table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("job", "note", "guest")}
    db.close()
    assert left == {"job": 0, "note": 0, "guest": 0}


# -- forks ---------------------------------------------------------------------------------------------------------


def test_fork_with_an_open_store(store: SpoolStore, path: Path) -> None:
    """A user's process forks while it holds a store, and both sides use it at once: nothing is lost or damaged."""
    store.enqueue(Q, [a_job("before")])

    def produce(name: str) -> None:
        for i in range(200):
            assert store.enqueue(Q, [a_job(f"{name}-{i}")]) == [Word.OK]

    children = [fork(lambda n=n: produce(f"child{n}")) for n in range(3)]
    produce("parent")
    assert [wait(child) for child in children] == [0, 0, 0]
    assert store.stats(Q).counts["pending"] == 801
    check_books(path)


def test_child_forked_inside_a_transaction_is_refused(
    store: SpoolStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a signal handler, say. SQLite in the child believes in the parent's locks: it must not touch the file."""
    children = []

    def child() -> None:
        with pytest.raises(StoreError, match="forked from inside a call of the store"):
            store.enqueue(Q, [a_job("child")])
        with pytest.raises(StoreError, match="fork outside of it, or exec"):
            SpoolStore(path)

    def passed(point: str) -> None:
        if point == "T3" and not children:
            children.append(fork(child))
            assert wait(children[0]) == 0

    monkeypatch.setattr(fs, "passed", passed)
    assert store.enqueue(Q, [a_job("parent")]) == [Word.OK]
    assert children
    other = SpoolStore(path)
    assert other.enqueue(Q, [a_job("other")]) == [Word.OK]
    other.close()
    assert store.stats(Q).counts["pending"] == 2
    check_books(path)


def test_fork_waits_for_the_transaction_of_another_thread(store: SpoolStore, path: Path) -> None:
    """Threads enqueue while the process forks again and again; every child finds a store that it can use."""
    stop = threading.Event()
    counts = [0, 0]

    def produce(n: int) -> None:
        while not stop.is_set():
            store.enqueue(Q, [a_job()])
            counts[n] += 1

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    try:
        for n in range(10):
            assert wait(fork(lambda n=n: store.enqueue(Q, [a_job(f"child{n}")]))) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    assert store.stats(Q).counts["pending"] == sum(counts) + 10
    check_books(path)


def test_before_fork_leaves_nothing_open_and_after_fork_touches_nothing(store: SpoolStore, path: Path) -> None:
    """What the master does around each fork: no descriptor of the database crosses it."""
    store.enqueue(Q, [a_job("a")])
    store.before_fork()

    def child() -> None:
        open_files = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)]
        assert not [name for name in open_files if "queue.db" in name or name.endswith("gate")]
        store.after_fork()
        assert store.register(Q, "w1", LEASE_MS) is Word.OK
        assert len(store.claim(Q, "w1", 1, 0).claims) == 1

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc here")
    assert wait(fork(child)) == 0
    assert store.stats(Q).counts["active"] == 1
    check_books(path)


def _is_link(fd: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{fd}")


def test_child_that_ends_like_a_program_leaves_the_parent_alone(path: Path) -> None:
    """A forked child that finalises everything (sys.exit, not os._exit) must not close the parent's ledger."""
    code = """
    import os, sys
    from batchq.spool import SpoolStore
    from batchq.job import NewJob
    store = SpoolStore(sys.argv[1])
    store.enqueue("mail", [NewJob("a", b'{"job":"x"}')])
    for _ in range(3):
        pid = os.fork()
        if not pid:
            if _ == 1:
                store.enqueue("mail", [NewJob("c", b'{"job":"x"}')])
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    store.enqueue("mail", [NewJob("b", b'{"job":"x"}')])
    assert store.stats("mail").counts["pending"] == 3
    """
    done = run(code, str(path))
    assert done.returncode == 0, done.stderr
    check_books(path)


def test_process_that_forgets_to_close_leaves_no_log_behind(path: Path) -> None:
    """At its end the store is closed behind the gate, and the last one out empties the log."""
    code = """
    import sys
    from batchq.spool import SpoolStore
    from batchq.job import NewJob
    store = SpoolStore(sys.argv[1])
    store.enqueue("mail", [NewJob("a", b'{"job":"x"}')])
    """
    assert run(code, str(path)).returncode == 0
    assert not (path / "queue.db-wal").exists()
    check_books(path)


# -- limits --------------------------------------------------------------------------------------------------------


def test_sweep_forgets_marks_and_ids_that_are_over(path: Path) -> None:
    """They do not gather for ever; those that are not over stay."""
    from batchq.clock import ManualClock
    from batchq.store import Limits

    clock = ManualClock()
    limits = Limits(mark_ttl_ms=10_000, remember_ms=10_000)
    store = SpoolStore(path, clock=clock, limits=limits, durability="process")
    for n in range(2500):
        store.enqueue(Q, [a_job(f"old{n}", given=True)], Mark(f"old{n}", 1))
    while claims := claim_all(store, "w1"):
        store.complete(Q, "w1", [Completed(claim) for claim in claims])
    clock.advance(9_000)
    store.enqueue(Q, [a_job("new", given=True)], Mark("new", 1))
    store.complete(Q, "w1", [Completed(claim) for claim in store.claim(Q, "w1", 1, 0).claims])
    clock.advance(2_000)
    for _ in range(6):
        store.promote(Q)
    look = store._ledger.look
    assert look("SELECT lane FROM mark") == [("new",)]
    assert look("SELECT id FROM gone") == [("new",)]
    store.close()
    check_books(path)


def test_large_call_without_a_mark_is_split(store: SpoolStore, path: Path) -> None:
    """Any number of jobs in one call; order is kept over the steps."""
    ids = [f"j{n:05d}" for n in range(3210)]
    assert store.enqueue(Q, [a_job(id) for id in ids]) == [Word.OK] * len(ids)
    got: list[str] = []
    store.register(Q, "w1", LEASE_MS)
    while claims := store.claim(Q, "w1", 480, len(got)).claims:
        got += [claim.id for claim in claims]
    assert got == ids
    check_books(path)


def test_known_ids_inside_a_large_batch_are_told_apart(store: SpoolStore, path: Path) -> None:
    """Some stand, one stands twice in the call, one is remembered, some are delayed: each gets its own word."""
    store.enqueue(Q, [a_job("gone", given=True)])
    store.complete(Q, "w1", [Completed(claim) for claim in claim_all(store, "w1")])
    store.enqueue(Q, [a_job("stands")])
    batch = [
        a_job("x"),
        a_job("stands"),
        a_job("later", delay_ms=60_000),
        a_job("x"),
        a_job("gone"),
        a_job("later"),
        a_job("y"),
    ]
    words = store.enqueue(Q, batch)
    assert [word is Word.OK for word in words] == [True, False, True, False, False, False, True]
    assert store.stats(Q).counts["delayed"] == 1
    assert [claim.id for claim in store.claim(Q, "w1", 9, 0).claims] == ["stands", "x", "y"]
    check_books(path)
