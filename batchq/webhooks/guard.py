"""Which addresses a delivery may go to: none inside one's own network, unless that is allowed. Asked after the look-up.

The connection is made to the very address that was checked, so a name that changes its address in between gains
nothing. Urls come from customers; this keeps them from reaching what only this host can reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpcore

from batchq.errors import BatchqError, ConfigError

# anyio does it with the first connection, in each worker's loop, which stands still meanwhile: a tenth of a second or
# more where several begin.
with contextlib.suppress(ImportError):
    importlib.import_module("anyio._backends._asyncio")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Addresses in which an IPv4 address stands in the last 32 bits.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
#: All IPv6 addresses that are given out to the world. Others may be translated here to what is private.
_WORLD = ipaddress.ip_network("2000::/3")


class Blocked(BatchqError):
    """A url that a delivery may not go to: its scheme, its form, or an address that is private."""


def networks(names: Iterable[str]) -> tuple[Network, ...]:
    """Networks such as 10.1.0.0/16. Raises ConfigError."""
    try:
        return tuple(ipaddress.ip_network(name) for name in names)
    except ValueError as error:
        raise ConfigError(f"allow: {error}; write networks such as 10.1.0.0/16 or ::1/128") from None


def check_url(url: str) -> str:
    """The host of a url that may be posted to. Raises Blocked for another scheme, for a url without a host, and for
    one with a user or password in it."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Blocked(f"url: {error}; write https://HOST/PATH") from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise Blocked(f"url: expected http:// or https:// and a host, found {url!r:.100}")
    if parts.username is not None or parts.password is not None:
        raise Blocked("url: it holds a user or password; send an Authorization header instead")
    return host


def host_of(url: str, *args: object, **kwargs: object) -> str:
    """The host and port that a url leads to, in lower case: as a key of limits. One that can't be read has none."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return ""
    return f"{(parts.hostname or '').lower()}:{port}"


def is_public(address: Address) -> bool:
    """Whether the whole world can reach it. What carries an IPv4 address inside is judged by that as well."""
    inner: list[Address | None] = []
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address not in _WORLD:
            return False
        inner = [address.sixtofour, *(address.teredo or ())]
    return address.is_global and not address.is_multicast and all(one is None or is_public(one) for one in inner)


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Looks a host up, refuses the addresses that are not allowed, and connects to one of those that were checked."""

    def __init__(self, *, private: bool, allow: Sequence[Network] = ()) -> None:
        self._inner = httpcore.AnyIOBackend()
        self._private = private
        self._allow = tuple(allow)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"{host}: its name could not be looked up within {timeout:g} s") from None
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"{host}: its name could not be looked up ({error})") from None
        addresses = list(dict.fromkeys(str(info[4][0]).partition("%")[0] for info in found))
        # All of them: one that is private among public ones is no accident.
        for text in addresses:
            self._check(host, ipaddress.ip_address(text))
        fault: Exception | None = None
        for text in addresses:
            try:
                return await self._inner.connect_tcp(text, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                fault = error
        raise fault or httpcore.ConnectError(f"{host}: has no address")

    def _check(self, host: str, address: Address) -> None:
        if self._private or is_public(address) or any(address in network for network in self._allow):
            return
        raise Blocked(f"url: {host} leads to {address}, which is not public; allow its network if that is meant")

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise Blocked("url: a socket of this host is nowhere to deliver to")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
