"""The shipped unit under a real systemd: up when a worker is, reloaded in place, started anew after a kill, stopped."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import batchq
from tests.process.conftest import url_of
from tests.process.own_systemd import Systemd, systemd, why_not
from tests.process.rig import Rig, opened
from tests.servers import Servers

UNIT = Path(__file__).parents[2] / "deploy" / "batchq.service"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=f"THE UNIT IS NOT RUN, NO systemd CAN BE STARTED: {why_not()}"),
]

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


@app.job(backoff=fixed(0.1))
def dies():
    if current_job().token == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@app.job
def calls():
    subprocess.run(["sh", "-c", "touch calls.up; sleep 1"], check=True)
    note("E")
"""


class Service:
    """The unit as shipped, with this checkout's program and the rig's app."""

    def __init__(self, rig: Rig, manager: Systemd) -> None:
        self._manager = manager
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
        (manager.units / self.name).write_text(text.replace("[Service]", "\n".join(["[Service]", *lines])))
        assert manager.ctl("daemon-reload").returncode == 0

    def tell(self, *words: str) -> None:
        """systemctl of this unit, which must go well."""
        done = self._manager.ctl(*words, self.name)
        assert done.returncode == 0, f"systemctl {' '.join(words)}: {done.stderr}"

    def refuses(self, *words: str) -> bool:
        return self._manager.ctl(*words, self.name).returncode != 0

    def tells(self, name: str) -> str:
        """A property."""
        return self._manager.ctl("show", "-P", name, self.name).stdout.strip()

    @property
    def pid(self) -> int:
        """As systemd numbers it."""
        return int(self.tells("MainPID"))

    def is_active(self) -> bool:
        return self.tells("ActiveState") == "active"


@pytest.fixture
def rig(tmp_path: Path, prefix: str, servers: Servers) -> Iterator[Rig]:
    """On the spool: there is no network."""
    with opened(tmp_path, "spool", url_of("spool", tmp_path, servers), prefix) as made:
        made.app(APP)
        yield made


@pytest.fixture
def service(rig: Rig) -> Iterator[Service]:
    with systemd(rig.folder, rig.mark) as manager:
        yield Service(rig, manager)


def test_unit_lives_under_systemd(rig: Rig, service: Service) -> None:
    """start waits for a worker; reload keeps the pid, and fails for broken code; kills are made good; stop is clean."""
    service.tell("start")
    assert service.is_active()
    assert rig.store.leases("default").ends, "it is up before a worker is"
    rig.enqueue("work")
    rig.until_counts(done=1)
    rig.until(lambda: service.tells("StatusText").startswith("running, 2 workers"), "it says how it is")
    first = service.pid
    service.tell("reload")
    assert service.pid == first
    (rig.folder / "app.py").write_text("nonsense(")
    assert service.refuses("reload")
    assert service.is_active()
    rig.app(APP)
    # As the kernel does for want of memory: a crash of one job.
    rig.enqueue("dies")
    rig.until_counts(done=2, crashed=1)
    assert service.pid == first
    assert service.tells("NRestarts") == "0"
    job = rig.enqueue("long")
    rig.until_started(job)
    service.tell("kill", "-s", "KILL", "--kill-whom=main")
    rig.until(lambda: service.pid not in (0, first) and service.is_active(), "it is started anew", within=30)
    rig.until_counts(done=3, lost=1)
    assert [entry.attempt for entry in rig.ledger.starts(job)] == [1, 1]
    service.tell("stop")
    assert service.tells("Result") == "success"
    rig.until_clean()
    assert not rig.store.leases("default").ends


def test_stop_of_the_unit_lets_a_job_end_with_the_program_that_it_called(rig: Rig, service: Service) -> None:
    """TERM goes to the master alone."""
    service.tell("start")
    rig.enqueue("calls")
    rig.until((rig.folder / "calls.up").exists, "its program runs")
    service.tell("stop")
    assert service.tells("Result") == "success"
    assert len(rig.ledger.ends()) == 1
    totals = rig.stats().totals
    assert (totals["completed"], totals["released"]) == (1, 0)
