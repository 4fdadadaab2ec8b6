"""Connections to Redis: one link is one socket with its lane; tenacity decides when it is tried again.

The only waits are here, and they wrap the connection alone (connect, reconnect, send again after a lost answer).
redis-py's own retries are off, so that there is one policy. No job is ever run again by this module: that is the
delayed set's business.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import sleep
from typing import Any, NoReturn

import hiredis
import redis
import tenacity
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.retry import Retry

from batchq import log
from batchq.clock import monotonic
from batchq.errors import (
    ConfigError,
    InternalError,
    StoreCorrupt,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from batchq.job import random_name

Reply = Any
Command = tuple[str | bytes | int, ...]

#: Replies that prove "not executed, try again": the server is starting, a replica, or busy with a script.
_TRANSIENT = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS", "MISCONF")
#: Replies that refuse the user: a person must look, but nothing was executed.
_DENIED = ("NOAUTH", "WRONGPASS")

#: The longest that a single try of a brisk caller may be silent: a master has other things to do.
BRISK_S = 2.0
#: While the server is away, a caller that fails fast asks so often whether it is back, and waits so long for an answer.
PROBE_EVERY_S = 1.0
PROBE_WAIT_S = 0.25
#: After a lost answer a late copy of the call may still be on its way. For so long it is looked for each second.
LATE_S = 60.0

FOR_EVER = float("inf")

#: redis-py's own way to this looks at each argument first, which is a tenth of a worker's time. (Its type says less.)
_pack: Callable[[Command], bytes] = hiredis.pack_command  # type: ignore[assignment]

_URL_FORM = (
    "expected redis://[user:password@]host:port/db, "
    "with any /, ?, # or @ of the user and password percent-encoded (%2F for /)"
)


class Unreached(Exception):
    """One try did not come through. Inside the Redis modules and their tests only: callers see StoreUnavailable."""

    def __init__(self, text: str, *, sent: bool = False, denied: bool = False, refused: bool = False) -> None:
        super().__init__(text)
        #: The server is there and does no writes now: it may answer reads all the same.
        self.refused = refused
        #: The call may have been executed; False where it surely was not.
        self.sent = sent
        #: The server is there and refuses this user.
        self.denied = denied


class Dialer:
    """Makes connections to one server. `where` is its address without the password."""

    def __init__(self, url: str, *, socket_timeout_s: float) -> None:
        try:
            self._pool = ConnectionPool.from_url(
                url,
                socket_timeout=socket_timeout_s,
                socket_connect_timeout=socket_timeout_s,
                retry=Retry(NoBackoff(), 0),
                health_check_interval=0,
                protocol=2,
            )
        except ValueError:
            # Without the text of the error: it may hold a part of the password.
            raise ConfigError(f"url: {_URL_FORM}") from None
        kwargs = self._pool.connection_kwargs
        if "@" in url and not kwargs.keys() & {"username", "password"}:
            # An unescaped / or ? ends the host part early, and redis-py would connect to localhost without a word.
            raise ConfigError(f"url: {_URL_FORM}")
        self.socket_timeout_s = socket_timeout_s
        self.where: str = kwargs.get("path") or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
        self.db = int(kwargs.get("db") or 0)

    def dial(self) -> Any:
        """A connection of redis-py, not yet open. Its methods are untyped; only Link touches it."""
        # Not by the pool, which counts what it has made and stops at a number.
        return self._pool.connection_class(**self._pool.connection_kwargs)


class Link:
    """One connection, opened when it is first used. Not for two threads at once."""

    def __init__(self, dialer: Dialer) -> None:
        self._connection = dialer.dial()
        self._dialer = dialer
        #: The limit that the socket has now, in seconds.
        self._limit_s = dialer.socket_timeout_s
        #: When the call under way must have ended, on the monotonic clock.
        self.until = FOR_EVER
        self.new_lane()

    @property
    def where(self) -> str:
        return self._dialer.where

    @property
    def is_open(self) -> bool:
        return self._connection._sock is not None

    def new_lane(self) -> None:
        """Enqueue calls from now on are told apart from all before: after a call whose outcome stays unknown."""
        self.lane = random_name()
        self.calls = 0

    def ask(self, commands: Sequence[Command]) -> list[Reply]:
        """Sends all and reads a reply each; an error reply stands in its place as a ResponseError.

        Whatever is raised between sending and the last reply (a signal's exception too) closes the connection: what
        is left unread would be taken for the answer to the next call. Raises Unreached.
        """
        connection = self._connection
        sent = False
        try:
            self._ready()
            packed = b"".join(map(_pack, commands))
            sent = True
            connection.send_packed_command([packed], check_health=False)
            replies: list[Reply] = []
            for _ in commands:
                if self.until != FOR_EVER:
                    self._limit()
                replies.append(_read(connection))
        except BaseException as error:
            connection.disconnect()
            self._raise_unreached(error, sent=sent)
            raise
        return replies

    def send(self, command: Command) -> None:
        """Sends one command whose reply is waited for elsewhere. Raises Unreached."""
        try:
            self._ready()
            self._connection.send_command(*command)
        except BaseException as error:
            self._connection.disconnect()
            self._raise_unreached(error, sent=True)
            raise

    def receive(self) -> Reply:
        """The reply to `send`. Raises Unreached; ResponseError for an error reply."""
        try:
            return self._connection.read_response()
        except redis.ResponseError:
            raise
        except BaseException as error:
            self._connection.disconnect()
            self._raise_unreached(error, sent=True)
            raise

    def _ready(self) -> None:
        """Open, with the time limit of this call."""
        connection = self._connection
        if connection._sock is None:
            left = self._left()
            connection.socket_timeout = connection.socket_connect_timeout = self._limit_s = left
            connection.connect()
        self._limit()

    def _left(self) -> float:
        left = min(self._dialer.socket_timeout_s, self.until - monotonic())
        if left <= 0:
            raise redis.TimeoutError("no answer in time")
        return left

    def _limit(self) -> None:
        left = self._dialer.socket_timeout_s if self.until == FOR_EVER else self._left()
        # Near enough: it is a system call.
        if not 0.8 * left <= self._limit_s <= 1.05 * left:
            self._connection._sock.settimeout(left)
            self._limit_s = left

    def _raise_unreached(self, error: BaseException, *, sent: bool) -> None:
        """What a failed try means. Returns where it is none of the connection's faults."""
        text = f"redis at {self.where}: {_text(error)}"
        if isinstance(error, redis.AuthenticationError | redis.exceptions.AuthorizationError):
            raise Unreached(f"{text}; check the user and password of the url", denied=True) from error
        if isinstance(error, redis.exceptions.BusyLoadingError) or "max number of clients" in text:
            # The server said so instead of executing.
            raise Unreached(text) from error
        if isinstance(error, redis.ResponseError):
            # From the handshake.
            if "DB index" in text:
                raise ConfigError(
                    f"url: expected a database that redis at {self.where} has, found {self._dialer.db}; "
                    "write a smaller number behind the last /"
                ) from error
            raise_for(error, self.where)
        if isinstance(error, redis.RedisError | OSError):
            raise Unreached(text, sent=sent) from error

    def fileno(self) -> int:
        sock = self._connection._sock
        if sock is None:
            raise InternalError("a link that is not open has no descriptor")
        return int(sock.fileno())

    def close(self) -> None:
        """Closes the socket. In a process that inherited it, no byte is sent (redis-py compares the pid)."""
        self._connection.disconnect()


def _read(connection: Any) -> Reply:
    """A function of its own: in Python 3.11 the first line of a `try` inside another one belongs to neither."""
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def _text(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class Outage:
    """The time in which a server can't be reached: one line in the log when it begins, one when it ends."""

    def __init__(self, where: str, verbs: tuple[str, str] = ("store_unavailable", "store_back")) -> None:
        self._where = where
        self._verbs = verbs
        self._lock = threading.Lock()
        #: Nothing is logged: somebody else speaks for this process.
        self.quiet = False
        #: But for what the server says to this process alone: that it does not get in.
        self.tells_refusals = False
        #: How many there were in this process.
        self.count = 0
        #: When it began, on the monotonic clock; None: there is none.
        self.since: float | None = None
        #: The server answers, but refuses writes: a read says nothing about its end.
        self.refused = False
        #: Jobs that went to the fallback spool meanwhile.
        self.spooled = 0

    def begin(self, error: BaseException) -> None:
        """Does nothing where it has begun already."""
        with self._lock:
            if self.since is not None:
                return
            self.since = monotonic()
            self.count += 1
            self.spooled = 0
            self.refused = isinstance(error, Unreached) and error.refused
        refused = isinstance(error, Unreached) and (error.denied or "max number of clients" in str(error))
        if not self.quiet or (refused and self.tells_refusals):
            log.event("error", self._verbs[0], error=str(error), pid=os.getpid())

    def end(self) -> None:
        """The server has answered."""
        with self._lock:
            if self.since is None:
                return
            lasted_ms, spooled, self.since = int((monotonic() - self.since) * 1000), self.spooled, None
        if not self.quiet:
            log.event(
                "warning", self._verbs[1], store=self._where, after_ms=lasted_ms, spooled=spooled, outages=self.count
            )

    def renew_after_fork(self) -> None:
        self._lock = threading.Lock()


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
        self.unsure_until = 0.0

    @property
    def where(self) -> str:
        return self._dialer.where

    @property
    def is_unsure(self) -> bool:
        """An answer was lost not long ago: what the server does for us may differ from what we know."""
        return monotonic() < self.unsure_until

    @property
    def call_s(self) -> float:
        """How long one call may last; a patient one as long as its socket may be silent."""
        if self.patience_s is None:
            return self._dialer.socket_timeout_s
        return self.patience_s or min(BRISK_S, self._dialer.socket_timeout_s)

    def new(self) -> Link:
        return Link(self._dialer)

    def forget(self) -> None:
        """Closes all idle links; after a fork, those inherited."""
        while self._idle:
            self._idle.pop().close()

    def renew_after_fork(self) -> None:
        self._pid = os.getpid()
        self.outage.renew_after_fork()
        self.forget()

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
        if self.patience_s is not None:
            link.until = monotonic() + self.call_s
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
            # The call may still arrive late: what comes after it must not share its lane.
            link.new_lane()
            raise
        finally:
            link.until = FOR_EVER
            self._idle.append(link)

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

        def noted(error: Unreached) -> Unreached:
            nonlocal maybe
            if error.sent:
                maybe, self.unsure_until = True, monotonic() + LATE_S
            return error

        def again(link: Link) -> list[Reply]:
            try:
                return exchange(link, True)
            except Unreached as error:
                raise noted(error)  # noqa: B904 - the same error

        noted(error)
        if stale and monotonic() < link.until:
            try:
                return again(link)
            except Unreached as second:
                error = second
        hopeless = error.denied and self.patience_s is not None
        if once or hopeless or self.patience_s == 0:
            self._give_up(error, maybe)
        self_begins = self.patience_s is None
        policy = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Unreached),
            wait=tenacity.wait_random_exponential(multiplier=0.02, max=2.0),
            stop=lambda state: self.give_up() or monotonic() + state.upcoming_sleep >= link.until,
            before_sleep=(lambda state: self.outage.begin(_error_of(state))) if self_begins else None,
            sleep=self._sleep,
            reraise=True,
        )
        try:
            return policy(again, link)
        except Unreached as last:
            self._give_up(last, maybe)

    def _probe(self, link: Link) -> None:
        """Fails at once while the server is away; each second one call asks whether it is back. Raises
        StoreUnavailable."""
        if monotonic() < self._probe_at:
            self._raise(self._last, False)
        self._probe_at = monotonic() + PROBE_EVERY_S
        until, link.until = link.until, monotonic() + PROBE_WAIT_S
        try:
            [pong] = link.ask([("PING",)])
            if isinstance(pong, redis.ResponseError) and _code(pong) != "NOPERM":
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
        away = StoreUnavailable(f"{error}; is the server up, and the url right?")
        away.maybe = maybe
        raise away from error


def _error_of(state: tenacity.RetryCallState) -> BaseException:
    error = state.outcome.exception() if state.outcome else None
    return error or Unreached("")


def _code(error: redis.ResponseError) -> str:
    """The first word of an error reply; redis-py takes it out of the text of those that it knows."""
    return str(getattr(error, "status_code", None) or "") or str(error).split(" ", 1)[0]


def raise_for(error: redis.ResponseError, where: str, met_by: str = "") -> NoReturn:
    """What an error reply means for the caller. Raises Unreached for those that go by themselves. `met_by`: the
    command of a script that met it, where the server does not say so."""
    code = _code(error)
    text = str(error) if str(error).startswith(code) else f"{code} {error}"
    if code in _TRANSIENT:
        raise Unreached(f"redis at {where}: {text}", refused=True) from error
    if code == "OOM" or isinstance(error, redis.OutOfMemoryError) or "OOM command not allowed" in text:
        raise StoreFull(
            f"redis at {where} is out of memory (maxmemory): nothing was enqueued; "
            "raise maxmemory or let the workers catch up"
        ) from error
    if code in _DENIED:
        raise Unreached(f"redis at {where}: {text}; check the user and password of the url", denied=True) from error
    if code == "NOPERM" or "ACL failure in script" in text or "user executing the script can't" in text:
        what = f"{text} (command {met_by})" if met_by and met_by not in text.lower() else text
        raise StoreDenied(
            f"redis at {where} refuses: {what}; give the user of the url that right (docs/redis.md lists all)"
        ) from error
    if code in ("MOVED", "ASK", "CROSSSLOT"):
        raise StoreError(
            f"redis at {where} is a node of a cluster ({text}); name a server in the url that holds all keys"
        ) from error
    if code == "WRONGTYPE" or "WRONGTYPE" in text:
        raise StoreCorrupt(f"redis at {where}: {text}; a key of this prefix was written by something else") from error
    raise InternalError(f"redis at {where}: {text}") from error
