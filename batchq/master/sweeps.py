"""What a master does for jobs that nobody holds any more: reaping its own dead workers and those of other hosts.

The order is what makes it safe: seal, move each claim by its token, remove the lease entry. A reaper that dies at any
point leaves a sealed entry, which any sweep finishes. Forks nothing and waits for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from batchq import log
from batchq.clock import SYSTEM
from batchq.job import Claim, Leases, Lost, Outcome, Released, Retried, pack_error
from batchq.lifecycle import State, Word
from batchq.store import Store
from batchq.worker.runner import Terms

TermsOf = Callable[[Claim], Terms]
#: When the handler of a claim was called, in ms since the epoch; 1: nobody knows; 0: it had not been.
Began = Callable[[Claim], int]
#: Told the queue and the id of a job that is about to die, before the store is: see `on_dead`.
Mourn = Callable[[str, str], None]


def nobody(queue: str, job_id: str) -> None:
    """Mourns nobody."""


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker ended. `text` names it for people: signal, exit code, memory."""

    #: crashed, timed_out or failed: charged to the job that ran. stopped: a planned end, nothing is charged.
    cause: str
    text: str


def fate_of(claim: Claim, death: Death, terms: Terms, *, began_ms: int, max_crashes: int, worker: str) -> Outcome:
    """How a claim of a dead worker of ours ends. Only what ran is charged; all else is given back."""
    if not began_ms:
        return Released(claim)
    kind = {"crashed": "WorkerCrashed", "timed_out": "JobTimeout"}.get(death.cause, "Interrupted")
    delay_ms = None if death.cause == "stopped" else terms.backoff.delay_ms(claim.attempt)
    entry = pack_error(
        kind,
        death.text,
        attempt=claim.attempt,
        at_ms=SYSTEM.now_us() // 1000,
        started_ms=began_ms,
        delay_ms=delay_ms,
        worker=worker,
    )
    if delay_ms is None:
        return Released(claim, entry)
    return Retried(claim, delay_ms, terms.max_attempts, entry, death.cause, max_crashes)


def reap_own(
    store: Store,
    queue: str,
    worker: str,
    death: Death,
    began: Began,
    terms_of: TermsOf,
    max_crashes: int,
    mourn: Mourn,
) -> Counter[str]:
    """Reaps a worker whose end this master saw. Counts what became of its claims, by verb.

    Raises StoreUnavailable where the store is away; then the whole call is to be repeated.
    """
    counted: Counter[str] = Counter()
    sealed = store.seal(queue, worker)
    if sealed.word is Word.UNKNOWN:
        return counted
    fates = [
        fate_of(claim, death, terms_of(claim), began_ms=began(claim), max_crashes=max_crashes, worker=worker)
        for claim in sealed.claims
    ]
    retried = [fate for fate in fates if isinstance(fate, Retried)]
    released = [fate for fate in fates if isinstance(fate, Released)]
    for fate in retried:
        if fate.is_last:
            mourn(queue, fate.claim.id)
    # A worker's last settling may still arrive: what it settled is not current any more, and that is no fault.
    for outcome, word in zip(retried, store.retry(queue, worker, retried, again=True), strict=True):
        counted["dead" if word is Word.DEAD else "retried"] += 1
        claim = outcome.claim
        log.event(
            "warning",
            "reaped",
            queue=queue,
            job=claim.id,
            token=claim.token,
            attempt=claim.attempt,
            outcome=word.value,
            why=death.text,
            delay_ms=outcome.delay_ms,
        )
    counted["released"] += len(store.release(queue, worker, released, again=True))
    store.reap(queue, worker, [])
    return counted


def _mourn_lost(queue: str, lost: Sequence[Lost], mourn: Mourn) -> None:
    """Those whose last loss this is; a cancel mark may end them otherwise."""
    for one in lost:
        if one.claim.lost + 1 >= one.max_lost:
            mourn(queue, one.claim.id)


def reap_lost(
    store: Store, queue: str, worker: str, expected_ms: int, terms_of: TermsOf, max_lost: int, mourn: Mourn = nobody
) -> int:
    """Reaps a worker whose lease is over: nobody knows what ran. Answers how many jobs were moved.

    Does nothing where the lease was renewed meanwhile.
    """
    sealed = store.seal(queue, worker, expected_ms)
    if sealed.word is not Word.OK:
        return 0
    now_ms = SYSTEM.now_us() // 1000
    lost = []
    for claim in sealed.claims:
        entry = pack_error("WorkerLost", f"the lease of worker {worker} is over", attempt=claim.attempt, at_ms=now_ms)
        lost.append(Lost(claim, terms_of(claim).backoff.delay_ms(claim.lost + 1), max_lost, entry))
    _mourn_lost(queue, lost, mourn)
    store.reap(queue, worker, lost)
    if lost:
        log.event("warning", "reaped_lost", queue=queue, worker=worker, jobs=len(lost), why="lease expired")
    return len(lost)


def reap_left(
    store: Store,
    queue: str,
    worker: str,
    began: Began,
    terms_of: TermsOf,
    max_lost: int,
    mourn: Mourn,
    text: str,
) -> Counter[str]:
    """Reaps a worker that went down with its master, or with several jobs under way of which any may have taken it
    down: what had started is lost, all else is given back. No attempt is spent. `text` says what happened. Counts
    what became of its claims, by verb.

    Raises StoreUnavailable where the store is away; then the whole call is to be repeated.
    """
    sealed = store.seal(queue, worker)
    if sealed.word is Word.UNKNOWN:
        return Counter()
    now_ms = SYSTEM.now_us() // 1000
    lost = []
    for claim in sealed.claims:
        if (began_ms := began(claim)) > 0:
            delay_ms = terms_of(claim).backoff.delay_ms(claim.lost + 1)
            entry = pack_error(
                "WorkerLost",
                text,
                attempt=claim.attempt,
                at_ms=now_ms,
                started_ms=began_ms,
                delay_ms=delay_ms,
                worker=worker,
            )
            lost.append(Lost(claim, delay_ms, max_lost, entry))
    held = {one.claim.id for one in lost}
    released = [Released(claim) for claim in sealed.claims if claim.id not in held]
    given_back = len(store.release(queue, worker, released, again=True))
    _mourn_lost(queue, lost, mourn)
    store.reap(queue, worker, lost)
    return Counter(released=given_back, lost=len(lost))


@dataclass(slots=True)
class LeaseWatch:
    """Decides when a lease is over. No clock decides alone: the *same* expired value must be seen in two looks at least
    a third of a lease apart on this process's monotonic clock. Sealed entries are somebody's unfinished work: finished
    when seen twice too, so that a reaper at work is not raced without need.
    """

    lease_ms: int
    #: (queue, worker) -> the value seen expired, and when first.
    _seen: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)

    def look(self, queue: str, leases: Leases, monotonic: float) -> list[tuple[str, int]]:
        """The workers of this queue to reap now, each with the lease end that was seen."""
        over = []
        for worker, end in leases.ends.items():
            key = (queue, worker)
            if end > leases.now_ms:
                self._seen.pop(key, None)
                continue
            seen = self._seen.get(key)
            if seen is None or seen[0] != end:
                self._seen[key] = (end, monotonic)
            elif (monotonic - seen[1]) * 3000 >= self.lease_ms:
                over.append((worker, end))
        for key in [key for key in self._seen if key[0] == queue and key[1] not in leases.ends]:
            del self._seen[key]
        return over


def expire(store: Store, queue: str, *, dead_keep_ms: int, dead_limit: int) -> Counter[str]:
    """Removes kept results whose time is over, and the dead that are too old or too many. Counts by state."""
    now_ms = store.now_ms()
    surplus = store.stats(queue).counts["dead"] - dead_limit
    counted = Counter(
        completed=_remove(store, queue, State.COMPLETED, lambda n, since_ms: since_ms <= now_ms),
        dead=_remove(store, queue, State.DEAD, lambda n, since_ms: since_ms <= now_ms - dead_keep_ms or n < surplus),
    )
    if counted["dead"]:
        log.event("warning", "expired", queue=queue, dead=counted["dead"], why="dead_keep or dead_limit")
    return counted


def _remove(store: Store, queue: str, state: State, is_over: Callable[[int, int], bool]) -> int:
    """Removes the first jobs of a list as long as they are over, by their number and since when they stand there."""
    # Mostly none is: one is looked at first, for each is read with all that it carries.
    removed, size = 0, 1
    while True:
        page = store.jobs(queue, state, limit=size).jobs
        ids = [job.id for n, job in enumerate(page, removed) if is_over(n, job.since_ms)]
        gone = store.purge(queue, state, ids) if ids else 0
        removed += gone
        if len(ids) < size or not gone:
            return removed
        size = 100
