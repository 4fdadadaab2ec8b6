"""Imports as people start them: each call is a process, on the spool and on every Redis flavour."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batchq.cli import main
from batchq.config import load
from batchq.importing.formats import Wanted, open_rows
from batchq.importing.rows import Bad, Row
from batchq.importing.source import open_source
from batchq.job import Job
from batchq.lifecycle import State
from batchq.store import Store
from batchq.stores import open_store
from tests.cli.conftest import Ran, environment
from tests.process.conftest import STORES, url_of
from tests.servers import Servers

INPUTS = Path(__file__).parent / "inputs"
DEADLINE_S = 60


@dataclass(frozen=True, slots=True)
class Place:
    """A folder with files to import, and a store."""

    folder: Path
    url: str
    prefix: str
    store: Store

    def env(self, **more: str) -> dict[str, str]:
        mine = {"BATCHQ_URL": self.url, "BATCHQ_PREFIX": self.prefix, "BATCHQ_SPOOL": str(self.folder / "fallback")}
        return environment(**(mine | more))

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "batchq", *args]

    def run(self, *args: str, stdin: bytes = b"", **env: str) -> Ran:
        """Calls `batchq ARGS...` in the folder."""
        done = subprocess.run(
            self.command(*args),
            input=stdin,
            capture_output=True,
            timeout=DEADLINE_S,
            cwd=self.folder,
            env=self.env(**env),
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def imported(self, *args: str, stdin: bytes = b"") -> dict[str, Any]:
        """`batchq import ARGS --json`: its last line, with the exit code as `code` and stderr as `err`."""
        done = self.run("import", *args, "--json", stdin=stdin)
        assert "Traceback" not in done.err, done
        summary: dict[str, Any] = done.lines[-1]
        known = summary["enqueued"] + summary["earlier"] + summary["duplicates"] + summary["rejected"]
        assert summary["rows"] == known, done
        return summary | {"code": done.code, "err": done.err}

    def write(self, name: str, data: bytes | str) -> str:
        (self.folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
        return name

    def take(self, name: str) -> str:
        """One of the stored inputs, copied here."""
        shutil.copy(INPUTS / name, self.folder / name)
        return name

    def jobs(self, queue: str = "default", state: State = State.PENDING) -> list[Job]:
        """All jobs of that state, in their order."""
        found: list[Job] = []
        cursor = ""
        while True:
            page = self.store.jobs(queue, state, cursor=cursor, limit=1000)
            found += page.jobs
            cursor = page.cursor
            if not cursor:
                return found


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path, prefix: str, servers: Servers) -> Iterator[Place]:
    """On every store."""
    yield from _place(request.param, tmp_path, prefix, servers)


@pytest.fixture
def spool(tmp_path: Path, prefix: str, servers: Servers) -> Iterator[Place]:
    """On the spool, for what no store has a part in."""
    yield from _place("spool", tmp_path, prefix, servers)


def _place(kind: str, folder: Path, prefix: str, servers: Servers) -> Iterator[Place]:
    url = url_of(kind, folder, servers)
    settings = load({"url": url, "prefix": prefix, "spool": str(folder / "fallback")}, environ={})
    store = open_store(url, settings)
    yield Place(folder, url, prefix, store)
    store.close()


@pytest.fixture
def inside(spool: Place, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Calls `batchq ARGS...` on the spool in this process, which is quicker: for what ends before it begins."""
    for name in [name for name in os.environ if name.startswith("BATCHQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(spool.folder)
    monkeypatch.setenv("BATCHQ_URL", spool.url)

    def call(*args: str) -> Ran:
        capfd.readouterr()
        code = main(args)
        return Ran(code, *capfd.readouterr())

    return call


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads bytes as a file of that name would be read, in this process."""

    folder: Path

    def __call__(self, name: str, data: bytes, **wanted: Any) -> list[Row | Bad]:
        (self.folder / name).write_bytes(data)
        source = open_source(str(self.folder / name))
        try:
            return list(open_rows(source, Wanted(**wanted), None).rows)
        finally:
            source.close()

    def values(self, name: str, data: bytes, **wanted: Any) -> list[Any]:
        """The values of rows that are all good."""
        found = self(name, data, **wanted)
        assert all(isinstance(one, Row) for one in found), found
        return [one.value for one in found if isinstance(one, Row)]


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def split(found: list[Row | Bad]) -> tuple[list[Any], list[tuple[int, str]]]:
    """(values of the good rows, (line, reason) of the others)."""
    good = [one.value for one in found if isinstance(one, Row)]
    return good, [(one.line, one.reason) for one in found if isinstance(one, Bad)]
