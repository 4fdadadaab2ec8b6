"""The work that every system runs, and the note that it leaves. Standard library only: imported where the system is.

A note is 24 bytes at the end of a file in memory, in one write: nobody tears it, it costs 2 us, and it needs no Redis,
so that nothing is counted through what is measured.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from typing import Any

#: Number of the job and what is noted, pid, time of the note, time from the payload; both ns of CLOCK_REALTIME.
NOTE = struct.Struct("<IIqq")
#: What is noted beside the number.
FAILED, ENDED = 1 << 31, 1 << 30
NUMBER = ENDED - 1
#: CPU seconds of a heavy job.
HEAVY_S = 0.020

_out = os.open(os.environ.get("PEERS_NOTES", os.devnull), os.O_WRONLY | os.O_APPEND)


def payload(number: int, kind: str, at_ns: int = 0) -> dict[str, Any]:
    """About 100 bytes as JSON. `at_ns`: when it was sent, or is due."""
    job: dict[str, Any] = {"number": number, "kind": kind, "at_ns": at_ns, "pad": "x" * 40}
    if kind == "deliver":
        hosts = os.environ["PEERS_HOSTS"].split()
        job["url"] = hosts[number % len(hosts)]
    return job


async def arun(job: dict[str, Any]) -> None:
    """The same in an event loop: a delivery waits there, all else is as short as in a plain function."""
    if job["kind"] == "deliver":
        from peers.delivery import apost

        await apost(job)
    else:
        run(job)


def run(job: dict[str, Any]) -> None:
    """What a job does, by its kind."""
    number, kind = job["number"], job["kind"]
    if kind == "deliver":
        from peers.delivery import post

        post(job)
    elif kind == "fail":
        fail_once(number)
    elif kind == "heavy":
        note(number)
        burn()
        note(number | ENDED)
    else:
        note(number, job["at_ns"])


def note(number: int, at_ns: int = 0) -> None:
    os.write(_out, NOTE.pack(number, os.getpid(), time.time_ns(), at_ns))


def fail_once(number: int) -> None:
    """The first attempt raises ValueError, the second goes well."""
    with open(os.environ["PEERS_TRIED"], "r+b") as file, mmap.mmap(file.fileno(), 0) as tried:
        if tried[number]:
            note(number)
            return
        tried[number] = 1
    note(number | FAILED)
    raise ValueError("fails once")


def burn() -> int:
    """Pure Python for HEAVY_S of this thread's own CPU time, so that waiting for a core shows as time passed."""
    until, x = time.thread_time() + HEAVY_S, 1
    while time.thread_time() < until:
        for _ in range(500):
            x = (x * 1103515245 + 12345) & 0x7FFFFFFF
    return x
