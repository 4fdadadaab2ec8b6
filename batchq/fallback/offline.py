"""Runs jobs of `offline=True` handlers from the fallback spool while the server is away.

Parcels that surely never reached the server are moved, whole, into a spool of their own beside the inbox: one rename
each, so that a forwarder or this pool has one, never both. A pool of its own serves that spool until the server is
back, with all that a pool does about deaths, limits and retries. What it has not ended then is emptied into the server
(`emptying`): what ran there is never forwarded, what is forwarded does not run there again. Emptying pauses the queues
there; one that was cut off leaves them so, and nothing of them runs before it has come to its end.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress

from batchq import log
from batchq.clock import SYSTEM, monotonic
from batchq.errors import SpoolError
from batchq.fallback.emptying import empty
from batchq.jsons import orjson
from batchq.redis.store import RedisStore
from batchq.registry import Registry
from batchq.spool import SpoolStore, fs
from batchq.spool.layout import Layout, prepare
from batchq.spool.parcel import MAX_FILE, Entry, address_of, addressee, read_parcel, without_address

#: An outage that is over sooner is not worth a second pool.
AFTER_S = 1.0
#: What one look moves.
MOST_FILES = 200
#: How long emptying may keep the master from its loop, and how soon it is tried again where somebody is in the way.
EMPTY_S, AGAIN_S = 0.2, 2.0


class Shelf:
    """The spool beside the inbox, for jobs of one server."""

    def __init__(self, spool: str, store: RedisStore, registry: Registry, queues: Iterable[str]) -> None:
        self._inbox = Layout(fs.real_path(spool))
        self._address = address_of(store.destination)
        self.path = os.path.join(self._inbox.root, f"offline-{self._address}")
        self._registry = registry
        self._queues = frozenset(queues)
        #: Files that are not for here.
        self._passed: set[str] = set()

    @property
    def exists(self) -> bool:
        return fs.is_there(self.path)

    def fill(self) -> int:
        """Moves parcels here all of whose jobs may run here; answers how many. Raises OSError, BatchqError."""
        found = [name for name in fs.names(self._inbox.new) if addressee(name) == self._address]
        self._passed &= set(found)
        fresh = [name for name in found if name not in self._passed][:MOST_FILES]
        if not fresh:
            return 0
        prepare(self._inbox.root, ledger=False)
        lock = fs.open_lock(self._inbox.sweep)
        try:
            return self._fill(fresh) if fs.try_lock(lock) else 0
        finally:
            fs.close(lock)

    def _fill(self, names: Iterable[str]) -> int:
        # The other spool is nobody's but the owner's: what a group dropped waits for the forwarder.
        owners = fs.owners_of(self._inbox.new)._replace(group=None)
        moved = 0
        for name in names:
            path = os.path.join(self._inbox.new, name)
            try:
                read = fs.read_foreign(path, limit=MAX_FILE, owners=owners)
                entries = [] if read.fault else read_parcel(read.data, "0" * 24, SYSTEM.now_us() // 1000)
                if not entries or not all(map(self._may_run, entries)):
                    self._passed.add(name)
                    continue
                target = prepare(self.path, ledger=False).new
                fs.move(path, os.path.join(target, without_address(name)))
            except ValueError:
                # No parcel: whoever forwards it moves it aside.
                self._passed.add(name)
                continue
            except FileNotFoundError:
                continue  # Race: a forwarder that reaches the server took it.
            moved += 1
        if moved:
            # Crash: a power cut may put a file back, or show it in both folders, until both are flushed. Nothing of it
            # has run before: the ledger takes nothing before its own I1 is flushed.
            fs.flush_dir(Layout(fs.real_path(self.path)).new)
            fs.flush_dir(self._inbox.new)
        return moved

    def _may_run(self, entry: Entry) -> bool:
        """A generated id, and no sending that may have arrived; nothing that only the server keeps."""
        row = orjson.loads(entry.job.row)
        name = row["job"]
        return (
            not (entry.job.given or entry.maybe or entry.mark or entry.job.batch or row.get("keep"))
            and entry.queue in self._queues
            and name in self._registry
            and self._registry.get(name).offline
        )

    def lock(self) -> int | None:
        """Held by the pool that serves it and by who empties it: one at a time. None: somebody is at it."""
        held = fs.open_lock(os.path.join(self.path, "offline"))
        if fs.try_lock(held):
            return held
        fs.close(held)
        return None

    def open(self) -> SpoolStore:
        return SpoolStore(self.path)


class Offline:
    """What a master does about it. `serve(shelf)` forks the pool and answers its pid."""

    def __init__(self, shelf: Shelf, store: RedisStore, serve: Callable[[Shelf], int]) -> None:
        self._shelf = shelf
        self._store = store
        self._serve = serve
        self.pid: int | None = None
        self._stopping = False
        self._again_at = 0.0
        #: Nothing is left there, as far as is known.
        self._empty = False

    def drive(self, away_since: float | None) -> None:
        """Called in each round of the master's loop: since when the store is away, None: it is there. Raises
        StoreUnavailable."""
        now = monotonic()
        if now < self._again_at:
            return
        try:
            if away_since is not None:
                self._again_at = now + 0.2
                if now - away_since >= AFTER_S:
                    self._gather()
            elif self.pid is not None:
                self.stop()
            elif not self._empty and self._shelf.exists:
                self._return()
        except (OSError, SpoolError) as error:
            self._again_at = now + AGAIN_S
            log.event("warning", "offline_failed", path=self._shelf.path, error=str(error))

    def _gather(self) -> None:
        moved = self._shelf.fill()
        self._empty = self._empty and not moved
        if self.pid is not None or self._empty or not self._shelf.exists:
            return
        lock = self._shelf.lock()
        if lock is None:
            # Another pool of this host serves it.
            self._again_at = monotonic() + AGAIN_S
            return
        try:
            # The child inherits the lock, and holds it for its life.
            self._stopping, self.pid = False, self._serve(self._shelf)
        finally:
            fs.close(lock)
        log.event("info", "offline", pid=self.pid, path=self._shelf.path, files=moved)

    def stop(self) -> None:
        """Tells the pool to end; what runs may finish."""
        if self.pid is not None and not self._stopping:
            self._stopping = True
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def ended(self) -> None:
        self.pid = None
        self._again_at = monotonic() + (0 if self._stopping else AGAIN_S)

    def _return(self) -> None:
        """What the pool left goes to the server, a while of it each time."""
        lock = self._shelf.lock()
        if lock is None:
            self._again_at = monotonic() + AGAIN_S
            return
        moved, until = 0, monotonic() + EMPTY_S
        spool = self._shelf.open()
        try:
            is_empty = True
            for portion in empty(spool, self._store):
                moved += portion
                if monotonic() > until:
                    is_empty = False
                    break
            # Crash: where it is cut off, by an outage or a kill, the queues stay paused. The server may have taken what
            # still stands here, and will run it.
            for queue in spool.queues():
                spool.resume(queue)
            self._empty = is_empty
        finally:
            spool.close()
            fs.close(lock)
            if moved:
                log.event("info", "offline_returned", path=self._shelf.path, jobs=moved)
