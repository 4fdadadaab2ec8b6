"""Forwards what waits in a spool to Redis, each parcel exactly once.

A parcel is taken (W1), read (W2), sent in one script call a step under a mark (W3), and unlinked (W5). The mark is the
parcel's own lane; where the line is a copy of a call whose outcome stayed unknown it is that call's. So whoever sends
it again (another forwarder, after a kill at any point, or the call itself, late) changes nothing. Where the server's
reply is not enough it is kept until it is confirmed (W4, `confirm`). Runs no job, and knows nothing of what Redis does
with one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from batchq import log
from batchq.clock import SYSTEM, Clock
from batchq.errors import ConfigError, InternalError, QueueFull, SpoolError, StoreError, StoreFull
from batchq.fallback.confirm import Unconfirmed
from batchq.job import Mark, NewJob
from batchq.redis.outage import Outage
from batchq.redis.store import Parcelled, RedisStore
from batchq.redis.sync import SYNC_MS, Confirm
from batchq.spool import fs
from batchq.spool.inbox import TIDY_S, Box, waiting
from batchq.spool.layout import Layout, prepare
from batchq.spool.parcel import Entry, Parcel, address_of, addressee, jobs_in
from batchq.store import Ingested, Limits

#: What one call carries. Part of the format: the calls of a parcel are numbered, and must be cut alike whenever it is
#: sent again, also by another version.
STEP_JOBS, STEP_BYTES = 480, 1 << 20
#: What one sweep takes: fresh work is not to wait for it.
SWEEP_FILES, SWEEP_JOBS = 500, 5000
#: What one round trip carries.
_TRIP_JOBS, _TRIP_BYTES = 1000, 1 << 20


class Forwarder:
    """Empties the inbox of one spool into one store.

    It takes what is addressed to that store, and what has no address where the spool is no store of its own.
    `everything`: also what is addressed to others (the server has moved). `max_pending`: of a queue; what does not fit
    waits, and all that came behind it. `confirm`, `stands_s`: when what was taken leaves the spool, see `confirm`.
    """

    def __init__(
        self,
        store: RedisStore,
        path: str | os.PathLike[str],
        limits: Limits,
        *,
        everything: bool = False,
        max_pending: Callable[[str], int] = lambda queue: 0,
        confirm: Confirm = "reply",
        stands_s: float | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._store = store
        self._limits = limits
        self._clock = clock
        self._layout = Layout(fs.real_path(os.fspath(path)))
        self._everything = everything
        self._max_pending = max_pending
        self._address = address_of(store.destination)
        self._has_ledger = False
        self._full = Outage(store.destination, ("forwarding_stands", "forwarding_goes_on"))
        self._said_foreign = False
        self._tidy_at = 0.0
        self._confirm = confirm
        self._waits_for_more = confirm != "reply"
        self._sent = Unconfirmed(store, self._layout, confirm, clock, is_ours=self._is_ours, stands_s=stands_s)
        #: How long a file may stand under sent/ while all is well.
        self.confirm_s = self._sent.stands_s + (SYNC_MS / 1000 if confirm == "waitaof" else 0.0)

    @property
    def path(self) -> str:
        return self._layout.root

    def _is_ours(self, name: str) -> bool:
        address = addressee(name)
        return self._everything or address == self._address or (not address and not self._has_ledger)

    def jobs_waiting(self) -> int:
        """How many jobs wait there for this store, as far as the names of the files tell."""
        return sum(jobs_in(name) for name in self._names())

    def waiting(self) -> int:
        """How many files lie there for this store."""
        return len(self._names())

    def stands_before(self) -> bool:
        """Whether something waits that a call made now would overtake. Raises SpoolError where nobody can look."""
        try:
            return self.waiting() > 0
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> SpoolError:
        return SpoolError(f"spool: {self.path}: {error}; check the disk and the owner")

    def unconfirmed(self) -> int:
        """How many files the server has taken that it is still to confirm. Raises SpoolError where nobody can look."""
        try:
            return len(self._sent.names())
        except OSError as error:
            raise self._unusable(error) from error

    def has_lost(self) -> bool:
        """Whether the server was started anew since, so that some of them will be sent again. Raises StoreUnavailable,
        StoreFull."""
        return self._waits_for_more and self._sent.are_lost()

    def fault(self) -> str:
        """Why that server can't confirm as it should; "" where it can, or nobody knows. Raises StoreUnavailable."""
        try:
            with suppress(StoreFull):
                self._store.check_confirm(self._confirm)
        except SpoolError as error:
            return str(error)
        return ""

    def _names(self) -> list[str]:
        # A spool with a ledger is a store: what anybody dropped there is its own.
        self._has_ledger = fs.size_of(self._layout.db) > 0
        found = waiting(self._layout)
        ours = [name for name in found if self._is_ours(name)]
        if len(found) > len(ours) and not self._said_foreign and not self._has_ledger:
            self._said_foreign = True
            log.event("warning", "spooled_for_others", path=self.path, files=len(found) - len(ours), ours=self._address)
        return ours

    def sweep(self, files: int = SWEEP_FILES, jobs: int = SWEEP_JOBS) -> Ingested:
        """Forwards some parcels. Does nothing where another process is at it. Call again while it comes back with any.

        Raises StoreUnavailable where the server is away, SpoolError for a directory that can't be used; what was taken
        stays for the next sweep.
        """
        try:
            waits = self.waiting() + self.unconfirmed() > 0
            if waits or self._is_untidy():
                _check(self.path)
                self._tidy()
            if not waits:
                return Ingested()
            lock = fs.open_lock(self._layout.sweep)
            try:
                return self._sweep(files, jobs) if fs.try_lock(lock) else Ingested()
            finally:
                fs.close(lock)
        except OSError as error:
            raise self._unusable(error) from error

    def _is_untidy(self) -> bool:
        """It is time to look for what producers that died left unfinished, and there is something."""
        return self._clock.monotonic() >= self._tidy_at and bool(fs.names(self._layout.tmp))

    def _tidy(self) -> None:
        """Removes what is old of that, as in a spool that is a store."""
        if self._clock.monotonic() >= self._tidy_at:
            self._tidy_at = self._clock.monotonic() + TIDY_S
            Box(self._layout, self._clock, self._limits).tidy()

    def _sweep(self, files: int, jobs: int) -> Ingested:
        self._sent.look()
        box = Box(self._layout, self._clock, self._limits, is_ours=self._is_ours)
        names = box.take(files)
        fs.passed("W1")
        done = Ingested()
        trip: list[tuple[Parcel, list[Parcelled]]] = []
        for name in names:
            try:
                parcel = box.read(name)
            except FileNotFoundError:
                # Race: somebody took it away by hand.
                continue
            calls = self._calls_of(box, parcel) if parcel is not None else None
            if parcel is None or calls is None:
                done = done._replace(bad=done.bad + 1)
                continue
            trip.append((parcel, calls))
            if _is_full(trip):
                done, trip = self._deliver(box, trip, done), []
                if done.jobs >= jobs or self._full.since is not None:
                    break
        fs.passed("W2")
        if trip:
            done = self._deliver(box, trip, done)
        if self._waits_for_more and done.files:
            self._sent.look()
        return done

    def _calls_of(self, box: Box, parcel: Parcel) -> list[Parcelled] | None:
        """The calls of a parcel, numbered; None where it was moved aside."""
        groups: dict[tuple[str, Mark | None], list[NewJob]] = {}
        for entry in parcel.entries:
            groups.setdefault((entry.queue, entry.mark), []).append(self._job_of(entry))
        calls: list[Parcelled] = []
        number = 0
        for (queue, mark), jobs in groups.items():
            for n, step in enumerate(_steps(jobs)):
                if mark is not None and n:
                    box.set_aside(parcel.name, f"mark: expected on lines of one call, found on {len(jobs)} jobs")
                    return None
                number += 1
                calls.append(Parcelled(queue, step, mark or Mark(parcel.u, number)))
        return calls

    def _job_of(self, entry: Entry) -> NewJob:
        """A delay goes on by the server's clock: only what is left of it is counted by this host's."""
        job = entry.job
        if not entry.relative or job.fire_ms is None:
            return job
        return job._replace(fire_ms=None, delay_ms=max(0, job.fire_ms - self._clock.now_us() // 1000))

    def _deliver(self, box: Box, trip: Sequence[tuple[Parcel, list[Parcelled]]], done: Ingested) -> Ingested:
        """Sends some parcels in one round trip (W3), and unlinks those that are in (W5), or puts them by until that is
        confirmed (W4)."""
        try:
            run = self._sent.run(call.queue for _, calls in trip for call in calls) if self._waits_for_more else ""
            answers = iter(self._store.forward([call for _, calls in trip for call in calls], self._max_pending))
        except StoreFull as error:
            self._full.begin(error)
            return done
        except InternalError as error:
            # No file stops the others, whatever is wrong with it.
            if len(trip) > 1:
                for one in trip:
                    done = self._deliver(box, [one], done)
                return done
            box.set_aside(trip[0][0].name, str(error))
            return done._replace(bad=done.bad + 1)
        fs.passed("W3")
        for parcel, calls in trip:
            found = [next(answers) for _ in calls]
            full = next((answer for answer in found if isinstance(answer, QueueFull)), None)
            late = next((answer for answer in found if isinstance(answer, ConfigError)), None)
            if full is not None:
                # It waits, and is sent again as it is: what is in already is known by its mark.
                self._full.begin(full)
                continue
            if late is not None:
                box.set_aside(parcel.name, str(late))
                done = done._replace(bad=done.bad + 1)
                continue
            self._full.end()
            if self._waits_for_more:
                self._sent.put(parcel.name, run)
            else:
                box.done(parcel.name)
                fs.passed("W5")
            done = Ingested(done.files + 1, done.jobs + len(parcel.entries), done.bad)
        return done


class Inbox:
    """What a master sweeps. A spool that can't be used is told once, and stops nothing."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._said = ""

    def waiting(self) -> int:
        """How many jobs wait there; 0 too where nobody can look."""
        try:
            return self._forwarder.jobs_waiting()
        except OSError:
            return 0

    def fault(self) -> str:
        """Why nothing will be forwarded, though the server is there; "" where it will."""
        return self._forwarder.fault()

    def sweep(self) -> Ingested:
        """Raises StoreUnavailable where the server is away."""
        try:
            took = self._forwarder.sweep()
        except SpoolError as error:
            if str(error) != self._said:
                self._said = str(error)
                log.event("error", "spool_unusable", error=self._said)
            return Ingested()
        self._said = ""
        return took


def _check(path: str) -> None:
    try:
        prepare(path, ledger=False)
    except (ConfigError, StoreError) as error:
        raise SpoolError(str(error)) from error


def _steps(jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
    step: list[NewJob] = []
    size = 0
    for job in jobs:
        if step and (len(step) >= STEP_JOBS or size + len(job.row) > STEP_BYTES):
            yield step
            step, size = [], 0
        step.append(job)
        size += len(job.row)
    yield step


def _is_full(trip: Sequence[tuple[Parcel, list[Parcelled]]]) -> bool:
    jobs = sum(len(parcel.entries) for parcel, _ in trip)
    return jobs >= _TRIP_JOBS or sum(parcel.size for parcel, _ in trip) >= _TRIP_BYTES
