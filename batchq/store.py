"""The contract of a store: one method a move, and the reads. Redis, the file spool and memory keep it alike.

Each move is one atomic step. Every move of claimed jobs takes many; one job is a batch of one. Answers are words
(`lifecycle.Word`), in the order of what was asked. Worker ids are never used twice. All times are the store's own.
A caller may pass any number of jobs: stores split what is more than one step can carry (MAX_JOBS, MAX_BYTES).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

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
)
from batchq.lifecycle import State, Word
from batchq.tally import BatchStats, NewBatch

#: The most jobs that one step carries. Twice as many arguments stay under 1000, the safe size of a Lua unpack.
MAX_JOBS = 480
#: The most bytes that one step carries (or one larger job).
MAX_BYTES = 1 << 20
#: The most jobs that one promote moves.
PROMOTE_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """What a store is told when it is made."""

    #: How long a mark is known.
    mark_ttl_ms: int = 7 * 86_400_000
    #: How long an id given by a caller is known after the job's end.
    remember_ms: int = 86_400_000
    #: How long a batch is known after its end.
    batch_keep_ms: int = 7 * 86_400_000


@dataclass(frozen=True, slots=True)
class Traits:
    """Where stores differ on purpose, each with its reason."""

    #: redis, spool, memory.
    kind: str
    #: Other processes see it: a prefork pool needs that.
    shared: bool
    #: What was acknowledged survives the end of every process of ours.
    durable: bool
    #: How long an idle worker may wait for a hint before it looks by itself.
    idle_wait_s: float


class Waiter(Protocol):
    """Waits for a hint of a store without polling: its descriptor goes into a selector."""

    def arm(self) -> None:
        """Begins to wait, after a look that found nothing: hints that came since then are not lost. Does nothing while
        armed. Raises StoreUnavailable."""
        ...

    def fileno(self) -> int:
        """Readable when a hint has come. Valid once armed, until take or close."""
        ...

    def take(self) -> bool:
        """Consumes what made the descriptor readable; True for a hint, False for a wait that ended without one. Raises
        StoreError where nobody can wait like this until a person has mended something: whoever does looks by itself."""
        ...

    def close(self) -> None: ...


class StandingClaim(Waiter, Protocol):
    """A waiter whose hint brings a claim along, one way to the store and back less. For a worker that holds nothing and
    claims in no other way while it stands. Once closed or lost it may have claimed all the same: the store is unsure,
    and the next claim says what it counts."""

    @property
    def stands(self) -> bool:
        """It was armed, may still be answered, and is neither taken nor closed."""
        ...

    def arm_for(self, worker: str, want: int, lease_ms: int) -> None:
        """As `arm`. Nothing is claimed once half of the lease is over that was last renewed: a pool that
        is frozen must not keep jobs from others."""
        ...

    def claims(self) -> Claims | None:
        """What `Store.claim` would have answered, after `take`, once. None: something was in the way, claim anew."""
        ...


class Sent(Protocol):
    """A step of jobs that is on its way to a store."""

    def words(self) -> list[Word]:
        """Waits for the answer, once. What `enqueue` would have answered, or raised."""
        ...

    def drop(self) -> None:
        """Nobody will ask for the answer. The step may be done or not."""
        ...


class Ingested(NamedTuple):
    """What a sweep of an inbox took: files, the jobs in them, and how many files were moved aside."""

    files: int = 0
    jobs: int = 0
    bad: int = 0


class StoreInfo(NamedTuple):
    """What a store says of itself. The url carries no password."""

    url: str
    kind: str
    version: str


class Concern(str):
    """One of `Store.warnings`. `grave`: jobs will be lost sooner or later, not only in a crash."""

    grave: bool

    def __new__(cls, text: str, *, grave: bool = False) -> Self:
        made = super().__new__(cls, text)
        made.grave = grave
        return made


class Store(ABC):
    """See the module. Raises StoreUnavailable where the store can't be reached, StoreFull where enqueue has no room."""

    traits: Traits

    # -- moves ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def enqueue(
        self, queue: str, jobs: Sequence[NewJob], mark: Mark | None = None, *, max_pending: int = 0
    ) -> list[Word]:
        """- -> pending or delayed. OK, KNOWN (the id stands or is remembered: nothing changed) a job; AGAIN for all
        where the mark says that the call was done before. Without a mark a call can't be repeated safely.

        More than MAX_JOBS jobs, or MAX_BYTES of rows, do not fit one mark: ValueError where a mark is given.
        With `max_pending` QueueFull is raised, nothing changed and the mark not set, where more would be pending then;
        a step that alone is larger is taken by an empty queue. ConfigError for a batch that takes no more jobs.
        """

    def send_ahead(self, queue: str, jobs: Sequence[NewJob], mark: Mark | None = None) -> Sent | None:
        """`enqueue` of at most one step without waiting for the answer, so that the next can be made meanwhile. None
        where nothing is gained by that, or where it can't be done now: call `enqueue` then."""
        return None

    @abstractmethod
    def register(self, queue: str, worker: str, lease_ms: int) -> Word:
        """A worker's lease begins. OK, or SEALED where that id was used up."""

    @abstractmethod
    def claim(self, queue: str, worker: str, want: int, held: int) -> Claims:
        """pending -> active, up to `want`, in order. `held`: how many claims the worker believes it has on this queue.

        Words: OK (claims may be empty), PAUSED, SEALED, UNKNOWN (not registered), HELD (the count differs; `claims`
        are what the store has). An id whose row is gone is dropped and counted, never invented.
        Due delayed jobs are promoted on the way.
        """

    @abstractmethod
    def renew(self, queue: str, workers: Sequence[str], lease_ms: int) -> Renewal:
        """New lease ends; SEALED or UNKNOWN where there is none to renew. Answers the workers' cancel marks.

        Any worker's lease end further away than the longest lease in use is cut to now + that (a clock jumped).
        """

    @abstractmethod
    def complete(self, queue: str, worker: str, outcomes: Sequence[Completed], *, again: bool = False) -> list[Word]:
        """active -> completed. OK, STALE, SETTLED. A cancel mark does not hinder it."""

    @abstractmethod
    def retry(self, queue: str, worker: str, outcomes: Sequence[Retried], *, again: bool = False) -> list[Word]:
        """active -> delayed at now + delay. OK, DEAD (attempt >= max_attempts, or crashes >= max_crashes), CANCELLED,
        STALE, SETTLED. The reason of the dead: `max_attempts`, or the cause where it was `crashed` or `timed_out`;
        `poison` where the crashes were spent first."""

    @abstractmethod
    def bury(self, queue: str, worker: str, outcomes: Sequence[Buried], *, again: bool = False) -> list[Word]:
        """active -> dead. OK, CANCELLED, STALE, SETTLED."""

    @abstractmethod
    def snooze(self, queue: str, worker: str, outcomes: Sequence[Snoozed], *, again: bool = False) -> list[Word]:
        """active -> delayed; forgiven += 1; at least SNOOZE_MIN_MS. OK, CANCELLED, STALE, SETTLED."""

    @abstractmethod
    def release(self, queue: str, worker: str, outcomes: Sequence[Released], *, again: bool = False) -> list[Word]:
        """active -> pending, to the head of its priority, the batch in its order; forgiven += 1.
        OK, CANCELLED, STALE, SETTLED."""

    @abstractmethod
    def admit(self, queue: str, worker: str, admissions: Sequence[Admission], *, again: bool = False) -> list[Word]:
        """Claimed jobs past their gates, in order. OK: it may run; its claim holds a place at each gate, and has to be
        settled with `gated`. PARKED: delayed, forgiven; it comes back when it is its turn. CANCELLED, STALE, SETTLED.

        Repeating it is safe: a claim that has passed has passed.
        """

    @abstractmethod
    def trip(self, queue: str, gate: str, for_ms: int) -> None:
        """Opens a gate by hand: nobody passes for so long, then one as a probe."""

    @abstractmethod
    def mend(self, queue: str, gate: str) -> None:
        """Closes a gate by hand: jobs pass, and those that wait are called."""

    @abstractmethod
    def gates(self, queue: str, *, closed: bool = True) -> list[GateState]:
        """The gates of a queue at which anything is going on, by name; without `closed` those alone whose circuit is
        not."""

    @abstractmethod
    def exchange(
        self, queue: str, worker: str, outcomes: Sequence[Outcome], want: int, held: int, *, again: bool = False
    ) -> Exchange:
        """Settles a batch and claims the next one in one round trip (or transaction). `outcomes` are of this queue.

        `held` counts after the settling. With want = 0 nothing is claimed and the claims are (OK, ()).
        """

    @abstractmethod
    def promote(self, queue: str, limit: int = PROMOTE_LIMIT) -> Promoted:
        """delayed -> pending, what is due, in score order. Pushes a wake-up where work is ready and none is under way.
        Also forgets given ids whose time is over."""

    @abstractmethod
    def seal(self, queue: str, worker: str, expected_ms: int | None = None) -> Sealed:
        """The worker is gone for good: renew, claim and register answer SEALED from now on. Answers its claims.

        Its claims are `gated`: nobody knows here which of them hold places at gates, and whoever reaps them looks.
        With `expected_ms` only where its lease end still is that value, else RENEWED. Repeating it is safe: it
        answers what is still held. Totals: `reaped` grows by what stood there at the first sealing.
        """

    @abstractmethod
    def reap(self, queue: str, worker: str, outcomes: Sequence[Lost]) -> int:
        """Moves claims of a sealed worker of which nobody knows if they ran: lost += 1, forgiven += 1, delayed, dead
        (`poison`) at max_lost, or cancelled. Removes the lease entry when the worker holds nothing any more.

        Answers how many claims are left; -1 where the worker is not sealed (nothing was done). What surely ran or
        surely did not goes through retry and release before, under this worker's id.
        """

    @abstractmethod
    def cancel(self, queue: str, ids: Sequence[str]) -> list[Word]:
        """pending, delayed -> cancelled: CANCELLED. Active: MARKED. FINISHED where it ended already, UNKNOWN."""

    @abstractmethod
    def requeue(self, queue: str, ids: Sequence[str]) -> list[Word]:
        """dead, or completed and kept -> pending, at the tail. forgiven = attempts, crashes = lost = 0. OK, REFUSED
        (another state), UNKNOWN."""

    @abstractmethod
    def purge(self, queue: str, state: State, ids: Sequence[str]) -> int:
        """Removes those of the ids that stand in that state (pending, delayed, completed, dead), and counts them.
        The total `purged` counts unfinished jobs only."""

    @abstractmethod
    def pause(self, queue: str) -> None:
        """No claims from this queue; enqueues go on."""

    @abstractmethod
    def resume(self, queue: str) -> None:
        """Claims go on; pushes a wake-up."""

    @abstractmethod
    def begin(self, queue: str, batch: NewBatch) -> Word:
        """A batch begins: enqueue takes jobs into it until it has ended. OK; KNOWN: it stands already."""

    @abstractmethod
    def conclude(self, queue: str, batch_id: str) -> Word:
        """Nothing more comes into the batch but by its own jobs. When nothing is pending in it (at once, where that is
        so already) `on_complete` is enqueued, and `on_success` where all are completed: in the same step, each once,
        as `<id>.complete` and `<id>.success` at the tail. OK, UNKNOWN. Repeating it changes nothing."""

    # -- reads ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def queues(self) -> list[str]:
        """The names of all queues that were ever enqueued to, or have batches, sorted."""

    @abstractmethod
    def stats(self, queue: str) -> QueueStats:
        """Counts and totals of one atomic look: the law of the totals holds in every answer."""

    @abstractmethod
    def get(self, queue: str, job_id: str) -> Job | None:
        """One job, or None."""

    @abstractmethod
    def jobs(self, queue: str, state: State, *, cursor: str = "", limit: int = 100) -> Page:
        """A page of a state's list: pending in claim order, delayed by fire-time, dead by time of death, completed by
        the end of its retention, active by worker. While jobs move, one may be seen twice, none of those that stay
        is missed. Raises ConfigError for a cursor that is none of this store's."""

    @abstractmethod
    def batch(self, queue: str, batch_id: str) -> BatchStats | None:
        """One batch at one instant, or None."""

    @abstractmethod
    def batches(self, queue: str, *, skip: int = 0, limit: int = 100) -> list[BatchStats]:
        """Those that have not ended, then by their end, the latest first. While some end, one may be missed."""

    @abstractmethod
    def leases(self, queue: str) -> Leases:
        """All workers of the queue, sealed ones included."""

    @abstractmethod
    def now_ms(self) -> int:
        """The store's clock."""

    @abstractmethod
    def info(self) -> StoreInfo: ...

    def warnings(self) -> list[str]:
        """What is set in a way that may lose jobs, a sentence each, and what could not be looked at."""
        return []

    # -- waiting, and the life of the handle -----------------------------------------------------------------------

    @abstractmethod
    def wake_waiter(self, queues: Sequence[str]) -> Waiter:
        """Hints that work is ready on one of the queues: for idle workers."""

    def standing_claim(self, queue: str) -> StandingClaim | None:
        """The same for a worker of one queue, where the store can claim in the same step; None where that saves
        nothing."""
        return None

    @abstractmethod
    def timer_waiter(self, queues: Sequence[str]) -> Waiter:
        """Hints that the earliest fire-time of one of the queues changed: for the master."""

    @abstractmethod
    def publish(self, master: str, status: dict[str, Any], ttl_ms: int) -> None:
        """A master says what it and its workers do; forgotten after the ttl. An empty status takes it back at once."""

    @abstractmethod
    def masters(self) -> list[dict[str, Any]]:
        """What the masters alive said last."""

    def sweep_inbox(self) -> Ingested:
        """Takes in what other programs have dropped, where the store has an inbox: each file exactly once, some at a
        time. Call again at once while it comes back with any."""
        return Ingested()

    def waiting_here(self) -> int:
        """How many jobs wait on this host for the store, as far as the names of their files tell."""
        return 0

    @property
    def is_unsure(self) -> bool:
        """An answer was lost not long ago: a late copy of that call may still arrive."""
        return False

    def be_patient(self, give_up: Callable[[], bool]) -> None:  # noqa: B027 - most stores are never away
        """Calls wait for a store that is away until `give_up()` says so: for workers."""

    def be_silent(self) -> None:  # noqa: B027 - the same
        """Says nothing of outages: somebody else does."""

    def be_brisk(self) -> None:  # noqa: B027 - the same
        """Calls fail at once where the store is away: for the master, whose loop must go on."""

    @abstractmethod
    def before_fork(self) -> None:
        """Called by a process that is about to fork: lets go of what may not cross a fork. Reopens by itself."""

    @abstractmethod
    def after_fork(self) -> None:
        """Called in the child: drops what it inherited without sending a byte."""

    @abstractmethod
    def close(self) -> None: ...
