"""One run of a queue in which each move comes up, made as a worker, a master and a person make them.

`drive` bears lost and late answers as the real processes do, and ends in one state whatever happened on the way:
`check` knows it.
"""

from __future__ import annotations

from time import monotonic

from batchq.gates import Admission, Gate
from batchq.job import (
    Buried,
    Claim,
    Completed,
    Lost,
    NewJob,
    Outcome,
    Released,
    Retried,
    Snoozed,
    pack_error,
    pack_row,
)
from batchq.lifecycle import State, Word, unaccounted
from batchq.store import Store
from batchq.tally import NewBatch

Q = "mail"
LEASE_MS = 60_000
HOUR_MS = 3_600_000
PATIENCE_S = 20.0
#: All pass it.
GATE = Gate("all", limit=9, rate=99, period_ms=HOUR_MS, threshold=9, reset_ms=HOUR_MS)
#: Its traceback is long enough for a store to keep it beside others of its kind.
ERROR = pack_error("ValueError", "no", attempt=1, at_ms=1, trace="a long way\n" * 100)


def _job(id: str, **options: object) -> NewJob:
    return NewJob(id, pack_row("send", [id]), **options)  # type: ignore[arg-type]


class MiniWorker:
    """What a worker does with the store, without processes: one exchange after the other."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.finished: list[Outcome] = []
        #: What each job came to, by the worker's own account.
        self.settled: dict[str, list[str]] = {}

    def register(self) -> None:
        assert self.store.register(Q, self.name, LEASE_MS) is Word.OK

    def turn(self, want: int) -> list[Claim]:
        """One exchange; what the store counts for us and we never saw is given back."""
        finished = self.finished
        answer = self.store.exchange(Q, self.name, finished, want, 0)
        self.finished = []
        for outcome, word in zip(finished, answer.words, strict=True):
            assert word in (Word.OK, Word.SETTLED), (outcome, word)
            self.settled.setdefault(outcome.claim.id, []).append(type(outcome).__name__)
        if answer.claimed.word is Word.HELD:
            given_back = [Released(claim._replace(gated=True)) for claim in answer.claimed.claims]
            assert set(self.store.release(Q, self.name, given_back)) <= {Word.OK, Word.SETTLED}
            return []
        assert answer.claimed.word in (Word.OK, Word.PAUSED)
        claims = answer.claimed.claims
        words = self.store.admit(Q, self.name, [Admission(claim, (GATE,)) for claim in claims]) if claims else []
        assert set(words) <= {Word.OK}
        return [claim._replace(gated=True) for claim in claims]


def _outcome(claim: Claim, doomed: str) -> Outcome:
    match claim.id:
        case "b":
            return Completed(claim, b"17", HOUR_MS)
        case "c":
            return Retried(claim, HOUR_MS, 5, ERROR)
        case id if id == doomed:
            return Buried(claim, "buried", ERROR)
        case "e":
            return Snoozed(claim, HOUR_MS)
        case _:
            return Completed(claim)


def _until_done(worker: MiniWorker, ids: set[str], want: int = 2, doomed: str = "") -> None:
    """Until these were settled once more; the doomed one is buried."""
    left = set(ids)
    deadline = monotonic() + PATIENCE_S
    while left or worker.finished:
        claims = worker.turn(want)
        worker.finished += [_outcome(claim, doomed) for claim in claims]
        left -= {claim.id for claim in claims}
        assert monotonic() < deadline, f"{left} never came"


def drive(store: Store) -> None:
    """Every move. The order is that of a day: jobs come, are worked off, people look and mend, a worker is lost."""
    store.enqueue(Q, [_job("a"), _job("b", given=True), _job("c", priority=5)])
    store.enqueue(Q, [_job("d"), _job("e", priority=-5), _job("later", delay_ms=HOUR_MS)])
    worker = MiniWorker(store, "w1")
    worker.register()
    # Claimed and given back before it began.
    worker.finished = [Released(claim) for claim in worker.turn(1)]
    worker.turn(0)
    _until_done(worker, {"a", "b", "c", "d", "e"}, doomed="d")
    assert store.renew(Q, ["w1"], LEASE_MS).words == (Word.OK,)
    store.promote(Q)
    store.cancel(Q, ["later"])
    store.requeue(Q, ["d"])
    _until_done(worker, {"d"})
    store.purge(Q, State.COMPLETED, ["b"])
    # A worker that is lost with one claim.
    store.enqueue(Q, [_job("f")])
    lost = MiniWorker(store, "w2")
    lost.register()
    deadline = monotonic() + PATIENCE_S
    while not lost.turn(1):
        # A late claim may have given it to the first one, which hears of it when it asks for more.
        worker.finished = [Released(claim) for claim in worker.turn(1)]
        worker.turn(0)
        assert monotonic() < deadline, "f never came"
    sealed = store.seal(Q, "w2")
    store.reap(Q, "w2", [Lost(claim, HOUR_MS, 10, ERROR) for claim in sealed.claims])
    assert store.begin(Q, NewBatch("letters")) in (Word.OK, Word.KNOWN)
    assert store.conclude(Q, "letters") is Word.OK
    store.pause(Q)
    store.resume(Q)
    store.trip(Q, GATE.name, HOUR_MS)
    store.mend(Q, GATE.name)
    store.enqueue(Q, [_job("g"), _job("h")])
    _until_done(worker, {"g", "h"}, want=1)


#: How it ends: a, b, d, g, h are done, b's result is purged, `later` is cancelled; c, e and f wait for an hour.
COUNTS = {"pending": 0, "delayed": 3, "active": 0, "completed": 0, "dead": 0}
TOTALS = {
    "enqueued": 9,
    "requeued": 1,
    "completed": 5,
    "dead": 1,
    "cancelled": 1,
    "purged": 0,
    "dropped": 0,
    "retried": 1,
    "snoozed": 1,
    "lost": 1,
    "fenced": 0,
    "crashed": 0,
}


def check(store: Store, what: str) -> None:
    """The end of `drive`, whatever happened on the way."""
    stats = store.stats(Q)
    assert unaccounted(stats.counts, stats.totals) == 0, (what, stats)
    assert stats.counts == COUNTS, (what, stats)
    assert {name: stats.totals[name] for name in TOTALS} == TOTALS, (what, stats)
    assert store.gates(Q) == [], what
