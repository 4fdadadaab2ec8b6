"""Opens the store that a url names. Each store's module is imported only when it is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from batchq.config import Settings, default_spool, masked
from batchq.errors import ConfigError
from batchq.store import Limits, Store

if TYPE_CHECKING:
    from batchq.fallback.offline import Offline, Shelf
    from batchq.fallback.producer import Fallback
    from batchq.registry import Registry

#: What a url may look like, for messages.
KINDS = (
    "redis://HOST:PORT/DB, rediss://HOST:PORT/DB, unix:///PATH.sock, redis+sentinel://HOST:PORT,HOST:PORT/NAME, "
    "redis+cluster://HOST:PORT,HOST:PORT, spool:PATH or memory:"
)
#: What a url of a Redis store begins with; with an s behind `redis` it is under TLS.
REDIS = (
    "redis://",
    "rediss://",
    "unix://",
    *(f"{scheme}+{kind}://" for scheme in ("redis", "rediss") for kind in ("sentinel", "cluster")),
)


def open_store(url: str, settings: Settings, *, make: bool = True) -> Store:
    """The store under that url. Raises ConfigError for a url that names none; connecting comes with the first call.

    `make=False`: a spool that is not there is not made, and reads as an empty one.
    """
    limits = limits_of(settings)
    if url.startswith(REDIS):
        from batchq.redis.store import RedisStore

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

        return SpoolStore(rest, limits=limits, durability=settings.durability, make=make)
    if url == "memory:":
        from batchq.memory_store import MemoryStore

        return MemoryStore(limits=limits)
    raise ConfigError(f'url: "{masked(url):.200}" names no store; write {KINDS}')


def limits_of(settings: Settings) -> Limits:
    """What stores are told of the settings."""
    return Limits(mark_ttl_ms=settings.mark_ttl_ms, remember_ms=settings.remember_ms)


def spool_path(settings: Settings) -> str:
    """The spool of this host."""
    return settings.spool or str(default_spool())


def open_fallback(store: Store, settings: Settings) -> Fallback | None:
    """Where an app's jobs go while that store is away; None where it never is, or none is wanted."""
    if not settings.fallback or store.traits.kind != "redis":
        return None
    from batchq.fallback.producer import Fallback
    from batchq.redis.store import RedisStore

    assert isinstance(store, RedisStore)
    return Fallback(
        store,
        spool_path(settings),
        limits_of(settings),
        ephemeral=settings.fallback_ephemeral,
        max_pending=settings.pending_limit,
        confirm=settings.forward_confirm,
        ordered=settings.ordered,
    )


def attach_inbox(store: Store, settings: Settings) -> None:
    """For a master: its sweeps forward what waits in this host's spool for that store."""
    if settings.fallback and store.traits.kind == "redis":
        from batchq.fallback.forward import Forwarder, Inbox
        from batchq.redis.store import RedisStore

        assert isinstance(store, RedisStore)
        store.inbox = Inbox(
            Forwarder(
                store,
                spool_path(settings),
                limits_of(settings),
                max_pending=settings.pending_limit,
                confirm=settings.forward_confirm,
            )
        )


def make_offline(
    store: Store, settings: Settings, registry: Registry, queues: Sequence[str], serve: Callable[[Shelf], int]
) -> Offline | None:
    """For a master: what runs `offline=True` handlers while that store is away. None where there is no such handler,
    or no fallback."""
    if not settings.fallback or store.traits.kind != "redis":
        return None
    if not any(registry.get(name).offline for name in registry.names()):
        return None
    from batchq.fallback.offline import Offline, Shelf
    from batchq.redis.store import RedisStore

    assert isinstance(store, RedisStore)
    return Offline(Shelf(spool_path(settings), store, registry, queues), store, serve)
