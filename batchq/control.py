"""The control socket beside the pid file: what this host's master says and can be told, also while the store is away.

A Unix socket for its own user (0600). A request is a line of JSON, the answer another:

    {"do": "ping"}    {"do": "status"}    {"do": "workers"}    {"do": "stop", "at_once": false}
    {"do": "quiet"}   {"do": "resume"}    {"do": "reload"}     {"do": "resize", "processes": 4}

    {"ok": true, ...}   {"ok": false, "error": "..."}

The server lives in the master's loop and never waits: a client that stalls, floods or sends rubbish is hung up on.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from batchq import log
from batchq.clock import SYSTEM
from batchq.errors import BatchqError

Answer = Callable[[dict[str, Any]], dict[str, Any]]

#: The longest request.
MOST_BYTES = 4096
#: Where more come, the oldest is hung up on.
MOST_CLIENTS = 16
#: A client is hung up on after this, whatever it does.
CLIENT_S = 10.0
#: How long the path of a Unix socket can be, everywhere.
MOST_PATH = 100


class NoControl(BatchqError):
    """No master answers at that socket: there is none, it belongs to another user, or it is busy starting."""


@contextlib.contextmanager
def _reachable(path: str) -> Iterator[str]:
    """A name for the socket that is short enough. Raises OSError where there is none."""
    if len(os.fsencode(path)) <= MOST_PATH:
        yield path
        return
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


@dataclass(eq=False, slots=True)
class _Client:
    socket: socket.socket
    until: float
    heard: bytes = b""
    to_say: bytes = b""
    hung_up: bool = False


class ControlServer:
    """Listens from its making to `close`. `answer` is called inside the loop, and must not wait."""

    def __init__(self, path: str, selector: selectors.BaseSelector, answer: Answer, fd: int | None = None) -> None:
        """`fd`: the listening socket of the image before this one. Raises OSError."""
        self.path = path
        self._selector = selector
        self._answer = answer
        self._clients: list[_Client] = []
        self._socket = _listen(path) if fd is None else socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self.fd = self._socket.fileno()
        selector.register(self._socket, selectors.EVENT_READ, self._accept)

    def _accept(self, mask: int) -> None:
        for _ in range(MOST_CLIENTS):
            try:
                made, _ = self._socket.accept()
            except OSError:
                return  # None is waiting, or the one that was has gone.
            made.setblocking(False)
            if len(self._clients) >= MOST_CLIENTS:
                self._hang_up(self._clients[0])
            client = _Client(made, SYSTEM.monotonic() + CLIENT_S)
            self._clients.append(client)
            self._selector.register(made, selectors.EVENT_READ, lambda mask, client=client: self._serve(client, mask))

    def _serve(self, client: _Client, mask: int) -> None:
        if client not in self._clients:
            return  # Hung up on in this very round.
        try:
            if mask & selectors.EVENT_READ:
                self._hear(client)
            self._say(client)
        except OSError:
            self._hang_up(client)

    def _hear(self, client: _Client) -> None:
        got = client.socket.recv(MOST_BYTES)
        client.heard += got
        client.hung_up = not got
        if b"\n" not in client.heard and len(client.heard) > MOST_BYTES:
            client.to_say = orjson.dumps({"ok": False, "error": f"{MOST_BYTES} bytes, and no line yet"}) + b"\n"
            client.heard, client.hung_up = b"", True

    def _reply(self, line: bytes) -> dict[str, Any]:
        try:
            request = orjson.loads(line)
            if not isinstance(request, dict):
                raise ValueError("no object")
        except ValueError:
            return {"ok": False, "error": 'expected a JSON object a line, as in {"do": "status"}'}
        try:
            return {"ok": True, **self._answer(request)}
        except BatchqError as error:
            return {"ok": False, "error": str(error)}
        except Exception as error:  # noqa: BLE001 - a fault of ours is no end of the loop
            log.event("error", "control_failed", error=repr(error), exc=error)
            return {"ok": False, "error": repr(error)}

    def _say(self, client: _Client) -> None:
        """One answer a round: many requests at once must not keep the loop from its work."""
        line, newline, rest = client.heard.partition(b"\n")
        if newline and not client.to_say:
            client.heard, client.to_say = rest, orjson.dumps(self._reply(line)) + b"\n"
        with contextlib.suppress(BlockingIOError):
            while client.to_say:
                client.to_say = client.to_say[client.socket.send(client.to_say) :]
        busy = bool(client.to_say) or b"\n" in client.heard
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

    def _hang_up(self, client: _Client) -> None:
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
        with contextlib.suppress(OSError):
            os.unlink(self.path)


def _listen(path: str) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(17, "there is a file of that name, and it is no socket")
        os.unlink(path)  # Left by a master that was killed: the pid file's lock is ours.
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Never open to others, not even until the chmod.
    before = os.umask(0o177)
    try:
        with _reachable(path) as name:
            listening.bind(name)
        listening.listen(128)
    except BaseException:
        listening.close()
        raise
    finally:
        os.umask(before)
    return listening


def _connect(talk: socket.socket, name: str, until: float) -> None:
    """Waits while too many others wait as well."""
    while True:
        try:
            return talk.connect(name)
        except BlockingIOError:
            if SYSTEM.monotonic() > until:
                raise
            time.sleep(0.01)


def ask(path: str, request: dict[str, Any], timeout_s: float = 5.0) -> dict[str, Any]:
    """What the master at that socket answers. Raises NoControl where none does in time, BatchqError where it
    refuses."""
    until = SYSTEM.monotonic() + timeout_s
    heard = b""
    while not heard:
        try:
            # Race: a reload closes the connections that it finds. Asking again does no harm: all that can be asked for
            # is a state, never a step.
            heard = _ask_once(path, orjson.dumps(request) + b"\n", until)
        except OSError as error:
            raise NoControl(f"{path}: no master answers ({error.strerror or error})") from None
    answer: dict[str, Any] = orjson.loads(heard)
    if not answer.get("ok"):
        raise BatchqError(f"{path}: {answer.get('error', 'refused')}")
    return answer


def _ask_once(path: str, line: bytes, until: float) -> bytes:
    """The answer; b"" where the other side hung up instead. Raises OSError."""
    heard = b""
    if SYSTEM.monotonic() > until:
        raise TimeoutError(0, "it hangs up again and again")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as talk:
        talk.settimeout(max(0.001, until - SYSTEM.monotonic()))
        with _reachable(path) as name:
            _connect(talk, name, until)
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            talk.sendall(line)
            while not heard.endswith(b"\n"):
                talk.settimeout(max(0.001, until - SYSTEM.monotonic()))
                got = talk.recv(65536)
                if not got:
                    return b""
                heard += got
    return heard if heard.endswith(b"\n") else b""
