"""Limits, rates and circuits over two masters, counted by what the handlers themselves have noted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from batchq.lifecycle import State
from tests.process.rig import Rig
from tests.webhooks.receiver import Receiver

APP = """
import asyncio


@app.job(limit=3, key=lambda host, *_: host)
async def calls(host, seconds):
    note("S")
    await asyncio.sleep(seconds)
    note("E")


async def sleeps(seconds):
    note("S")
    await asyncio.sleep(seconds)
    note("E")


app.job(name="whole", limit=2)(sleeps)
app.limit_queue("narrow", limit=3)
app.job(name="left", queue="narrow")(sleeps)
app.job(name="right", queue="narrow")(sleeps)


@app.on_worker_start
async def connect():
    import httpx

    global client
    client = httpx.AsyncClient(trust_env=False)


@app.job(rate="20/s")
async def rated(url):
    note("S")
    await client.post(f"{url}/{current_job().id}", content=b"x")


@app.job(rate="1000/s")
async def in_turn():
    note("S")


@app.job
async def blocks(seconds):
    time.sleep(seconds)


@app.job(concurrency=2)
async def narrow():
    note("S")
    await asyncio.sleep(0.05)
    note("E")


@app.job(key=lambda host: host, breaker=Breaker(failures=3, reset=0.4), backoff=fixed(0.1), max_attempts=5)
async def posts(host):
    note("S")
    if host == "dead" and not os.path.exists("mended"):
        raise OSError("no route")
    note("E")


@app.job(limit=2)
def plain():
    note("S")
    time.sleep(0.01)
    note("E")


@app.job(limit=1, key=lambda: 1 / 0, max_attempts=1)
async def no_key():
    note("S")
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def most_at_once(rig: Rig, jobs: set[str]) -> int:
    steps = [(s.at_ns, 1) for s in rig.ledger.starts() if s.job in jobs]
    steps += [(e.at_ns, -1) for e in rig.ledger.ends() if e.job in jobs]
    return max(itertools.accumulate(step for _, step in sorted(steps)))


def test_never_more_at_once_than_the_limit_over_two_masters(rig: Rig) -> None:
    """Of each key by itself, of a handler, of a queue with two of them; the places are used; the jobs of a key begin in
    their order."""
    rig.app(APP)
    hosts = {host: rig.enqueue_many("calls", [(host, 0.05)] * 24) for host in ("one", "two", "three")}
    whole = rig.enqueue_many("whole", [(0.02,)] * 20)
    narrow = [
        job for _ in range(10) for name in ("left", "right") for job in rig.enqueue_many(name, [(0.02,)], "narrow")
    ]
    rig.store.pause("default")
    rig.store.pause("narrow")
    # Fourteen may run at once: more than one of them has places for.
    pools = [rig.start("-c", "8", "--threads") for _ in range(2)]
    rig.store.resume("default")
    rig.store.resume("narrow")
    rig.until_counts(done=92, within=30)
    rig.until_counts("narrow", done=20, within=30)
    for host, jobs in hosts.items():
        assert most_at_once(rig, set(jobs)) == 3, host
        began = [entry.job for entry in rig.ledger.starts() if entry.job in set(jobs)]
        late = [abs(began.index(job) - place) for place, job in enumerate(jobs)]
        # Three run at once, on two masters: neighbours may change places.
        assert max(late) <= 12, late
    assert most_at_once(rig, set(whole)) == 2
    assert most_at_once(rig, set(narrow)) == 3
    assert {entry.attempt for entry in rig.ledger.starts()} == {1}
    assert rig.store.gates("default") == rig.store.gates("narrow") == []
    assert [pool.stop() for pool in pools] == [0, 0]


def test_never_more_than_the_rate_in_any_second_over_two_masters(rig: Rig, receiver: Receiver) -> None:
    """Counted by the server that is called. What a call takes to come there, on a busy machine, is no fault of the
    rate: the second is shorter by what that was more than the twentieth that there is room for."""
    rig.app(APP)
    rig.enqueue_many("rated", [(receiver.url,)] * 60)
    pools = [rig.start("-c", "20", "--threads") for _ in range(2)]
    rig.until_counts(done=60, within=60)
    came = {got.path[1:]: got.at for got in receiver.got}
    began = {entry.job: entry.at_ns / 1e9 for entry in rig.ledger.starts()}
    assert len(came) == len(began) == len(receiver.got) == 60
    second = min(1.0, 1.05 - max(came[job] - began[job] for job in came))
    if second < 0.3:
        pytest.skip("this machine is too busy to tell: a call was under way for most of a second")
    at = sorted(came.values())
    busiest = max(sum(begin <= one < begin + second for one in at) for begin in at)
    # Where a worker is late again and again it runs one all the same, and says so.
    assert busiest <= 20 + sum(len(pool.lines("rate_late")) for pool in pools)
    assert at[-1] - at[0] < 20, "places were left unused"


def test_who_comes_late_to_its_turn_at_a_rate_asks_again(rig: Rig) -> None:
    """Something has blocked the loop between the admission and the handler: run now, these would be too many in the
    next window. But one in four goes all the same: no worker may be late for ever."""
    rig.app(APP)
    rig.enqueue("blocks", 0.3)
    jobs = rig.enqueue_many("in_turn", [()] * 6)
    pool = rig.start("-c", "10", "--threads")
    stats = rig.until_counts(done=7)
    assert stats.totals["released"] >= 5
    assert pool.lines("rate_late")
    assert sorted(entry.job for entry in rig.ledger.starts()) == sorted(jobs)
    assert {entry.attempt for entry in rig.ledger.starts()} == {1}


def test_limits_hold_in_workers_of_one_job_too(rig: Rig) -> None:
    """Four workers, a limit of two; and one that is counted in each worker."""
    rig.app(APP)
    plain = set(rig.enqueue_many("plain", [()] * 30))
    rig.start(n=4)
    rig.until_counts(done=30)
    assert most_at_once(rig, plain) <= 2
    narrow = set(rig.enqueue_many("narrow", [()] * 20))
    rig.start("-c", "10", "--threads")
    rig.until_counts(done=50)
    per_worker: dict[int, set[str]] = {}
    for entry in rig.ledger.starts():
        if entry.job in narrow:
            per_worker.setdefault(entry.pid, set()).add(entry.job)
    assert all(most_at_once(rig, jobs) <= 2 for jobs in per_worker.values())


def test_dead_host_burns_nothing_and_delays_nobody(rig: Rig) -> None:
    """Only what opened the circuit has spent an attempt; the others run; when the host is back all are delivered."""
    rig.app(APP)
    dead = rig.enqueue_many("posts", [("dead",)] * 40)
    alive = rig.enqueue_many("posts", [("alive",)] * 40)
    pool = rig.start("-c", "10", "--threads")
    rig.until_counts(done=40)
    assert {entry.job for entry in rig.ledger.ends()} == set(alive)
    probes = len(rig.ledger.starts())
    rig.until(lambda: len(rig.ledger.starts()) >= probes + 2, "it is probed")
    assert sum(rig.job(job).attempt for job in dead if rig.job(job).state is State.DELAYED) <= 3
    [host] = [gate for gate in rig.store.gates("default") if gate.name == "posts:dead"]
    assert host.phase in ("open", "probing")
    (rig.folder / "mended").touch()
    rig.until_counts(done=80, dead=0, within=20)
    assert rig.store.gates("default") == []
    assert pool.stop() == 0


def test_key_that_can_not_be_told_is_a_failed_attempt(rig: Rig) -> None:
    """With the function's own error; the job never ran."""
    rig.app(APP)
    job = rig.enqueue("no_key")
    rig.run_burst("-c", "5", "--threads")
    assert (rig.job(job).state, rig.job(job).errors[0]["kind"]) == (State.DEAD, "ZeroDivisionError")
    assert rig.ledger.starts() == []


def test_places_of_a_killed_worker_come_free(rig: Rig) -> None:
    """Its jobs are reaped, and the others go on with all places."""
    rig.app(APP)
    jobs = rig.enqueue_many("calls", [("one", 600)] * 3)
    pool = rig.start("-c", "5", "--threads", "--shutdown-timeout", "0s")
    for job in jobs:
        rig.until_started(job)
    rig.store.pause("default")
    pool.stop()
    for job in jobs:
        rig.store.cancel("default", [job])
    assert rig.store.gates("default") == []
    rig.store.resume("default")
    rig.enqueue_many("calls", [("one", 0.01)] * 9)
    rig.start("-c", "5", "--threads")
    rig.until_counts(done=9, active=0)
