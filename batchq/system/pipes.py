"""Pipes by which a process is woken: neither end ever waits."""

from __future__ import annotations

import os


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
