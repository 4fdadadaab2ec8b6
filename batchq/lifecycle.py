"""The states of a job, the moves between them and the words that answer a move. The whole domain on one page.

Every move has one verb. The verb is the row below, the method of `Store`, the file in `lua/`, the method of
`SpoolStore`, the file in `tests/contract/` and the row in ARCHITECTURE.md; a test compares the sets.
This module moves nothing: the stores do.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where a job stands. A cancelled job leaves no row, only its count."""

    PENDING = "pending"
    DELAYED = "delayed"
    ACTIVE = "active"
    COMPLETED = "completed"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Word(StrEnum):
    """What a store answers for one job or one call. A refusal is a word, not an exception: it is expected."""

    OK = "ok"
    #: enqueue: the id stands in the queue already, or is still remembered. Nothing was changed.
    KNOWN = "known"
    #: enqueue: this call (lane, n) was done before. Nothing was written.
    AGAIN = "again"
    #: a move out of active: another claim is newer, or the job is not this worker's. Counted as fenced.
    STALE = "stale"
    #: the same for a call that is sent a second time: its first sending may have done it. Not counted.
    SETTLED = "settled"
    #: the attempt's budget was spent: the job went to the morgue instead of the delayed set.
    DEAD = "dead"
    #: the job carried a cancel mark: it ended there; or cancel removed it.
    CANCELLED = "cancelled"
    #: cancel: the job is active; it carries the mark now.
    MARKED = "marked"
    #: cancel: the job has ended already.
    FINISHED = "finished"
    #: requeue: the job is not in a state that can be requeued.
    REFUSED = "refused"
    #: no such job, or no such worker on that queue.
    UNKNOWN = "unknown"
    #: the worker was declared gone. It must take a new id.
    SEALED = "sealed"
    #: claim: the queue is paused.
    PAUSED = "paused"
    #: claim: the store counts other claims for this worker than it believes to hold; they are listed.
    HELD = "held"
    #: admit: the job may not run yet; it waits, delayed, for its turn.
    PARKED = "parked"
    #: seal: the lease was renewed since it was looked at.
    RENEWED = "renewed"


@dataclass(frozen=True, slots=True)
class Move:
    """One verb: from which states it takes a job, where it can put it, and what it does in one line."""

    verb: str
    sources: tuple[State, ...]
    targets: tuple[State, ...]
    effect: str


_P, _D, _A, _C, _X, _G = (
    State.PENDING,
    State.DELAYED,
    State.ACTIVE,
    State.COMPLETED,
    State.DEAD,
    State.CANCELLED,
)

MOVES: tuple[Move, ...] = (
    Move("enqueue", (), (_P, _D), "a new job, unless its id is known or the call was done before"),
    Move("register", (), (), "a worker's lease begins; always under a new id"),
    Move("claim", (_P,), (_A,), "attempts += 1 is the token; the job stands among the worker's claims"),
    Move("admit", (_A,), (_D, _G), "past the job's gates; or it waits for its turn at one, forgiven"),
    Move("trip", (), (), "a gate is opened by hand: nobody passes for a while"),
    Move("mend", (), (), "a gate is closed by hand: jobs pass again"),
    Move("renew", (), (), "the master prolongs its workers' leases and learns of cancel marks"),
    Move("complete", (_A,), (_C,), "the attempt went well: the row goes, or is kept for its retention"),
    Move("retry", (_A,), (_D, _X, _G), "a failed attempt: delayed by its backoff; dead when the budget is spent"),
    Move("bury", (_A,), (_X, _G), "an error that no retry can mend: dead at once"),
    Move("snooze", (_A,), (_D, _G), "not now: delayed, and the attempt is forgiven"),
    Move("release", (_A,), (_P, _G), "given back to the head of its priority; the attempt is forgiven"),
    Move("promote", (_D,), (_P,), "due jobs, in score order, to their priority's place"),
    Move("seal", (), (), "a worker is declared gone for good; answers what it held"),
    Move("reap", (_A,), (_D, _X, _G), "what a lost worker held is delayed, no attempt spent; its lease entry goes"),
    Move("cancel", (_P, _D, _A), (_G, _A), "ends a waiting job; marks an active one"),
    Move("requeue", (_X, _C), (_P,), "budgets start afresh, the token keeps counting"),
    Move("purge", (_P, _D, _C, _X), (), "removes rows, counted"),
    Move("pause", (), (), "no claims from this queue"),
    Move("resume", (), (), "claims go on"),
    Move("begin", (), (), "a batch begins: jobs that are enqueued into it are counted together"),
    Move("conclude", (), (), "no more jobs come into a batch: its callbacks are due with its last job's end"),
)

VERBS: tuple[str, ...] = tuple(move.verb for move in MOVES)

#: What a queue counts since it began. The law: enqueued + requeued ==
#: pending + delayed + active (counts) + completed + dead + cancelled + purged + dropped (totals).
TOTALS: tuple[str, ...] = (
    "enqueued",
    "requeued",
    "completed",
    "dead",
    "cancelled",
    "purged",
    "dropped",
    "retried",
    "snoozed",
    "released",
    "promoted",
    "reaped",
    "crashed",
    "timed_out",
    "lost",
    "fenced",
    "forwarded",
)

#: The states that can be listed and counted.
COUNTED: tuple[State, ...] = (_P, _D, _A, _C, _X)


def unaccounted(counts: dict[str, int], totals: dict[str, int]) -> int:
    """How many jobs the law of the totals misses: 0 where it holds, at every instant."""
    came = totals["enqueued"] + totals["requeued"]
    stand = counts["pending"] + counts["delayed"] + counts["active"]
    went = sum(totals[name] for name in ("completed", "dead", "cancelled", "purged", "dropped"))
    return came - stand - went
