"""Brings a pool into one phase of its life and holds it there, by conditions alone: gates (FIFOs) that handlers, start
hooks and the app's import wait at, and a proxy that holds the call by which a worker settles.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.faults.proxy import Held, Proxy
from tests.process.rig import Pool, Rig

#: A worker that gets it calls os._exit.
EXIT = signal.SIGRTMIN

APP = """
import ctypes

_python = ctypes.PyDLL(None)


def tell(kind):
    os.write(_ledger, f"{kind} - 0 0 {os.getpid()} {time.monotonic_ns()}\\n".encode())


def gate(name):
    # Blocks until somebody has it open for writing.
    os.close(os.open(name + ".gate", os.O_RDONLY))


tell("import")
gate("import")


@app.on_worker_start
def begin():
    signal.signal(signal.SIGRTMIN, lambda *_: os._exit(77))
    tell("begin")
    gate("begin")


@app.job(backoff=fixed(0.05))
def gated():
    note("S")
    gate("job")
    note("E")


@app.job(backoff=fixed(0.05))
def short(holds):
    note("S")
    if holds:
        # The same in C code that holds the interpreter: no thread of the worker can do anything meanwhile.
        while (fd := _python.open(b"job.gate", os.O_RDONLY)) < 0:
            pass
        os.close(fd)
    note("E")
"""

PHASES = ("idle", "in_job", "in_batch", "settling", "starting", "reloading", "replacing", "stopping")


class Gate:
    """Open, it lets everybody through who comes; shut, they wait until it is opened."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._path = path
        self._fd: int | None = None

    def open(self) -> None:
        if self._fd is None:
            # For both: that neither waits nor ends while it is held.
            self._fd = os.open(self._path, os.O_RDWR)

    def shut(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class Stage:
    """One pool with two workers; in a batch, with one."""

    def __init__(self, rig: Rig, proxy: Proxy | None) -> None:
        self.rig = rig
        #: Stands between the pool and its server, where the store is one.
        self.proxy = proxy
        self.gates = {name: Gate(rig.folder / f"{name}.gate") for name in ("import", "begin", "job")}
        self.options = ("--pid-file", str(rig.folder / "pool.pid"), "--lease", "60s")
        self.socket = str(rig.folder / "pool.pid.sock")
        self.processes = 2
        #: Jobs that had ended and were not settled, those whose handler stood at the gate, and all others.
        self.finished: list[str] = []
        self.running: list[str] = []
        self.others: list[str] = []
        #: The worker to which it happens.
        self.worker = 0
        self.held: Held | None = None
        rig.app(APP)

    @property
    def jobs(self) -> list[str]:
        return [*self.finished, *self.running, *self.others]

    def start(self, *, ready: bool = True) -> Pool:
        """The pool of this stage; the next one, after its end."""
        env = {"BATCHQ_URL": self.proxy.url} if self.proxy else {}
        self.pool = self.rig.start(*self.options, n=self.processes, ready=ready, **env)
        return self.pool

    def enter(self, phase: str) -> None:
        """Until it is in that phase."""
        self.gates["import"].open()
        if phase != "starting":
            self.gates["begin"].open()
        getattr(self, f"_enter_{phase}")()

    def open_all(self) -> None:
        for gate in self.gates.values():
            gate.open()

    def close(self) -> None:
        self.open_all()
        if self.held is not None:
            self.held.release()
        self.rig.until_clean()
        for gate in self.gates.values():
            gate.shut()

    def told(self, kind: str) -> int:
        return len(self.rig.ledger.entries(kind))

    # -- the phases

    def _enter_idle(self) -> None:
        self.start()
        self.rig.until(lambda: len(self._idle()) == self.processes, "all are idle")
        self.worker = self.pool.workers()[0]

    def _idle(self) -> list[int]:
        return self.pool.registered("default") if self.told("begin") >= self.processes else []

    def _enter_in_job(self) -> None:
        self.start()
        self._begin_job()

    def _begin_job(self) -> None:
        self.running = [self.rig.enqueue("gated")]
        self.worker = self.rig.until_started(self.running[0])

    def _enter_in_batch(self) -> None:
        self.processes = 1
        warm = self.rig.enqueue_many("short", [(0,)] * 200)
        self.start()
        self.rig.until_counts(done=len(warm))
        self.others = warm
        # How many are claimed together is what lately ran in 50 ms: on a busy machine that may be too few at first.
        self.rig.until(self._hold_batch, "a batch is claimed as one")

    def _hold_batch(self) -> bool:
        self.gates["job"].shut()
        self.rig.store.pause("default")
        batch = self.rig.enqueue_many("short", [(0,)] * 3 + [(1,)] + [(0,)] * 4)
        self.rig.store.resume("default")
        self.worker = self.rig.until_started(batch[3])
        if self.rig.stats().counts["active"] == len(batch):
            # Nobody has settled or given back any.
            self.finished, self.running, self.others = batch[:3], batch[3:4], [*batch[4:], *self.others]
            return True
        self.gates["job"].open()
        self.others = [*batch, *self.others]
        self.rig.until_counts(done=len(self.others))
        return False

    def _enter_settling(self) -> None:
        assert self.proxy is not None
        self.gates["job"].open()
        self.start()
        self.rig.store.pause("default")
        self.finished = [self.rig.enqueue("gated")]
        name = self.finished[0].encode()
        # Only the settling of a job names its id on this way.
        self.held = self.proxy.hold(lambda frame, _: name in frame)
        self.rig.store.resume("default")
        self.rig.until(self.held.caught.is_set, "its outcome is on the way")
        self.worker = self.rig.ledger.ends(self.finished[0])[0].pid

    def _enter_starting(self) -> None:
        self.others = [self.rig.enqueue("gated") for _ in range(3)]
        self.start(ready=False)
        self.rig.until(lambda: self.told("begin") == self.processes, "all workers are in their start hook")
        self.worker = self.pool.registered("default")[0]

    def _enter_reloading(self) -> None:
        self._enter_in_job()
        imports = self.told("import")
        self.gates["import"].shut()
        self.pool.send(signal.SIGHUP)
        self.rig.until(lambda: self.told("import") > imports, "the new code is being checked")

    def _enter_replacing(self) -> None:
        self._enter_in_job()
        begun = self.told("begin")
        self.gates["begin"].shut()
        self.pool.send(signal.SIGHUP)
        self.rig.until(lambda: self.told("begin") > begun, "a worker of the next image is in its start hook")

    def _enter_stopping(self) -> None:
        self._enter_in_job()
        self.pool.send(signal.SIGTERM)
        self.rig.until(lambda: self.pool.lines("stopping"), "it is stopping")
