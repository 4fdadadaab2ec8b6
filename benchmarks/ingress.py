"""How many events a second does the ingress acknowledge, and how soon, beside a bare application with one XADD?

A client with some connections posts events of 300 bytes one after the other on each, for some seconds. The bare one
reads the body and adds it to a stream of the same server with redis.asyncio: no checks, no ids, no fallback.
On the spool there is nothing to compare with: each event is on disk before it is acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import rig

CONNECTIONS = 16
BODY = b"x" * 300

BARE = """
import os, socket, sys
import redis.asyncio, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

client = redis.asyncio.Redis.from_url(os.environ["BARE_URL"])

async def take(request):
    await client.xadd("events", {"body": await request.body()})
    return Response(b"{}", 202)

web = Starlette(routes=[Route("/q/{queue}/{job:path}", take, methods=["POST"])])
config = uvicorn.Config(web, log_level="warning", access_log=False)
listening = socket.create_server(("127.0.0.1", 0), backlog=512)
listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
print(f"listening on http://127.0.0.1:{listening.getsockname()[1]}/q", file=sys.stderr, flush=True)
uvicorn.Server(config).run(sockets=[listening])
"""


@contextmanager
def serving(command: list[str], **env: str) -> Iterator[int]:
    """The port of a server that says where it listens."""
    process = subprocess.Popen(command, env=os.environ | env, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "the server has ended"
            found = re.search(r"127\.0\.0\.1:(\d+)/", line)
        yield int(found[1])
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


async def load(port: int, seconds: float) -> list[float]:
    """What each event took, in ms."""
    took: list[float] = []
    until = time.monotonic() + seconds
    head = f"POST /q/default/event HTTP/1.1\r\nhost: x\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (began := time.monotonic()) < until:
            writer.write(head + BODY)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 202"), answer
            await reader.readexactly(int(answer.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))
            took.append((time.monotonic() - began) * 1000)
        writer.close()

    await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))
    return took


def told(took: list[float], seconds: float) -> tuple[str, str]:
    return (
        f"{len(took) / seconds:>9,.0f}/s",
        f"median {rig.percentile(took, 0.5):.1f}  p99 {rig.percentile(took, 0.99):.1f} ms",
    )


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    url, seconds = new_url(), args.seconds
    with serving([sys.executable, "-m", "batchq", "ingress", "--port", "0"], BATCHQ_URL=url) as port:
        asyncio.run(load(port, min(1.0, seconds)))
        rig.row(store, "the ingress", *told(asyncio.run(load(port, seconds)), seconds))
    if store == "redis":
        with serving([sys.executable, "-c", BARE], BARE_URL=new_url()) as port:
            asyncio.run(load(port, min(1.0, seconds)))
            rig.row(store, "bare Starlette, one XADD", *told(asyncio.run(load(port, seconds)), seconds))
    else:
        size = sum(file.stat().st_size for file in Path(url.removeprefix("spool:")).rglob("*") if file.is_file())
        rig.row(store, "on disk afterwards", f"{size >> 10} KiB")


if __name__ == "__main__":
    rig.main(__doc__, measure, seconds=rig.Option(5.0, 0.5, "S", "seconds of load"))
