"""Empties the ledger of a spool into Redis: for a spool that was the store before. Each job comes exactly once.

The queues are paused first, so that nobody claims a job while it moves; they stay so. Then each job is adopted there
under a mark that names this very job in this very state, and purged here. A kill between the two sends it again, and
the mark answers `again` (for `mark_ttl`). It carries its attempts, what was forgiven, crashes, losses, errors, priority
and the time of its first enqueue; what is left of a delay goes on by the server's clock. What has ended stays there.
"""

from __future__ import annotations

from collections.abc import Iterator

from batchq.backoff import DEFAULT
from batchq.clock import SYSTEM, Clock
from batchq.digest import sha256
from batchq.errors import SpoolError, StoreFull
from batchq.job import Claim
from batchq.lifecycle import State
from batchq.master.sweeps import reap_lost
from batchq.redis.store import Adopted, RedisStore
from batchq.spool import SpoolStore, fs
from batchq.worker.runner import Terms

#: What one round trip carries.
PORTION = 100
MAX_ATTEMPTS, MAX_LOST = 5, 10


def empty(spool: SpoolStore, store: RedisStore, *, clock: Clock = SYSTEM) -> Iterator[int]:
    """Moves jobs a portion at a time; yields how many each was. Repeat it safely after any end.

    Raises SpoolError where a master serves that spool, StoreUnavailable, StoreFull.
    """
    if masters := spool.masters():
        raise SpoolError(
            f"spool: {spool.path}: expected no master, found {masters[0].get('id', 'one')}; "
            "stop the pools that serve it, then forward again"
        )
    # What was dropped for the ledger goes its way.
    while spool.sweep_inbox().files:
        pass
    for queue in spool.queues():
        spool.pause(queue)
    for queue in spool.queues():
        _reap(spool, queue)
        for state in (State.PENDING, State.DELAYED):
            while portion := spool.leaving(queue, state, PORTION):
                jobs = [
                    Adopted(
                        id=one.id,
                        row=one.row,
                        priority=one.priority,
                        delay_ms=max(0, one.at_ms - clock.now_us() // 1000) if state is State.DELAYED else None,
                        given=one.given,
                        attempts=one.attempts,
                        note=_note(one.forgiven, one.crashes, one.lost, one.errors),
                        lane=_lane(queue, one.id, one.row, one.attempts),
                    )
                    for one in portion
                ]
                answers = store.adopt(queue, jobs)
                fs.passed("A1")
                full = next((answer for answer in answers if isinstance(answer, StoreFull)), None)
                there = [job.id for job, answer in zip(jobs, answers, strict=True) if answer is not full]
                # Promoted meanwhile by somebody's sweep: it stands in the other list then.
                if spool.purge(queue, state, there) < len(there):
                    for other in (State.PENDING, State.DELAYED):
                        spool.purge(queue, other, there)
                yield len(there)
                if full is not None:
                    raise full


def left(spool: SpoolStore) -> tuple[int, int]:
    """What stays in the ledger: jobs that still run there, and those that have ended."""
    counts = [spool.stats(queue).counts for queue in spool.queues()]
    return sum(one["active"] for one in counts), sum(one["dead"] + one["completed"] for one in counts)


def _reap(spool: SpoolStore, queue: str) -> None:
    """What workers held whose lease is over: there is no master to see it."""
    leases = spool.leases(queue)
    for worker, end in leases.ends.items():
        if end <= leases.now_ms:
            reap_lost(spool, queue, worker, end, _terms, MAX_LOST)


def _terms(claim: Claim) -> Terms:
    return Terms(max_attempts=MAX_ATTEMPTS, backoff=DEFAULT)


def _lane(queue: str, job_id: str, row: bytes, attempts: int) -> str:
    """Names this job of this enqueue (its row has the time) after so many claims."""
    text = b"\0".join((queue.encode(), job_id.encode(), b"%d" % attempts, row))
    return f"ledger-{sha256(text).hexdigest()[:32]}"


def _note(forgiven: int, crashes: int, lost: int, errors: bytes) -> bytes:
    """As lua/include/note.lua has it; b"" where there is nothing to tell."""
    if not (forgiven or crashes or lost or errors):
        return b""
    head = b"%d %d %d 0 0 -" % (forgiven, crashes, lost)
    return b"\n".join((head, *filter(None, errors.split(b"\n"))))
