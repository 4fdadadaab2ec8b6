"""Pipes by which a process is woken: neither end ever waits."""

from __future__ import annotations

import os
import select


def pipe() -> tuple[int, int]:
    """Both ends non-blocking, and closed by an exec."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write


def drain(fd: int) -> bytes:
    """Empties a non-blocking pipe."""
    try:
        return os.read(fd, 4096)
    except BlockingIOError:
        return b""


def wait_for(*fds: int, seconds: float) -> list[int]:
    """Those that can be read, as soon as there is one; none when the time is over. Any number will do, where `select`
    takes none from 1024 on: an app may hold many files open."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(seconds * 1000)]
