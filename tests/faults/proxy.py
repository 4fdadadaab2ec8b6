"""A TCP proxy between a client and a real server: the one place where tests break connections.

It understands as much of RESP2 as is needed to see where a request or a reply ends, and counts both over all its
connections. What it does to the N-th of them is said before the run; nothing here depends on time.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

#: How long a held request may stand before the proxy lets it go by itself: a test that forgot it must not hang.
HELD_S = 30.0


def _end_of(data: bytes, start: int) -> int:
    """Where the frame that begins at `start` ends; -1 while it is not whole."""
    line = data.find(b"\r\n", start)
    if line < 0:
        return -1
    kind, end = data[start : start + 1], line + 2
    if kind not in (b"$", b"*"):
        return end
    count = int(data[start + 1 : line])
    if count < 0:
        return end
    if kind == b"$":
        return end + count + 2 if len(data) >= end + count + 2 else -1
    for _ in range(count):
        end = _end_of(data, end)
        if end < 0:
            return -1
    return end


class Frames:
    """Cuts a stream into whole requests or replies."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._rest += data
        while self._rest and (end := _end_of(self._rest, 0)) > 0:
            frame, self._rest = self._rest[:end], self._rest[end:]
            yield frame


class Held:
    """A request that stands in the proxy while its sender gives up, and arrives late."""

    def __init__(self, wanted: Callable[[bytes, int], bool], after: int | None) -> None:
        self.wanted = wanted
        #: Let go by itself after so many further replies to other requests; None: by `release`.
        self.after = after
        self.caught = threading.Event()
        self.answered = threading.Event()
        self._free = threading.Event()
        self._seen_at = 0

    def catch(self, replies: int) -> None:
        self._seen_at = replies
        self.caught.set()
        self._free.wait(HELD_S)

    def replied(self, replies: int) -> None:
        if self.caught.is_set() and self.after is not None and replies - self._seen_at >= self.after:
            self._free.set()

    def release(self) -> None:
        """Lets it arrive, and waits until the server has answered it. Nothing where none was caught."""
        self._free.set()
        if self.caught.is_set() and not self.answered.wait(10):
            raise AssertionError("the late request was not answered within 10 s")


class Proxy:
    """Listens on a loopback port of its own. A context manager."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Lock()
        self.requests = 0
        self.replies = 0
        self.connections = 0
        #: The number of the reply that never comes: the connection ends before it.
        self.cut_before: int | None = None
        #: The number of the reply after which the connection ends.
        self.cut_after: int | None = None
        #: Asked for each reply: True ends the connection before it, with the work done and the answer lost.
        self.cut: Callable[[bytes], bool] | None = None
        self.held: Held | None = None
        #: Passes no byte on, and keeps all connections open: a peer that is gone without a word.
        self.silent = False
        #: Connections up to this number pass no byte on any more.
        self._forgotten = 0
        #: Ends each new connection at once.
        self.refusing = False
        #: What stands in replies, and what the client reads instead; of the same length.
        self.rewrite: tuple[bytes, bytes] | None = None
        self._closed = threading.Event()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def hold(self, wanted: Callable[[bytes, int], bool], after: int | None = None) -> Held:
        """Holds the next request for which `wanted(request, number)` is true."""
        self.held = Held(wanted, after)
        return self.held

    def forget_all(self) -> None:
        """The connections that stand now fall silent and stay open, as after a power cut on the other side; new ones
        work."""
        self._forgotten = self.connections

    def cut_all(self) -> None:
        """Ends all connections, as a server that is killed does."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed.set()
        if self.held is not None:
            self.held._free.set()
        # A listener is not woken by its close alone.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- connections

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            self._open |= {client, server}
            #: By their place among the requests of this connection.
            waiting: dict[int, Held] = {}
            for pump in (self._to_server, self._to_client):
                threading.Thread(target=pump, args=(client, server, waiting, self.connections), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket, waiting: dict[int, Held], mine: int) -> None:
        frames, place = Frames(), 0
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                for frame in frames.feed(data):
                    place += 1
                    with self._lock:
                        self.requests += 1
                        held, number, replies = self.held, self.requests, self.replies
                        caught = held is not None and not held.caught.is_set() and held.wanted(frame, number)
                        if caught:
                            self.held = None
                            self._last_held = held
                    if held is not None and caught:
                        waiting[place] = held
                        held.catch(replies)
                    self._stand_still(mine)
                    server.sendall(frame)
        # What was sent is still to be done: only this direction ends.
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _to_client(self, client: socket.socket, server: socket.socket, waiting: dict[int, Held], mine: int) -> None:
        frames, place = Frames(), 0
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                for frame in frames.feed(data):
                    place += 1
                    self._stand_still(mine)
                    if not self._reply(client, frame, waiting, place):
                        break
                else:
                    continue
                break
        for one in (client, server):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            self._open.discard(one)
            one.close()

    _last_held: Held | None = None

    def _reply(self, client: socket.socket, frame: bytes, waiting: dict[int, Held], place: int) -> bool:
        """Passes a reply on; False where the connection ends here."""
        with self._lock:
            self.replies += 1
            number = self.replies
        if self._last_held is not None and self._last_held not in waiting.values():
            self._last_held.replied(number)
        if number == self.cut_before or (self.cut is not None and self.cut(frame)):
            return False
        if self.rewrite is not None:
            frame = frame.replace(*self.rewrite)
        with contextlib.suppress(OSError):
            # Its sender may be gone: the server's answer is drained all the same.
            client.sendall(frame)
        if (answered := waiting.get(place)) is not None:
            answered.answered.set()
        return number != self.cut_after

    def _stand_still(self, mine: int) -> None:
        while (self.silent or mine <= self._forgotten) and not self._closed.wait(0.01):
            pass
