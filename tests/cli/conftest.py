"""The command line as a program: each call is a process of its own, on a spool that belongs to the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from batchq.config import Settings
from batchq.job import Buried, Claim, Completed, NewJob, pack_error, pack_row
from batchq.store import Store
from batchq.stores import open_store
from tests.servers import Servers, flavours

#: A call that takes longer hangs.
DEADLINE_S = 30

BATCHQ = (sys.executable, "-m", "batchq")


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
        return self

    def refused(self, code: int, *said: str) -> Ran:
        """Checks that nothing is on stdout, and one line of an error on stderr."""
        self.ended(code, *said)
        assert self.err.startswith("batchq: error: "), self
        assert self.err.count("\n") == 1, self
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


@pytest.fixture(params=("spool", *flavours()))
def any_url(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> str:
    """A spool of this test, and then an empty Redis."""
    if request.param == "spool":
        return f"spool:{tmp_path / 'spool'}"
    url = f"{servers.get(request.param).url.removesuffix('/0')}/5"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The folder in which `run` calls."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture
def run(here: Path, url: str) -> Run:
    """Calls `batchq ARGS...` in an empty folder, on the test's spool unless `env` says otherwise."""

    def call(
        *args: str, stdin: str | bytes = "", env: dict[str, str] | None = None, python: tuple[str, ...] = ()
    ) -> Ran:
        done = subprocess.run(
            [sys.executable, *python, "-m", "batchq", *args],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            timeout=DEADLINE_S,
            cwd=here,
            env=environment(**({"BATCHQ_URL": url} | (env or {}))),
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    return call


class Scene:
    """Brings jobs into the states that commands act on, by the store itself."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._workers = 0

    def pending(self, job_id: str, queue: str = "default", job: str = "deliver", **kwargs: Any) -> str:
        self.store.enqueue(queue, [NewJob(job_id, pack_row(job, ["x"], kwargs), given=True)])
        return job_id

    def delayed(self, job_id: str, queue: str = "default") -> str:
        self.store.enqueue(queue, [NewJob(job_id, pack_row("deliver"), delay_ms=3_600_000, given=True)])
        return job_id

    def active(self, job_id: str, queue: str = "default", job: str = "deliver") -> tuple[str, Claim]:
        """The worker that holds it, and its claim."""
        self.pending(job_id, queue, job)
        self._workers += 1
        worker = f"host.boot.{self._workers}.test"
        self.store.register(queue, worker, 60_000)
        [claim] = self.store.claim(queue, worker, 1, 0).claims
        assert claim.id == job_id
        return worker, claim

    def dead(self, job_id: str, queue: str = "default", job: str = "deliver", error: str = "boom") -> str:
        worker, claim = self.active(job_id, queue, job)
        text = pack_error(
            "ValueError", error, attempt=1, at_ms=self.store.now_ms(), worker=worker, trace="line\n" + error
        )
        self.store.bury(queue, worker, [Buried(claim, "buried", text)])
        return job_id

    def completed(self, job_id: str, queue: str = "default") -> str:
        worker, claim = self.active(job_id, queue)
        self.store.complete(queue, worker, [Completed(claim, b'{"sent":1}', 3_600_000)])
        return job_id


@pytest.fixture
def scene(url: str) -> Iterator[Scene]:
    store = open_store(url, Settings())
    yield Scene(store)
    store.close()
