"""What the system offers between a parent and its children: a child that dies with its parent, a death that is seen.

Linux kills the child by PR_SET_PDEATHSIG; elsewhere, and where a sandbox forbids that call, the child watches the end
of a pipe that only its parent holds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

import psutil

_PR_SET_PDEATHSIG = 1
if sys.platform == "linux":
    # Found here, on the parent's side of the forks.
    _prctl = ctypes.CDLL(None, use_errno=True).prctl


def die_with(life_r: int, life_w: int, *, parent: int) -> None:
    """Called in a child: it does not outlive its parent. The two ends of the pipe are those that the parent holds."""
    os.close(life_w)
    if die_with_parent(parent):
        os.close(life_r)
    else:
        threading.Thread(target=_watch, args=(life_r,), name="batchq-parent", daemon=True).start()


def die_with_parent(parent: int) -> bool:
    """The kernel ends this process with its parent: whether it does, which is on Linux, and where nobody forbids the
    call. Where the parent has died already, it ends now."""
    told = sys.platform == "linux" and bool(_prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) == 0)
    # The parent may have died before the call above.
    if os.getppid() != parent:
        os._exit(70)
    return told


def birth_of(pid: int) -> int:
    """When that process began, in a unit of the system's: with its pid it names a process until the next boot. 0 where
    there is none, or only a zombie."""
    if sys.platform == "linux":
        try:
            with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
                # The name, in parentheses, may hold anything.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return 0
        return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
    try:
        process = psutil.Process(pid)
        return 0 if process.status() == psutil.STATUS_ZOMBIE else int(process.create_time() * 1e6)
    except psutil.Error:
        return 0


def _watch(life_r: int) -> None:
    # For the main thread, see Worker.go_on.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
    while os.read(life_r, 1):
        pass
    os._exit(70)


class Ended(NamedTuple):
    """A child that has ended."""

    pid: int
    #: As of `os.waitstatus_to_exitcode`.
    code: int
    #: The most memory that was resident at once, of it and of those that it waited for, in bytes.
    peak_bytes: int


def reap_child(before: Callable[[int], None]) -> Ended | None:
    """One ended child, or None. `before(pid)` is called while it is a zombie: its pid, and the group
    that it led, can't be anybody else's yet."""
    try:
        if sys.platform != "darwin" or sys.version_info >= (3, 13):
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return None
            before(found.si_pid)
            pid, status, usage = os.wait4(found.si_pid, 0)
        else:
            # Older Pythons have no waitid there. Pids are given out in turn: this one is nobody's for long enough.
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return None
            before(pid)
        # Linux counts KiB, macOS bytes.
        peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return Ended(pid, os.waitstatus_to_exitcode(status), peak)
    except ChildProcessError:
        return None
