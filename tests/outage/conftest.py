"""Pools on a server of their own, which a test may kill, stop, fill and start again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batchq.redis.store import RedisStore
from tests.contract.helpers import check_law
from tests.process.rig import Rig, opened
from tests.servers import Server, flavours

APP = """
@app.job
def work(seconds=0.0):
    note("S")
    time.sleep(seconds)
    note("E")


@app.job(backoff=fixed(0.1))
def slow():
    note("S")
    time.sleep(6.0)
    note("E")


@app.job(max_attempts=3, backoff=fixed(0.1))
def fails():
    note("S")
    raise ValueError("no")
"""

#: What was acknowledged is on disk when the process is killed.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")

_DOCS = Path(__file__).parents[2] / "docs" / "redis.md"


def documented_rights() -> list[str]:
    """The rules of the ACL example in the docs, as ACL SETUSER takes them."""
    [block] = re.findall(r"^user batchq (.*?)^```", _DOCS.read_text(), re.DOTALL | re.MULTILINE)
    return str(block).split()


@pytest.fixture(params=flavours())
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def serve(flavour: str) -> Iterator[Callable[..., Server]]:
    """Starts a server with these options; it ends with the test."""
    running: list[Server] = []

    def start(*options: str) -> Server:
        running.append(Server(flavour, *options))
        return running[-1]

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def rig_on(tmp_path: Path, flavour: str, prefix: str) -> Iterator[Callable[..., Rig]]:
    """A rig on a server; the pools may be given another url."""
    made: list[object] = []

    def make(server: Server) -> Rig:
        entered = opened(tmp_path, flavour, server.url, prefix)
        made.append(entered)
        rig = entered.__enter__()
        rig.app(APP)
        return rig

    yield make
    for entered in made:
        entered.__exit__(None, None, None)  # type: ignore[attr-defined]


@pytest.fixture
def store(redis_server: Server, prefix: str) -> Iterator[RedisStore]:
    """A store by a way that no test breaks; whatever the test did, the law of the totals holds at its end."""
    made = RedisStore(redis_server.url, prefix=prefix)
    yield made
    check_law(made)
    made.close()


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Where this host's spool is, or will be."""
    return tmp_path / "spool"
