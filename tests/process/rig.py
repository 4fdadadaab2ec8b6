"""The rig of a process test: an app on disk, pools started from it, the store seen from outside, and a clean end.

Nothing here sleeps and hopes: `until` looks again and again until a condition holds, and fails with the pools' logs
when its time is over. `close` proves that no process is left: each is found by a variable of its environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil

from batchq.config import Settings, load
from batchq.job import Job, NewJob, QueueStats, new_id, pack_row
from batchq.lifecycle import unaccounted
from batchq.master import guardian
from batchq.spool.check import Level, check
from batchq.store import Store
from batchq.stores import open_store
from tests.process.ledger import WRITER, Ledger

T = TypeVar("T")

#: Found in the environment of every process of a rig.
MARK = "BATCHQ__RIG"
#: Between two looks at a condition.
LOOK_S = 0.005


def die_with_pytest() -> None:
    """Runs in a child before exec: the kernel ends it with the process that made it (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def until(condition: Callable[[], T], what: str, within: float = 30.0) -> T:
    """The first true answer of the condition. Raises AssertionError after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:g} s: {what}; the last answer was {answer!r}")
        time.sleep(LOOK_S)


def let_pass(seconds: float) -> None:
    """For tests that do something at an instant nobody chose: there is no condition to wait for."""
    due = time.monotonic() + seconds
    until(lambda: time.monotonic() >= due, "that moment has come", within=seconds + 1)


def is_stopped(pid: int) -> bool:
    """The process is stopped by a signal (state T)."""
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return False


def is_running(pid: int) -> bool:
    """There is such a process, and it is no zombie."""
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    return False


def _guards(process: psutil.Process) -> bool:
    """The shell that starts a guardian is a child of the master for a moment."""
    with contextlib.suppress(psutil.Error):
        return guardian.NAME in process.cmdline()
    return False


class Pool:
    """One `batchq start`: a master and its workers."""

    def __init__(self, rig: Rig, args: Iterable[str], env: dict[str, str], before: Iterable[str] = ()) -> None:
        self._rig = rig
        self.log_path = rig.folder / f"pool-{len(rig.pools)}.log"
        self.args = list(args)
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "batchq", "start", "app:app", *self.args],
                cwd=rig.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_pytest,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def lines(self, verb: str) -> list[str]:
        """The events of that verb, without their time and level."""
        parts = (line.split(" ", 2) for line in self.log().splitlines())
        return [part[2] for part in parts if len(part) == 3 and part[2].split(" ", 1)[0] == verb]

    def workers(self) -> list[int]:
        """The pids of the workers alive, the oldest first."""
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self.pid).children()
            return sorted(child.pid for child in children if is_running(child.pid) and not _guards(child))
        return []

    def registered(self, queue: str) -> list[int]:
        """The pids of those workers that the store knows on that queue."""
        ends = self._rig.store.leases(queue).ends
        # host.boot.pid.random
        known = {int(worker.rsplit(".", 2)[1]) for worker, end in ends.items() if end > 0}
        return [pid for pid in self.workers() if pid in known]

    def wait_ready(self, workers: int, queue: str = "default", within: float = 30.0) -> Pool:
        """Until so many workers are registered."""

        def ready() -> bool:
            assert self.process.poll() is None, f"the pool ended with {self.process.returncode}"
            return len(self.registered(queue)) >= workers

        self._rig.until(ready, f"{workers} workers are registered", within)
        return self

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def freeze(self) -> list[int]:
        """SIGSTOP for the master, then for every worker, as a host that hangs. Answers who."""
        self.send(signal.SIGSTOP)
        self._rig.until(lambda: is_stopped(self.pid), "the master is stopped")
        pids = [self.pid, *self.workers()]
        for pid in pids[1:]:
            os.kill(pid, signal.SIGSTOP)
        self._rig.until(lambda: all(is_stopped(pid) for pid in pids), "the workers are stopped")
        return pids

    def thaw(self, pids: Iterable[int]) -> None:
        """SIGCONT, the workers first."""
        for pid in reversed(list(pids)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def wait(self, within: float = 30.0) -> int:
        """The exit code. Raises AssertionError where the master does not end in time."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the master has not ended within {within:g} s\n{self._rig.logs()}") from None

    def stop(self, number: int = signal.SIGTERM, within: float = 30.0) -> int:
        """Signals it and answers the exit code."""
        self.send(number)
        return self.wait(within)


class Rig:
    """Everything one process test needs, on one store."""

    def __init__(self, folder: Path, kind: str, url: str, prefix: str) -> None:
        self.folder = folder
        self.kind = kind
        self.url = url
        self.prefix = prefix
        self.mark = os.urandom(8).hex()
        self.ledger = Ledger(folder / "ledger")
        self.pools: list[Pool] = []
        self.settings: Settings = load({"url": url, "prefix": prefix, "spool": str(folder / "fallback")}, environ={})
        self.store: Store = open_store(url, self.settings)

    # -- app and pools

    def app(self, source: str) -> None:
        """Writes the app's module. It begins with `app`, what `batchq` exports, and `note(kind)` for the ledger."""
        head = "import signal, subprocess, sys, threading\nfrom batchq import *\n" + WRITER + "\napp = App()\n\n\n"
        (self.folder / "app.py").write_text(head + source)

    def env(self, **more: str) -> dict[str, str]:
        """The environment of a pool: this process's, without settings of batchq, and with those of the rig."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("BATCHQ_")}
        return {
            **kept,
            "BATCHQ_URL": self.url,
            "BATCHQ_PREFIX": self.prefix,
            "BATCHQ_SPOOL": str(self.folder / "fallback"),
            "LEDGER": str(self.ledger.path),
            MARK: self.mark,
            **more,
        }

    def start(
        self,
        *args: str,
        n: int = 1,
        ready: bool = True,
        queue: str = "default",
        before: Iterable[str] = (),
        **env: str,
    ) -> Pool:
        """Starts a pool and waits until its workers are registered on that queue. `before`: what starts it."""
        pool = Pool(self, ["-n", str(n), *args], self.env(**env), before)
        self.pools.append(pool)
        return pool.wait_ready(n, queue) if ready else pool

    def run_burst(self, *args: str, n: int = 1, within: float = 20.0, **env: str) -> Pool:
        """Runs a pool until nothing is left, and demands that it ends well."""
        pool = self.start("--burst", *args, n=n, ready=False, **env)
        code = pool.wait(within)
        assert code == 0, f"the pool ended with {code}"
        return pool

    # -- jobs, seen from outside

    def enqueue(
        self,
        name: str,
        *args: Any,
        queue: str = "default",
        delay_ms: int = 0,
        priority: int = 0,
        max_attempts: int | None = None,
        timeout_ms: int | None = None,
    ) -> str:
        """One job, straight into the store. Answers its id."""
        row = pack_row(name, args, max_attempts=max_attempts, timeout_ms=timeout_ms)
        job = NewJob(new_id(), row, priority, delay_ms)
        assert [word.value for word in self.store.enqueue(queue, [job])] == ["ok"]
        return job.id

    def enqueue_many(
        self,
        name: str,
        rows: Iterable[tuple[Any, ...]],
        queue: str = "default",
        *,
        delay_ms: int = 0,
        max_attempts: int | None = None,
    ) -> list[str]:
        """One call for many. Answers their ids."""
        jobs = [NewJob(new_id(), pack_row(name, args, max_attempts=max_attempts), 0, delay_ms) for args in rows]
        assert {word.value for word in self.store.enqueue(queue, jobs)} <= {"ok"}
        return [job.id for job in jobs]

    def stats(self, queue: str = "default") -> QueueStats:
        """One look, at which the law of the totals must hold."""
        stats = self.store.stats(queue)
        assert unaccounted(stats.counts, stats.totals) == 0, f"the totals do not add up: {stats}"
        return stats

    def job(self, job_id: str, queue: str = "default") -> Job:
        """A job that still has its row."""
        job = self.store.get(queue, job_id)
        assert job is not None, f"job {job_id} has left no row"
        return job

    def until(self, condition: Callable[[], T], what: str, within: float = 30.0) -> T:
        """`until`, with the pools' logs in the error."""
        try:
            return until(condition, what, within)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.looks()}\n{self.logs()}") from None

    def until_started(self, job_id: str, times: int = 1, within: float = 30.0) -> int:
        """Until the job's handler has begun so often. Answers the pid of the worker that began it last."""
        self.until(lambda: len(self.ledger.starts(job_id)) >= times, f"job {job_id} has begun {times} times", within)
        return self.ledger.starts(job_id)[times - 1].pid

    def until_counts(self, queue: str = "default", within: float = 30.0, **counts: int) -> QueueStats:
        """Until the queue's counts and totals have these values: `done=3` is the total of the completed."""

        def reached() -> QueueStats | None:
            stats = self.stats(queue)
            seen = {**stats.totals, **stats.counts, "done": stats.totals["completed"]}
            return stats if all(seen[name] == value for name, value in counts.items()) else None

        answer = self.until(reached, f"{queue}: {counts}", within)
        assert answer is not None
        return answer

    # -- the end

    def processes(self) -> list[int]:
        """Every process that was started under this rig and still runs, whoever its parent is."""
        needle = f"{MARK}={self.mark}".encode()
        found = []
        for pid in psutil.pids():
            if pid == os.getpid():
                continue
            with contextlib.suppress(psutil.Error, OSError):
                if _environment(pid, needle) and is_running(pid):
                    found.append(pid)
        return found

    def guardians(self) -> list[int]:
        """The guardians of this rig's pools, as long as they wait: they have no environment that would name the rig.
        The shell that starts one is a child of the master, and is none."""
        masters = {str(pool.pid) for pool in self.pools}
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                is_ours = guardian.NAME in words and masters & set(words[-2:])
                if is_ours and str(process.ppid()) not in masters and is_running(process.pid):
                    found.append(process.pid)
        return found

    def guardian(self, before: int = 0) -> int:
        """The one that waits, once there is one, and only that. `before`: it has come after that one."""

        def alone() -> int:
            there = self.guardians()
            return there[0] if len(there) == 1 and there != [before] else 0

        return self.until(alone, "there is one guardian")

    def until_clean(self, within: float = 12.0) -> None:
        """Until no process of this rig runs."""
        self.until(lambda: not self.processes() and not self.guardians(), "no process is left", within)

    def looks(self) -> str:
        """What the store says of all queues."""
        try:
            return "\n".join(f"{queue}: {self.store.stats(queue)}" for queue in self.store.queues())
        except Exception as error:  # noqa: BLE001 - part of another error's message
            return f"the store can't be asked: {error!r}"

    def logs(self) -> str:
        """The ends of all pools' logs."""
        return "\n".join(f"--- {pool.log_path.name} {pool.args}\n{pool.log()[-6000:]}" for pool in self.pools)

    def close(self) -> None:
        """Stops what still runs, and demands that nothing is left."""
        try:
            for pool in self.pools:
                if pool.process.poll() is None:
                    pool.send(signal.SIGCONT)
                    pool.send(signal.SIGQUIT)
            for pool in self.pools:
                pool.wait()
            self.until_clean()
        finally:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pool in self.pools:
                pool.process.kill()
                pool.process.wait()
            self.store.close()
            # Shown by pytest where the test failed.
            print(self.logs())
        if self.kind == "spool":
            check_spool(self.url.removeprefix("spool:"))


def check_spool(path: str) -> None:
    """Whatever happened to a spool, `batchq spool check` has nothing to mend in it."""
    if os.path.exists(path):
        found = [one for one in check(path) if one.level is not Level.NOTE and "moved aside" not in one.text]
        assert not found, found


def _environment(pid: int, needle: bytes) -> bool:
    """Whether the process was started with that variable."""
    if sys.platform == "linux":
        return needle in Path(f"/proc/{pid}/environ").read_bytes()
    name, _, value = needle.decode().partition("=")
    return bool(psutil.Process(pid).environ().get(name) == value)


@contextlib.contextmanager
def opened(folder: Path, kind: str, url: str, prefix: str) -> Iterator[Rig]:
    """A rig for the time of a with block."""
    rig = Rig(folder, kind, url, prefix)
    try:
        yield rig
    finally:
        rig.close()
