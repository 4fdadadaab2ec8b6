"""Who rests in a rush, how long, and that nothing but speed depends on it."""

from __future__ import annotations

import multiprocessing
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from batchq.errors import StoreCorrupt
from batchq.job import Claim, Claims, Completed, Exchange
from batchq.lifecycle import Word
from batchq.spool import SpoolStore, fs, seats
from batchq.spool.seats import LOOKS, MOST, PART, TERM_S, Seats
from batchq.spool.writelock import WriteLock
from tests.unit.spool.helpers import Q, a_job, check_books, wait

RESTING = MOST
TAKES = """
import sys
from batchq.spool import fs
fd = fs.open_lock(sys.argv[1])
taken = [fs.try_lock_byte(fd, int(at), shared=sys.argv[2] == "shared") for at in sys.argv[3:]]
print(taken, flush=True)
sys.stdin.read()
"""


@contextmanager
def another(path: str, *places: int, shared: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A process that has taken these bytes, as long as it lives."""
    command = [sys.executable, "-c", TAKES, path, "shared" if shared else "alone", *map(str, places)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{[True] * len(places)}\n"
        yield process
        process.kill()


def is_free(path: str, place: int) -> bool:
    """As another process sees it."""
    process = subprocess.run(
        [sys.executable, "-c", TAKES, path, "alone", str(place)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    return process.stdout == b"[True]\n"


class Rush:
    """One that comes to a gate again and again: its seats, the time, and what it finds there."""

    def __init__(self, path: str, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.now = 1000.0
        monkeypatch.setattr(seats, "monotonic", lambda: self.now)
        monkeypatch.setattr(seats, "LOOK_S", 0.001)
        self.gate = WriteLock(f"{path}.gate")
        self.finds: Callable[[], bool] = lambda: False
        self.looks = 0
        self.seats = Seats(path, self.gate, threading.RLock(), self._look, count)
        self.seats.is_crowded()

    def _look(self) -> bool:
        self.looks += 1
        return self.finds()

    def comes(self, period: float = TERM_S / 10, waited: float = 0.9) -> bool:
        """After so many seconds, that part of which it had waited in the queue; whether it is crowded."""
        self.now += period
        self.gate.waited_s = waited * period
        return self.seats.is_crowded()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "seats")


@pytest.fixture
def rush(path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rush]:
    rush = Rush(path, monkeypatch, 2)
    yield rush
    rush.seats.close()


def test_who_finds_a_seat_goes_on_and_the_next_one_rests(rush: Rush, path: str) -> None:
    with another(path, 0):
        assert not rush.comes()
        assert not is_free(path, 1)
    rush.seats.leave()
    with another(path, 0, 1):
        assert rush.comes()


@pytest.mark.parametrize(
    "case", [{"period": TERM_S * 1.01}, {"waited": PART * 0.99}], ids=["comes seldom", "hardly waits in the queue"]
)
def test_nobody_rests_without_a_rush(rush: Rush, path: str, case: dict[str, float]) -> None:
    with another(path, 0, 1):
        assert not rush.comes(**case)
        # The very same in a rush.
        assert rush.comes()


def test_nobody_rests_where_the_gate_is_free(rush: Rush, path: str) -> None:
    with another(path, 0, 1):
        rush.finds = lambda: True
        assert not rush.comes()
        rush.finds = lambda: False
        assert rush.comes()


def test_a_seat_is_kept_for_a_while_and_longer_while_nobody_rests(rush: Rush, path: str) -> None:
    assert not rush.comes()
    with another(path, RESTING, shared=True):
        assert not rush.comes(TERM_S * 0.9)
        assert not is_free(path, 0)
        # Its time is over, and somebody waits for it.
        assert rush.comes(TERM_S * 0.2)
        assert is_free(path, 0)
    assert not rush.comes()
    for _ in range(3):
        assert not rush.comes(TERM_S * 2)
    assert not is_free(path, 0)


def test_who_rests_is_seen_and_takes_the_first_seat_that_is_free(rush: Rush, path: str) -> None:
    with another(path, 0), another(path, 1) as other:

        def give_up() -> bool:
            if rush.looks == 3:
                assert not is_free(path, RESTING)
                # However it ends, its seat is free.
                other.send_signal(signal.SIGKILL)
                other.wait()
            return False

        rush.seats.rest(give_up)
        assert rush.looks == 3
        assert not is_free(path, 1)
        assert is_free(path, RESTING)
        assert not rush.comes(TERM_S * 0.9)


def test_a_rest_ends_when_the_gate_is_idle(rush: Rush, path: str) -> None:
    """Not when it is free once: that is between two of those who circulate."""
    with another(path, 0, 1):
        rush.finds = lambda: rush.looks in (2, 3, 5, 7, 8, 9)
        rush.seats.rest(lambda: False)
        assert rush.looks == 9
        assert is_free(path, RESTING)


def test_a_rest_ends_when_the_caller_gives_up(rush: Rush, path: str) -> None:
    with another(path, 0, 1):
        rush.seats.rest(lambda: rush.looks == 2)
        assert rush.looks == 2


def test_a_rest_ends_by_itself_whatever_the_others_do(rush: Rush, path: str) -> None:
    """Whoever has a seat may be stopped, or busy with something else."""
    with another(path, 0, 1) as other:
        other.send_signal(signal.SIGSTOP)
        rush.seats.rest(lambda: False)
        assert rush.looks == LOOKS
        assert is_free(path, RESTING)


def test_a_fork_of_another_thread_closes_the_seats_of_one_who_rests(rush: Rush, path: str) -> None:
    with another(path, 0, 1):

        def give_up() -> bool:
            rush.seats.close()
            return True

        rush.seats.rest(give_up)
        assert rush.looks == 1
        assert rush.comes()


def test_where_there_can_be_no_seats_nobody_rests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rush = Rush(str(tmp_path / "no" / "such" / "seats"), monkeypatch, 1)
    assert not rush.comes()
    rush.seats.rest(lambda: False)
    assert rush.looks == 1
    rush.seats.leave()


def test_a_lock_that_the_system_refuses_is_no_seat(rush: Rush, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fs, "try_lock_byte", lambda *_, **__: False)
    assert rush.comes()
    rush.seats.rest(lambda: False)
    assert rush.looks == 1


# -- in a store --------------------------------------------------------------------------------------------------------


def _claims(store: SpoolStore, worker: str, want: int) -> list[Claim]:
    store.register(Q, worker, 60_000)
    return list(store.claim(Q, worker, want, 0).claims)


def test_whoever_rests_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has finished is settled before, so it doesn't run again should the worker die; others may claim all."""
    store, other = SpoolStore(tmp_path / "s"), SpoolStore(tmp_path / "s")
    store.enqueue(Q, [a_job() for _ in range(100)])
    claims = _claims(store, "w", 40)
    monkeypatch.setattr(store._ledger.seats, "is_crowded", lambda: True)
    seen = []

    def rest(_: object) -> None:
        stats = other.stats(Q)
        seen.append((stats.counts["active"], stats.totals["completed"]))
        assert len(_claims(other, "v", 10)) == 10

    monkeypatch.setattr(store._ledger.seats, "rest", rest)
    outcomes = [*map(Completed, claims), Completed(claims[0]._replace(token=9))]
    answer = store.exchange(Q, "w", outcomes, 64, 0)
    assert seen == [(0, 40)]
    assert answer.words == (*(Word.OK,) * 40, Word.STALE)
    assert answer.claimed.word is Word.OK
    assert len(answer.claimed.claims) == 50
    # Few at a time is no rush.
    answer = store.exchange(Q, "w", [Completed(claim) for claim in answer.claimed.claims], 8, 0)
    assert len(seen) == 1
    assert answer.claimed.claims == ()
    store.close()
    other.close()


def test_who_has_other_claims_neither_rests_nor_keeps_a_seat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may end meanwhile, and hold places at gates until they are settled."""
    with closing(SpoolStore(tmp_path / "s")) as store:
        store.enqueue(Q, [a_job() for _ in range(100)])
        claims = _claims(store, "w", 40)
        assert store._ledger.seats._sit()
        monkeypatch.setattr(store._ledger.seats, "is_crowded", lambda: True)
        monkeypatch.setattr(store._ledger.seats, "rest", lambda _: pytest.fail("rests"))
        answer = store.exchange(Q, "w", list(map(Completed, claims[1:])), 40, 1)
        assert answer.words == (Word.OK,) * 39
        assert len(answer.claimed.claims) == 40
        assert is_free(store._ledger.layout.seats, 0)


def test_what_was_settled_before_a_rest_is_told_whatever_the_claim_meets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be settled again, and refused."""
    path = tmp_path / "s"
    with closing(SpoolStore(path)) as store:
        store.enqueue(Q, [a_job() for _ in range(40)])
        claims = _claims(store, "w", 40)
        store.enqueue(Q, [a_job()])
        with closing(sqlite3.connect(path / "queue.db")) as db, db:
            db.execute("UPDATE job SET attempts='many' WHERE state=0")
        monkeypatch.setattr(store._ledger.seats, "is_crowded", lambda: True)
        monkeypatch.setattr(store._ledger.seats, "rest", lambda _: None)
        answer = store.exchange(Q, "w", list(map(Completed, claims)), 40, 0)
        assert answer == Exchange((Word.OK,) * 40, Claims(Word.OK))
        with pytest.raises(StoreCorrupt):
            store.claim(Q, "w", 40, 0)


def test_a_seat_is_given_up_by_who_finds_nothing_or_wants_few(tmp_path: Path) -> None:
    with closing(SpoolStore(tmp_path / "s")) as store:
        place = store._ledger.seats
        store.enqueue(Q, [a_job() for _ in range(100)])
        claims = _claims(store, "w", 40)
        assert place._sit()
        claims = list(store.exchange(Q, "w", list(map(Completed, claims)), 40, 0).claimed.claims)
        assert not is_free(store._ledger.layout.seats, 0)
        claims = list(store.exchange(Q, "w", list(map(Completed, claims)), 8, 0).claimed.claims)
        assert is_free(store._ledger.layout.seats, 0)
        assert place._sit()
        claims = list(store.exchange(Q, "w", list(map(Completed, claims)), 40, 0).claimed.claims)
        assert len(claims) == 12
        assert not is_free(store._ledger.layout.seats, 0)
        assert store.exchange(Q, "w", list(map(Completed, claims)), 40, 0).claimed.claims == ()
        assert is_free(store._ledger.layout.seats, 0)
        assert place._sit()
        assert store.claim(Q, "w", 40, 0).claims == ()
        assert is_free(store._ledger.layout.seats, 0)


def _drain(path: str, worker: str, ready: Any, done: Any) -> None:
    store = SpoolStore(path)
    store._ledger.seats._count = 1
    ran: list[str] = []
    claims = _claims(store, worker, 0)
    ready.wait(30)
    while True:
        answer = store.exchange(Q, worker, list(map(Completed, claims)), 64, 0)
        assert set(answer.words) <= {Word.OK}
        claims = list(answer.claimed.claims)
        if not claims:
            break
        ran += [claim.id for claim in claims]
    store.close()
    done.put(ran)


def test_many_with_one_seat_do_each_job_once(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with closing(SpoolStore(path)) as store:
        for _ in range(16):
            store.enqueue(Q, [a_job() for _ in range(500)])
    context = multiprocessing.get_context("fork")
    ready, done = context.Barrier(5), context.SimpleQueue()
    processes = [context.Process(target=_drain, args=(path, f"w{n}", ready, done)) for n in range(5)]
    for process in processes:
        process.start()
    ran = Counter(job for _ in processes for job in done.get())
    for process in processes:
        assert process.pid is not None
        assert wait(process.pid) == 0
    assert len(ran) == 8000
    assert set(ran.values()) == {1}
    check_books(Path(path))
