"""The small words that contract tests are written in. All of them speak to a store by its contract only."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from batchq.job import (
    Buried,
    Claim,
    Completed,
    Job,
    Lost,
    Mark,
    NewJob,
    Outcome,
    Released,
    Retried,
    Snoozed,
    new_id,
    pack_error,
    pack_row,
    random_name,
)
from batchq.lifecycle import COUNTED, TOTALS, State, Word, unaccounted
from batchq.store import Store, Waiter

#: The queue of most tests.
Q = "mail"
LEASE_MS = 15_000
#: Redis' clock runs on while a test does: two readings of one instant differ by less than this.
DRIFT_MS = 2_000
#: How long a test waits for what must come.
DEADLINE_S = 10.0
DAY_MS = 86_400_000


def a_job(id: str | None = None, *args: Any, **options: Any) -> NewJob:
    """A new job of the handler `send`; options are NewJob's."""
    row = options.pop("row", None)
    return NewJob(new_id() if id is None else id, pack_row("send", args) if row is None else row, **options)


def put(store: Store, *jobs: NewJob | str, queue: str = Q) -> list[str]:
    """Enqueues new jobs (an id stands for a plain one) as producers do: under a mark of its own. Returns their ids."""
    batch = [a_job(job) if isinstance(job, str) else job for job in jobs]
    assert store.enqueue(queue, batch, Mark(random_name(), 1)) == [Word.OK] * len(batch)
    return [job.id for job in batch]


def enlist(store: Store, worker: str = "w1", *, queue: str = Q, lease_ms: int = LEASE_MS) -> str:
    """Registers a worker."""
    assert store.register(queue, worker, lease_ms) is Word.OK
    return worker


def take(store: Store, worker: str = "w1", want: int = 1, *, queue: str = Q) -> list[Claim]:
    """Claims, whatever the worker holds already."""
    answer = store.claim(queue, worker, want, 0)
    if answer.word is Word.HELD:
        answer = store.claim(queue, worker, want, len(answer.claims))
    assert answer.word is Word.OK, answer.word
    return list(answer.claims)


def take_all(store: Store, worker: str = "w1", *, queue: str = Q, want: int = 480) -> list[Claim]:
    """Claims until nothing is left: one answer may carry less than was wanted."""
    claims: list[Claim] = []
    while more := store.claim(queue, worker, want, len(claims)).claims:
        claims += more
    return claims


def active(store: Store, id: str, worker: str = "w1", *, queue: str = Q, **options: Any) -> Claim:
    """A new job, claimed by a worker that is registered for it; nothing else may be pending."""
    put(store, a_job(id, **options), queue=queue)
    [claim] = take(store, worker, queue=queue)
    assert claim.id == id
    return claim


def pages(
    store: Store, state: State, *, queue: str = Q, limit: int = 100, between: Callable[[], object] = lambda: None
) -> Iterator[Job]:
    """All jobs of a state's list, page by page; `between` is called after each page."""
    cursor = ""
    while True:
        page = store.jobs(queue, state, cursor=cursor, limit=limit)
        yield from page.jobs
        if not page.cursor:
            return
        cursor = page.cursor
        between()


def listed(store: Store, state: State, *, queue: str = Q) -> list[str]:
    """The ids of a state's list, in its order."""
    return [job.id for job in pages(store, state, queue=queue)]


def state_of(store: Store, id: str, *, queue: str = Q) -> State | None:
    job = store.get(queue, id)
    return job.state if job else None


def read(store: Store, id: str, *, queue: str = Q) -> Job:
    """A job that must stand."""
    job = store.get(queue, id)
    assert job is not None, f"{id} is gone"
    return job


def totals(store: Store, *, queue: str = Q) -> dict[str, int]:
    return store.stats(queue).totals


def nonzero(store: Store, *, queue: str = Q) -> dict[str, int]:
    """What the queue has counted so far."""
    return {name: n for name, n in totals(store, queue=queue).items() if n}


def snapshot(store: Store, *, queue: str = Q) -> dict[str, Any]:
    """All that a store says of a queue, but for `fenced` and what passes with time."""
    stats = store.stats(queue)
    lists = {state.value: [asdict(job) for job in pages(store, state, queue=queue)] for state in COUNTED}
    lists["active"].sort(key=lambda job: str(job["id"]))
    return {
        "paused": stats.paused,
        "counts": stats.counts,
        "totals": {name: n for name, n in stats.totals.items() if name != "fenced"},
        "lists": lists,
        "leases": store.leases(queue).ends,
    }


def check_law(store: Store) -> None:
    """On every queue nothing is missing, and what is counted is what is listed."""
    for queue in store.queues():
        stats = store.stats(queue)
        assert set(stats.counts) == {state.value for state in COUNTED}
        assert set(stats.totals) == set(TOTALS)
        assert unaccounted(stats.counts, stats.totals) == 0, (queue, stats)
        lengths = {state.value: len(listed(store, state, queue=queue)) for state in COUNTED}
        assert lengths == stats.counts, queue


def expire(store: Store, *, queue: str = Q) -> None:
    """What a master's sweep does with kept results whose time is over, where the store has not done it yet."""
    while over := [job.id for job in store.jobs(queue, State.COMPLETED).jobs if job.since_ms <= store.now_ms()]:
        assert store.purge(queue, State.COMPLETED, over) == len(over)


def an_error(text: str = "boom", *, attempt: int = 1) -> bytes:
    return pack_error("ValueError", text, attempt=attempt, at_ms=1_767_225_600_000, worker="w1")


def retried(claim: Claim, delay_ms: int = 10_000, **options: Any) -> Retried:
    return Retried(claim, delay_ms, options.pop("max_attempts", 5), options.pop("error", an_error()), **options)


def lost(claim: Claim, delay_ms: int = 10_000, *, max_lost: int = 10, error: bytes | None = None) -> Lost:
    return Lost(claim, delay_ms, max_lost, an_error("lease expired") if error is None else error)


def settle(store: Store, outcome: Outcome, worker: str = "w1", *, again: bool = False, queue: str = Q) -> Word:
    """One outcome through the verb of its own."""
    words: list[Word]
    match outcome:
        case Completed():
            words = store.complete(queue, worker, [outcome], again=again)
        case Retried():
            words = store.retry(queue, worker, [outcome], again=again)
        case Buried():
            words = store.bury(queue, worker, [outcome], again=again)
        case Snoozed():
            words = store.snooze(queue, worker, [outcome], again=again)
        case Released():
            words = store.release(queue, worker, [outcome], again=again)
    [word] = words
    return word


#: One outcome of each kind: what a holder can do with a claim.
OUTCOMES: dict[str, Callable[[Claim], Outcome]] = {
    "complete": Completed,
    "retry": retried,
    "bury": lambda claim: Buried(claim, "buried", an_error()),
    "snooze": lambda claim: Snoozed(claim, 10_000),
    "release": Released,
}


def stand(store: Store, state: State, id: str = "a", worker: str = "w1", *, given: bool = False) -> None:
    """Brings a new job into a state; the worker is registered, and nothing else is pending."""
    if state is State.PENDING:
        put(store, a_job(id, given=given))
    elif state is State.DELAYED:
        put(store, a_job(id, delay_ms=60_000, given=given))
    else:
        claim = active(store, id, worker, given=given)
        if state is State.DEAD:
            assert settle(store, Buried(claim, "buried", an_error()), worker) is Word.OK
        elif state is State.COMPLETED:
            assert settle(store, Completed(claim, b'"done"', 3_600_000), worker) is Word.OK
    assert state_of(store, id) is state


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Waits until it holds. Fails after the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.005)


def hinted(waiter: Waiter, timeout_s: float = DEADLINE_S) -> bool:
    """An armed waiter gets a hint in time. Takes it; a wait that ended without one begins anew."""
    deadline = time.monotonic() + timeout_s
    while (left := deadline - time.monotonic()) > 0:
        readable, _, _ = select.select([waiter], [], [], left)
        if readable and waiter.take():
            return True
        if readable:
            waiter.arm()
    return False
