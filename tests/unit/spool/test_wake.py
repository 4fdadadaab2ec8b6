"""Hints: one rouses one waiter, those that died are passed over, and none is lost for long."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.spool import SpoolStore, fs, wake
from tests.unit.spool.helpers import Q, a_job, claim_all, fork, wait_for


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SpoolStore]:
    opened = SpoolStore(tmp_path / "s")
    yield opened
    opened.close()


def roused(waiters: list[wake.FifoWaiter]) -> list[wake.FifoWaiter]:
    """Those that a selector would report now."""
    readable, _, _ = select.select(waiters, [], [], 0)
    return readable


def test_one_hint_rouses_one_worker(store: SpoolStore) -> None:
    """Eight idle workers, one job: one of them is roused. The next job rouses another."""
    waiters = [store.wake_waiter([Q]) for _ in range(8)]
    for waiter in waiters:
        waiter.arm()
    for n in range(1, 9):
        store.enqueue(Q, [a_job()])
        assert len(roused(waiters)) == n


def test_hint_goes_to_a_worker_of_that_queue(store: SpoolStore) -> None:
    """Several pools on one spool don't take each other's hints."""
    mail, images = store.wake_waiter(["mail"]), store.wake_waiter(["images"])
    mail.arm()
    images.arm()
    store.enqueue("images", [a_job()])
    assert roused([mail, images]) == [images]


def test_new_earliest_fire_time_rouses_every_master(store: SpoolStore) -> None:
    """Each master keeps its own time."""
    timers = [store.timer_waiter([Q]) for _ in range(3)]
    for timer in timers:
        timer.arm()
    store.enqueue(Q, [a_job(delay_ms=60_000)])
    assert roused(timers) == timers
    assert all(timer.take() for timer in timers)
    for timer in timers:
        timer.arm()
    store.enqueue(Q, [a_job(delay_ms=90_000)])
    assert roused(timers) == []


def test_killed_waiter_is_passed_over_and_cleared_away(store: SpoolStore) -> None:
    """A name without a reader is rubbish: the hint goes to the next."""

    def child() -> None:
        store.after_fork()
        waiters = [store.wake_waiter([Q]) for _ in range(3)]
        for waiter in waiters:
            waiter.arm()
        signal.pause()

    waiting = Path(store.path) / "waiting"
    pid = fork(child)
    wait_for(lambda: len(os.listdir(waiting)) == 3, "the child is armed")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    mine = store.wake_waiter([Q])
    mine.arm()
    for _ in range(4):
        store.enqueue(Q, [a_job()])
    assert roused([mine]) == [mine]
    assert [name for name in os.listdir(waiting) if not name.endswith(":")] == []


def test_thread_that_found_work_leaves_hints_to_the_idle(store: SpoolStore) -> None:
    """Armed, then it found work by itself: for as long as it works, it must not swallow hints."""
    busy, idle = store.wake_waiter([Q]), store.wake_waiter([Q])
    busy.arm()
    store.enqueue(Q, [a_job()])
    assert busy.take()
    busy.arm()
    assert len(claim_all(store, "w1")) == 1
    # The waiter of another process, in the stead of which another thread's would do.
    idle.arm()
    store.enqueue(Q, [a_job()])
    assert roused([busy, idle]) == [idle]


@pytest.mark.parametrize("kind", ["wake", "timer"])
def test_waiter_that_arms_itself_while_a_hint_is_laid_down_is_roused(
    store: SpoolStore, monkeypatch: pytest.MonkeyPatch, kind: wake.Kind
) -> None:
    """It has looked for work before that was there, and for a hint before that was: nothing else would tell it."""
    waiter = wake.FifoWaiter(store._ledger.layout, kind, [Q])
    link = fs.link

    def arm_first(source: str, target: str) -> None:
        if target.endswith(":"):
            waiter.arm()
        link(source, target)

    monkeypatch.setattr(fs, "link", arm_first)
    store.enqueue(Q, [a_job(delay_ms=60_000 if kind == "timer" else 0)])
    assert roused([waiter]) == [waiter]
    assert os.listdir(Path(store.path) / "waiting") == [], "nobody else is roused for the same"
    waiter.close()


def test_closed_waiter_hands_on_a_hint_that_it_did_not_use(store: SpoolStore) -> None:
    first, second = store.wake_waiter([Q]), store.wake_waiter([Q])
    first.arm()
    store.enqueue(Q, [a_job()])
    second.arm()
    first.close()
    assert roused([second]) == [second]


def test_paused_queue_rouses_nobody(store: SpoolStore) -> None:
    """There is nothing to claim; resume rouses."""
    waiter = store.wake_waiter([Q])
    store.pause(Q)
    waiter.arm()
    store.enqueue(Q, [a_job()])
    assert roused([waiter]) == []
    store.resume(Q)
    assert roused([waiter]) == [waiter]


def test_waiter_survives_a_hand_that_tidies_up(store: SpoolStore) -> None:
    """Somebody empties the folders: armed again, it makes what it needs."""
    waiter = store.wake_waiter([Q])
    waiter.arm()
    for folder in ("waiting", "waiters"):
        for path in (Path(store.path) / folder).iterdir():
            path.unlink()
    assert not waiter.take()
    waiter.arm()
    store.enqueue(Q, [a_job()])
    assert roused([waiter]) == [waiter]


def test_tidy_removes_what_killed_waiters_left(store: SpoolStore) -> None:
    """And nothing that is in use."""
    folder = Path(store.path) / "waiters"
    os.mkfifo(folder / "1-dead")
    alive = store.wake_waiter([Q])
    alive.arm()
    now = (folder / "1-dead").lstat().st_ctime
    wake.tidy(store._ledger.layout, now + 30)
    assert (folder / "1-dead").exists()
    wake.tidy(store._ledger.layout, now + 3600)
    assert not (folder / "1-dead").exists()
    store.enqueue(Q, [a_job()])
    assert roused([alive]) == [alive]


def test_inherited_waiter_is_let_go_of_without_harm(store: SpoolStore) -> None:
    """A child closes the descriptor; the parent's names stay."""
    waiter = store.wake_waiter([Q])
    waiter.arm()

    def child() -> None:
        store.after_fork()
        assert waiter.fileno() == -1

    pid = fork(child)
    assert os.waitpid(pid, 0)[1] == 0
    store.enqueue(Q, [a_job()])
    assert roused([waiter]) == [waiter]
