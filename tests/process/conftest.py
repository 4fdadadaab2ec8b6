"""Each test of this folder runs on the spool and on every Redis flavour, in a folder and under a prefix of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.rig import Rig, opened
from tests.servers import Servers, flavours

STORES = (*flavours(), "spool")


def url_of(kind: str, folder: Path, servers: Servers) -> str:
    """Where the store of that kind is, for one test."""
    return f"spool:{folder / 'spool'}" if kind == "spool" else servers.get(kind).url


@pytest.fixture(params=STORES)
def rig(request: pytest.FixtureRequest, tmp_path: Path, prefix: str, servers: Servers) -> Iterator[Rig]:
    """On every store."""
    with opened(tmp_path, request.param, url_of(request.param, tmp_path, servers), prefix) as made:
        yield made


@pytest.fixture(params=flavours())
def redis_rig(request: pytest.FixtureRequest, tmp_path: Path, prefix: str, servers: Servers) -> Iterator[Rig]:
    """On Redis and its kin only."""
    with opened(tmp_path, request.param, servers.get(request.param).url, prefix) as made:
        yield made
