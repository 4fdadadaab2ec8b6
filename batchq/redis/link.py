"""A link is one socket with its lane: commands go out, whole replies come in, or it is closed. It waits for nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchq.clock import monotonic
from batchq.errors import ConfigError, InternalError
from batchq.job import random_name
from batchq.redis.replies import Unreached, raise_for, text_of, way_out
from batchq.redis.wire import Broken, Command, Denied, ErrorReply, Reply, TimedOut, Wire, pack

if TYPE_CHECKING:
    from batchq.redis.dial import Dialer

FOR_EVER = float("inf")


class Link:
    """One connection, opened when it is first used. Not for two threads at once."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._wire: Wire | None = None
        #: When the call under way must have ended, on the monotonic clock.
        self.until = FOR_EVER
        self.new_lane()

    @property
    def where(self) -> str:
        return self._dialer.where

    @property
    def is_open(self) -> bool:
        return self._wire is not None

    def parts(self) -> list[Link]:
        """The open connections that it is made of."""
        return [self] if self.is_open else []

    def new_lane(self) -> None:
        """Enqueue calls from now on are told apart from all before: after a call whose outcome stays unknown."""
        self.lane = random_name()
        self.calls = 0

    def ask(self, commands: Sequence[Command]) -> list[Reply]:
        """Sends all and reads a reply each; an error reply stands in its place as an ErrorReply.

        Whatever is raised between sending and the last reply (a signal's exception too) closes the connection: what
        is left unread would be taken for the answer to the next call. Raises Unreached.
        """
        sent = False
        try:
            wire = self._ready()
            packed = b"".join(map(pack, commands))
            sent = True
            wire.send(packed)
            replies = [wire.read()] if commands else []
            while len(replies) < len(commands):
                if self.until != FOR_EVER:
                    self._limit(wire)
                replies.append(wire.read())
        except BaseException as error:
            self.close()
            self._raise_unreached(error, sent=sent)
            raise
        return replies

    def send(self, *commands: Command) -> None:
        """Sends commands whose replies are waited for elsewhere. Raises Unreached."""
        try:
            self._ready().send(b"".join(map(pack, commands)))
        except BaseException as error:
            self.close()
            self._raise_unreached(error, sent=True)
            raise

    def receive(self) -> Reply:
        """The next reply to `send`. Raises Unreached; ErrorReply for an error reply."""
        try:
            reply = self._open_wire().read()
        except BaseException as error:
            self.close()
            self._raise_unreached(error, sent=True)
            raise
        if isinstance(reply, ErrorReply):
            raise reply
        return reply

    def _ready(self) -> Wire:
        """Open, with the time limit of this call."""
        wire = self._wire
        if wire is None:
            wire = self._wire = self._dialer.open(self._left())
        self._limit(wire)
        return wire

    def _open_wire(self) -> Wire:
        if self._wire is None:
            raise InternalError("a link that is not open has no descriptor, and hears nothing")
        return self._wire

    def _left(self) -> float:
        left = min(self._dialer.socket_timeout_s, self.until - monotonic())
        if left <= 0:
            raise TimedOut("no answer in time")
        return left

    def _limit(self, wire: Wire) -> None:
        left = self._dialer.socket_timeout_s if self.until == FOR_EVER else self._left()
        # Near enough: it is a system call.
        if not 0.8 * left <= wire.limit_s <= 1.05 * left:
            wire.limit(left)

    def _raise_unreached(self, error: BaseException, *, sent: bool) -> None:
        """What a failed try means. Returns where it is none of the connection's faults."""
        text = f"redis at {self.where}: {text_of(error)}"
        if isinstance(error, Denied):
            raise Unreached(f"{text}; check the user and password of the url", denied=True) from error
        if isinstance(error, ErrorReply) and error.code == "LOADING":
            # The server said so instead of executing.
            raise Unreached(text, way_out=way_out(error)) from error
        if isinstance(error, ErrorReply):
            # From the handshake.
            if "DB index" in text:
                raise ConfigError(
                    f"url: expected a database that redis at {self.where} has, found {self._dialer.db}; "
                    "write a smaller number behind the last /"
                ) from error
            raise_for(error, self.where)
        if isinstance(error, Broken | OSError):
            raise Unreached(text, sent=sent, timed_out=isinstance(error, TimedOut)) from error

    def fileno(self) -> int:
        return self._open_wire().fileno()

    def close(self) -> None:
        """Closes the socket. In a process that inherited it, no byte is sent."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
