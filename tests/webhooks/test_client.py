"""The client of deliveries: connections are kept for the next call, none for long, and a call looks at its own only."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from typing import Any

import httpcore
import httpx
import pytest

from batchq.webhooks import client as module
from batchq.webhooks.client import Clients
from batchq.webhooks.guard import GuardedBackend
from tests.webhooks.receiver import Receiver


@pytest.fixture
def receivers() -> Iterator[list[Receiver]]:
    made = [Receiver() for _ in range(3)]
    yield made
    for one in made:
        one.close()


def run(*rounds: Coroutine[Any, Any, None]) -> None:
    """One round after the other, in one event loop."""

    async def all_of_them() -> None:
        for one in rounds:
            await one

    asyncio.run(all_of_them())


CLIENTS = Clients(GuardedBackend(private=True))


async def post(url: str, timeout: float = 20) -> None:
    """One call, which must get its own answer."""
    client = httpx.AsyncClient(transport=CLIENTS.get(), trust_env=False)
    answer = await client.post(url, json={}, timeout=timeout)
    assert answer.json()["said"] == httpx.URL(url).path


async def at_once(urls: list[str]) -> None:
    await asyncio.gather(*map(post, urls))


def connections(receivers: list[Receiver]) -> int:
    return sum(len({got.connection for got in one.got}) for one in receivers)


def test_as_many_connections_as_calls_at_once(receivers: list[Receiver], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are used again, by calls to the same host; and no call looks at those of others."""
    looks = 0
    is_idle = httpcore.AsyncHTTPConnection.is_idle

    def counted(connection: httpcore.AsyncHTTPConnection) -> bool:
        nonlocal looks
        looks += 1
        return is_idle(connection)

    monkeypatch.setattr(httpcore.AsyncHTTPConnection, "is_idle", counted)
    urls = [f"{one.url}/slow/0.2" for one in receivers for _ in range(10)]
    run(at_once(urls), at_once(urls), at_once(urls))
    assert connections(receivers) == 30
    assert looks <= 2 * 90


def test_connection_is_not_kept_for_long(receivers: list[Receiver], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor more of them than a limit: the oldest go."""
    monkeypatch.setattr(module, "KEPT_S", 0.0)
    one, *_ = receivers
    run(post(f"{one.url}/a"), post(f"{one.url}/b"))
    assert connections([one]) == 2
    one.got.clear()
    monkeypatch.setattr(module, "KEPT_S", 30.0)
    monkeypatch.setattr(module, "KEPT", 2)
    urls = [f"{one.url}/slow/0.2"] * 5
    run(at_once(urls), at_once(urls))
    assert connections([one]) == 5 + 3


def test_connection_of_a_call_that_was_cut_off_is_not_used_again(receivers: list[Receiver]) -> None:
    """Its answer would be taken for that of the next."""
    one, *_ = receivers

    async def cut_off() -> None:
        with pytest.raises(httpcore.ReadTimeout):
            await post(f"{one.url}/slow/2", timeout=0.1)

    run(cut_off(), post(f"{one.url}/next"), post(f"{one.url}/status/200?connection=close"), post(f"{one.url}/last"))
    assert connections([one]) == 3


#: Posts once to the url that it is given, and says what has been imported for that.
FIRST = """
import asyncio, sys, httpx
from batchq.webhooks.client import Clients
from batchq.webhooks.guard import GuardedBackend

async def post():
    before = set(sys.modules)
    client = httpx.AsyncClient(transport=Clients(GuardedBackend(private=True)).get(), trust_env=False)
    await client.post(sys.argv[1], json={})
    print(*sorted(set(sys.modules) - before))

asyncio.run(post())
"""


def test_first_call_of_a_worker_imports_no_library(receivers: list[Receiver]) -> None:
    """That is done before the fork, once for all: it would block the loop, and what has just been admitted at a rate
    would be late."""
    url = f"{receivers[0].url}/first"
    said = subprocess.run([sys.executable, "-c", FIRST, url], capture_output=True, text=True, timeout=30, check=True)
    assert [name for name in said.stdout.split() if name.startswith(("anyio", "httpcore", "httpx", "h11"))] == []
