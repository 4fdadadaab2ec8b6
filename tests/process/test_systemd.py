"""The shipped unit under a real systemd: up when a worker is, reloaded in place, started anew after a kill, stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import batchq
from tests.process.rig import Rig

UNIT = Path(__file__).parents[2] / "deploy" / "batchq.service"
UNITS = Path("/run/systemd/system")

pytestmark = pytest.mark.skipif(
    not UNITS.is_dir() or os.geteuid() != 0,
    reason="NO systemd RUNS HERE AS PID 1, OR NOT AS ROOT: the unit is not run",
)

APP = """
@app.job
def work():
    note("S")
    note("E")


@app.job
def long():
    note("S")
    time.sleep(1)
    note("E")
"""


def systemctl(*words: str) -> str:
    """What it answers. Raises CalledProcessError with its own words where it fails."""
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, f"systemctl {' '.join(words)}: {done.stderr}"
    return done.stdout.strip()


class Service:
    """The unit as shipped, with this checkout's program and the rig's app."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.name = f"batchq-test-{rig.mark}.service"
        program = f"{sys.executable} -m batchq"
        text = UNIT.read_text().replace(
            "/srv/app/.venv/bin/batchq start app.tasks:app", f"{program} start app:app -n 2"
        )
        text = text.replace("/srv/app/.venv/bin/batchq", program).replace("WorkingDirectory=/srv/app", "")
        text = re.sub(r"^(User|EnvironmentFile|Documentation)=.*\n", "", text, flags=re.MULTILINE)
        text = text.replace("RuntimeDirectory=batchq", f"RuntimeDirectory=batchq-test-{rig.mark}")
        text = text.replace("/run/batchq/", f"/run/batchq-test-{rig.mark}/").replace("RestartSec=5", "RestartSec=100ms")
        text = re.sub(r"^StateDirectory=.*\n", "", text, flags=re.MULTILINE)
        mine = {key: value for key, value in rig.env().items() if key.startswith("BATCHQ_") or key == "LEDGER"}
        mine["PYTHONPATH"] = str(Path(batchq.__file__).parents[1])
        lines = [f"WorkingDirectory={rig.folder}", *(f'Environment="{key}={value}"' for key, value in mine.items())]
        self._file = UNITS / self.name
        self._file.write_text(text.replace("[Service]", "\n".join(["[Service]", *lines])))
        systemctl("daemon-reload")

    @property
    def pid(self) -> int:
        return int(systemctl("show", "-P", "MainPID", self.name))

    def is_active(self) -> bool:
        return systemctl("show", "-P", "ActiveState", self.name) == "active"

    def close(self) -> None:
        subprocess.run(["systemctl", "kill", "-s", "KILL", self.name], capture_output=True, check=False)
        subprocess.run(["systemctl", "stop", self.name], capture_output=True, timeout=90, check=False)
        subprocess.run(["systemctl", "reset-failed", self.name], capture_output=True, check=False)
        self._file.unlink()
        systemctl("daemon-reload")


@pytest.fixture
def service(rig: Rig) -> Iterator[Service]:
    rig.app(APP)
    made = Service(rig)
    yield made
    made.close()


def test_unit_lives_under_systemd(rig: Rig, service: Service) -> None:
    """start waits for a worker; reload keeps the pid, and fails for broken code; a kill is made good; stop is clean."""
    systemctl("start", service.name)
    assert service.is_active()
    assert rig.store.leases("default").ends, "it is up before a worker is"
    rig.enqueue("work")
    rig.until_counts(done=1)
    first = service.pid
    systemctl("reload", service.name)
    assert service.pid == first
    (rig.folder / "app.py").write_text("nonsense(")
    refused = subprocess.run(["systemctl", "reload", service.name], capture_output=True, timeout=90, check=False)
    assert refused.returncode != 0
    assert service.is_active()
    rig.app(APP)
    job = rig.enqueue("long")
    rig.until_started(job)
    os.kill(first, signal.SIGKILL)
    rig.until(lambda: service.pid not in (0, first) and service.is_active(), "it is started anew", within=30)
    rig.until_counts(done=2, within=30)
    assert [entry.attempt for entry in rig.ledger.starts(job)] == [1, 1]
    systemctl("stop", service.name)
    assert systemctl("show", "-P", "Result", service.name) == "success"
    rig.until_clean()
    assert not rig.store.leases("default").ends
