"""One spool, many at once: masters, workers, producers of every kind, the command line and people with `mv`; all of
them are killed at random. Then the directory is copied, and the copy goes on where the first one was cut off."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.judge import runs_of
from tests.process.conftest import url_of
from tests.process.rig import Pool, Rig, check_spool, die_with_pytest, is_running, opened
from tests.servers import Servers

APP = """
@app.job(backoff=fixed(0.05), max_attempts=1000)
def work():
    note("S")
    time.sleep(0.003)
    note("E")
"""
OPTIONS = ("--lease", "1s", "--max-crashes", "1000", "--max-lost", "1000", "--no-fallback")

#: Each writes down the ids that were accepted, after they were. argv: spool, file, a name of its own.
HEAD = """
import itertools, os, sys, threading, time
from batchq.job import NewJob, pack_row
from batchq.spool import SpoolStore, drop
path, accepted, name = sys.argv[1:4]
out = os.open(accepted, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
def note(ids): os.write(out, "".join(f"{one}\\n" for one in ids).encode())
def jobs(who, n, size): return [NewJob(f"{name}-{who}-{n}-{m}", pack_row("work")) for m in range(size)]
"""
PRODUCERS = {
    "threads": """
store = SpoolStore(path)
def produce(who):
    for n in itertools.count():
        batch = jobs(who, n, 4)
        store.enqueue("default", batch)
        note(job.id for job in batch)
        time.sleep(0.03)
for who in range(3):
    threading.Thread(target=produce, args=(who,)).start()
""",
    "forks": """
store = SpoolStore(path)
store.enqueue("default", jobs("first", 0, 1))
note(job.id for job in jobs("first", 0, 1))
for n in itertools.count():
    pid = os.fork()
    if not pid:
        batch = jobs("child", n, 3)
        store.enqueue("default", batch)
        note(job.id for job in batch)
        os._exit(0)
    batch = jobs("parent", n, 3)
    store.enqueue("default", batch)
    note(job.id for job in batch)
    assert os.waitpid(pid, 0)[1] == 0
    time.sleep(0.02)
""",
    "drops": """
for n in itertools.count():
    batch = jobs("drop", n, 5)
    drop(path, [("default", job) for job in batch])
    note(job.id for job in batch)
    time.sleep(0.03)
""",
    "shell": """
import subprocess
for n in itertools.count():
    batch = jobs("mv", n, 2)
    text = "".join(f'{{"job":"work","id":"{job.id}"}}\\n' for job in batch)
    tmp = f"{path}/inbox/tmp/{name}-{n}"
    with open(tmp, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    subprocess.run(["mv", tmp, f"{path}/inbox/new/"], check=True)
    note(job.id for job in batch)
    time.sleep(0.03)
""",
}

#: What people type meanwhile. Each ends well.
COMMANDS = (
    ("status", "--json"),
    ("jobs", "--limit", "5"),
    ("pause", "default"),
    ("resume", "default"),
    ("spool", "check"),
    ("spool", "ls"),
    ("workers",),
)


class Crowd:
    """Everybody who works on one spool."""

    def __init__(self, rig: Rig, folder: Path, rng: random.Random) -> None:
        self.rig = rig
        self.path = rig.url.removeprefix("spool:")
        self.accepted = folder / "accepted"
        self._rng = rng
        self._born = 0
        self.kills = 0
        self.producers: dict[str, subprocess.Popen[bytes]] = {}
        self.pools: list[Pool] = []

    def start(self) -> None:
        """Starts whoever is not there."""
        for kind, code in PRODUCERS.items():
            if kind not in self.producers or self.producers[kind].poll() is not None:
                self._born += 1
                self.producers[kind] = subprocess.Popen(
                    [sys.executable, "-c", HEAD + code, self.path, str(self.accepted), f"p{self._born}"],
                    env=self.rig.env(),
                    preexec_fn=die_with_pytest,
                )
        self.pools = [pool for pool in self.pools if is_running(pool.pid)]
        while len(self.pools) < 2:
            self.pools.append(self.rig.start(*OPTIONS, n=2, ready=False))

    def kill_one(self) -> None:
        """A producer, a worker or, now and then, a master."""
        pool = self._rng.choice(self.pools)
        victims = [*(one.pid for one in self.producers.values() if one.poll() is None), *pool.workers()]
        if self._rng.random() < 0.15:
            victims = [pool.pid]
        if victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._rng.choice(victims), signal.SIGKILL)
                self.kills += 1

    def kill_all(self) -> None:
        for pid in self.rig.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for producer in self.producers.values():
            producer.wait(10)
        for pool in self.rig.pools:
            pool.process.wait(10)
        self.rig.until_clean()


def say(rig: Rig, *command: str) -> None:
    """A person at the command line."""
    done = subprocess.run(
        [sys.executable, "-m", "batchq", *command],
        cwd=rig.folder,
        env=rig.env(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (command, done)
    assert "Traceback" not in done.stderr, done


@pytest.mark.parametrize(
    "seconds", [5.0, pytest.param(60.0, marks=[pytest.mark.slow, pytest.mark.timeout(400)])], ids=["short", "full"]
)
def test_many_at_once_are_killed_and_a_copy_of_the_spool_goes_on(
    tmp_path: Path, servers: Servers, rng: random.Random, seconds: float
) -> None:
    """Every job that was accepted ends, none is recorded twice, the totals obey the law, and check finds nothing."""
    seconds = float(os.environ.get("CHAOS_SECONDS") or seconds) if seconds < 60 else seconds
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with opened(first, "spool", url_of("spool", first, servers), "x") as rig:
        rig.app(APP)
        crowd = Crowd(rig, tmp_path, rng)
        end = time.monotonic() + seconds
        said = 0
        while time.monotonic() < end:
            crowd.start()
            time.sleep(rng.uniform(0.02, 0.2))
            for _ in range(rng.choice((1, 2, 3))):
                crowd.kill_one()
            if rng.random() < 0.2:
                say(rig, *COMMANDS[said % len(COMMANDS)])
                said += 1
        # In the middle: with claims, with a log, with files under work/.
        crowd.kill_all()
        shutil.copytree(rig.url.removeprefix("spool:"), second / "spool", ignore=_fifos)
        check_spool(str(second / "spool"))
        if rig.ledger.path.exists():
            shutil.copy(rig.ledger.path, second / "ledger")
        kills = crowd.kills
    with opened(second, "spool", url_of("spool", second, servers), "x") as rig:
        rig.app(APP)
        rig.store.resume("default")
        rig.run_burst(*OPTIONS, n=4, within=60 + seconds)
        say(rig, "spool", "check", "--repair")
        accepted = (tmp_path / "accepted").read_text().split()
        stats = rig.stats()
        runs = runs_of(rig.ledger)
        assert len(accepted) == len(set(accepted))
        assert set(accepted) <= {job for job, of_job in runs.items() if any(run.end for run in of_job)}
        assert stats.totals["completed"] == stats.totals["enqueued"] == len(runs)
        assert stats.counts == dict.fromkeys(stats.counts, 0)
        assert os.listdir(second / "spool" / "inbox" / "bad") == []
        print(f"{len(accepted)} accepted, {len(runs)} run, {kills} killed, {said} commands, {stats.totals}")


def _fifos(folder: str, names: list[str]) -> set[str]:
    """What cp -r would wait for: hints only."""
    return {name for name in names if os.path.basename(folder) in ("waiters", "waiting")}
