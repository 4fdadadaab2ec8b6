"""The connection to a Redis server: bytes go out, replies come in, hiredis reads them. Knows no commands but those that
open it, decides nothing, and waits no longer than it may.

There is little in it on purpose: each worker runs every line of it once, on pages of memory that it then shares with
nobody, and producers run `send` and `read` for each call.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import hiredis

from batchq import __version__
from batchq.redis.sockets import connected
from batchq.redis.target import Target

#: The most that one read takes. (The kernel keeps about as much.)
_CHUNK = 65_536
#: struct timeval. Some systems have an int behind the long, and as much room.
_TIMEVAL = struct.Struct("@ll")

Reply = Any
Command = tuple[str | bytes | int, ...]

#: One command as it goes over the wire. (The type that hiredis gives says less than it takes.)
pack: Callable[[Command], bytes] = hiredis.pack_command  # type: ignore[assignment]


class Broken(Exception):
    """The connection can't be made, or is of no use any more: whose fault that is the text says."""


class TimedOut(Broken):
    """The time of this try was over."""


class ErrorReply(Exception):
    """The server answered with an error, and executed nothing or a part. `code` is its first word."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]


class Denied(ErrorReply):
    """The server does not let this user in."""


class Wire:
    """One connection, from its making on open. Whoever meets an error closes it: what is left unread would be taken for
    the answer to the next question. Its calls raise Broken and OSError."""

    def __init__(self, sock: socket.socket, where: str, limit_s: float) -> None:
        self._sock = sock
        self._where = where
        #: Whose socket it is: the copy that a fork makes of it is only closed.
        self._pid = os.getpid()
        # Not made an exception before somebody raises it; whole arrays of them are answers too.
        self._reader = hiredis.Reader(protocolError=Broken, replyError=ErrorReply, errors="replace")
        #: A socket of its own time limit needs one system call a read, one of Python's two.
        self._own_limit = type(sock) is socket.socket
        if self._own_limit:
            sock.settimeout(None)
        self.limit(limit_s)

    def limit(self, seconds: float) -> None:
        """No read or write is silent for longer from now on."""
        self.limit_s = seconds
        if self._own_limit:
            # Zero would be for ever.
            us = max(1000, int(seconds * 1_000_000))
            value = _TIMEVAL.pack(us // 1_000_000, us % 1_000_000)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
        else:
            self._sock.settimeout(seconds)

    def send(self, packed: bytes) -> None:
        """Commands as `pack` writes them."""
        try:
            self._sock.sendall(packed)
        except (BlockingIOError, TimeoutError) as error:
            raise TimedOut(f"Timeout writing to {self._where}") from error

    def read(self) -> Reply:
        """The next reply; an error is an ErrorReply in its place. One by which the server says that it loads its data
        is raised: it has executed nothing."""
        reply = self._reader.gets()
        while reply is False:
            self._fill()
            reply = self._reader.gets()
        if type(reply) is ErrorReply and reply.code == "LOADING":
            raise reply
        return reply

    def _fill(self) -> None:
        try:
            data = self._sock.recv(_CHUNK)
        except (BlockingIOError, TimeoutError) as error:
            raise TimedOut(f"Timeout reading from {self._where}") from error
        if not data:
            raise Broken("Connection closed by server.")
        self._reader.feed(data)

    def ask(self, *command: str | int) -> Reply:
        """One question to its answer."""
        self.send(pack(command))
        return self.read()

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        """In a process that inherited it, no byte is sent and the other's connection lives on."""
        if os.getpid() == self._pid:
            # The other side may be quicker.
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def opened(target: Target, limit_s: float) -> Wire:
    """A connection that is let in, to the database that is meant. Raises Broken, OSError, ErrorReply."""
    try:
        sock = connected(target, limit_s)
    except TimeoutError as error:
        raise TimedOut("Timeout connecting to server") from error
    except OSError as error:
        # Whoever quotes it names the server.
        raise Broken(_said(error)) from error
    wire = Wire(sock, target.where, limit_s)
    try:
        _greet(wire, target)
    except BaseException:
        wire.close()
        raise
    return wire


def _said(error: OSError) -> str:
    return error.strerror or str(error)


def _greet(wire: Wire, target: Target) -> None:
    """Who we are and where to, in one round trip."""
    hello: list[Command] = [
        ("CLIENT", "SETINFO", "LIB-NAME", "batchq"),
        ("CLIENT", "SETINFO", "LIB-VER", __version__),
    ]
    if target.username or target.password:
        user = (target.username,) if target.username else ()
        hello.insert(0, ("AUTH", *user, target.password))
    if target.name:
        hello.append(("CLIENT", "SETNAME", target.name))
    if target.db:
        hello.append(("SELECT", target.db))
    wire.send(b"".join(map(pack, hello)))
    said = ""
    for command in hello:
        try:
            reply = wire.read()
        except (Broken, OSError) as error:
            if said:
                # It said why before it hung up.
                raise Broken(said) from error
            raise
        if isinstance(reply, ErrorReply):
            said = str(reply)
            _refuse(command, reply)


def _refuse(command: Command, reply: ErrorReply) -> None:
    """Raises what an error means in answer to the greeting, if it means anything."""
    if "max number of clients" in str(reply):
        raise Broken(str(reply))
    if command[0] == "AUTH" or reply.code == "NOAUTH":
        raise Denied(str(reply))
    # Servers before 7.2 know no SETINFO, and the right to it may be missing.
    if command[1] != "SETINFO":
        raise reply
