"""The examples, end to end: every command that a docstring shows is run as it stands there, on the spool and on Redis.

A command beside `terminal 1` stays in the background, as it does for people.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from batchq import App
from tests.process.conftest import STORES
from tests.servers import Servers, free_port

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEADLINE_S = 60.0


class Shell:
    """A folder with the examples in it, in which commands run."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self.folder = folder
        self.port = free_port()
        # As in an activated venv.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("BATCHQ_")}
        self._environment = kept | {"PATH": path, "RECEIVER": f"http://127.0.0.1:{self.port}"}
        if url is not None:
            self._environment["BATCHQ_URL"] = url
        self._background: list[subprocess.Popen[bytes]] = []

    def run(self, command: str, code: int = 0) -> str:
        """Runs it to its end, which has to be a good one or that; answers what it printed."""
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == code, done
        assert "Traceback" not in done.stderr, done
        return done.stdout

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Leaves it running."""
        with open(self.folder / "background.log", "ab") as log:
            # exec: the process is the command itself, so that a signal reaches it.
            process = subprocess.Popen(
                f"exec {command}", shell=True, cwd=self.folder, env=self._environment, stdout=log, stderr=log
            )
        self._background.append(process)
        return process

    def wait_for_receiver(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                assert time.monotonic() < deadline, (self.folder / "background.log").read_text()
                time.sleep(0.02)
            else:
                return

    def close(self) -> None:
        for process in self._background:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture(params=STORES)
def shell(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Iterator[Shell]:
    """On every store: the spool needs nothing, Redis is named by BATCHQ_URL as the docstrings say."""
    for path in EXAMPLES.glob("*.py"):
        shutil.copy(path, tmp_path)
    url = None
    if request.param != "spool":
        # A database of its own: the examples use the default prefix, as people do.
        url = f"{servers.get(request.param).url.removesuffix('/0')}/9"
        _empty(url)
    opened = Shell(tmp_path, url)
    yield opened
    opened.close()


def _empty(url: str) -> None:
    import redis

    with redis.Redis.from_url(url) as client:
        client.flushdb()


def commands(example: str) -> list[tuple[str, str]]:
    """(command, the comment beside it) of an example's docstring, in order."""
    doc = ast.get_docstring(ast.parse((EXAMPLES / example).read_text()), clean=True)
    assert doc is not None
    lines = [line.strip() for line in doc.splitlines() if line.startswith("    ")]
    return [(command.strip(), comment.strip()) for command, _, comment in (line.partition("  #") for line in lines)]


def test_every_example_shows_its_commands() -> None:
    """A docstring is the example's manual: each has commands, and says where the jobs stand."""
    names = sorted(path.name for path in EXAMPLES.glob("*.py"))
    producers = ["producer_django.py", "producer_flask.py", "producer_starlette.py"]
    assert names == ["bulk_import.py", "cpu_heavy.py", *producers, "webhooks.py"]
    for name in names:
        shown = commands(name)
        assert any(command.startswith("batchq start ") for command, _ in shown), name
        web = ("pip ", "uvicorn ", "flask ", "curl ") if name in producers else ()
        known = ("python ", "batchq ", "BATCHQ_APP=", *web)
        assert all(command.startswith(known) for command, _ in shown), name


def test_webhooks(shell: Shell) -> None:
    """All but the customer who is gone are taken exactly once by the receiver's count, refused and lost answers too."""
    (receive, where), *rest = commands("webhooks.py")
    assert where.startswith("terminal 1")
    shell.start(receive)
    shell.wait_for_receiver()
    enqueue, start, dead, counts = (command for command, _ in rest)
    assert shell.run(enqueue) == "200 enqueued, 0 known already\n"
    shell.run(start)
    assert shell.run(dead).count("is gone (410)") == 5
    counted: dict[str, Any] = json.loads(shell.run(counts))
    assert counted["gone"] == 5
    assert counted["taken"] + counted["taken, answer lost"] == 195
    assert counted["known already"] == counted["taken, answer lost"] > 0
    assert counted["busy"] > 30
    # What was delivered is still known by its id.
    assert shell.run(enqueue) == "0 enqueued, 200 known already\n"


def test_bulk_import(shell: Shell) -> None:
    """Every good row is in the table once, the refused are in the morgue, what is no row is among the rejects; a second
    import adds nothing."""
    make, load, start, summary = (command for command, _ in commands("bulk_import.py"))
    shell.run(make)
    assert "19996 jobs enqueued + 0 duplicates + 4 rejected = 20000 rows" in shell.run(load, code=1)
    shell.run(start)
    first, *told = shell.run(summary).splitlines()
    assert re.fullmatch(r"19988 orders in orders\.db, \d+\.\d\d in all", first)
    refused = [f"not loaded: order {n * 2500}: 'n/a' is no amount" for n in range(1, 9)]
    rejected = [line for line in told if line.startswith("no row: orders.csv line ")]
    assert sorted(told) == sorted(refused + rejected)
    assert [int(line.split()[4].rstrip(":")) for line in rejected] == [n * 4001 + 1 for n in range(1, 5)]
    assert "0 jobs enqueued + 19996 enqueued by an earlier run + 0 duplicates + 4 rejected" in shell.run(load, code=1)
    shell.run(start)
    assert shell.run(summary).splitlines()[0] == first


def test_cpu_heavy(shell: Shell) -> None:
    """The sum of the results is the number of primes; Ctrl-C ends the workers in order."""
    (start, where), (enqueue, _) = commands("cpu_heavy.py")
    assert where.startswith("terminal 1")
    master = shell.start(start)
    assert shell.run(enqueue) == "20 ranges enqueued\n348513 primes below 5000000\n"
    workers = psutil.Process(master.pid).children()
    assert len(workers) == 2
    master.send_signal(signal.SIGINT)
    assert master.wait(DEADLINE_S) == 0
    assert not psutil.wait_procs(workers, timeout=10)[1]


PRODUCED = """
import json
from batchq import App

app = App()


@app.job(queue="webhooks")
def deliver(url, body):
    with open("delivered", "a") as file:
        file.write(json.dumps([url, body]) + "\\n")
"""

URL = 'https://example.org/it\'s a "hook"'


@pytest.mark.parametrize("language", ["sh", "node"])
def test_job_from_another_language_runs(tmp_path: Path, language: str) -> None:
    """A shell script and a Node program enqueue by a file; the job runs with what they gave."""
    if shutil.which(language) is None:
        pytest.skip(f"NOT TESTED: no {language} on PATH, so the producer in it is not tried")
    shell = Shell(tmp_path, f"spool:{tmp_path / 'spool'}")
    (tmp_path / "app.py").write_text(PRODUCED)
    made = App(f"spool:{tmp_path / 'spool'}")
    made.store.close()
    body = {"order": 17, "note": "ümläut"}
    arguments = [json.dumps(URL), json.dumps(body)]
    if language == "sh":
        command = ["sh", str(EXAMPLES / "produce.sh"), str(tmp_path / "spool"), "webhooks", "deliver", *arguments]
    else:
        lists = [f"[{','.join(arguments)}]"] * 2
        command = ["node", str(EXAMPLES / "produce.mjs"), str(tmp_path / "spool"), "webhooks", "deliver", *lists]
    subprocess.run(command, check=True, timeout=DEADLINE_S)
    shell.run("batchq start app:app -n 1 -q webhooks --burst")
    delivered = [json.loads(line) for line in (tmp_path / "delivered").read_text().splitlines()]
    assert delivered == [[URL, body]] * (1 if language == "sh" else 2)
    assert json.loads(shell.run("batchq spool status --json"))["bad"] == 0
    assert os.listdir(tmp_path / "spool" / "inbox" / "tmp") == []
