"""Several queues in one pool: weights, strict order, and handlers that nobody has."""

from __future__ import annotations

import pytest

from batchq.lifecycle import State
from tests.process.rig import Rig

APP = """
@app.job
def tick(seconds=0.002):
    note("S")
    time.sleep(seconds)


@app.job
def late_handler():
    note("S")
    note("E")
"""


#: How jobs are claimed -> how many a queue, workers, options, and what is made of APP.
WAYS: dict[str, tuple[int, int, tuple[str, ...], tuple[str, str]]] = {
    "one by one": (500, 2, (), ("@app.job\ndef tick", "@app.job(batch_claim=False)\ndef tick")),
    "in batches": (1800, 1, (), ("", "")),
    "many at once": (1200, 1, ("--concurrency", "20", "--threads"), ("time.sleep(seconds)", "time.sleep(0.02)")),
}


@pytest.mark.parametrize("way", WAYS)
def test_queues_share_by_weight_under_saturation(rig: Rig, way: str) -> None:
    """Two queues at 3 : 1, both full: each gets its share of the starts, within a tenth. In batches those of the one
    are twice as long as those of the other, for its jobs take half the time."""
    jobs, workers, options, (old, new) = WAYS[way]
    rig.app(APP.replace(old, new))
    weights = {"high": 3, "low": 1}
    queue_of = {}
    for queue in weights:
        for job in rig.enqueue_many("tick", [(0.001 if queue == "high" else 0.002,)] * jobs, queue):
            queue_of[job] = queue
    args = [arg for queue, weight in weights.items() for arg in ("-q", f"{queue}:{weight}")]
    pool = rig.start(*args, *options, n=workers, queue="low")
    # The first batches are left out: the pool does not know yet how long the jobs take; and high is empty after
    # four thirds of its jobs.
    enough = jobs * 23 // 20
    rig.until(lambda: len(rig.ledger.starts()) >= enough, "enough has run", within=60)
    assert pool.stop() == 0
    order = [queue_of[entry.job] for entry in rig.ledger.starts()][jobs // 4 : enough]
    shares = {queue: order.count(queue) / len(order) for queue in weights}
    print(f"{rig.kind}: shares {shares}")
    for queue, weight in weights.items():
        assert abs(shares[queue] / (weight / 4) - 1) < 0.1, f"{queue}: {shares}"


def test_strict_order_serves_the_first_queue_first(rig: Rig) -> None:
    """With --strict-order nothing of the second queue begins while the first has something."""
    rig.app(APP)
    low = set(rig.enqueue_many("tick", [()] * 200, "low"))
    high = set(rig.enqueue_many("tick", [()] * 200, "high"))
    pool = rig.start("--strict-order", "-q", "high", "-q", "low", "--burst", ready=False)
    assert pool.wait() == 0
    order = [entry.job for entry in rig.ledger.starts()]
    assert len(order) == 400
    assert set(order[:200]) == high
    assert set(order[200:]) == low


def test_unknown_handler_is_parked_and_runs_when_the_code_comes(rig: Rig) -> None:
    """A rolling deploy: a pool without the handler snoozes the job, no attempt; a newer one runs it as attempt 1."""
    rig.app("@app.job\ndef other(): pass\n")
    job = rig.enqueue("late_handler")
    old = rig.start("--unknown-grace", "2s")
    rig.until(lambda: rig.job(job).state is State.DELAYED, "the job is parked")
    assert rig.job(job).attempt == 0
    assert old.lines("parked")
    assert old.stop() == 0
    rig.app(APP)
    rig.run_burst()
    assert [entry.attempt for entry in rig.ledger.starts(job)] == [1]
    assert rig.stats().totals["snoozed"] >= 1


def test_unknown_handler_is_dead_after_its_grace(rig: Rig) -> None:
    """Parked again and again, no attempt spent, then dead with reason no_handler."""
    rig.app("@app.job\ndef other(): pass\n")
    job = rig.enqueue("late_handler")
    rig.run_burst("--unknown-grace", "500ms")
    dead = rig.job(job)
    assert (dead.state, dead.reason) == (State.DEAD, "no_handler")
    assert "late_handler" in dead.errors[0]["error"]
    assert "other" in dead.errors[0]["error"]
    assert dead.forgiven >= 5
