"""Two masters on one store, and signals that hit masters and workers alike: afterwards everything adds up."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import redis

from tests.chaos.judge import runs_of
from tests.process.rig import Pool, Rig, die_with_pytest, is_running

APP = """
@app.job(backoff=fixed(0.05), max_attempts=1000)
def work():
    note("S")
    time.sleep(0.004)
    note("E")
"""

OPTIONS = ("--lease", "500ms", "--max-crashes", "1000", "--max-lost", "1000")


#: Keeps some work waiting until its stdin ends, and writes down what was accepted. A process of its own: one that is
#: stopped inside the spool's gate stops all writers, and whoever lets it go on must not be one of them.
PRODUCER = """
import select, sys
from batchq.config import load
from batchq.job import NewJob, new_id, pack_row
from batchq.stores import open_store

url, prefix, accepted = sys.argv[1:]
store = open_store(url, load({"url": url, "prefix": prefix}, environ={}))
with open(accepted, "w") as file:
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        if store.stats("default").counts["pending"] < 500:
            jobs = [NewJob(new_id(), pack_row("work")) for _ in range(200)]
            store.enqueue("default", jobs)
            file.writelines(f"{job.id}\\n" for job in jobs)
"""


def disturb(rig: Rig, pools: list[Pool], stopped: set[int], rng: random.Random) -> str:
    """One blow: a kill, a stop or a wake-up of a master or a worker of one of the pools."""
    pool = rng.choice(pools)
    victims = [pool.pid] if rng.random() < 0.25 else pool.workers()
    if not victims:
        return "none"
    pid = rng.choice(victims)
    blow = rng.choice(("kill", "stop", "stop", "continue", "continue"))
    with contextlib.suppress(ProcessLookupError):
        if blow == "kill":
            os.kill(pid, signal.SIGKILL)
        elif blow == "stop":
            os.kill(pid, signal.SIGSTOP)
            stopped.add(pid)
        elif stopped:
            awoken = rng.choice(sorted(stopped))
            stopped.discard(awoken)
            os.kill(awoken, signal.SIGCONT)
    return f"{blow}-{'master' if pid == pool.pid else 'worker'}"


@pytest.mark.parametrize(
    "seconds", [5.0, pytest.param(60.0, marks=[pytest.mark.slow, pytest.mark.timeout(400)])], ids=["short", "full"]
)
def test_two_masters_under_fire_lose_and_double_nothing(rig: Rig, rng: random.Random, seconds: float) -> None:
    """Kills, stops and late returns for some seconds; then a clean pool drains what is left, and all adds up."""
    seconds = float(os.environ.get("CHAOS_SECONDS") or seconds) if seconds < 60 else seconds
    rig.app(APP)
    pools = [rig.start(*OPTIONS, n=3), rig.start(*OPTIONS, n=3)]
    stopped: set[int] = set()
    blows: list[str] = []
    accepted = rig.folder / "accepted"
    command = [sys.executable, "-c", PRODUCER, rig.url, rig.prefix, str(accepted)]
    producer = subprocess.Popen(command, stdin=subprocess.PIPE, preexec_fn=die_with_pytest)
    began = time.monotonic()
    next_blow = began
    while time.monotonic() - began < seconds:
        if time.monotonic() >= next_blow:
            next_blow = time.monotonic() + rng.uniform(0.02, 0.15)
            blows.append(disturb(rig, pools, stopped, rng))
        for number, pool in enumerate(pools):
            if pool.process.poll() is not None:
                pools[number] = rig.start(*OPTIONS, n=3, ready=False)
        time.sleep(0.01)

    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    producer.communicate(timeout=30)
    assert producer.returncode == 0
    ids = accepted.read_text().split()
    for pool in pools:
        if is_running(pool.pid):
            pool.send(signal.SIGTERM)
    codes = [pool.wait(40) for pool in pools]
    rig.until_clean()
    last = rig.start(*OPTIONS, n=4)
    stats = rig.until_counts(within=60, done=len(ids), pending=0, delayed=0, active=0)
    rig.until(lambda: len(rig.store.leases("default").ends) == 4, "only the leases of the living are left", within=10)
    assert last.stop() == 0
    rig.until_clean()

    # One recorded end a job; dead is nobody; each did run to its end.
    stats = rig.stats()
    assert (stats.totals["completed"], stats.totals["enqueued"]) == (len(ids), len(ids))
    assert (stats.totals["dead"], stats.totals["dropped"], stats.totals["cancelled"]) == (0, 0, 0)
    runs = runs_of(rig.ledger)
    assert set(runs) == set(ids)
    assert all(any(run.end is not None for run in of_job) for of_job in runs.values())
    for job, of_job in runs.items():
        tokens = [run.start.token for run in of_job]
        assert len(set(tokens)) == len(tokens), f"{job}: one token was given to two"
    assert not rig.store.leases("default").ends
    if rig.kind != "spool":
        client = redis.Redis.from_url(rig.url, decode_responses=True)
        left = {name.split(":")[-1] for name in client.scan_iter(f"{rig.prefix}:{{default}}:*") if ":mark:" not in name}
        assert left <= {"meta", "wake", "timer"}, f"keys are left over: {left}"
    print(
        f"{rig.kind}: {len(ids)} jobs, {len(blows)} blows ({blows.count('kill-master')} masters and "
        f"{blows.count('kill-worker')} workers killed), {len(rig.pools)} masters in all, exit codes {codes}, "
        f"crashed {stats.totals['crashed']}, lost {stats.totals['lost']}, fenced {stats.totals['fenced']}, "
        f"{sum(map(len, runs.values())) - len(ids)} extra starts"
    )
