"""The benchmarks run: each with --smoke, on both stores, and its first line is its question."""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.process.rig import until
from tests.servers import flavours

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = (
    *("breakdown", "bulk", "contention", "cost", "drain", "enqueue", "fairness", "growth"),
    *("heavy", "idle", "inbox", "latency", "ingress", "promote", "retry", "size", "webhooks"),
)
DEADLINE_S = 100


def smoke(name: str, tmp: Path, *options: str) -> list[str]:
    """The lines that it prints."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), "--smoke", "--server", flavours()[0], *options],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        # A setting of the user's must not reach into what is measured: this url leads nowhere.
        env=os.environ | {"TMPDIR": str(tmp), "BATCHQ_URL": "redis://127.0.0.1:1/0"},
        check=False,
    )
    assert done.returncode == 0, done
    assert list(tmp.iterdir()) == [], "it leaves something behind"
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", [*NAMES, "outage", "spool_peers"])
def test_first_line_is_the_question(name: str) -> None:
    """A benchmark says what it wants to know before anything else."""
    doc = ast.get_docstring(ast.parse((BENCHMARKS / f"{name}.py").read_text()))
    assert doc is not None
    assert doc.splitlines()[0].endswith("?")
    assert f"`{name}.py`" in (BENCHMARKS / "README.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_smoke_run_answers_for_both_stores(name: str, tmp_path: Path) -> None:
    """Every case gives a figure on Redis and on the spool."""
    lines = smoke(name, tmp_path)
    assert lines[0].endswith("?")
    for store in ("redis", "spool"):
        rows = [line for line in lines if line.startswith(store)]
        assert len(rows) >= 2, lines
        assert all(re.search(r"\d", row) for row in rows), rows


def test_delayed_jobs_are_never_early(tmp_path: Path) -> None:
    """The one figure of the benchmarks that is a promise."""
    told = [line for line in smoke("latency", tmp_path) if "lateness" in line]
    assert len(told) == 2
    assert all(line.endswith("early 0") for line in told), told


def test_outage_loses_nothing(tmp_path: Path) -> None:
    """The other promise: a server that was killed and is back. (A spool is not away while its disk is there.)"""
    told = {line[8:42].strip(): line[42:] for line in smoke("outage", tmp_path) if line.startswith("redis   ")}
    assert told["lost"].split() == ["0"]
    [extra, workers] = re.findall(r"\d+", told["run twice"])
    assert int(extra) <= int(workers)
    assert {"first job done", "full rate again", "first enqueue while it is away", "those after it"} <= told.keys()


def test_comparison_with_other_queues_in_files_runs(tmp_path: Path) -> None:
    """Without any of them, which a test does not install."""
    rows = [line for line in smoke("spool_peers", tmp_path) if line.startswith("spool ")]
    assert len(rows) == 6
    assert all("/s" in row and row.endswith("flushed") for row in rows), rows


def test_comparison_with_other_queues_runs(tmp_path: Path) -> None:
    """Without any of them, which a test does not install: batchq answers every question."""
    lines = smoke("compare", tmp_path, "--only", "batchq")
    assert lines[0].endswith("?")
    [row] = [line for line in lines if line.startswith("| batchq |")]
    assert len(re.findall(r"\d", row)) >= 13, row
    assert not [line for line in lines if "within" in line or "ended" in line], lines


def imported(name: str) -> Any:
    """A module of the benchmarks."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


FLEET = """
import json, os, sys, time

if sys.argv[1] == "fleet":
    print(json.dumps([[sys.executable, __file__, "root"]]))
    sys.exit()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(__file__ + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(__file__ + ".new", __file__ + ".pid")
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(600)
"""


def test_nothing_is_left_of_another_queue(tmp_path: Path) -> None:
    """Not even a process that has lost its parent and leads a session of its own."""
    script, told = tmp_path / "fleet.py", tmp_path / "fleet.py.pid"
    script.write_text(FLEET)
    system = imported("peers.systems").read("huey_sqlite")
    trial = imported("peers.trial").Trial(
        system, [sys.executable, str(script)], "many", server=None, folder=str(tmp_path)
    )
    with trial:
        trial.start(1)
        until(told.exists, "it runs")
        assert psutil.Process(int(told.read_text())).status() != psutil.STATUS_ZOMBIE
    with contextlib.suppress(psutil.NoSuchProcess):
        assert psutil.Process(int(told.read_text())).status() == psutil.STATUS_ZOMBIE


def test_every_other_queue_says_how_it_is_run() -> None:
    """Its constants can be read where it is not installed, and name configurations that there are."""
    systems = imported("peers.systems")
    read = [systems.read(name) for name in systems.names()]
    assert len(read) >= 12
    for system in read:
        assert set(system.best.values()) <= set(system.about), system.name
        assert all("=" in package or "@" in package for package in system.packages[:1]), system.name
