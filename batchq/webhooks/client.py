"""An HTTP client for deliveries: one for an event loop, connections reused, addresses checked, nothing followed."""

from __future__ import annotations

import asyncio
import ssl
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from functools import partial

import httpcore
import httpx

from batchq.clock import monotonic
from batchq.webhooks.guard import GuardedBackend

#: Connections kept open for the next delivery to the same host, and how long.
KEPT, KEPT_S = 200, 30.0

#: Scheme, name and port.
Host = tuple[bytes, bytes, int]


def _host(origin: httpcore.Origin) -> Host:
    return origin.scheme, origin.host, origin.port


class Connections:
    """Those that nobody uses, by host, and the age of each.

    httpcore's own pool looks at every connection for every request, and at every other one for each of these: with a
    hundred calls at once that is 9 ms of CPU a call. Here a call looks at the one that it takes.
    """

    def __init__(self, backend: GuardedBackend, context: ssl.SSLContext) -> None:
        self._backend = backend
        self._context = context
        self._by_host: dict[Host, list[httpcore.AsyncHTTPConnection]] = {}
        #: In the order in which they were left, with the time of that.
        self._left: dict[httpcore.AsyncHTTPConnection, tuple[Host, float]] = {}

    async def take(self, origin: httpcore.Origin) -> httpcore.AsyncHTTPConnection:
        """The one that was used last, else a new one, which connects with its first request."""
        kept = self._by_host.get(_host(origin), [])
        while kept:
            connection = kept[-1]
            self._forget(connection)
            # The other side may have closed it.
            if connection.is_idle() and not connection.has_expired():
                return connection
            await connection.aclose()
        return httpcore.AsyncHTTPConnection(
            origin, ssl_context=self._context, keepalive_expiry=KEPT_S, network_backend=self._backend
        )

    async def leave(self, origin: httpcore.Origin, connection: httpcore.AsyncHTTPConnection) -> None:
        """Its answer was read to the end, or it is closed."""
        host, now = _host(origin), monotonic()
        if connection.is_idle():
            self._by_host.setdefault(host, []).append(connection)
            self._left[connection] = host, now
        else:
            await connection.aclose()
        while self._left:
            oldest, (_, since) = next(iter(self._left.items()))
            if len(self._left) <= KEPT and now - since <= KEPT_S:
                break
            self._forget(oldest)
            await oldest.aclose()

    def _forget(self, connection: httpcore.AsyncHTTPConnection) -> None:
        host, _ = self._left.pop(connection)
        kept = self._by_host[host]
        kept.remove(connection)
        if not kept:
            del self._by_host[host]

    async def aclose(self) -> None:
        while self._left:
            connection = next(iter(self._left))
            self._forget(connection)
            await connection.aclose()


class _Body(httpx.AsyncByteStream):
    """An answer's body. Whoever closes it leaves its connection for the next."""

    def __init__(self, stream: AsyncIterable[bytes], leave: Callable[[], Awaitable[None]]) -> None:
        self._stream = stream
        self._leave = leave

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()  # type: ignore[attr-defined]
        finally:
            await self._leave()


class GuardedTransport(httpx.AsyncBaseTransport):
    """httpx's requests over connections of httpcore that the guard makes."""

    def __init__(self, backend: GuardedBackend, context: ssl.SSLContext) -> None:
        self._connections = Connections(backend, context)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        assert isinstance(request.stream, httpx.AsyncByteStream)
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        sent = httpcore.Request(
            method=request.method,
            url=target,
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        connection = await self._connections.take(target.origin)
        leave = partial(self._connections.leave, target.origin, connection)
        try:
            answer = await connection.handle_async_request(sent)
        except BaseException:
            # It has closed itself, or was never made.
            await leave()
            raise
        assert isinstance(answer.stream, AsyncIterable)
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_Body(answer.stream, leave), extensions=answer.extensions
        )

    async def aclose(self) -> None:
        await self._connections.aclose()


class Clients:
    """A transport for each event loop that asks: a worker has one, and so all its deliveries share connections.

    No httpx.AsyncClient around it: that would keep the cookies of one receiver's answers, merge urls and follow what
    nobody wants followed, for a quarter of the CPU of a call.
    """

    def __init__(self, backend: GuardedBackend) -> None:
        self._backend = backend
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, GuardedTransport] = (
            weakref.WeakKeyDictionary()
        )

    def get(self) -> GuardedTransport:
        loop = asyncio.get_running_loop()
        transport = self._by_loop.get(loop)
        if transport is None:
            self._by_loop[loop] = transport = GuardedTransport(self._backend, httpx.create_ssl_context())
        return transport
