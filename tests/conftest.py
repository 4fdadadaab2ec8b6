"""What all tests share: real servers, one of each flavour a session, and a prefix of its own for each test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import Server, Servers, flavours

# Hundreds of processes start in a run: each would compile the whole package anew where bytecode is not kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The machine decides how long an example takes; in CI every run tries the same examples.
settings.register_profile("batchq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("batchq"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "batchq")


def pytest_xdist_auto_num_workers() -> int:
    """Two a core: most tests wait for other processes. `-n 0` runs them one after the other, as a debugger needs it."""
    return 2 * (os.cpu_count() or 1)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """The servers of this session, started when first asked for and ended with it."""
    running = Servers()
    yield running
    running.stop()


@pytest.fixture(params=flavours())
def redis_server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    """A running server, once a flavour. Tests share it: keep to `prefix`, and don't stop it."""
    return servers.get(request.param)


@pytest.fixture
def prefix() -> str:
    """A key prefix that no other test uses."""
    return f"t{os.urandom(6).hex()}"
