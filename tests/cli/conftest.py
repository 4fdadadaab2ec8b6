"""The command line as a program: each call is a process of its own, on a spool that belongs to the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

#: A call that takes longer hangs.
DEADLINE_S = 30


@dataclass(frozen=True, slots=True)
class Ran:
    """How a call ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """One JSON value a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    def ended(self, code: int, *said: str) -> Ran:
        """Checks the exit code, that stderr says all of this, and that no traceback is shown. Answers itself."""
        assert self.code == code, self
        assert "Traceback" not in self.out + self.err, self
        for text in said:
            assert text in self.err, self
        if code not in (0, 1):
            assert self.err.startswith("batchq: error: "), self
            assert self.out == "", self
        return self


def environment(**more: str) -> dict[str, str]:
    """This process's environment without any setting of batchq."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BATCHQ_", "PYTHON", "NO_COLOR"))}
    return kept | {"LC_ALL": "C.UTF-8"} | more


Run = Callable[..., Ran]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A spool of this test."""
    return f"spool:{tmp_path / 'spool'}"


@pytest.fixture
def run(tmp_path: Path, url: str) -> Run:
    """Calls `batchq ARGS...` in an empty folder, on the test's spool unless `env` says otherwise."""
    folder = tmp_path / "here"
    folder.mkdir()

    def call(*args: str, stdin: str = "", env: dict[str, str] | None = None, python: tuple[str, ...] = ()) -> Ran:
        done = subprocess.run(
            [sys.executable, *python, "-m", "batchq", *args],
            input=stdin,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=DEADLINE_S,
            cwd=folder,
            env=environment(**({"BATCHQ_URL": url} | (env or {}))),
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def here(tmp_path: Path, run: Run) -> Path:
    """The folder in which `run` calls."""
    return tmp_path / "here"
