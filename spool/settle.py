"""The moves out of active: complete, retry, bury, snooze, release by the claims' holder; reap when that is lost.

All of them are fenced alike: the job stands among the worker's claims, under this token, or it is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from batchq import gates
from batchq.job import SNOOZE_MIN_MS, Buried, Claim, Completed, Lost, Outcome, Released, Retried, Snoozed
from batchq.lifecycle import Word
from batchq.spool import batches
from batchq.spool.hall import Hall, gone
from batchq.spool.ledger import Book
from batchq.spool.rows import Puts, Standing, held, lease_of, note, remember, remove
from batchq.spool.schema import sql
from batchq.store import Limits

_LIGHT = sql("SELECT id,attempts,given OR noted OR batch IS NOT NULL FROM job WHERE state=2 AND queue=? AND owner=?")
_ALL_GONE = sql("DELETE FROM job WHERE state=2 AND queue=? AND owner=?")
_UNLEASE = sql("DELETE FROM lease WHERE queue=? AND worker=?")


class Settling:
    """A batch of ends in the making: gathered job by job, written as few statements."""

    def __init__(self, book: Book, limits: Limits) -> None:
        self.book = book
        self.n = book.n
        self.limits = limits
        self.puts = Puts(book)
        self.gone: list[Standing] = []
        self.back: list[tuple[Standing, int]] = []
        #: Claims that may hold places at gates, and gates to look after, once the rows are written.
        self.left: list[tuple[Claim, gates.Verdict]] = []
        self.tended: list[str] = []

    def write(self) -> None:
        if self.gone:
            remove(self.book, self.gone, self.limits.remember_ms)
        if self.back:
            self.puts.heads(self.back)
        self.puts.write()
        batches.write(self.book)
        if self.left or self.tended:
            hall = Hall(self.book)
            for claim, verdict in self.left:
                gates.leave(hall, claim, verdict)
            for name in self.tended:
                gates.tend(hall, name)

    def dead(self, standing: Standing, noted: int) -> None:
        """To the morgue."""
        batches.count(self.book, standing.batch, "", "dead")
        self.puts.dead(standing, noted)


def settle(
    book: Book, worker: str, outcomes: Sequence[Outcome], again: bool, limits: Limits
) -> tuple[tuple[Word, ...], int]:
    """Every outcome through its move. Answers the words, and how many claims the worker has left."""
    if _all_went_well(book, worker, outcomes):
        return (Word.OK,) * len(outcomes), 0
    holds = held(book, worker)
    settling = Settling(book, limits)
    refused = Word.SETTLED if again else Word.STALE
    words = []
    for outcome in outcomes:
        claim = outcome.claim
        standing = holds.get(claim.id)
        if standing is None or standing.attempts != claim.token:
            words.append(refused)
            continue
        del holds[claim.id]
        words.append(_move(settling, standing, outcome))
    settled = len(words) - words.count(refused)
    if not again:
        book.n["fenced"] += len(words) - settled
    book.n["n_active"] -= settled
    settling.write()
    return tuple(words), len(holds)


def _all_went_well(book: Book, worker: str, outcomes: Sequence[Outcome]) -> bool:
    """The usual case, at a third of the price: all that the worker holds is completed, and nothing else hangs on it."""
    tokens = {}
    for outcome in outcomes:
        if type(outcome) is not Completed or outcome.keep_ms > 0 or outcome.claim.gated:
            return False
        tokens[outcome.claim.id] = outcome.claim.token
    rows = book.db.execute(_LIGHT, (book.queue, worker)).fetchall()
    if len(rows) != len(outcomes) or {id: attempts for id, attempts, more in rows if not more} != tokens:
        return False
    book.db.execute(_ALL_GONE, (book.queue, worker))
    gone(book, tokens)
    book.n["completed"] += len(rows)
    book.n["n_active"] -= len(rows)
    return True


def _move(to: Settling, standing: Standing, outcome: Outcome) -> Word:
    if not outcome.claim.gated:
        return _MOVES[type(outcome)](to, standing, outcome)
    hall = Hall(to.book)
    # One that ends because it was cancelled says nothing about the other side.
    fire_ms = None if standing.cancel else gates.judge(hall, outcome)
    if fire_ms is None:
        word = _MOVES[type(outcome)](to, standing, outcome)
        to.left.append((outcome.claim, gates.verdict_of(outcome)))
        return word
    # Forgiven: it waits again.
    word = park(to, standing, fire_ms)
    given = hall.pass_of(standing.id)
    if given is not None:
        to.tended.append(given.at)
    return Word.OK if word is Word.PARKED else word


def park(to: Settling, standing: Standing, fire_ms: int) -> Word:
    """Not yet: it waits at a gate."""
    if standing.cancel:
        return _end_cancelled(to, standing)
    forgiven = standing._replace(forgiven=standing.forgiven + 1)
    to.puts.delayed(forgiven, fire_ms - -(-to.book.now_us // 1000), standing.noted)
    return Word.PARKED


def complete(to: Settling, standing: Standing, outcome: Completed) -> Word:
    to.n["completed"] += 1
    batches.count(to.book, standing.batch, "", "completed")
    if outcome.keep_ms <= 0:
        to.gone.append(standing)
        return Word.OK
    to.puts.completed(standing, outcome.keep_ms, note(to.book, standing, result=outcome.result))
    if standing.given:
        # From its end on, not from the end of its retention.
        remember(to.book, [standing.id], to.limits.remember_ms)
    return Word.OK


def retry(to: Settling, standing: Standing, outcome: Retried) -> Word:
    if standing.cancel:
        return _end_cancelled(to, standing)
    crashed = outcome.cause == "crashed"
    if outcome.cause in ("crashed", "timed_out"):
        to.n[outcome.cause] += 1
    standing = standing._replace(crashes=standing.crashes + crashed)
    reason = ""
    if standing.attempts - standing.forgiven >= outcome.max_attempts:
        reason = "max_attempts" if outcome.cause == "failed" else outcome.cause
    elif standing.crashes >= outcome.max_crashes:
        reason = "poison"
    noted = note(to.book, standing, error=outcome.error, reason=reason)
    if reason:
        to.dead(standing, noted)
        return Word.DEAD
    to.n["retried"] += 1
    to.puts.delayed(standing, outcome.delay_ms, noted)
    return Word.OK


def bury(to: Settling, standing: Standing, outcome: Buried) -> Word:
    if standing.cancel:
        return _end_cancelled(to, standing)
    to.dead(standing, note(to.book, standing, error=outcome.error, reason=outcome.reason))
    return Word.OK


def snooze(to: Settling, standing: Standing, outcome: Snoozed) -> Word:
    if standing.cancel:
        return _end_cancelled(to, standing)
    to.n["snoozed"] += 1
    forgiven = standing._replace(forgiven=standing.forgiven + 1)
    to.puts.delayed(forgiven, max(outcome.delay_ms, SNOOZE_MIN_MS), standing.noted)
    return Word.OK


def release(to: Settling, standing: Standing, outcome: Released) -> Word:
    if standing.cancel:
        return _end_cancelled(to, standing)
    to.n["released"] += 1
    noted = note(to.book, standing, error=outcome.error) if outcome.error else standing.noted
    to.back.append((standing._replace(forgiven=standing.forgiven + 1), noted))
    return Word.OK


def reap(book: Book, worker: str, outcomes: Sequence[Lost], limits: Limits) -> int:
    """Answers how many claims are left, -1 where the worker is not sealed."""
    if lease_of(book, worker) != 0:
        return -1
    holds = held(book, worker)
    settling = Settling(book, limits)
    before = len(holds)
    for outcome in outcomes:
        standing = holds.get(outcome.claim.id)
        if standing is not None and standing.attempts == outcome.claim.token:
            del holds[outcome.claim.id]
            _lose(settling, standing, outcome)
            settling.left.append((outcome.claim, gates.Verdict.NONE))
    book.n["n_active"] -= before - len(holds)
    settling.write()
    if not holds:
        book.db.execute(_UNLEASE, (book.queue, worker))
    return len(holds)


def _lose(to: Settling, standing: Standing, outcome: Lost) -> None:
    if standing.cancel:
        _end_cancelled(to, standing)
        return
    to.n["lost"] += 1
    standing = standing._replace(lost=standing.lost + 1, forgiven=standing.forgiven + 1)
    poison = standing.lost >= outcome.max_lost
    noted = note(to.book, standing, error=outcome.error, reason="poison" if poison else "")
    if poison:
        to.dead(standing, noted)
    else:
        to.puts.delayed(standing, outcome.delay_ms, noted)


def _end_cancelled(to: Settling, standing: Standing) -> Word:
    to.n["cancelled"] += 1
    batches.count(to.book, standing.batch, "", "cancelled")
    to.gone.append(standing)
    return Word.CANCELLED


_MOVES: dict[type, Callable[[Settling, Standing, Any], Word]] = {
    Completed: complete,
    Retried: retry,
    Buried: bury,
    Snoozed: snooze,
    Released: release,
}
