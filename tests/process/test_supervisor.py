"""What a service manager is told, by a real datagram socket, in the order in which it happens."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from tests.process.rig import Rig

APP = """
@app.job
def environment():
    note("S" if not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ) else "X")
"""


class Manager:
    """Listens as systemd does."""

    def __init__(self, rig: Rig, address: str) -> None:
        self._rig = rig
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)
        self.address = address
        self.heard: list[str] = []

    def listen(self) -> list[str]:
        while True:
            try:
                self.heard.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return self.heard

    def until(self, text: str, times: int = 1) -> None:
        self._rig.until(
            lambda: sum(one.startswith(text) for one in self.listen()) >= times, f"{times} times {text}", within=20
        )

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, redis_rig: Rig) -> Iterator[Manager]:
    named = str(redis_rig.folder / "notify") if request.param == "path" else f"@batchq-{redis_rig.mark}"
    made = Manager(redis_rig, named)
    yield made
    made.close()


def test_manager_hears_ready_reloading_beats_and_stopping(redis_rig: Rig, manager: Manager) -> None:
    """READY once a worker is up; RELOADING with its time, then READY; WATCHDOG at half the interval; STOPPING."""
    redis_rig.app(APP)
    pool = redis_rig.start(n=2, NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="400000")
    manager.until("READY=1")
    manager.until("STATUS=running, ")
    manager.until("WATCHDOG=1", 3)
    assert "RELOADING=1" not in "".join(manager.heard)
    before_us = time.monotonic_ns() // 1000
    pool.send(signal.SIGHUP)
    manager.until("READY=1", 2)
    [told] = [one for one in manager.heard if one.startswith("RELOADING=1")]
    stamp = re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=(\d+)", told)
    assert stamp is not None
    assert before_us <= int(stamp[1]) <= time.monotonic_ns() // 1000
    heard = len(manager.heard)
    redis_rig.until(lambda: "WATCHDOG=1" in manager.listen()[heard:], "the next image beats as well")
    job = redis_rig.enqueue("environment")
    redis_rig.until_counts(done=1)
    assert redis_rig.ledger.entries(job=job)[0].kind == "S"
    (redis_rig.folder / "app.py").write_text("nonsense(")
    pool.send(signal.SIGHUP)
    redis_rig.until(lambda: pool.lines("reload_failed"), "the reload has failed")
    manager.until("READY=1", 3)
    assert pool.stop() == 0
    manager.until("STOPPING=1")
    kinds = [one.split("=")[0] for one in manager.listen() if not one.startswith(("STATUS", "WATCHDOG"))]
    assert kinds == ["READY", "RELOADING", "READY", "RELOADING", "READY", "STOPPING"]


def test_no_beat_is_sent_that_is_meant_for_another_process(redis_rig: Rig) -> None:
    """WATCHDOG_PID is some other's; and a manager that is gone is no error."""
    redis_rig.app(APP)
    manager = Manager(redis_rig, str(redis_rig.folder / "notify"))
    pool = redis_rig.start(NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="100000", WATCHDOG_PID="1")
    manager.until("STATUS=running")
    assert not any(one.startswith("WATCHDOG") for one in manager.listen())
    manager.close()
    assert pool.stop() == 0
