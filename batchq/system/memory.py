"""What the kernel does when memory runs out: whom it takes first, and whether it was it that killed a worker."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

#: So much more likely than its master is a worker to be taken: a tenth of all memory counts 100.
RAISE = 200
HIGHEST = 1000

_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def be_first_to_go(adjustment: Path = Path("/proc/self/oom_score_adj")) -> None:
    """In a worker: the kernel takes it, and what its handlers start, before the master. Linux only."""
    with contextlib.suppress(OSError, ValueError), open(adjustment, "r+b", buffering=0) as file:
        now = int(file.read())
        os.pwrite(file.fileno(), b"%d\n" % min(HIGHEST, now + RAISE), 0)


class KillCount:
    """Counts the processes of this control group that the kernel killed for want of memory."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> None:
        self._file = _file(root, own)
        self._seen = self._read()

    def _read(self) -> int | None:
        if self._file is None:
            return None
        with contextlib.suppress(OSError):
            found = _KILLS.search(self._file.read_text())
            return int(found[1]) if found else None
        return None

    def has_grown(self) -> bool | None:
        """Since the last call; None where nobody can say."""
        before, self._seen = self._seen, self._read()
        return None if before is None or self._seen is None else self._seen > before


def _file(root: Path, own: Path) -> Path | None:
    """Where the count stands: memory.events of a unified hierarchy, memory.oom_control of an old one. In a container
    the group's path may be one of the host, and the mount begins at the group."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            places = [root / path.lstrip("/") / "memory.events", root / "memory.events"]
        elif "memory" in controllers.split(","):
            old = root / "memory"
            places = [old / path.lstrip("/") / "memory.oom_control", old / "memory.oom_control"]
        else:
            continue
        for place in places:
            with contextlib.suppress(OSError):
                if _KILLS.search(place.read_text()):
                    return place
    return None


def hint(by_kernel: bool | None) -> str:
    """What to add to "killed by SIGKILL"."""
    if by_kernel is None:
        return "; out of memory, or killed by hand?"
    if by_kernel:
        return ": out of memory, the kernel's count of such kills in this control group has grown"
    return ", by hand or by another program: the kernel has counted no kill for want of memory"
