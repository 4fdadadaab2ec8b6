"""Masters that are killed in the middle of a reload: the next start on this host makes everything good at once."""

from __future__ import annotations

import os
import random
import signal

import pytest

from tests.chaos.judge import runs_of
from tests.process.rig import Rig, let_pass

APP = """
@app.job(backoff=fixed(0.05), max_attempts=1)
def work():
    note("S")
    time.sleep(0.005)
    note("E")
"""


@pytest.mark.parametrize(
    "rounds", [4, pytest.param(80, marks=[pytest.mark.slow, pytest.mark.timeout(600)])], ids=["short", "full"]
)
def test_kill_in_a_reload_loses_no_job_and_no_attempt(rig: Rig, rng: random.Random, rounds: int) -> None:
    """HUP, and SIGKILL some time later: in the check, at the exec, at the import, while workers are replaced."""
    rig.app(APP)
    # Much longer than the test: what is given back in time was given back by the scoreboard.
    options = ("--pid-file", str(rig.folder / "pool.pid"), "--lease", "10m", "--max-lost", "1000")
    ids: list[str] = []
    killed = 0
    for _ in range(rounds):
        pool = rig.start(*options, n=3)
        ids += rig.enqueue_many("work", [()] * 150)
        pool.send(signal.SIGHUP)
        let_pass(rng.uniform(0.0, 0.6))
        os.kill(pool.pid, signal.SIGKILL)
        pool.wait()
        killed += 1
        rig.until_clean()
    last = rig.start(*options, n=3)
    stats = rig.until_counts(within=60, done=len(ids), pending=0, delayed=0, active=0)
    assert (stats.totals["dead"], stats.totals["crashed"], stats.totals["retried"]) == (0, 0, 0)
    assert stats.totals["lost"] <= killed * 6
    runs = runs_of(rig.ledger)
    assert set(runs) == set(ids)
    assert {entry.attempt for entry in rig.ledger.starts()} == {1}
    assert last.stop() == 0
    assert not rig.store.leases("default").ends
    assert not list(rig.folder.glob("pool.pid*"))
    extra = sum(map(len, runs.values())) - len(ids)
    print(f"{rig.kind}: {len(ids)} jobs, {killed} masters killed, lost {stats.totals['lost']}, {extra} extra starts")
