"""What the handlers of a test did, by their own account: a file that they append to. Imports nothing of what is tested.

A line is one write(2) to a descriptor opened with O_APPEND, so lines of many processes never mix. It is filled up to 64
bytes: the kernel copies page by page, and a SIGKILL between two pages would leave half a line. So none crosses a page,
as long as ids are generated ones.

    S job attempt token pid monotonic_ns     the handler began
    E job attempt token pid monotonic_ns     it came to its end

CLOCK_MONOTONIC is the same for all processes of a host.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

#: What a test's app begins with: `note(kind)` writes a line for the job under way.
WRITER = """
import os, time
from batchq import current_job

_ledger = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(kind):
    job = current_job()
    line = f"{kind} {job.id} {job.attempt} {job.token} {os.getpid()} {time.monotonic_ns()}"
    os.write(_ledger, line.encode().ljust(63) + b"\\n")
"""


class Entry(NamedTuple):
    """One line."""

    kind: str
    job: str
    attempt: int
    token: int
    pid: int
    at_ns: int


class Ledger:
    """Reads the file. Everything is read anew at each question: it only grows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self, kind: str | None = None, job: str | None = None) -> list[Entry]:
        """The lines of that kind and that job, in the order in which they were written."""
        if not self.path.exists():
            return []
        found = []
        # Race: a line that is being written is seen in part.
        whole = self.path.read_text().rpartition("\n")[0]
        for line in whole.splitlines():
            k, name, attempt, token, pid, at_ns = line.split()
            if (kind is None or k == kind) and (job is None or name == job):
                found.append(Entry(k, name, int(attempt), int(token), int(pid), int(at_ns)))
        return found

    def starts(self, job: str | None = None) -> list[Entry]:
        return self.entries("S", job)

    def ends(self, job: str | None = None) -> list[Entry]:
        return self.entries("E", job)
