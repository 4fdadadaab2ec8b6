"""Hostile places: a full disk, no inodes, too few descriptors, read-only; what can go on there goes on."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from batchq.clock import ManualClock
from batchq.errors import StoreFull, StoreUnavailable
from batchq.job import Completed, Outcome, Retried, pack_error
from batchq.lifecycle import State, Word
from batchq.spool import SpoolStore, ballast, drop, fs
from batchq.spool.layout import Layout
from batchq.store import Ingested
from tests.unit.spool.helpers import LEASE_MS, Q, a_job, check_books, claim_all, run
from tests.unit.spool.mounts import fill, remount, small, use_up_inodes


def finish_all(store: SpoolStore, worker: str) -> int:
    """Claims and settles all that stands, every tenth first attempt with an error."""
    store.register(Q, worker, LEASE_MS)
    done = 0
    error = pack_error("ValueError", "x" * 500, attempt=1, at_ms=1)
    while any(store.stats(Q).counts[state] for state in ("pending", "delayed")):
        store.promote(Q)
        outcomes: list[Outcome] = []
        for n, claim in enumerate(store.claim(Q, worker, 16, 0).claims):
            fails = claim.token == 1 and not n % 10
            outcomes.append(Retried(claim, 0, 9, error) if fails else Completed(claim))
        assert set(store.exchange(Q, worker, outcomes, 0, 0).words) <= {Word.OK}
        done += sum(isinstance(one, Completed) for one in outcomes)
    return done


def test_full_disk_refuses_enqueue_and_all_that_stands_is_finished(tmp_path: Path) -> None:
    """Not a byte is left: the ballast makes room for claims, results and errors; enqueue and drops say why not."""
    with small(tmp_path / "disk") as disk:
        store = SpoolStore(disk / "s")
        store.enqueue(Q, [a_job() for _ in range(3000)])
        store.sweep_inbox()
        assert ballast.missing(Layout(str(disk / "s"))) == 0
        fill(disk)
        assert fs.free_bytes(str(disk)) == 0
        with pytest.raises(StoreFull):
            SpoolStore(disk / "s").enqueue(Q, [a_job()])
        with pytest.raises(StoreFull):
            drop(disk / "s", [(Q, a_job())])
        assert finish_all(store, "w1") == 3000
        assert store.stats(Q).totals["completed"] == 3000
        store.close()
        check_books(disk / "s")


def test_pool_starts_on_a_full_disk(tmp_path: Path) -> None:
    """Nobody has it open, so the log must be made anew; what stands is finished, and later there is a ballast again."""
    with small(tmp_path / "disk") as disk:
        store = SpoolStore(disk / "s")
        store.enqueue(Q, [a_job() for _ in range(200)])
        store.sweep_inbox()
        store.close()
        full = fill(disk)
        clock = ManualClock()
        store = SpoolStore(disk / "s", clock=clock)
        assert finish_all(store, "w1") == 200
        layout = Layout(str(disk / "s"))
        assert ballast.missing(layout) > 0
        full.unlink()
        clock.advance(3_600_000)
        assert store.sweep_inbox() == Ingested(0, 0, 0)
        assert ballast.missing(layout) == 0
        assert store.enqueue(Q, [a_job()]) == [Word.OK]
        store.close()
        check_books(disk / "s")


def test_worker_waits_for_room_where_not_even_the_ballast_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has finished must not run again for want of a note. It says so, and ends when it is told to."""
    from batchq.spool import store as module

    store = SpoolStore(tmp_path / "s")
    store.enqueue(Q, [a_job("a"), a_job("b")])
    claims = claim_all(store, "w1")
    db = store._ledger._opened()
    looked = 0

    def full(point: str) -> None:
        if point == "T3":
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

    def give_up() -> bool:
        nonlocal looked
        looked += 1
        if looked == 3:
            monkeypatch.undo()
        return False

    monkeypatch.setattr(module, "_ROOM_S", 0.001)
    monkeypatch.setattr(fs, "passed", full)
    with pytest.raises(StoreFull):
        store.complete(Q, "w1", [Completed(claims[0])])
    store.be_patient(give_up)
    assert store.complete(Q, "w1", [Completed(claims[0])]) == [Word.OK]
    assert looked == 3
    assert not db.in_transaction
    store.close()
    check_books(tmp_path / "s")


def test_without_inodes_work_goes_on(tmp_path: Path) -> None:
    """No file can be made: neither the log nor a FIFO to wait on. The ballast gives both."""
    with small(tmp_path / "disk", inodes=80) as disk:
        store = SpoolStore(disk / "s")
        store.enqueue(Q, [a_job() for _ in range(50)])
        store.sweep_inbox()
        store.close()
        use_up_inodes(disk)
        assert fs.free_inodes(str(disk)) == 0
        store = SpoolStore(disk / "s")
        waiter = store.wake_waiter([Q])
        waiter.arm()
        use_up_inodes(disk)
        assert finish_all(store, "w1") == 50
        waiter.close()
        store.close()
        check_books(disk / "s")


def test_read_only_disk_is_said_to_be_so(tmp_path: Path) -> None:
    """No traceback, no half a spool: one error that names the place."""
    with small(tmp_path / "disk") as disk:
        SpoolStore(disk / "s").close()
        remount(disk, "ro")
        with pytest.raises(StoreUnavailable, match=str(disk)):
            SpoolStore(disk / "s")
        with pytest.raises(StoreUnavailable, match="Read-only file system"):
            drop(disk / "s", [(Q, a_job())])
        with pytest.raises(StoreUnavailable, match="Read-only file system"):
            SpoolStore(disk / "new")


def test_too_few_descriptors_are_an_error_that_passes(tmp_path: Path) -> None:
    """EMFILE at any moment: an error of this call, no file is moved aside for it, and all is well afterwards."""
    code = """
    import os, resource, sys
    from batchq.errors import StoreError
    from batchq.job import NewJob
    from batchq.spool import SpoolStore, drop
    path = sys.argv[1]
    SpoolStore(path).close()
    jobs = iter(range(10**6))
    def job(): return NewJob(f"a{next(jobs)}", b'{"job":"x"}')
    drop(path, [("mail", job()) for _ in range(3)])
    drop(path, [("mail", job())])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    failed = 0
    for spare in range(12):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        low = os.open("/dev/null", os.O_RDONLY)
        os.close(low)
        resource.setrlimit(resource.RLIMIT_NOFILE, (low + spare, hard))
        store = None
        try:
            store = SpoolStore(path)
            store.enqueue("mail", [job()])
            store.sweep_inbox()
            store.wake_waiter(["mail"]).close()
        except StoreError:
            failed += 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if store is not None:
            store.close()
    store = SpoolStore(path)
    while store.sweep_inbox().files:
        pass
    assert 3 < failed < 12, failed
    assert os.listdir(path + "/inbox/bad") == []
    pending = store.stats("mail").counts["pending"]
    print(pending, len(os.listdir("/proc/self/fd")))
    """
    done = run(code, str(tmp_path / "s"))
    assert done.returncode == 0, done.stderr
    pending, descriptors = map(int, done.stdout.split())
    assert pending >= 4
    assert descriptors < 15, "descriptors leak on the way of an error"
    check_books(tmp_path / "s")


def test_clock_that_jumps_loses_nothing_and_runs_nothing_early(tmp_path: Path) -> None:
    """An hour back, then a day on: order, claims, tokens and files in the inbox are not of the clock."""
    clock = ManualClock()
    store = SpoolStore(tmp_path / "s", clock=clock)
    store.enqueue(Q, [a_job("first"), a_job("later", delay_ms=60_000)])
    [claim] = claim_all(store, "w1")
    due = store.jobs(Q, State.DELAYED).jobs[0].since_ms
    clock.jump(-3_600_000)
    drop(tmp_path / "s", [(Q, a_job("file"))], clock=clock)
    assert store.sweep_inbox() == Ingested(1, 1, 0)
    store.enqueue(Q, [a_job("second", delay_ms=0)])
    # Late by the jump, for its time is one of the clock; never early.
    store.promote(Q)
    assert [one.id for one in store.claim(Q, "w1", 9, 1).claims] == ["file", "second"]
    # A lease from before the jump would stand for an hour more.
    store.renew(Q, ["w1"], LEASE_MS)
    assert store.leases(Q).ends["w1"] <= store.now_ms() + LEASE_MS
    assert store.complete(Q, "w1", [Completed(claim)]) == [Word.OK]
    clock.jump(due - 1 - store.now_ms())
    assert store.promote(Q).moved == 0
    clock.jump(86_400_000)
    # Whose lease is over by a jump is still served: only a reaper with a clock of its own decides.
    assert [one.id for one in store.claim(Q, "w1", 9, 2).claims] == ["later"]
    assert store.stats(Q).counts["active"] == 3
    store.close()
    check_books(tmp_path / "s")
