"""SpoolStore: the file spool as a store. Each method opens one transaction and calls the move of its name."""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, get_args

from batchq import log
from batchq.clock import SYSTEM, Clock
from batchq.errors import ConfigError, StoreError, StoreFull
from batchq.gates import Admission, GateState
from batchq.job import (
    Buried,
    Claims,
    Completed,
    Exchange,
    Job,
    Leases,
    Lost,
    Mark,
    NewJob,
    Outcome,
    Page,
    Promoted,
    QueueStats,
    Released,
    Renewal,
    Retried,
    Sealed,
    Snoozed,
    check_queue,
)
from batchq.jsons import orjson
from batchq.lifecycle import State, Word
from batchq.spool import batches, claim, enqueue, gates, inbox, lease, leave, manage, reads, settle, wake
from batchq.spool.ledger import Durability, Flush, Ledger, Tx
from batchq.spool.schema import USER_VERSION, sql
from batchq.store import PROMOTE_LIMIT, Ingested, Limits, Store, StoreInfo, Traits
from batchq.tally import BatchStats, NewBatch

T = TypeVar("T")

#: Who wants so many at once comes again soon: see `seats`.
_RUSH = 32
#: Between two looks of a worker whether there is room again.
_ROOM_S = 0.2

_PUBLISH = sql(
    "INSERT INTO master(id,until,status) VALUES(?,?,?) "
    "ON CONFLICT(id) DO UPDATE SET until=excluded.until,status=excluded.status"
)
_UNPUBLISH = sql("DELETE FROM master WHERE id=? OR until<=?")
_MASTERS = sql("SELECT status FROM master WHERE until>? ORDER BY id")


class SpoolStore(Store):
    """Jobs in a directory: an SQLite ledger and a drop box of plain files. Threads may share it; forks are safe.

    `durability`, what a power cut may take back: `power` nothing that was accepted, but a finished job may run
    again; `strict` nothing that was acknowledged; `process` the last moments. A killed process never loses anything.

    Raises ConfigError, StoreError, StoreVersion, StoreCorrupt or StoreUnavailable where the directory is none for it.
    """

    traits = Traits(kind="spool", shared=True, durable=True, idle_wait_s=1.0)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        limits: Limits = Limits(),  # noqa: B008 - a frozen value
        clock: Clock = SYSTEM,
        durability: Durability = "power",
        make: bool = True,
    ) -> None:
        """`make=False`: for looking. Where there is no spool none is made, and it reads as an empty one."""
        if durability not in get_args(Durability):
            raise ConfigError(f"durability: expected power, strict or process, found {durability!r:.60}")
        self._limits = limits
        self._clock = clock
        self._ledger = Ledger(os.fspath(path), clock=clock, durability=durability, make=make)
        self._give_up: Callable[[], bool] | None = None
        self._waiters: weakref.WeakSet[wake.FifoWaiter] = weakref.WeakSet()
        self._inbox = inbox.Sweeper(self._ledger, limits)
        #: Queue -> the lane up to which marks were looked at.
        self._marks_seen: dict[str, str] = {}
        self._finalizer = weakref.finalize(self, Ledger.close, self._ledger)

    @property
    def path(self) -> str:
        return self._ledger.layout.root

    # -- moves -----------------------------------------------------------------------------------------------------

    def enqueue(
        self, queue: str, jobs: Sequence[NewJob], mark: Mark | None = None, *, max_pending: int = 0
    ) -> list[Word]:
        check_queue(queue)
        words: list[Word] = []
        if not jobs:
            return words
        self._ledger.check_room()
        for step in enqueue.steps(jobs, mark):
            with self._ledger.write(Flush.ACCEPTED) as tx:
                words += enqueue.enqueue(tx.book(queue), step, mark, self._limits, max_pending=max_pending)
        return words

    def register(self, queue: str, worker: str, lease_ms: int) -> Word:
        check_queue(queue)
        return self._run(Flush.STRICT, lambda tx: lease.register(tx.book(queue), worker, lease_ms))

    def claim(self, queue: str, worker: str, want: int, held: int) -> Claims:
        return self.exchange(queue, worker, (), want, held).claimed

    def renew(self, queue: str, workers: Sequence[str], lease_ms: int) -> Renewal:
        return self._run(Flush.STRICT, lambda tx: lease.renew(tx.book(queue), workers, lease_ms))

    def complete(self, queue: str, worker: str, outcomes: Sequence[Completed], *, again: bool = False) -> list[Word]:
        return list(self.exchange(queue, worker, outcomes, 0, 0, again=again).words)

    def retry(self, queue: str, worker: str, outcomes: Sequence[Retried], *, again: bool = False) -> list[Word]:
        return list(self.exchange(queue, worker, outcomes, 0, 0, again=again).words)

    def bury(self, queue: str, worker: str, outcomes: Sequence[Buried], *, again: bool = False) -> list[Word]:
        return list(self.exchange(queue, worker, outcomes, 0, 0, again=again).words)

    def snooze(self, queue: str, worker: str, outcomes: Sequence[Snoozed], *, again: bool = False) -> list[Word]:
        return list(self.exchange(queue, worker, outcomes, 0, 0, again=again).words)

    def release(self, queue: str, worker: str, outcomes: Sequence[Released], *, again: bool = False) -> list[Word]:
        return list(self.exchange(queue, worker, outcomes, 0, 0, again=again).words)

    def admit(self, queue: str, worker: str, admissions: Sequence[Admission], *, again: bool = False) -> list[Word]:
        return self._run(Flush.STRICT, lambda tx: gates.admit(tx.book(queue), worker, admissions, again, self._limits))

    def trip(self, queue: str, gate: str, for_ms: int) -> None:
        self._run(Flush.ACCEPTED, lambda tx: gates.trip(tx.book(queue), gate, for_ms))

    def mend(self, queue: str, gate: str) -> None:
        self._run(Flush.ACCEPTED, lambda tx: gates.mend(tx.book(queue), gate))

    def gates(self, queue: str, *, closed: bool = True) -> list[GateState]:
        return [one for one in gates.states(self._ledger, queue) if closed or one.phase != "closed"]

    def exchange(
        self, queue: str, worker: str, outcomes: Sequence[Outcome], want: int, held: int, *, again: bool = False
    ) -> Exchange:
        seats = self._ledger.seats
        if not outcomes:
            if want <= 0:
                return Exchange((), Claims(Word.OK))
            nothing = claim.nothing_there(self._ledger, queue, worker, held)
            if nothing is not None:
                seats.leave()
                return Exchange((), nothing)
        if want < _RUSH or held:
            # What else it holds may end at any time, and keeps places at gates until it is settled.
            seats.leave()
        elif outcomes and seats.is_crowded():
            # Whoever rests holds nothing.
            settled = self.exchange(queue, worker, outcomes, 0, held, again=again)
            seats.rest(self._give_up or (lambda: False))
            claimed = Claims(Word.OK)
            # What is settled is told, and not settled again: the next claim meets the same.
            with suppress(StoreError):
                claimed = self.claim(queue, worker, want, held)
            return Exchange(settled.words, claimed)

        def move(tx: Tx) -> tuple[tuple[Word, ...], Word, list[claim.Taken]]:
            words: tuple[Word, ...] = ()
            book = tx.book(queue)
            holds: int | None = None
            if outcomes:
                words, holds = settle.settle(book, worker, outcomes, again, self._limits)
            if want > 0:
                return words, *claim.claim(book, worker, want, held, holds=holds)
            return words, Word.OK, []

        words, word, taken = self._run(Flush.STRICT, move)
        if word is Word.OK and taken:
            self._stand_down()
        else:
            seats.leave()
        return Exchange(words, claim.claims_of(queue, word, taken))

    def _run(self, flush: Flush, move: Callable[[Tx], T]) -> T:
        """All moves but enqueue go on when the disk is full. Where not even the ballast helps, a worker waits for room:
        what it has finished must not run again for want of a note."""
        since: float | None = None
        while True:
            try:
                done = self._ledger.run(flush, move)
            except StoreFull as error:
                if self._give_up is None or self._give_up():
                    raise
                if since is None:
                    since = self._clock.monotonic()
                    log.event("error", "store_full", error=str(error))
                time.sleep(_ROOM_S)
            else:
                if since is not None:
                    log.event("warning", "store_has_room", after_ms=int((self._clock.monotonic() - since) * 1000))
                return done

    def _stand_down(self) -> None:
        """A process that has found work must not be roused for more: hints are for the idle."""
        for waiter in tuple(self._waiters):
            if waiter.kind == "wake":
                waiter.stand_down()

    def promote(self, queue: str, limit: int = PROMOTE_LIMIT) -> Promoted:
        self._forget_marks(queue)
        quiet = claim.quiet(self._ledger, queue, self._limits)
        if quiet is not None:
            promoted, ready = quiet
            if ready:
                wake.push(self._ledger.layout, "wake", queue)
            return promoted
        return self._run(Flush.STRICT, lambda tx: claim.promote(tx.book(queue), limit, self._limits))

    def _forget_marks(self, queue: str) -> None:
        over, seen = claim.old_marks(self._ledger, queue, self._marks_seen.get(queue, ""), self._limits)
        self._marks_seen[queue] = seen
        if over:
            self._run(Flush.STRICT, lambda tx: claim.unmark(tx.book(queue), over, self._limits))

    def seal(self, queue: str, worker: str, expected_ms: int | None = None) -> Sealed:
        return self._run(Flush.STRICT, lambda tx: lease.seal(tx.book(queue), worker, expected_ms))

    def reap(self, queue: str, worker: str, outcomes: Sequence[Lost]) -> int:
        return self._run(Flush.STRICT, lambda tx: settle.reap(tx.book(queue), worker, outcomes, self._limits))

    def cancel(self, queue: str, ids: Sequence[str]) -> list[Word]:
        return self._run(Flush.ACCEPTED, lambda tx: manage.cancel(tx.book(queue), ids, self._limits))

    def requeue(self, queue: str, ids: Sequence[str]) -> list[Word]:
        return self._run(Flush.ACCEPTED, lambda tx: manage.requeue(tx.book(queue), ids))

    def purge(self, queue: str, state: State, ids: Sequence[str]) -> int:
        return self._run(Flush.ACCEPTED, lambda tx: manage.purge(tx.book(queue), state, ids, self._limits))

    def pause(self, queue: str) -> None:
        check_queue(queue)
        self._run(Flush.ACCEPTED, lambda tx: manage.pause(tx.book(queue)))

    def resume(self, queue: str) -> None:
        check_queue(queue)
        self._run(Flush.ACCEPTED, lambda tx: manage.resume(tx.book(queue)))

    def begin(self, queue: str, batch: NewBatch) -> Word:
        check_queue(queue)
        return self._run(Flush.ACCEPTED, lambda tx: batches.begin(tx.book(queue), batch))

    def conclude(self, queue: str, batch_id: str) -> Word:
        return self._run(Flush.ACCEPTED, lambda tx: batches.conclude(tx.book(queue), batch_id))

    def leaving(self, queue: str, state: State, limit: int) -> list[leave.Leaving]:
        """The first pending or delayed jobs with all they have behind them: for moving them to another store."""
        return leave.leaving(self._ledger, queue, state, limit)

    # -- the inbox -------------------------------------------------------------------------------------------------

    def sweep_inbox(self) -> Ingested:
        """Takes what lies in the inbox, each file exactly once. One process at a time; does nothing where another is
        at it. Bounded: call again at once while it comes back with files."""
        return self._inbox.sweep()

    # -- reads -----------------------------------------------------------------------------------------------------

    def queues(self) -> list[str]:
        return reads.queues(self._ledger)

    def stats(self, queue: str) -> QueueStats:
        return reads.stats(self._ledger, queue)

    def get(self, queue: str, job_id: str) -> Job | None:
        return reads.get(self._ledger, queue, job_id)

    def jobs(self, queue: str, state: State, *, cursor: str = "", limit: int = 100) -> Page:
        return reads.jobs(self._ledger, queue, state, cursor, limit)

    def batch(self, queue: str, batch_id: str) -> BatchStats | None:
        return batches.batch(self._ledger, queue, batch_id)

    def batches(self, queue: str, *, skip: int = 0, limit: int = 100) -> list[BatchStats]:
        return batches.batches(self._ledger, queue, skip, limit)

    def leases(self, queue: str) -> Leases:
        return lease.leases(self._ledger, queue)

    def now_ms(self) -> int:
        return self._clock.now_us() // 1000

    def info(self) -> StoreInfo:
        version = f"format 1, schema {USER_VERSION}, SQLite {sqlite3.sqlite_version}"
        return StoreInfo(f"spool:{self.path}", "spool", version)

    # -- waiting, and the life of the handle -------------------------------------------------------------------------

    def wake_waiter(self, queues: Sequence[str]) -> wake.FifoWaiter:
        return self._waiter("wake", queues)

    def timer_waiter(self, queues: Sequence[str]) -> wake.FifoWaiter:
        return self._waiter("timer", queues)

    def _waiter(self, kind: wake.Kind, queues: Sequence[str]) -> wake.FifoWaiter:
        waiter = wake.FifoWaiter(self._ledger.layout, kind, queues)
        self._waiters.add(waiter)
        return waiter

    def publish(self, master: str, status: dict[str, Any], ttl_ms: int) -> None:
        def move(tx: Tx) -> None:
            now = tx.now_us // 1000
            if status:
                tx.db.execute(_PUBLISH, (master, now + ttl_ms, orjson.dumps(status)))
            tx.db.execute(_UNPUBLISH, ("" if status else master, now))

        self._run(Flush.STRICT, move)

    def masters(self) -> list[dict[str, Any]]:
        return [orjson.loads(status) for (status,) in self._ledger.look(_MASTERS, (self.now_ms(),))]

    def be_patient(self, give_up: Callable[[], bool]) -> None:
        self._give_up = give_up

    def be_brisk(self) -> None:
        self._give_up = None

    def before_fork(self) -> None:
        self._ledger.close()

    def after_fork(self) -> None:
        self._ledger.drop_inherited()
        for waiter in list(self._waiters):
            waiter.close()
        self._waiters = weakref.WeakSet()

    def close(self) -> None:
        for waiter in list(self._waiters):
            waiter.close()
        self._ledger.close()
