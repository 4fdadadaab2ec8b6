"""Claims: jobs that a lost answer, a lost row, a pause, a crowd or a parent's wait could keep from running."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import psutil
import pytest

from batchq.job import NewJob, new_id, pack_row
from batchq.lifecycle import State
from batchq.redis.waiting import WAIT_S
from tests.cases.helpers import call, commands, key, server_of, stays
from tests.faults.proxy import Proxy
from tests.process.rig import Rig
from tests.servers import Server

Serve = Callable[..., Server]
RigOn = Callable[[Server], Rig]

APP = """
@app.job(queue="children", result=True)
def child():
    return 1


@app.job(max_attempts=1, timeout=4)
def parent():
    note("S")
    ref = app.enqueue("child", queue="children", result=True)
    try:
        ref.result(timeout=0.6)
    finally:
        note("E")


@app.job
def work(seconds=0.0):
    note("S")
    time.sleep(seconds)
    note("E")


@app.job(max_attempts=5, backoff=fixed(0.3))
def fails_first():
    note("S")
    while not os.path.exists("gate"):
        time.sleep(0.01)
    if current_job().attempt == 1:
        raise ValueError("first")
    note("E")


@app.job(max_attempts=1)
def fails():
    raise ValueError("no")
"""


@pytest.mark.parametrize("size", [100, pytest.param(400, marks=pytest.mark.slow)])
def test_lost_answers_and_restarts_lose_no_job(redis_rig: Rig, size: int) -> None:
    """A tenth of all answers never comes, claims among them, while the pool is stopped and started again and again."""
    redis_rig.app(APP)
    rng = random.Random(size)
    ids = redis_rig.enqueue_many("work", [(0.002,)] * size)
    with Proxy(int(redis_rig.url.rsplit(":", 1)[1].split("/")[0])) as proxy:
        # Long answers are claims with jobs in them: those most of all.
        proxy.cut = lambda frame: rng.random() < (0.3 if len(frame) > 150 else 0.1)
        for _ in range(2):
            pool = redis_rig.start("--lease", "2s", n=2, ready=False, BATCHQ_URL=proxy.url)
            seen = redis_rig.stats().totals["completed"]
            redis_rig.until(
                lambda seen=seen: redis_rig.stats().totals["completed"] >= min(size, seen + size // 4),  # type: ignore[misc]
                "some are done",
                within=30,
            )
            redis_rig.until(lambda pool=pool: pool.lines("started"), "it has begun")  # type: ignore[misc]
            assert pool.stop(within=40) in (0, 1)
        # The last one is not restarted: what it was given and never heard of, it must find itself.
        ids += redis_rig.enqueue_many("work", [(0.002,)] * 40)
        lost: list[int] = []

        def cut(frame: bytes) -> bool:
            if len(frame) > 150 and len(lost) < 3:
                lost.append(len(frame))
                return True
            return False

        proxy.cut = cut
        redis_rig.start("--lease", "2s", n=2, ready=False, BATCHQ_URL=proxy.url)
        stats = redis_rig.until_counts(done=len(ids), pending=0, delayed=0, active=0, within=60)
    assert len(lost) == 3
    assert stats.totals["dead"] == 0
    assert {entry.job for entry in redis_rig.ledger.ends()} == set(ids)


def test_ids_without_rows_are_dropped_once_and_hinder_nobody(redis_rig: Rig) -> None:
    """Rows deleted by hand under waiting, delayed and dead jobs, and ids that never were: dropped, counted, done."""
    rig = redis_rig
    rig.app(APP)
    doomed = rig.enqueue_many("fails", [()] * 30)
    rig.run_burst(n=2)
    waiting = rig.enqueue_many("work", [()] * 100)
    delayed = rig.enqueue_many("work", [()] * 100, delay_ms=800)
    client, rows = server_of(rig), key(rig, "rows")
    gone = [*waiting[::3], *delayed[::3], *doomed[::3]]
    client.hdel(rows, *gone)
    client.rpush(key(rig, "pending"), *(f"never-{n}" for n in range(10)))
    client.zadd(key(rig, "delayed"), {f"later-{n}": 4096 * n + 1 for n in range(10)})
    client.zadd(key(rig, "dead"), {f"dead-{n}": rig.store.now_ms() for n in range(10)})
    # So old that the master's sweep removes them by itself.
    client.zadd(key(rig, "dead"), {f"old-{n}": n for n in range(150)})
    pool = rig.start(n=2)
    left = len(waiting) + len(delayed) - len(waiting[::3]) - len(delayed[::3])
    rig.until(lambda: client.zcard(key(rig, "delayed")) == client.llen(key(rig, "pending")) == 0, "all are gone")
    rig.until(lambda: rig.store.stats("default").totals["completed"] == left, "the others are done")
    assert {entry.job for entry in rig.ledger.ends()} == {*waiting, *delayed} - set(gone)
    assert rig.store.stats("default").totals["dropped"] >= len(waiting[::3]) + len(delayed[::3]) + 20
    assert all(sum(job in line for line in pool.log().splitlines()) <= 2 for job in gone)
    rig.until(lambda: client.zcard(key(rig, "dead")) == len(doomed) + 10, "the old ones are gone")
    shown = call(rig, "jobs", "--state", "dead", "--limit", "0", "--json").lines
    assert sum(one["reason"] == "row lost" for one in shown) == len(doomed[::3]) + 10
    again = call(rig, "requeue", "--all", "--yes", "--json").ended(0).json
    assert again == {"requeued": len(doomed) - len(doomed[::3]), "gone": len(doomed[::3]) + 10}
    rig.until(lambda: client.zcard(key(rig, "dead")) == again["requeued"], "they failed again, once each")
    rig.until_started(rig.enqueue("work"))
    assert pool.stop() == 0


def test_nothing_begins_between_pause_and_resume(rig: Rig) -> None:
    """Idle workers wait for work when it is paused: what comes, what becomes due and what is retried stands."""
    rig.app(APP)
    rig.start(n=4)
    running = rig.enqueue_many("fails_first", [()] * 4)
    for job in running:
        rig.until_started(job)
    call(rig, "pause", "default").ended(0)
    paused = time.monotonic_ns()
    (rig.folder / "gate").touch()
    ids = rig.enqueue_many("work", [()] * 50) + rig.enqueue_many("work", [()] * 50, delay_ms=200)
    rig.until_counts(active=0)
    rig.until(lambda: rig.stats().counts["pending"] == 104, "what was delayed and retried is due")
    stays(lambda: rig.stats().counts["active"] == 0, "nothing runs", 0.4)
    resumed = time.monotonic_ns()
    call(rig, "resume", "default").ended(0)
    rig.until_counts(done=104)
    assert not [entry for entry in rig.ledger.starts() if paused < entry.at_ns < resumed]
    assert {entry.job for entry in rig.ledger.ends()} == {*ids, *running}


def test_parents_that_wait_for_children_stop_nobody_for_good(rig: Rig) -> None:
    """All workers are parents whose children wait behind them: they fail by their own time limits, and all drains."""
    rig.app(APP)
    parents = rig.enqueue_many("parent", [()] * 6)
    pool = rig.start("-q", "default", "-q", "children", n=2)
    rig.until(lambda: sum(rig.stats().totals[name] for name in ("completed", "dead")) == len(parents), "all ended")
    rig.until_counts("children", pending=0, active=0, within=15)
    assert rig.stats("children").totals["enqueued"] == len(parents)
    probe = rig.enqueue("work")
    rig.until_started(probe, within=5)
    assert pool.stop() == 0


@pytest.mark.slow
def test_a_pool_keeps_few_connections_and_waits_for_room(serve: Serve, rig_on: RigOn) -> None:
    """Ten queues, recycled workers, maxclients: two connections a process, and a refusal is waited out."""
    server = serve("--maxclients", "30")
    rig = rig_on(server)
    queues = [f"q{n}" for n in range(10)]
    for queue in queues:
        rig.enqueue_many("work", [()] * 120, queue)
    args = [arg for queue in queues for arg in ("-q", queue)]
    pool = rig.start(*args, "--max-jobs", "100", n=4, queue="q0")
    client = server_of(rig)
    most = 0

    def drained() -> bool:
        nonlocal most
        most = max(most, len(client.client_list()))
        return all(rig.store.stats(queue).totals["completed"] >= 120 for queue in queues)

    rig.until(drained, "all are done", within=30)
    # Ours: two a process, the fork of a newcomer beside the one that leaves; the test's own two.
    assert most <= (4 + 1 + 1) * 2 + 4 + 2
    strangers = []
    for _ in range(30):
        stranger = server_of(rig)
        try:
            stranger.ping()
        except Exception:  # noqa: BLE001 - no room is left
            break
        strangers.append(stranger)
    assert "max number of clients" in call(rig, "status").ended(4).err
    for stranger in strangers:
        stranger.close()
    rig.until_started(rig.enqueue("work", queue="q3"), within=5)
    assert pool.process.poll() is None
    assert pool.stop() == 0


def test_connections_that_the_server_ends_for_idleness_cost_no_time_and_no_line(serve: Serve, rig_on: RigOn) -> None:
    """`timeout 1`: the pool sleeps for longer than that before each job."""
    rig = rig_on(serve("--timeout", "1", "--tcp-keepalive", "0"))
    pool = rig.start("--lease", "9s", n=2)
    before = len(pool.log().splitlines())
    for _ in range(2):
        stays(lambda: pool.process.poll() is None, "the pool stands", 1.4)
        job = rig.enqueue("work")
        asked = time.monotonic_ns()
        rig.until_started(job)
        # A wait that nobody hears is over only after WAIT_S.
        assert (rig.ledger.starts(job)[0].at_ns - asked) / 1e9 < WAIT_S / 2
        call(rig, "status").ended(0)
    assert pool.log().splitlines()[before:] == []
    assert pool.stop() == 0


@pytest.mark.slow
def test_idle_costs_do_not_grow_with_what_is_stored(serve: Serve, rig_on: RigOn) -> None:
    """A few jobs for tomorrow, then twenty thousand and a thousand dead: the same number of commands a second."""
    rig = rig_on(serve())
    doomed = rig.enqueue_many("fails", [()] * 1000, max_attempts=1)
    rig.run_burst(n=2)
    assert rig.stats().counts["dead"] in (0, len(doomed))
    pools = [rig.start(n=2) for _ in range(2)]

    def cost() -> float:
        before, began = commands(rig), time.monotonic()
        stays(lambda: True, "idle", 2.0)
        return (commands(rig) - before) / (time.monotonic() - began)

    few = min(cost(), cost())
    for _ in range(20_000 // 400):
        jobs = [NewJob(new_id(), pack_row("work"), delay_ms=86_400_000) for _ in range(400)]
        rig.store.enqueue("default", jobs)
    assert len(rig.store.jobs("default", State.DELAYED, limit=1).jobs) == 1
    spent = [psutil.Process(pool.pid).cpu_times().user for pool in pools]
    # What the enqueues themselves set off is over by the second look.
    many = min(cost(), cost())
    assert few < 60
    assert many < few * 1.3 + 10, (few, many)
    used = sum(psutil.Process(pool.pid).cpu_times().user for pool in pools) - sum(spent)
    assert used < 0.5
