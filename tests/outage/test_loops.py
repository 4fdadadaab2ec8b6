"""Producers in event loops: the loop turns whatever the store does, and each call's job runs once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from batchq import App
from tests.servers import Server

Serve = Callable[..., Server]


async def _turns(work: asyncio.Future[object]) -> float:
    """The longest that the loop stood still, in seconds, while something was under way."""
    longest = 0.0
    while not work.done():
        began = time.monotonic()
        await asyncio.sleep(0.005)
        longest = max(longest, time.monotonic() - began - 0.005)
    await work
    return longest


def test_loop_turns_while_the_server_hangs_and_nothing_is_lost(serve: Serve, tmp_path: Path) -> None:
    """A server that accepts and says nothing: 300 calls are all in the spool in about the time of one."""
    server = serve()
    # A loop that waited for the server would stand still for this time; a busy machine's pauses are far shorter.
    timeout = 3.0
    app = App(server.url, spool=str(tmp_path / "spool"), fallback_ephemeral=True, enqueue_timeout=timeout)

    @app.job
    async def deliver(number: int) -> None: ...

    async def main() -> None:
        first = await deliver.aenqueue(-1)
        assert (first.created, first.spooled) == (True, False)
        refs = await asyncio.gather(*(deliver.aenqueue(number) for number in range(100)))
        assert all(ref.created and not ref.spooled for ref in refs)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            some = asyncio.gather(*(deliver.aenqueue(number) for number in range(300)))
            assert await _turns(some) < timeout / 2
            assert time.monotonic() - began < 3 * timeout
            assert all(ref.spooled for ref in some.result())
            many = asyncio.ensure_future(deliver.aenqueue_many((number,) for number in range(50)))
            assert await _turns(many) < timeout / 2
            assert many.result().spooled == 50
        finally:
            os.kill(server.pid, signal.SIGCONT)

    asyncio.run(main())
    app.close()


def test_wrong_call_fails_alone(serve: Serve, tmp_path: Path) -> None:
    """What is gathered in one step is refused one by one."""
    app = App(serve().url, spool=str(tmp_path / "spool"), fallback_ephemeral=True)

    @app.job
    async def deliver(number: int) -> None: ...

    async def main() -> list[object]:
        calls = [deliver.aenqueue(1), deliver.aenqueue({1, 2}), deliver.aenqueue(3)]  # type: ignore[arg-type]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    one, two, three = asyncio.run(main())
    assert isinstance(two, TypeError)
    assert "args[0]" in str(two)
    assert not isinstance(one, Exception)
    assert not isinstance(three, Exception)
    assert app.stats()["queues"]["default"]["counts"]["pending"] == 2
    app.close()
