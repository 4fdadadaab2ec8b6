"""The deliveries of `webhooks.py`: its app, and the receiver that they go to."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

from batchq import App, Breaker, fixed, webhooks

app = App()
deliver = webhooks.register(
    app,
    queue="default",
    private=True,
    limit=int(os.environ.get("BATCHQ__PER_HOST", "20")),
    breaker=Breaker(failures=10, reset=1.0),
    backoff=fixed(0.2),
    max_attempts=50,
)

#: Of a call that costs nothing but time.
CALL_S = 0.1


@app.job
async def waits() -> None:
    await asyncio.sleep(CALL_S)


ANSWERS = {status: f"HTTP/1.1 {status} X\r\ncontent-length: 2\r\n\r\nok".encode() for status in (200, 503)}


def receive(sockets: list[socket.socket], latencies_s: Sequence[float], errors: float, delivered: Any) -> None:
    """Answers every POST after the latency of its host, some with 503, and counts the others by host. Never ends."""
    rng = random.Random(1)

    async def talk(host: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                await reader.readexactly(length)
                await asyncio.sleep(latencies_s[host])
                failed = rng.random() < errors
                delivered[host] += not failed
                writer.write(ANSWERS[503 if failed else 200])
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def serve() -> None:
        servers = [
            await asyncio.start_server(partial(talk, host), sock=one, limit=1 << 16) for host, one in enumerate(sockets)
        ]
        await asyncio.gather(*(server.serve_forever() for server in servers))

    asyncio.run(serve())
