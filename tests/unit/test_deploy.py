"""What is shipped to copy from agrees with the program: signals, times, exit codes, commands."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from batchq.cli.group import COMMANDS
from batchq.config import Settings, rules
from batchq.master.master import CANT_START, GAVE_UP, NO_STORE
from batchq.master.stopping import LAST_GRACE_S

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "batchq.service"
#: After this a stop with the default settings is over.
STOP_S = Settings().shutdown_timeout_ms / 1000 + LAST_GRACE_S


def unit() -> dict[str, list[str]]:
    """section.key -> its values."""
    out: dict[str, list[str]] = {}
    section = ""
    for line in UNIT.read_text().splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = match[1]
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            out.setdefault(f"{section}.{key}", []).append(value)
    return out


def variables(text: str) -> set[str]:
    return set(re.findall(r"BATCHQ_[A-Z_]+", text))


def test_unit_says_what_the_program_needs() -> None:
    """Each key that docs/deploy.md explains, with a value that fits the defaults."""
    keys = unit()
    assert keys["Service.Type"] == ["notify"]
    assert keys["Service.KillMode"] == ["mixed"]
    assert keys["Service.KillSignal"] == ["SIGTERM"]
    assert keys["Service.OOMPolicy"] == ["continue"]
    assert keys["Service.Restart"] == ["on-failure"]
    assert float(keys["Service.TimeoutStopSec"][0]) > STOP_S + 5
    assert not {str(CANT_START), str(NO_STORE), str(GAVE_UP)} & set(keys["Service.RestartPreventExitStatus"][0].split())
    assert keys["Service.RuntimeDirectoryPreserve"] == ["yes"]
    [pid_file] = [v.split("=")[1] for v in keys["Service.Environment"] if v.startswith("BATCHQ_PID_FILE=")]
    assert pid_file.startswith(f"/run/{keys['Service.RuntimeDirectory'][0]}/")
    [start], [reload] = keys["Service.ExecStart"], keys["Service.ExecReload"]
    assert start.split()[1] == "start"
    assert reload.split()[1] == "reload"
    explained = re.findall(r"^\| `(\w+)=([^`]*)` \|", (DEPLOY.parent / "docs" / "deploy.md").read_text(), re.MULTILINE)
    assert len(explained) > 5
    for key, value in explained:
        [actual] = keys[f"Service.{key}"]
        assert actual == value or value.startswith("..."), f"{key}: {actual}, and docs/deploy.md says {value}"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="NO systemd-analyze HERE: the unit is not verified")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` finds nothing to say, once the program is where the unit expects it."""
    text = UNIT.read_text().replace("/srv/app/.venv/bin/batchq", "/bin/true").replace("User=batchq", "User=root")
    copy = tmp_path / "batchq.service"
    copy.write_text(text.replace("WorkingDirectory=/srv/app", "WorkingDirectory=/"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if "batchq.service" in line]
    assert not said
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["Dockerfile", "kubernetes.yaml", "batchq.service"])
def test_names_are_real(name: str) -> None:
    """Every variable is a setting, every command there is."""
    text = (DEPLOY / name).read_text()
    known = {f"BATCHQ_{key.upper()}" for key in rules()}
    assert variables(text) <= known
    called = re.findall(r'/batchq"?,? "?(\w+)', text)
    assert called
    assert set(called) <= set(COMMANDS)


def test_containers_are_given_time_and_the_right_signal() -> None:
    """Longer than a stop takes, TERM, and no shell in between."""
    docker, kubernetes = (DEPLOY / "Dockerfile").read_text(), (DEPLOY / "kubernetes.yaml").read_text()
    assert "\nSTOPSIGNAL SIGTERM\n" in docker
    assert re.search(r'^CMD \["\.venv/bin/batchq", "start", ', docker, re.MULTILINE)
    assert float(re.findall(r"--stop-timeout (\d+)", docker)[0]) > STOP_S + 5
    assert float(re.findall(r"terminationGracePeriodSeconds: (\d+)", kubernetes)[0]) > STOP_S + 5
    assert "\t" not in kubernetes
    # Ping answers within its own five seconds.
    assert float(re.findall(r"timeoutSeconds: (\d+)", kubernetes)[0]) > 5


def test_the_signals_in_the_docs_are_those_that_the_master_handles() -> None:
    """Each has its row, and each row its signal."""
    from batchq.master.signals import HANDLED

    rows = re.findall(r"^\| ([A-Z0-9, ]+?) \|", (DEPLOY.parent / "docs" / "deploy.md").read_text(), re.MULTILINE)
    told = {name for row in rows for name in row.split(", ")}
    assert told == {number.name.removeprefix("SIG") for number in HANDLED} - {"CHLD", "USR2"}
