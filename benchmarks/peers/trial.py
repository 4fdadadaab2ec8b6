"""One run of one system: a Redis of its own, a fleet of workers, the notes of their jobs. Asks nothing by itself."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil
import rig

from peers import environments, job
from peers.systems import System

#: Notes are written to memory where there is a place for it.
MEMORY = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
#: A child that takes longer hangs.
CHILD_S = 90.0
#: What was killed is gone within this.
GONE_S = 10.0


class Note(NamedTuple):
    """One note of a job. See job.py."""

    number: int
    pid: int
    noted_ns: int
    at_ns: int


class Spent(NamedTuple):
    """CPU seconds so far."""

    redis: float
    workers: float


class Failed(Exception):
    """The system did not do what was asked; the text has its last words."""


class Trial:
    """A context: everything that it started is gone afterwards."""

    def __init__(
        self,
        system: System,
        child: list[str],
        question: str,
        *,
        server: str | None,
        folder: str | None,
        hosts: Sequence[str] = (),
    ):
        """`hosts`: where jobs of the kind deliver go to."""
        self.system = system
        self._child = child
        self._stack = contextlib.ExitStack()
        self._server = server
        self._folder = folder
        self._question = question
        self._hosts = hosts
        self._fleet: list[psutil.Popen] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            quick = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="batchq-peers-", dir=MEMORY)))
            disk = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="batchq-peers-", dir=self._folder)))
            self._notes, tried, self._told = quick / "notes", quick / "tried", quick / "told"
            self._notes.touch()
            tried.write_bytes(bytes(100_000))
            self._out = stack.enter_context(self._told.open("wb"))
            url = f"spool:{disk / 'spool'}"
            if not self.system.has_spool:
                url = f"redis://127.0.0.1:{stack.enter_context(rig.server(self._server, disk))}/0"
                self._redis = rig.client(url)
            settings = {name: value for name, value in os.environ.items() if not name.startswith("BATCHQ_")}
            self._environment = settings | {
                "PYTHONPATH": str(rig.HERE),
                "PYTHONUNBUFFERED": "1",
                "PEERS_URL": url,
                "PEERS_NOTES": str(self._notes),
                "PEERS_TRIED": str(tried),
                "PEERS_CONFIGURATION": self.system.configuration(self._question),
                "PEERS_QUESTION": self._question,
                "PEERS_HOSTS": " ".join(self._hosts),
                "PEERS_MODULES": str(environments.FOLDER / self.system.name),
            }
            stack.callback(self.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    # -- children

    def ask(self, *args: str) -> Any:
        """Runs the child and answers its line of JSON. Raises Failed."""
        try:
            done = subprocess.run(
                [*self._child, *args],
                cwd=rig.HERE,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=CHILD_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.system.name} {' '.join(args)}: not done within {CHILD_S:.0f} s") from None
        if done.returncode != 0 or not done.stdout.strip():
            raise Failed(f"{self.system.name} {' '.join(args)}: exit {done.returncode}: {done.stderr[-600:]}")
        return json.loads(done.stdout.splitlines()[-1])

    def enqueue(self, mode: str, *, jobs: int = 1_000_000, seconds: float = 60.0, kind: str = "noop") -> Any:
        """`jobs` and `seconds` that it took; ends when either is reached."""
        how = ("--mode", mode, "--kind", kind, "--jobs", str(jobs), "--seconds", str(seconds))
        return self.ask("enqueue", *how)

    def enqueue_rows(self, path: Path, *, seconds: float) -> Any:
        """The rows of a CSV file, the same."""
        return self.ask(
            "enqueue", "--mode", "csv", "--file", str(path), "--seconds", str(seconds), "--jobs", "100000000"
        )

    def start(self, workers: int) -> None:
        """Starts the fleet; does not wait for it."""
        for command in self.ask("fleet", "--workers", str(workers)):
            self._fleet.append(
                psutil.Popen(
                    command,
                    cwd=rig.HERE,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=self._out,
                    stderr=self._out,
                    start_new_session=True,
                )
            )

    def processes(self) -> list[psutil.Process]:
        """The fleet, with all that it started."""
        found: list[psutil.Process] = []
        for root in self._fleet:
            with contextlib.suppress(psutil.Error):
                found += [psutil.Process(root.pid), *root.children(recursive=True)]
        return found

    def _left(self) -> Iterator[psutil.Process]:
        """All processes of this run: those that have lost their parent, too, or lead a session of their own."""
        sessions = {root.pid for root in self._fleet}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                is_ours = (
                    os.getsid(process.pid) in sessions or process.environ().get("PEERS_NOTES") == self._notes.as_posix()
                )
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    yield process

    def stop(self) -> None:
        """Kills the fleet: what it may lose is of no interest any more. Also what is begun meanwhile, in place of what
        was killed. Raises RuntimeError where something is left."""
        until = time.monotonic() + GONE_S
        while left := list(self._left()):
            if time.monotonic() > until:
                raise RuntimeError(f"{self.system.name}: still there after they were killed: {left}")
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(0.01)
        for root in self._fleet:
            root.wait(GONE_S)
        self._fleet = []

    # -- what they did

    def count(self) -> int:
        return self._notes.stat().st_size // job.NOTE.size

    def notes(self, first: int = 0) -> list[Note]:
        data = self._notes.read_bytes()[first * job.NOTE.size :]
        whole = len(data) - len(data) % job.NOTE.size
        return [Note(*fields) for fields in job.NOTE.iter_unpack(data[:whole])]

    def wait(self, true: Callable[[], bool], what: str, seconds: float) -> bool:
        """Waits until it is true, at most so long. False: it is not. Raises Failed where the fleet has ended."""
        until = time.monotonic() + seconds
        while not true():
            if self._fleet and all(root.poll() is not None for root in self._fleet):
                raise Failed(f"{self.system.name}: all workers ended; waited until {what}. {self._last_words()}")
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def expect(self, true: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
        """The same. Raises Failed where it does not come true."""
        if not self.wait(true, what, seconds):
            raise Failed(f"{self.system.name}: not within {seconds:.0f} s: {what}. {self._last_words()}")

    def _last_words(self) -> str:
        self._out.flush()
        return self._told.read_bytes()[-500:].decode(errors="replace")

    # -- what they cost

    def memory(self) -> int:
        """Bytes that Redis uses for its data."""
        return int(self._redis.info("memory")["used_memory"])

    def spent(self) -> Spent:
        used = 0.0
        if not self.system.has_spool:
            used = rig.redis_cpu_s(self._environment["PEERS_URL"])
        return Spent(used, rig.tree_cpu_s(self.processes()))
