"""Sockets that are opened within the time they have, the look-up of their host's name included.

redis-py asks the resolver without a limit, and gives each address of a name the whole time again. Knows no commands.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.connection import Connection, SSLConnection

from batchq.clock import monotonic

#: What getaddrinfo answers.
_Found = Sequence[tuple[int, int, int, str, Any]]


#: Where nobody gave a limit.
_MOST_S = 60.0


class _LookUp:
    """One question to the resolver, asked in a thread: it can't be told to stop."""

    def __init__(self, host: str, port: int) -> None:
        self.answered = threading.Event()
        self.found: _Found = ()
        self.error: OSError | None = None
        self._where = host, port
        threading.Thread(target=self._ask, name="batchq-resolver", daemon=True).start()

    def _ask(self) -> None:
        try:
            self.found = socket.getaddrinfo(*self._where, type=socket.SOCK_STREAM)
        except OSError as error:
            self.error = error
        except UnicodeError as error:
            self.error = OSError(f"no host is called {self._where[0]!r:.100} ({error})")
        finally:
            self.answered.set()
            _under_way.pop((os.getpid(), *self._where), None)


#: Who asks for the same name waits for the same answer: a resolver that hangs costs one thread a name, not one a try.
#: The threads of a parent are none of its child's.
_under_way: dict[tuple[int, str, int], _LookUp] = {}


def addresses(host: str, port: int, within_s: float) -> _Found:
    """What a host's name stands for. Raises OSError, also where the resolver does not answer in time."""
    with suppress(socket.gaierror, UnicodeError):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    key = os.getpid(), host, port
    look_up = _under_way.get(key)
    if look_up is None:
        look_up = _under_way[key] = _LookUp(host, port)
        if look_up.answered.is_set():
            # Race: it was quicker than the line above.
            _under_way.pop(key, None)
    if not look_up.answered.wait(within_s):
        raise OSError(f"the resolver gave no address of {host} within {within_s:.2g} s")
    if look_up.error is not None:
        raise look_up.error
    return look_up.found


class Tcp(Connection):
    """A connection whose `socket_connect_timeout` holds for all of it."""

    def _connect(self) -> socket.socket:
        limit_s = self.socket_connect_timeout or _MOST_S
        until = monotonic() + limit_s
        error = OSError(f"{self.host} has no address")
        for family, kind, proto, _, address in addresses(self.host, self.port, limit_s):
            left = until - monotonic()
            if left <= 0:
                break
            sock = socket.socket(family, kind, proto)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                sock.settimeout(left)
                sock.connect(address)
                sock.settimeout(self.socket_timeout)
            except OSError as failed:
                sock.close()
                error = failed
            except BaseException:
                # A signal's exception.
                sock.close()
                raise
            else:
                return sock
        raise error


class Tls(SSLConnection, Tcp):
    """The same under TLS."""
