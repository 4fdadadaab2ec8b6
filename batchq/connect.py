"""Connections to Redis: one link is one socket with its lane; tenacity decides when it is tried again.

The only waits are here, and they wrap the connection alone (connect, reconnect, send again after a lost answer).
redis-py's own retries are off, so that there is one policy. No job is ever run again by this module: that is the
delayed set's business.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import redis
import tenacity
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.retry import Retry

from batchq.errors import ConfigError, InternalError, StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from batchq.job import random_name

#: Replies that prove "not executed, try again": the server is starting, a replica, or busy with a script.
_TRANSIENT = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS", "MISCONF")

_URL_FORM = (
    "expected redis://[user:password@]host:port/db, "
    "with any /, ?, # or @ of the user and password percent-encoded (%2F for /)"
)

Reply = Any
Command = Sequence[str | bytes | int]


class Unreached(Exception):
    """One try did not come through. Inside this module and its tests only: callers see StoreUnavailable."""


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
        self.where: str = kwargs.get("path") or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"

    def dial(self) -> Any:
        """A connection of redis-py, not yet open. Its methods are untyped; only Link touches it."""
        return self._pool.make_connection()


class Link:
    """One connection, opened when it is first used. Not for two threads at once."""

    def __init__(self, dialer: Dialer) -> None:
        self._connection = dialer.dial()
        self.where = dialer.where
        self.new_lane()

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
        try:
            if connection._sock is None:
                connection.connect()
            connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            replies: list[Reply] = []
            for _ in commands:
                try:
                    replies.append(connection.read_response())
                except redis.ResponseError as error:
                    replies.append(error)
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, redis.AuthenticationError | redis.exceptions.AuthorizationError):
                raise StoreError(f"redis at {self.where}: {error}; check the user and password of the url") from error
            if isinstance(error, redis.RedisError | OSError):
                raise Unreached(f"redis at {self.where}: {_text(error)}") from error
            raise
        return replies

    def send(self, command: Command) -> None:
        """Sends one command whose reply is waited for elsewhere. Raises Unreached."""
        try:
            if self._connection._sock is None:
                self._connection.connect()
            self._connection.send_command(*command)
        except (redis.RedisError, OSError) as error:
            self._connection.disconnect()
            raise Unreached(f"redis at {self.where}: {_text(error)}") from error

    def receive(self) -> Reply:
        """The reply to `send`. Raises Unreached."""
        try:
            return self._connection.read_response()
        except BaseException as error:
            self._connection.disconnect()
            if isinstance(error, redis.RedisError | OSError):
                raise Unreached(f"redis at {self.where}: {_text(error)}") from error
            raise

    def fileno(self) -> int:
        sock = self._connection._sock
        if sock is None:
            raise InternalError("a link that is not open has no descriptor")
        return int(sock.fileno())

    def close(self) -> None:
        """Closes the socket. In a process that inherited it, no byte is sent (redis-py compares the pid)."""
        self._connection.disconnect()


def _text(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class Links:
    """The links of one process, handed out one a call. A child of a fork forgets those of its parent."""

    def __init__(self, dialer: Dialer, *, patience_s: float | None) -> None:
        self._dialer = dialer
        self._lock = threading.Lock()
        self._idle: list[Link] = []
        self._pid = os.getpid()
        #: How long a call may try; None: for ever, as workers do.
        self.patience_s = patience_s
        #: Asked while a call waits for the server: whether to wait no longer.
        self.give_up: Callable[[], bool] = lambda: False

    @property
    def where(self) -> str:
        return self._dialer.where

    def new(self) -> Link:
        return Link(self._dialer)

    def forget(self) -> None:
        """Closes all idle links; after a fork, those inherited."""
        with self._lock:
            links, self._idle = self._idle, []
        for link in links:
            link.close()

    def renew_after_fork(self) -> None:
        # The lock may have been held by a thread that does not exist in this process.
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self.forget()

    def run(self, exchange: Callable[[Link, bool], list[Reply]]) -> list[Reply]:
        """Runs one exchange on a link, again after a failure of the connection while patience lasts.

        `exchange(link, again)`: again is True from the second sending on. Raises StoreUnavailable.
        """
        if os.getpid() != self._pid:
            self.renew_after_fork()
        with self._lock:
            link = self._idle.pop() if self._idle else None
        if link is None:
            link = self.new()
        again = False
        try:
            # The common way, without the machinery of waits.
            try:
                return exchange(link, again)
            except Unreached as error:
                first = error
            again = True
            return self._insist(link, exchange, first)
        finally:
            with self._lock:
                self._idle.append(link)

    def _insist(self, link: Link, exchange: Callable[[Link, bool], list[Reply]], first: Unreached) -> list[Reply]:
        if self.patience_s == 0:
            self._give_up(link, first)
        patience = tenacity.stop_never if self.patience_s is None else tenacity.stop_after_delay(self.patience_s)
        policy = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Unreached),
            wait=tenacity.wait_random_exponential(multiplier=0.02, max=2.0),
            stop=lambda state: self.give_up() or patience(state),
            sleep=self._sleep,
            reraise=True,
        )
        try:
            return policy(exchange, link, True)
        except Unreached as error:
            self._give_up(link, error)

    def _sleep(self, seconds: float) -> None:
        """In slices, so that a process that is told to stop does."""
        until = time.monotonic() + seconds
        while not self.give_up() and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    def _give_up(self, link: Link, error: Unreached) -> NoReturn:
        # The call may still arrive late: what comes after it must not share its lane.
        link.new_lane()
        raise StoreUnavailable(f"{str(error).rstrip('.')}; is the server up, and the url right?") from error


def raise_for(error: redis.ResponseError, where: str) -> NoReturn:
    """What an error reply means for the caller. Raises Unreached for those that go by themselves."""
    text = f"{error.status_code or ''} {error}".strip() if hasattr(error, "status_code") else str(error)
    code = text.split(" ", 1)[0]
    if code in _TRANSIENT:
        raise Unreached(f"redis at {where}: {text}") from error
    if code == "OOM" or isinstance(error, redis.OutOfMemoryError) or "OOM command not allowed" in text:
        raise StoreFull(
            f"redis at {where} is out of memory (maxmemory): nothing was enqueued; "
            "raise maxmemory or let the workers catch up"
        ) from error
    if code in ("NOPERM", "NOAUTH", "WRONGPASS") or isinstance(error, redis.exceptions.NoPermissionError):
        raise StoreError(f"redis at {where} refuses: {text}; check the user's rights") from error
    if code == "WRONGTYPE" or "WRONGTYPE" in text:
        raise StoreCorrupt(f"redis at {where}: {text}; a key of this prefix was written by something else") from error
    raise InternalError(f"redis at {where}: {text}") from error
