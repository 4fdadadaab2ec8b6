"""Waiting for hints of a Redis server: blocking pops on connections of their own, waited for in a selector."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Sequence

from batchq.clock import monotonic
from batchq.errors import StoreUnavailable
from batchq.job import Claims
from batchq.redis.connect import Links
from batchq.redis.link import FOR_EVER
from batchq.redis.replies import Unreached, raise_for
from batchq.redis.wire import Command, ErrorReply, Reply

#: The seconds that one blocking wait lasts at the server; a worker looks by itself after it.
WAIT_S = 5
#: The same while an answer was lost not long ago: idle workers look each second for claims that they do not know of.
UNSURE_WAIT_S = 1
#: A wait that has not ended so long after its time never will: the other side of the connection is gone.
OVERDUE_S = 1.0
#: Errors that a pop may meet alone. The next one meets it at once.
_OF_POPS = ("NOPERM", "WRONGTYPE")
#: What is left of the lease of a worker that is awake, at least: its master renews each third.
FRESH = 0.5


class RedisWaiter:
    """A blocking pop on a connection of its own, waited for in a selector instead of in the call."""

    def __init__(self, links: Links, keys: Sequence[str]) -> None:
        self._links = links
        self._link = links.new()
        self._keys = keys
        self._armed = False
        #: When it was armed, and when the server must have answered.
        self._since = self._due = 0.0

    def arm(self) -> None:
        self._arm(WAIT_S)

    def _arm(self, most_s: float, *behind: Command) -> None:
        """`behind`: what the server does when the pop has ended, in the same turn of its loop."""
        now = monotonic()
        if self._armed and now < self._due:
            return
        wait_s = min(most_s, UNSURE_WAIT_S if self._links.is_unsure else WAIT_S)
        link = self._link
        if self._armed:
            # The other side is gone without a word. The old socket is closed last: the new one has another number,
            # so that a selector that knows the old one notices.
            link = self._links.new()
            self._leave()
        try:
            link.until = now + self._links.call_s
            link.send(("BLPOP", *self._keys, f"{wait_s:.3f}"), *behind)
        except Unreached as error:
            self.close()
            raise StoreUnavailable(str(error)) from error
        finally:
            link.until = FOR_EVER
        if link is not self._link:
            self._link.close()
            self._link = link
        self._armed, self._since, self._due = True, now, now + wait_s + OVERDUE_S

    def fileno(self) -> int:
        return self._link.fileno()

    def take(self) -> bool:
        if not self._armed:
            return False
        self._armed = False
        try:
            reply = self._hear()
            self._hear_more()
        except (Unreached, ErrorReply):
            # The next call of the store finds out what is wrong, and says so.
            self._link.close()
            self._leave()
            return False
        if isinstance(reply, ErrorReply):
            raise_for(reply, self._links.where, key=" or ".join(self._keys))
        return reply is not None

    def _hear(self) -> Reply:
        """The answer to the pop. Raises Unreached; ErrorReply for an error that other calls meet as well."""
        try:
            return self._link.receive()
        except ErrorReply as error:
            if error.code not in _OF_POPS:
                raise
            return error

    def close(self) -> None:
        if self._armed:
            self._leave()
        self._armed = False
        self._link.close()

    def _hear_more(self) -> None:
        """Reads the replies to what stood behind the pop."""

    def _leave(self) -> None:
        """Nobody will hear the answer."""


class RedisStandingClaim(RedisWaiter):
    """A blocking pop with a claim behind it, in one write: both are answered in one read. Whoever leaves before
    may have claimed.

    `command(worker, want, fresh_ms)` is the claim, `read` makes claims of its answer; None: claim in the ordinary way.
    """

    def __init__(
        self,
        links: Links,
        key: str,
        command: Callable[[str, int, int], Command],
        read: Callable[[Reply], Claims | None],
    ) -> None:
        super().__init__(links, [key])
        self._command = command
        self._read = read
        self._fresh_s = 0.0
        self._claims: Claims | None = None

    @property
    def stands(self) -> bool:
        return self._armed and monotonic() < self._due

    def arm_for(self, worker: str, want: int, lease_ms: int) -> None:
        self._fresh_s = lease_ms / 1000 * FRESH
        # Shorter than that: what is answered in time is never too late.
        self._arm(lease_ms / 3000, self._command(worker, want, int(lease_ms * FRESH)))

    def claims(self) -> Claims | None:
        claims, self._claims = self._claims, None
        return claims

    def _hear_more(self) -> None:
        claims = self._read(self._link.receive())
        if claims is not None and claims.claims and monotonic() - self._since >= self._fresh_s:
            # This process was frozen, and the lease may be over by now: they may be another's, and done.
            self._leave()
            claims = None
        self._claims = claims

    def _leave(self) -> None:
        self._links.doubt()


class EachWaiter:
    """A waiter a key, as one: in a cluster no blocking pop spans the slots of several queues.

    `takes_one`: a hint rouses its taker for one queue, so that the others are to go to somebody else.
    """

    def __init__(self, links: Links, keys: Sequence[str], *, takes_one: bool) -> None:
        self._waiters = [RedisWaiter(links, [key]) for key in keys]
        self._takes_one = takes_one
        # Its own descriptor is readable when one of those in it is.
        self._selector = selectors.DefaultSelector()
        self._seen: dict[int, int] = {}

    def arm(self) -> None:
        for place, waiter in enumerate(self._waiters):
            try:
                waiter.arm()
            except StoreUnavailable:
                self._drop(place)
                raise
            fd = waiter.fileno()
            if self._seen.get(place) != fd:
                self._drop(place)
                self._selector.register(fd, selectors.EVENT_READ, place)
                self._seen[place] = fd

    def fileno(self) -> int:
        # Those of epoll and kqueue have one, and there is no cluster without sockets that one of the two watches.
        return int(self._selector.fileno())

    def take(self) -> bool:
        heard = False
        for key, _ in self._selector.select(0):
            place = key.data
            self._drop(place)
            heard |= self._waiters[place].take()
        if heard and self._takes_one:
            for place in list(self._seen):
                self._drop(place)
                self._waiters[place].close()
        return heard

    def _drop(self, place: int) -> None:
        fd = self._seen.pop(place, None)
        if fd is not None:
            self._selector.unregister(fd)

    def close(self) -> None:
        # Nothing is taken out of the selector: after a fork it is the parent's too.
        for waiter in self._waiters:
            waiter.close()
        self._selector.close()
