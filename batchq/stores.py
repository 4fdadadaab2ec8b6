"""Opens the store that a url names. Each store's module is imported only when it is used."""

from __future__ import annotations

from batchq.config import Settings, masked
from batchq.errors import ConfigError
from batchq.store import Limits, Store

#: What a url may look like, for messages.
KINDS = "redis://HOST:PORT/DB, rediss://HOST:PORT/DB, unix:///PATH.sock, spool:PATH or memory:"


def open_store(url: str, settings: Settings) -> Store:
    """The store under that url. Raises ConfigError for a url that names none; connecting comes with the first call."""
    limits = Limits(mark_ttl_ms=settings.mark_ttl_ms, remember_ms=settings.remember_ms)
    if url.startswith(("redis://", "rediss://", "unix://")):
        from batchq.redis_store import RedisStore

        return RedisStore(
            url,
            prefix=settings.prefix,
            limits=limits,
            socket_timeout_s=settings.socket_timeout_ms / 1000,
            patience_s=settings.enqueue_timeout_ms / 1000,
        )
    scheme, _, rest = url.partition(":")
    if scheme == "spool" and rest:
        from batchq.spool import SpoolStore

        return SpoolStore(rest, limits=limits, durability=settings.durability)
    if url == "memory:":
        from batchq.memory_store import MemoryStore

        return MemoryStore(limits=limits)
    raise ConfigError(f'url: "{masked(url):.200}" names no store; write {KINDS}')
