"""Sockets that wait for connections."""

from __future__ import annotations

import socket

from batchq.errors import ConfigError


def listen(host: str, port: int, said: str, *, backlog: int) -> socket.socket:
    """A socket that listens there. Raises ConfigError where that can't be had; `said` is setting and place, as its user
    knows them."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        # Python adds the address to the system's words.
        why = str(error.strerror).partition(" (while")[0]
        raise ConfigError(f"{said} can't be listened at ({why}); name another") from None
