"""A link is one socket with its lane: commands go out, whole replies come in, or it is closed. It waits for nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import hiredis
import redis

from batchq.clock import monotonic
from batchq.errors import ConfigError, InternalError
from batchq.job import random_name
from batchq.redis.replies import Unreached, raise_for, text_of

if TYPE_CHECKING:
    from batchq.redis.dial import Dialer

FOR_EVER = float("inf")

Reply = Any
Command = tuple[str | bytes | int, ...]

#: redis-py's own way to this looks at each argument first, which is a tenth of a worker's time. (Its type says less.)
_pack: Callable[[Command], bytes] = hiredis.pack_command  # type: ignore[assignment]


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
            self._dialer.open(connection)
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
        text = f"redis at {self.where}: {text_of(error)}"
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
