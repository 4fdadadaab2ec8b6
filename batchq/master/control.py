"""The control socket beside the pid file: what this host's master says and can be told, also while the store is away.

A Unix socket for its own user (0600). A request is a line of JSON, the answer another:

    {"do": "ping"}    {"do": "status"}    {"do": "workers"}    {"do": "stop", "at_once": false}
    {"do": "quiet"}   {"do": "resume"}    {"do": "reload"}     {"do": "resize", "processes": 4}

    {"ok": true, ...}   {"ok": false, "error": "..."}

"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any

from batchq import log
from batchq.clock import SYSTEM
from batchq.errors import BatchqError
from batchq.jsons import orjson
from batchq.master.loop_server import MOST_BYTES, Client, LoopServer

Answer = Callable[[dict[str, Any]], dict[str, Any]]

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
        by_number = f"/proc/self/fd/{folder}"
        if not os.path.exists(by_number):
            raise OSError(errno.ENAMETOOLONG, f"more than {MOST_PATH} bytes are too long for a socket here")
        yield f"{by_number}/{os.path.basename(path)}"
    finally:
        os.close(folder)


class ControlServer(LoopServer):
    """`answer` is called inside the loop, and must not wait."""

    def __init__(self, path: str, selector: selectors.BaseSelector, answer: Answer, fd: int | None = None) -> None:
        """`fd`: the listening socket of the image before this one. Raises OSError."""
        self.path = path
        self._answer = answer
        super().__init__(_listen(path) if fd is None else socket.socket(fileno=fd), selector)

    def is_whole(self, heard: bytes) -> bool:
        return b"\n" in heard

    def answer(self, client: Client) -> bytes:
        line, _, client.heard = client.heard.partition(b"\n")
        return orjson.dumps(self._reply(line)) + b"\n"

    def too_long(self) -> bytes:
        return orjson.dumps({"ok": False, "error": f"{MOST_BYTES} bytes, and no line yet"}) + b"\n"

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

    def close(self) -> None:
        super().close()
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
