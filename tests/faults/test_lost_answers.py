"""Lost and late answers: a connection is cut around each reply of a run, and each request of it arrives late once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from batchq.redis.store import RedisStore
from tests.faults.drive import check, drive
from tests.faults.proxy import Proxy
from tests.servers import Server

#: Shorter than any wait for a late request, and long enough for a busy machine.
TIMEOUT_S = 0.3


def _run(server: Server, prefix: str, fault: Callable[[Proxy], Callable[[], object]], what: str) -> Proxy:
    """One run of all moves through a proxy with that fault; the store is then looked at without the proxy."""
    with Proxy(server.port) as proxy:
        end = fault(proxy)
        store = RedisStore(proxy.url, prefix=prefix, socket_timeout_s=TIMEOUT_S, patience_s=None)
        try:
            drive(store)
        finally:
            store.close()
        end()
    direct = RedisStore(server.url, prefix=prefix)
    try:
        check(direct, what)
    finally:
        direct.close()
    return proxy


def _all(
    server: Server, prefix: str, kind: str, numbers: range, fault: Callable[[Proxy, int], Callable[[], object]]
) -> int:
    """Runs once for each number, several at a time. Answers how many runs met their fault."""

    def one(n: int) -> Proxy:
        return _run(server, f"{prefix}-{kind}-{n}", lambda proxy: fault(proxy, n), f"{kind} {n}")

    with ThreadPoolExecutor(12) as threads:
        proxies = list(threads.map(one, numbers))
    return len(proxies)


@pytest.fixture
def length(redis_server: Server, prefix: str) -> int:
    """How many replies a run has without a fault. All scripts are loaded by then."""
    proxy = _run(redis_server, prefix, lambda proxy: lambda: None, "no fault")
    proxy = _run(redis_server, f"{prefix}-again", lambda proxy: lambda: None, "no fault")
    assert proxy.replies == proxy.requests > 30
    return proxy.replies


@pytest.mark.parametrize("side", ["cut_before", "cut_after"])
def test_a_connection_that_ends_around_any_reply_loses_and_doubles_nothing(
    redis_server: Server, prefix: str, length: int, side: str
) -> None:
    """The answer is lost after the work was done, or the connection is dead before the next request."""

    def fault(proxy: Proxy, n: int) -> Callable[[], object]:
        setattr(proxy, side, n)
        return lambda: None

    assert _all(redis_server, prefix, side, range(1, length + 1), fault) == length


@pytest.mark.parametrize("after", [1, 4, None], ids=["soon", "later", "last"])
def test_a_request_that_arrives_after_its_repetition_loses_and_doubles_nothing(
    redis_server: Server, prefix: str, length: int, after: int | None
) -> None:
    """Its sender has given up on it, closed the connection and sent it again, perhaps gone on."""

    def fault(proxy: Proxy, n: int) -> Callable[[], object]:
        return proxy.hold(lambda frame, number: number == n, after).release

    _all(redis_server, prefix, f"late-{after}", range(1, length + 1), fault)
