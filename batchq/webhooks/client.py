"""An HTTP client for deliveries: one for an event loop, connections reused, addresses checked, nothing followed."""

from __future__ import annotations

import asyncio
import ssl
import weakref
from collections.abc import AsyncIterable, AsyncIterator

import httpcore
import httpx

from batchq.webhooks.guard import GuardedBackend

#: Connections kept open for the next delivery to the same host, and how long.
KEPT, KEPT_S = 200, 30.0


class _Body(httpx.AsyncByteStream):
    def __init__(self, stream: AsyncIterable[bytes]) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        close = getattr(self._stream, "aclose", None)
        if close is not None:
            await close()


class GuardedTransport(httpx.AsyncBaseTransport):
    """httpx's requests over a pool of httpcore whose connections the guard makes."""

    def __init__(self, backend: GuardedBackend, context: ssl.SSLContext) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            max_connections=None,
            max_keepalive_connections=KEPT,
            keepalive_expiry=KEPT_S,
            network_backend=backend,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        assert isinstance(request.stream, httpx.AsyncByteStream)
        answer = await self._pool.handle_async_request(
            httpcore.Request(
                method=request.method,
                url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        assert isinstance(answer.stream, AsyncIterable)
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_Body(answer.stream), extensions=answer.extensions
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class Clients:
    """A client for each event loop that asks: a worker has one, and so all its deliveries share connections."""

    def __init__(self, backend: GuardedBackend) -> None:
        self._backend = backend
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = (
            weakref.WeakKeyDictionary()
        )

    def get(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._by_loop.get(loop)
        if client is None:
            transport = GuardedTransport(self._backend, httpx.create_ssl_context())
            client = httpx.AsyncClient(transport=transport, follow_redirects=False, trust_env=False)
            self._by_loop[loop] = client
        return client
