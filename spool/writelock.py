"""The lock that every writer of the ledger takes (its file is `gate`), and who holds it when that takes long.

Writers queue in the kernel, which has no limit of time: a holder that is stopped (SIGSTOP, a debugger) stops them all.
So whoever waits for long is told by a thread of its process, in the log, which process that is. Opening is different:
it may fail, and says the same in its error. (The gates of `gates.py` are another thing: limits that jobs pass.)
"""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

from batchq import log
from batchq.clock import monotonic
from batchq.errors import StoreUnavailable
from batchq.spool import fs

#: A holder that keeps the gate for longer is named.
HELD_S: Final = 5.0
#: How long opening waits for it.
OPEN_S: Final = 10.0
#: Between two looks of the thread, and how many of them it stays when nobody waits.
_LOOK_S: Final = 1.0
_LOOKS: Final = 30
#: The same holder is named again after this time.
_AGAIN_S: Final = 60.0


class Holder(NamedTuple):
    """A process that has a lock."""

    pid: int
    what: str
    is_stopped: bool

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.what}{', stopped' if self.is_stopped else ''})"


def holder_of(pid: int) -> Holder:
    """What that process is, as far as the system tells."""
    # Only here: whoever enqueues one job should not pay for it.
    import psutil

    try:
        process = psutil.Process(pid)
        words = process.cmdline()
        return Holder(
            pid, " ".join(" ".join(words).split())[:200] or process.name(), process.status() == psutil.STATUS_STOPPED
        )
    except psutil.Error:
        return Holder(pid, "not visible from here", False)


def holders(path: str, kind: str = "FLOCK") -> list[Holder]:
    """Who has a lock on that file now. Nobody where the system has no list of locks (macOS)."""
    return [holder_of(pid) for pid in fs.lockers(path, kind)]


def named(path: str) -> str:
    """Who holds the gate, for messages."""
    found = holders(path)
    return ", ".join(map(str, found)) if found else f"nobody that can be seen (`lsof {path}` may tell)"


class WriteLock:
    """A handle on the lock. It must not be used on both sides of a fork."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        self._identity: fs.Identity = (0, 0)
        #: How long the last `lock` took.
        self.waited_s = 0.0

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def open(self) -> None:
        """Raises OSError."""
        if self._fd < 0:
            self._fd = fs.open_lock(self.path)
            self._identity = fs.identity_of(self._fd)

    def lock(self) -> None:
        """Waits until it is ours, however long that takes."""
        # An exception of a signal handler may come between any two of these: the wait is always taken back.
        if fs.try_lock(self._fd):
            self.waited_s = 0.0
            return
        began = monotonic()
        with _Wait(self.path):
            fs.lock(self._fd)
        self.waited_s = monotonic() - began

    def lock_within(self, seconds: float = OPEN_S) -> None:
        """Waits no longer than that. Raises StoreUnavailable that names the holder; the handle is closed then.

        A thread waits in the kernel's queue: trying again and again would never win against those who stand there.
        """
        if fs.try_lock(self._fd):
            return
        fd, guard, got, given_up = self._fd, threading.Lock(), threading.Event(), threading.Event()

        def wait() -> None:
            fs.lock(fd)
            with guard:
                if given_up.is_set():
                    # Unlocked first: a child that was forked meanwhile has the descriptor too.
                    fs.unlock(fd)
                    fs.close(fd)
                else:
                    got.set()

        threading.Thread(target=wait, name="batchq-gate", daemon=True).start()
        got.wait(seconds)
        with guard:
            if got.is_set():
                return
            given_up.set()
            self._fd = -1
        raise StoreUnavailable(
            f"spool: {self.path}: held for more than {seconds:g} s by {named(self.path)}; "
            "let that process go on, or end it: nothing is lost by that"
        )

    def unlock(self) -> None:
        fs.unlock(self._fd)

    def is_free(self) -> bool:
        """A look, by one who does not have it."""
        if not self.is_open:
            return False
        try:
            return fs.try_lock(self._fd)
        finally:
            # Also behind an exception of a signal handler. What another has stays locked.
            fs.unlock(self._fd)

    def stands(self) -> bool:
        """Whether the file under its name still is the one that is locked."""
        return fs.stands_at(self._identity, self.path)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            fs.close(fd)


# -- those who wait for long ---------------------------------------------------------------------------------------

_guard = threading.Lock()
_waits: dict[_Wait, float] = {}
_told: dict[str, float] = {}
_watcher: threading.Thread | None = None
_end = threading.Event()


class _Wait:
    """Somebody waits."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.told = False

    def __enter__(self) -> None:
        global _watcher
        try:
            with _guard:
                _waits[self] = monotonic()
                if _watcher is None:
                    _end.clear()
                    _watcher = threading.Thread(target=_watch, name="batchq-gate-watch", daemon=True)
                    _watcher.start()
        except BaseException:
            # A signal handler raised: nobody waits.
            _waits.pop(self, None)
            raise

    def __exit__(self, *error: object) -> None:
        since = _waits.pop(self)
        if self.told:
            _told.pop(self.path, None)
            log.event("warning", "gate_free", gate=self.path, after_ms=int((monotonic() - since) * 1000))


def _watch() -> None:
    """Names the holder to those who have waited for long. Ends when nobody has waited for a while."""
    global _watcher
    idle = 0
    while not _end.wait(_LOOK_S):
        with _guard:
            idle = 0 if _waits else idle + 1
            if idle > _LOOKS:
                # Inside the guard: who comes now starts another.
                _watcher = None
                return
        now = monotonic()
        for wait, since in list(_waits.items()):
            if now - since >= HELD_S and now - _told.get(wait.path, -_AGAIN_S) >= _AGAIN_S:
                _told[wait.path] = now
                wait.told = True
                log.event(
                    "error", "gate_held", gate=wait.path, by=named(wait.path), waited_ms=int((now - since) * 1000)
                )
    _watcher = None


def before_fork() -> None:
    """No thread of ours may be running while the process forks. Called while no ledger can be used."""
    watcher = _watcher
    if watcher is not None:
        _end.set()
        watcher.join()
