"""`batchq imports`: how far an import is, while it runs and after."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Run, environment
from tests.cli.conftest import here as here
from tests.cli.conftest import run as run
from tests.cli.conftest import url as url
from tests.process.rig import until


def test_none_is_known(run: Run) -> None:
    """An empty list is an answer."""
    assert run("imports").ended(0, "no import is known in").out == ""


def test_how_far_it_is(run: Run, here: Path, url: str) -> None:
    """Running, stopped and finished, with the part that was read."""
    (here / "rows.csv").write_text("n,pad\n" + "".join(f"{n},{'x' * 300}\n" for n in range(20_000)))
    # It stops where the queue is full: nothing takes jobs from it.
    running = subprocess.Popen(
        [sys.executable, "-m", "batchq", "import", "rows.csv", "--job", "load", "--max-pending", "1000"],
        cwd=here,
        env=environment(BATCHQ_URL=url),
        stderr=subprocess.DEVNULL,
    )
    try:

        def some() -> bool:
            [*known] = run("imports", "--json").ended(0).lines
            return bool(known) and known[0]["rows"] > 0

        until(some, "it has begun", 30)
        [seen] = run("imports", "--json").lines
        assert seen["state"] == "running"
        assert 0 < seen["part"] < 1
        assert (seen["job"], seen["rejected"]) == ("load", 0)
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(30)
    assert run("imports", "--json").lines[0]["state"] == "stopped"
    run("purge", "--state", "pending", "--yes").ended(0)
    run("import", "rows.csv", "--job", "load").ended(0)
    [done] = run("imports", "--json").lines
    assert (done["state"], done["part"], done["rows"]) == ("finished", 1.0, 20_000)
    assert "finished" in run("imports").ended(0).out
