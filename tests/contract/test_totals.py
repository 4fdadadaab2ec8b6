"""The law of the totals, over a long life and under threads."""

from __future__ import annotations

import random
import threading
from collections import Counter

from batchq.job import Claim, Completed, Outcome
from batchq.lifecycle import State, Word
from batchq.store import Store
from tests.contract.conftest import Ground
from tests.contract.helpers import (
    OUTCOMES,
    Q,
    a_job,
    check_law,
    enlist,
    listed,
    lost,
    nonzero,
    put,
    retried,
    settle,
    take,
    totals,
)


def test_each_total_counts_its_move(store: Store, clock: Ground) -> None:
    """One job through each move: the totals name them all."""
    enlist(store, "w1")
    enlist(store, "w2")
    names = ["completed", "retried", "spent", "crashed", "timed", "buried", "snoozed", "released", "marked", "lost"]
    put(store, *names)
    claims = {claim.id: claim for claim in take(store, want=9)}
    [held_by_other] = take(store, "w2")
    store.cancel(Q, ["marked"])
    settle(store, Completed(claims["completed"]))
    settle(store, retried(claims["retried"]))
    settle(store, retried(claims["spent"], max_attempts=1))
    settle(store, retried(claims["crashed"], cause="crashed"))
    settle(store, retried(claims["timed"], cause="timed_out", max_attempts=1))
    settle(store, OUTCOMES["bury"](claims["buried"]))
    settle(store, OUTCOMES["snooze"](claims["snoozed"]))
    settle(store, OUTCOMES["release"](claims["released"]))
    settle(store, OUTCOMES["release"](claims["marked"]))
    settle(store, Completed(claims["completed"]))
    store.seal(Q, "w2")
    store.reap(Q, "w2", [lost(held_by_other)])
    put(store, "cancelled", a_job("purged", delay_ms=60_000))
    store.cancel(Q, ["cancelled"])
    store.purge(Q, State.DELAYED, ["purged"])
    store.requeue(Q, ["spent"])
    clock.advance(20_000)
    assert store.promote(Q).moved == 4
    assert nonzero(store) == {
        "enqueued": 12,
        "requeued": 1,
        "completed": 1,
        "dead": 3,
        "cancelled": 2,
        "purged": 1,
        "retried": 2,
        "snoozed": 1,
        "released": 1,
        "promoted": 4,
        "reaped": 1,
        "crashed": 1,
        "timed_out": 1,
        "lost": 1,
        "fenced": 1,
    }
    assert store.stats(Q).counts == {"pending": 6, "delayed": 0, "active": 0, "completed": 0, "dead": 2}


def test_law_holds_after_every_step_of_a_random_life(store: Store, clock: Ground) -> None:
    """Hundreds of moves drawn from a fixed seed, on jobs that may or may not be there."""
    rng = random.Random(20260101)
    workers = [enlist(store, f"w{n}") for n in range(3)]
    claims: list[tuple[str, Claim]] = []
    for step in range(250):
        ids = [f"j{rng.randrange(40)}" for _ in range(rng.randrange(1, 6))]
        worker = rng.choice(workers)
        match rng.randrange(9):
            case 0 | 1:
                store.enqueue(
                    Q, [a_job(id, priority=rng.randrange(-1, 2), delay_ms=rng.choice([0, 9_000])) for id in ids]
                )
            case 2 | 3:
                claims += [(worker, claim) for claim in take(store, worker, 4)]
            case 4 | 5 if claims:
                holder, claim = rng.choice(claims)
                settle(store, rng.choice(list(OUTCOMES.values()))(claim), holder, again=rng.random() < 0.2)
            case 6:
                store.cancel(Q, ids)
            case 7:
                store.requeue(Q, ids)
            case 8:
                store.purge(Q, rng.choice([State.PENDING, State.DELAYED, State.DEAD]), ids)
            case _:
                clock.advance(5_000)
        if step % 10 == 0:
            check_law(store)
    assert totals(store)["enqueued"] > 20


def test_threads_on_one_store_share_the_work_without_a_seam(store: Store) -> None:
    """Four threads claim and settle at once: every job once, and the law holds in every look from a fifth."""
    ids = [f"j{n}" for n in range(400)]
    store.enqueue(Q, [a_job(id) for id in ids])
    workers = [enlist(store, f"w{n}") for n in range(4)]
    got: dict[str, list[str]] = {worker: [] for worker in workers}
    failures: list[BaseException] = []
    done = threading.Event()

    def work(worker: str) -> None:
        try:
            outcomes: list[Outcome] = []
            while True:
                answer = store.exchange(Q, worker, outcomes, 7, 0)
                assert set(answer.words) <= {Word.OK}
                assert answer.claimed.word is Word.OK
                if not answer.claimed.claims:
                    return
                got[worker] += [claim.id for claim in answer.claimed.claims]
                outcomes = [Completed(claim) for claim in answer.claimed.claims]
        except BaseException as error:  # noqa: BLE001 - a thread's failure is the test's
            failures.append(error)

    def look() -> None:
        try:
            while not done.is_set():
                stats = store.stats(Q)
                stand = stats.counts["pending"] + stats.counts["active"] + stats.totals["completed"]
                assert stand == stats.totals["enqueued"], stats
        except BaseException as error:  # noqa: BLE001 - a thread's failure is the test's
            failures.append(error)

    looker = threading.Thread(target=look)
    looker.start()
    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    done.set()
    looker.join(10)
    assert failures == []
    assert Counter(id for taken in got.values() for id in taken) == Counter(ids)
    assert totals(store)["completed"] == 400


def test_threads_enqueue_at_once(store: Store) -> None:
    """Four producers, two of them with the same ids: each job once."""
    words: list[Word] = []
    lock = threading.Lock()

    def produce(name: str) -> None:
        for n in range(50):
            answer = store.enqueue(Q, [a_job(f"{name}{n}"), a_job(f"{name}{n}-b", priority=n % 3)])
            with lock:
                words.extend(answer)

    threads = [threading.Thread(target=produce, args=(name,)) for name in ("a", "b", "same", "same")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Counter(words) == {Word.OK: 300, Word.KNOWN: 100}
    assert len(listed(store, State.PENDING)) == 300
