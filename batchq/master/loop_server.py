"""A server inside the master's loop: it never waits, and a client that stalls, floods or sends rubbish is hung up on.

What a request and an answer look like is said by those that build on it.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from abc import ABC, abstractmethod
from dataclasses import dataclass

from batchq.clock import SYSTEM

#: The longest request.
MOST_BYTES = 4096
#: Where more come, the oldest is hung up on.
MOST_CLIENTS = 16
#: A client is hung up on after this, whatever it does.
CLIENT_S = 10.0


@dataclass(eq=False, slots=True)
class Client:
    """Somebody who is connected."""

    socket: socket.socket
    until: float
    heard: bytes = b""
    to_say: bytes = b""
    #: Says nothing more, or is to be left when the answer is out.
    hung_up: bool = False


class LoopServer(ABC):
    """Listens from its making to `close`."""

    def __init__(self, listening: socket.socket, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._clients: list[Client] = []
        self._socket = listening
        self._socket.setblocking(False)
        self.fd = self._socket.fileno()
        selector.register(self._socket, selectors.EVENT_READ, self._accept)

    @abstractmethod
    def is_whole(self, heard: bytes) -> bool:
        """A whole request stands at the beginning."""

    @abstractmethod
    def answer(self, client: Client) -> bytes:
        """Takes the first request out of what was heard, and says what to reply. Must not wait."""

    @abstractmethod
    def too_long(self) -> bytes:
        """The reply to a request without end."""

    def _accept(self, mask: int) -> None:
        for _ in range(MOST_CLIENTS):
            try:
                made, _ = self._socket.accept()
            except OSError:
                return  # None is waiting, or the one that was has gone.
            made.setblocking(False)
            if len(self._clients) >= MOST_CLIENTS:
                self._hang_up(self._clients[0])
            client = Client(made, SYSTEM.monotonic() + CLIENT_S)
            self._clients.append(client)
            self._selector.register(made, selectors.EVENT_READ, lambda mask, client=client: self._serve(client, mask))

    def _serve(self, client: Client, mask: int) -> None:
        if client not in self._clients:
            return  # Hung up on in this very round.
        try:
            if mask & selectors.EVENT_READ:
                self._hear(client)
            self._say(client)
        except OSError:
            self._hang_up(client)

    def _hear(self, client: Client) -> None:
        got = client.socket.recv(MOST_BYTES)
        client.heard += got
        client.hung_up = not got
        if not self.is_whole(client.heard) and len(client.heard) > MOST_BYTES:
            client.to_say = self.too_long()
            client.heard, client.hung_up = b"", True

    def _say(self, client: Client) -> None:
        """One answer a round: many requests at once must not keep the loop from its work."""
        if self.is_whole(client.heard) and not client.to_say:
            client.to_say = self.answer(client)
        with contextlib.suppress(BlockingIOError):
            while client.to_say:
                client.to_say = client.to_say[client.socket.send(client.to_say) :]
        busy = bool(client.to_say) or self.is_whole(client.heard)
        if client.hung_up and not busy:
            self._hang_up(client)
            return
        # Who has not fetched an answer is not listened to; who stays silent is met by `tidy`.
        wanted = selectors.EVENT_WRITE if busy else selectors.EVENT_READ
        self._selector.modify(client.socket, wanted, self._selector.get_key(client.socket).data)

    def tidy(self) -> None:
        """Hangs up on those whose time is over."""
        now = SYSTEM.monotonic()
        for client in [client for client in self._clients if now >= client.until]:
            self._hang_up(client)

    def _hang_up(self, client: Client) -> None:
        self._clients.remove(client)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(client.socket)
        client.socket.close()

    def let_go(self) -> None:
        """In a child: closes what it inherited. A client would else wait for an end that the child holds back."""
        for client in self._clients:
            client.socket.close()
        self._socket.close()

    def close(self) -> None:
        for client in list(self._clients):
            self._hang_up(client)
        self._selector.unregister(self._socket)
        self._socket.close()
