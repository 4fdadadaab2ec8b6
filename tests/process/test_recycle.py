"""Workers make room for new ones: after so many jobs, above so much memory; and are killed above the hard limit."""

from __future__ import annotations

from collections import Counter

from batchq.lifecycle import State
from tests.process.rig import Rig

APP = """
kept = []


@app.job(max_attempts=3, backoff=fixed(0.1))
def quick(n=0):
    note("S")
    note("E")


@app.job
def leaks():
    note("S")
    kept.append(bytearray(os.urandom(1) * (24 << 20)))
    note("E")


@app.job(max_attempts=3)
async def waits(for_it=""):
    import asyncio
    note("S")
    while for_it and not os.path.exists(for_it):
        await asyncio.sleep(0.01)
    note("E")


@app.job(max_attempts=2, backoff=fixed(0.1))
def grows():
    note("S")
    kept.append(bytearray(b"x" * (600 << 20)))
    time.sleep(30)
    note("E")
"""


def test_worker_is_replaced_after_so_many_jobs(rig: Rig) -> None:
    """Each job runs once; no worker runs much more than its share, and no attempt is spent."""
    rig.app(APP)
    ids = rig.enqueue_many("quick", [(n,) for n in range(400)])
    pool = rig.run_burst("--max-jobs", "50", n=2)
    runs = Counter(entry.job for entry in rig.ledger.ends())
    assert runs == Counter(ids)
    by_worker = Counter(entry.pid for entry in rig.ledger.ends())
    # A batch is never cut: what was claimed is run.
    assert max(by_worker.values()) <= 50 + 128
    assert len(by_worker) > 2
    assert pool.lines("recycled")
    totals = rig.stats().totals
    assert (totals["completed"], totals["retried"], totals["crashed"]) == (400, 0, 0)


def test_one_with_places_is_replaced_before_its_longest_job_ends(rig: Rig) -> None:
    """Its successor begins what waits meanwhile, and an order reaches who is about to go."""
    rig.app(APP)
    pool = rig.start("-c", "4", "--threads", "--max-jobs", "10")
    long = [rig.enqueue("waits", "go") for _ in range(2)]
    first = rig.until_started(long[0])
    rig.until_started(long[1])
    rig.enqueue_many("waits", [()] * 60)
    # In one place of the first, and as many of its successor: so few run long that these get through.
    rig.until_counts(done=60)
    assert not any(rig.ledger.ends(job) for job in long)
    assert first in pool.workers()
    rig.store.cancel("default", [long[0]])
    rig.until(lambda: rig.stats().totals["cancelled"] == 1, "the order has come")
    (rig.folder / "go").touch()
    rig.until_counts(done=61, active=0)
    rig.until(lambda: first not in pool.workers(), "the first has gone")
    assert len({entry.pid for entry in rig.ledger.ends()}) > 2
    assert {entry.attempt for entry in rig.ledger.starts()} == {1}
    assert pool.stop() == 0


def test_worker_is_replaced_above_its_memory(rig: Rig) -> None:
    """A leak is cut off between two jobs: nothing fails for it."""
    rig.app(APP)
    ids = rig.enqueue_many("leaks", [()] * 40)
    pool = rig.run_burst("--max-rss", "200MiB", n=1, within=40)
    assert Counter(entry.job for entry in rig.ledger.ends()) == Counter(ids)
    assert len({entry.pid for entry in rig.ledger.ends()}) > 1
    assert any("max_rss" in line for line in pool.lines("recycled"))
    assert rig.stats().totals["crashed"] == 0


def test_worker_above_the_hard_limit_is_a_crash_of_what_ran(rig: Rig) -> None:
    """Killed, charged, and the error names the limit; the others go on."""
    rig.app(APP)
    rig.start("--max-rss-hard", "400MiB", n=2)
    greedy = rig.enqueue("grows")
    rig.until(lambda: rig.job(greedy).state is State.DEAD, "the greedy one is dead", within=30)
    job = rig.job(greedy)
    assert (job.reason, job.crashes, job.attempt) == ("crashed", 2, 2)
    assert "max_rss_hard" in job.errors[0]["error"]
    after = rig.enqueue("quick")
    rig.until(lambda: rig.ledger.ends(after), "the others go on")
