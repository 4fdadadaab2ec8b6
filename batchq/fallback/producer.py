"""Where a producer's jobs go while Redis can't take them: into the inbox of this host's spool, as plain files.

The first failure waits at most `enqueue_timeout`; then calls go to the spool at once, and one a second asks whether the
server is back (the circuit is in `connect`). A call whose outcome is unknown is spooled with its mark, so that it runs
once whether it was done or not. What waits is forwarded by the masters of this host, by `batchq spool forward`, and
here, in small portions, after a call that went well. With `ordered` calls go to the spool for as long as anything waits
there, so that none overtakes it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from batchq import log
from batchq.clock import monotonic
from batchq.errors import BatchqError, QueueFull, StoreFull, StoreUnavailable
from batchq.job import Mark, NewJob
from batchq.lifecycle import Word
from batchq.redis.outage import Outage
from batchq.redis.store import RedisStore
from batchq.store import Limits, Sent

if TYPE_CHECKING:
    from batchq.fallback.forward import Forwarder
    from batchq.redis.sync import Confirm

#: What a producer forwards after a call of its own, at most.
PORTION_FILES, PORTION_JOBS = 32, 500
#: Where there was nothing to do, or another did it: the next look.
LOOK_AGAIN_S = 0.5
#: The spool refuses when less is free: the workers of this host need room too.
RESERVE_BYTES = 16 << 20
#: File systems that end with the machine or the container.
EPHEMERAL = frozenset(("tmpfs", "ramfs", "overlay", "aufs", "rootfs", "devtmpfs"))


def fault_of(path: str, *, ephemeral: bool) -> str:
    """Why jobs can't wait at this path; "" where they can. Makes nothing."""
    from batchq.spool import fs

    there = fs.real_path(path)
    while not os.path.exists(there):
        there = os.path.dirname(there)
    kind = fs.kind_of_fs(there)
    if kind in EPHEMERAL and not ephemeral:
        return (
            f"spool: {path} lies on {kind}, which may end with this machine or container; "
            "set BATCHQ_SPOOL to a path on a disk or volume, or fallback_ephemeral = true"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        return f"spool: {there} can't be written by this user; set BATCHQ_SPOOL, or change its owner"
    return ""


class Fallback:
    """Enqueues into a store, and into the spool while the store can't take it. Threads may share it."""

    def __init__(
        self,
        store: RedisStore,
        path: str,
        limits: Limits,
        *,
        ephemeral: bool = False,
        max_pending: Callable[[str], int] = lambda queue: 0,
        confirm: Confirm = "reply",
        ordered: bool = False,
    ) -> None:
        self._store = store
        self._path = path
        self._confirm = confirm
        #: No call overtakes what waits: a step that is sent ahead would.
        self.is_ordered = ordered
        self._limits = limits
        #: Of a queue: what is forwarded waits for room in it.
        self._max_pending = max_pending
        self._fault = fault_of(path, ephemeral=ephemeral)
        if self._fault:
            log.event("warning", "fallback_off", why=self._fault)
        else:
            store.be_quick()
        #: While the server is there and refuses: too little memory, a right that is missing.
        self._refusal = Outage(store.destination, ("store_refuses", "store_takes"))
        self._lock = threading.Lock()
        #: Something may wait that was spooled by this process, or by one before it.
        self._may_wait = not self._fault
        self._look_at = 0.0
        self._forwarder: Forwarder | None = None

    def enqueue(
        self,
        queue: str,
        jobs: Sequence[NewJob],
        mark: Mark | None = None,
        *,
        max_pending: int = 0,
        sent: Sent | None = None,
    ) -> list[Word] | None:
        """At most one step of jobs. None where they wait in the spool now. `sent`: they are on their way already.

        Raises StoreUnavailable or StoreFull where neither takes them, QueueFull with `max_pending`; of an ordered one
        SpoolError too, where nobody can look what waits.
        """
        if self.is_ordered and self._stands_before():
            self._drop(queue, jobs, mark)
            return None
        try:
            if sent is not None:
                words = sent.words()
            else:
                words = self._store.enqueue(queue, jobs, mark, max_pending=max_pending)
        except (StoreUnavailable, StoreFull) as error:
            self._spool(queue, jobs, error, mark)
            outage = self._store.outage
            if outage.since is None:
                self._refusal.begin(error)
                outage = self._refusal
            outage.spooled += len(jobs)
            return None
        if self._refusal.since is not None:
            self._refusal.end()
        if self._may_wait:
            self._forward()
        return words

    def spool(self, queue: str, jobs: Sequence[NewJob], full: QueueFull) -> None:
        """The jobs of a call that a full queue refused wait in the spool until it has room."""
        self._spool(queue, jobs, full)

    def _spool(
        self, queue: str, jobs: Sequence[NewJob], error: StoreUnavailable | QueueFull, mark: Mark | None = None
    ) -> None:
        """`mark`: of an earlier sending, which may be executed though the last one was not."""
        if self._fault:
            raise _with(error, f"and there is no fallback: {self._fault}") from error
        try:
            self._drop(queue, jobs, mark if error.mark is None else Mark(*error.mark))
        except BatchqError as spool_error:
            raise _with(error, f"and the fallback can't take it either: {spool_error}") from spool_error

    def _drop(self, queue: str, jobs: Sequence[NewJob], mark: Mark | None) -> None:
        from batchq.spool.inbox import drop
        from batchq.spool.parcel import address_of

        drop(
            self._path,
            [(queue, job) for job in jobs],
            mark=mark,
            maybe=mark is not None,
            to=address_of(self._store.destination),
            room=RESERVE_BYTES,
        )
        self._may_wait = True

    def _stands_before(self) -> bool:
        """Whether something waits here that came before; what can be is forwarded first."""
        if self._fault or not self._is_behind():
            return False
        self._forward()
        return self._is_behind()

    def _is_behind(self) -> bool:
        forwarder = self._forwards()
        # In this order: what is put back meanwhile is seen among what waits.
        if forwarder.unconfirmed():
            try:
                with self._lock:
                    if forwarder.has_lost():
                        return True
            except (StoreUnavailable, StoreFull):
                # Nobody knows; and the call would not get through either.
                return True
        return forwarder.stands_before()

    def _forwards(self) -> Forwarder:
        if self._forwarder is None:
            from batchq.fallback.forward import Forwarder

            self._forwarder = Forwarder(
                self._store, self._path, self._limits, max_pending=self._max_pending, confirm=self._confirm
            )
        return self._forwarder

    def _forward(self) -> None:
        """A small portion of what waits. An enqueue that went well is not to fail for it, nor to wait for another."""
        if monotonic() < self._look_at or not self._lock.acquire(blocking=False):
            return
        try:
            forwarder = self._forwards()
            # Before the look: what is spooled from now on is seen by the next one.
            self._may_wait = False
            took = forwarder.sweep(PORTION_FILES, PORTION_JOBS)
            self._may_wait |= forwarder.waiting() + forwarder.unconfirmed() > 0
            if not took.files:
                self._look_at = monotonic() + LOOK_AGAIN_S
        except BatchqError as error:
            self._may_wait, self._look_at = True, monotonic() + LOOK_AGAIN_S
            log.event("debug", "forwarding_failed", error=str(error))
        finally:
            self._lock.release()

    # -- forks: the lock of the spool must not be held on both sides of one

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self) -> None:
        """In the parent and in the child."""
        self._lock.release()


def _with(error: StoreUnavailable | QueueFull, more: str) -> StoreUnavailable | QueueFull:
    """The same error, that says more: also whether the call may have been done."""
    kind = next(one for one in (StoreUnavailable, StoreFull, QueueFull) if isinstance(error, one))
    told = kind(f"{error}; {more}")
    told.__dict__.update(error.__dict__)
    return told
