"""The policy of connections to Redis: tenacity decides when one is tried again, how long, and for whom.

The only waits are here, and they wrap the connection alone (connect, reconnect, send again after a lost answer): there
is one policy. No job is ever run again by this module: that is the delayed set's business.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from time import sleep
from typing import NoReturn

import tenacity

from batchq.clock import monotonic
from batchq.errors import StoreDenied, StoreUnavailable
from batchq.redis.dial import Dialer
from batchq.redis.link import FOR_EVER, Link
from batchq.redis.outage import Outage
from batchq.redis.replies import Unreached, raise_for
from batchq.redis.wire import ErrorReply, Reply

#: The longest that a single try of a brisk caller may be silent: a master has other things to do.
BRISK_S = 2.0
#: While the server is away, a caller that fails fast asks so often whether it is back, and waits so long for an answer.
PROBE_EVERY_S = 1.0
PROBE_WAIT_S = 0.25
#: After a lost answer a late copy of the call may still be on its way. For so long it is looked for each second.
LATE_S = 60.0
#: Between two tries: growing, jittered, never longer than two seconds however often it was tried.
PAUSES = tenacity.wait_random_exponential(multiplier=0.02, max=2.0)


class Links:
    """The links of one process, handed out one a call. A child of a fork forgets those of its parent."""

    def __init__(self, dialer: Dialer, *, patience_s: float | None) -> None:
        self._dialer = dialer
        # Its ends are atomic: no lock that a signal's exception or a fork could leave taken.
        self._idle: deque[Link] = deque()
        self._pid = os.getpid()
        #: How long a call may try; None: for ever, as workers do; 0: once.
        self.patience_s = patience_s
        #: Asked while a call waits for the server: whether to wait no longer.
        self.give_up: Callable[[], bool] = lambda: False
        #: While the server is away calls fail at once, but for a probe each second.
        self.fails_fast = False
        self.outage = Outage(dialer.where)
        self._last = Unreached("")
        self._probe_at = 0.0
        #: Until when a late copy of a call may still arrive.
        self._unsure_until = 0.0

    @property
    def where(self) -> str:
        return self._dialer.where

    @property
    def is_unsure(self) -> bool:
        """An answer was lost not long ago: what the server does for us may differ from what we know."""
        return monotonic() < self._unsure_until

    def doubt(self) -> None:
        """From now on, for a while."""
        self._unsure_until = monotonic() + LATE_S

    @property
    def call_s(self) -> float:
        """How long one call may last; a patient one as long as its socket may be silent."""
        if self.patience_s is None:
            return self._dialer.socket_timeout_s
        return self.patience_s or min(BRISK_S, self._dialer.socket_timeout_s)

    def new(self) -> Link:
        return self._dialer.link()

    def forget(self) -> None:
        """Closes all idle links; after a fork, those inherited."""
        while self._idle:
            self._idle.pop().close()

    def renew_after_fork(self) -> None:
        self._pid = os.getpid()
        self.outage.renew_after_fork()
        self.forget()

    def lend(self) -> Link | None:
        """An open link for a call whose answer is waited for later; `take_back` is its end. None where there is none,
        and while the server is away."""
        if os.getpid() != self._pid or self.outage.since is not None or not self._idle:
            return None
        link = self._idle.pop()
        if not link.is_open:
            self._idle.append(link)
            return None
        self.begin_call(link)
        return link

    def begin_call(self, link: Link) -> None:
        """From now on it has as long as a call has."""
        if self.patience_s is not None:
            link.until = monotonic() + self.call_s

    def take_back(self, link: Link, *, broken: bool) -> None:
        """`broken`: its call may still arrive late, and what comes after it must not share its lane."""
        if broken:
            link.new_lane()
        link.until = FOR_EVER
        self._idle.append(link)

    def run(self, exchange: Callable[[Link, bool], list[Reply]], *, writes: bool = True) -> list[Reply]:
        """Runs one exchange on a link, again after a failure of the connection while patience lasts.

        `exchange(link, again)`: again is True from the second sending on. Raises StoreUnavailable.
        """
        if os.getpid() != self._pid:
            self.renew_after_fork()
        try:
            link = self._idle.pop()
        except IndexError:
            link = self.new()
        self.begin_call(link)
        failed = False
        try:
            probed = self.fails_fast and self.outage.since is not None
            if probed:
                self._probe(link)
            was_open = link.is_open
            # The common way, without the machinery of waits.
            try:
                replies = exchange(link, False)
            except Unreached as error:
                replies = self._insist(link, exchange, error, stale=was_open and not probed, once=probed)
            if self.outage.since is not None and (writes or not self.outage.refused):
                self.outage.end()
            return replies
        except BaseException:
            failed = True
            raise
        finally:
            self.take_back(link, broken=failed)

    def _insist(
        self,
        link: Link,
        exchange: Callable[[Link, bool], list[Reply]],
        error: Unreached,
        *,
        stale: bool,
        once: bool,
    ) -> list[Reply]:
        """Sends again while patience lasts. `stale`: the connection was an old one, so that its end says little."""
        maybe = False
        # What begins behind this may be out of time for that alone: the failure before it tells more.
        half = (monotonic() + link.until) / 2

        def note(error: Unreached) -> None:
            nonlocal maybe
            if error.sent:
                maybe = True
                self.doubt()

        def again(link: Link) -> list[Reply]:
            nonlocal error
            began = monotonic()
            try:
                return exchange(link, True)
            except Unreached as another:
                note(another)
                if began < half or not another.timed_out:
                    error = another
                raise error  # noqa: B904 - one of the two, as it was raised

        note(error)
        if stale and monotonic() < link.until:
            with contextlib.suppress(Unreached):
                return again(link)
        hopeless = error.denied and self.patience_s is not None
        if once or hopeless or self.patience_s == 0 or monotonic() >= link.until:
            self._give_up(error, maybe)
        self_begins = self.patience_s is None
        policy = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Unreached),
            wait=PAUSES,
            stop=lambda state: self.give_up() or monotonic() + state.upcoming_sleep >= link.until,
            before_sleep=(lambda state: self.outage.begin(_error_of(state))) if self_begins else None,
            sleep=self._sleep,
            reraise=True,
        )
        try:
            return policy(again, link)
        except Unreached:
            self._give_up(error, maybe)

    def _probe(self, link: Link) -> None:
        """Fails at once while the server is away; each second one call asks whether it is back. Raises
        StoreUnavailable."""
        if monotonic() < self._probe_at:
            self._raise(self._last, False)
        self._probe_at = monotonic() + PROBE_EVERY_S
        until, link.until = link.until, monotonic() + PROBE_WAIT_S
        try:
            [pong] = link.ask([("PING",)])
            if isinstance(pong, ErrorReply) and pong.code != "NOPERM":
                raise_for(pong, self.where)
        except Unreached as error:
            self._give_up(error, False)
        link.until = until

    def _sleep(self, seconds: float) -> None:
        """In slices, so that a process that is told to stop does."""
        until = monotonic() + seconds
        while not self.give_up() and (left := until - monotonic()) > 0:
            sleep(min(left, 0.1))

    def _give_up(self, error: Unreached, maybe: bool) -> NoReturn:
        self._last = error
        self.outage.begin(error)
        self.outage.refused = error.refused
        self._probe_at = monotonic() + PROBE_EVERY_S
        self._raise(error, maybe)

    def _raise(self, error: Unreached, maybe: bool) -> NoReturn:
        if error.denied:
            raise StoreDenied(str(error)) from error
        away = StoreUnavailable(f"{error}; {error.way_out}")
        away.maybe = maybe
        raise away from error


def _error_of(state: tenacity.RetryCallState) -> BaseException:
    error = state.outcome.exception() if state.outcome else None
    return error or Unreached("")
