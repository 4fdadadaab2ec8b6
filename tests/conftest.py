"""What all tests share: real servers, one of each flavour a session, and a prefix of its own for each test."""

from __future__ import annotations

import compileall
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import batchq
from tests.servers import Server, Servers, flavours

# Tests rewrite apps within the second and the size by which Python knows its bytecode to be old: children keep none.
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.dont_write_bytecode = False
# Processes are found by their environment, over which setproctitle would write its titles.
os.environ["SPT_NOENV"] = "1"

# The machine decides how long an example takes; in CI every run tries the same examples.
settings.register_profile("batchq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("batchq"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "batchq")


def pytest_configure(config: pytest.Config) -> None:
    """Hundreds of processes start in a run, and keep no bytecode: there is some, once, before they start. What a shell
    has started in the background ignores signals that they are to hear, and would pass that on."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if not hasattr(config, "workerinput"):
        package = Path(batchq.__file__).parent
        for folder in (package, package / "spool"):  # a link, which is not followed
            compileall.compile_dir(folder, quiet=2)


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
