"""What several trial cases need beyond the rig: the command line beside a pool, and looks that last."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import psutil

from batchq import App
from batchq.job import Job
from batchq.lifecycle import State
from tests.cli.conftest import Ran
from tests.process.ledger import Entry
from tests.process.rig import Pool, Rig

#: Between two looks that a condition still holds.
LOOK_S = 0.02
DEADLINE_S = 60.0


def app_on(rig: Rig, **settings: Any) -> App:
    """An App of this process on the rig's store, as a producer has it. A context manager."""
    return App(rig.url, prefix=rig.prefix, spool=str(rig.folder / "fallback"), **settings)


def call(rig: Rig, *args: str, stdin: str | bytes = "", within: float = DEADLINE_S, **env: str) -> Ran:
    """`batchq ARGS...` in the rig's folder and on its store."""
    done = subprocess.run(
        [sys.executable, "-m", "batchq", *args],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        timeout=within,
        cwd=rig.folder,
        env=rig.env(**env),
        check=False,
    )
    ran = Ran(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
    assert "Traceback" not in ran.err, ran
    return ran


def stays(condition: Callable[[], object], what: str, for_s: float) -> None:
    """The condition holds at each of many looks. What must not happen can't be waited for, only watched for."""
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        assert condition(), f"no longer: {what}"
        time.sleep(LOOK_S)


def cpu_s(pool: Pool) -> float:
    """What the master has spent so far."""
    times = psutil.Process(pool.pid).cpu_times()
    return float(times.user + times.system)


def gaps_s(entries: Iterable[Entry]) -> list[float]:
    """Seconds between one line and the next."""
    return [(b.at_ns - a.at_ns) / 1e9 for a, b in pairwise(entries)]


def all_jobs(rig: Rig, state: State, queue: str = "default") -> list[Job]:
    """Every job of a state, whatever the number."""
    found: list[Job] = []
    cursor = ""
    while True:
        page = rig.store.jobs(queue, state, cursor=cursor, limit=1000)
        found += page.jobs
        if not (cursor := page.cursor):
            return found


def key(rig: Rig, name: str, queue: str = "default") -> str:
    """A key of a queue in Redis."""
    return f"{rig.prefix}:{{{queue}}}:{name}"


def commands(rig: Rig) -> int:
    """How many commands the server has done so far."""
    return int(server_of(rig).info("stats")["total_commands_processed"])


def server_of(rig: Rig) -> Any:
    """A plain client of the rig's server, for looks behind the store. Closed with the process."""
    import redis

    return redis.Redis.from_url(rig.url)
