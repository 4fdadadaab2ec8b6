"""Tells the service manager how the master does, by systemd's sd_notify protocol: datagrams to NOTIFY_SOCKET.

Does nothing where there is no such socket. Nothing here waits, and a manager that does not listen is no error.
"""

from __future__ import annotations

import contextlib
import socket
from typing import NamedTuple

from batchq import config
from batchq.clock import SYSTEM, monotonic_ns


class Manager(NamedTuple):
    """Where to write, and how often (in microseconds, 0: never) a sign of life is expected."""

    address: str
    watchdog_us: int


class Notifier:
    """One a master. The socket's name is kept from the workers and what they start."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        address, watchdog_us = config.take_manager(pid)
        self._manager = Manager(address, watchdog_us) if address else None
        self._beat_at = 0.0
        self._status = ""

    @property
    def beat_s(self) -> float | None:
        """How often `beat` is to be called; None: never."""
        return self._manager.watchdog_us / 2e6 if self._manager and self._manager.watchdog_us else None

    def ready(self) -> None:
        self._send("READY=1")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for people, sent when it is another."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def beat(self, *, now: bool = False) -> None:
        """A sign of life, when it is time for one."""
        if self.beat_s is not None and (now or SYSTEM.monotonic() >= self._beat_at):
            self._beat_at = SYSTEM.monotonic() + self.beat_s
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if self._manager is None:
            return
        address = self._manager.address
        # A name that begins with @ is an abstract one.
        name = "\0" + address[1:] if address.startswith("@") else address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as talk:
            talk.setblocking(False)
            talk.sendto(text.encode(), name)
