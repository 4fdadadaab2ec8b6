"""Delayed jobs: order, punctuality, and a sweep that nothing ends."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from batchq.job import NewJob, new_id, pack_row
from batchq.lifecycle import State
from tests.cases.helpers import all_jobs, call, key, server_of, stays
from tests.process.rig import Rig, let_pass

APP = """
@app.job
def work(n=0, seconds=0.0):
    note("S")
    open("order", "a").write(f"{n}\\n")
    time.sleep(seconds)
    note("E")


@app.job(max_attempts=3, backoff=fixed(1.5))
def fails_once():
    note("S")
    if current_job().attempt == 1:
        raise ValueError("once")
    note("E")
"""


def order(rig: Rig) -> list[int]:
    return [int(line) for line in (rig.folder / "order").read_text().split()]


def test_five_thousand_of_one_millisecond_run_in_their_order(rig: Rig) -> None:
    """More than a sequence of twelve bits can tell apart: none is lost, and one worker runs them as they came."""
    rig.app(APP)
    # Longer than a busy machine takes to enqueue them.
    at_ms = rig.store.now_ms() + 3000
    rows = [pack_row("work", (n,)) for n in range(5000)]
    # Up to there the order of their ids is the other way round; beyond, generated ones are in the order of creation.
    ids = [f"z{9999 - n}" if n < 3000 else new_id() for n in range(5000)]
    for first in range(0, 5000, 480):
        some = range(first, min(first + 480, 5000))
        rig.store.enqueue("default", [NewJob(ids[n], rows[n], fire_ms=at_ms) for n in some])
    assert rig.stats().counts["delayed"] == 5000
    assert len({job.since_ms for job in all_jobs(rig, State.DELAYED)}) == 1
    rig.start(n=1)
    rig.until_counts(done=5000, within=30)
    assert order(rig) == list(range(5000))


def test_no_script_turns_a_score_into_text() -> None:
    """Lua prints 14 digits of a number: a score has 16."""
    scripts = sorted(Path("lua").rglob("*.lua"))
    assert len(scripts) > 20
    for path in scripts:
        code = re.sub(r"--.*", "", path.read_text())
        for line in code.splitlines():
            risky = re.search(r"tostring\s*\(|\.\.\s*\w*(?:score|fire|due)\w*|\w*(?:score|fire|due)\w*\s*\.\.", line)
            assert risky is None, f"{path}: {line.strip()}"


@pytest.mark.parametrize("kind", ["due later", "due at the start", "overdue"])
def test_jobs_that_were_delayed_before_the_master_came_are_on_time(rig: Rig, kind: str) -> None:
    """Nothing else happens in the store: the master's first look alone tells when to wake up."""
    rig.app(APP)
    lead_ms = {"due later": 2500, "due at the start": 700, "overdue": 50}[kind]
    job = rig.enqueue("work", delay_ms=lead_ms)
    fire_ms = rig.job(job).since_ms
    if kind == "overdue":
        rig.until(lambda: rig.store.now_ms() > fire_ms + 200, "it is overdue")
    offset_ms = rig.store.now_ms() - time.monotonic_ns() / 1e6
    pool = rig.start(n=1)
    began_ms = time.monotonic_ns() / 1e6 + offset_ms
    rig.until_started(job, within=6)
    started_ms = rig.ledger.starts(job)[0].at_ns / 1e6 + offset_ms
    assert fire_ms - 2 <= started_ms <= max(fire_ms, began_ms) + 2500
    assert pool.stop() == 0


def test_delays_beyond_the_lease_are_in_nobodys_hands(rig: Rig) -> None:
    """Schedules and retries that wait several leases, over a restart of the master: one start for each attempt."""
    rig.app(APP)
    delayed = [rig.enqueue("work", delay_ms=random.randint(1200, 2200)) for _ in range(60)]
    far = [rig.enqueue("work", delay_ms=60_000) for _ in range(10)]
    pool = rig.start("--lease", "300ms", n=4)
    retried = rig.enqueue_many("fails_once", [()] * 5)
    rig.until_counts(retried=5)
    assert pool.stop() == 0
    rig.start("--lease", "300ms", n=4)
    stats = rig.until_counts(done=65, active=0)
    assert (stats.totals["lost"], stats.totals["fenced"], stats.counts["delayed"]) == (0, 0, len(far))
    assert sorted(entry.job for entry in rig.ledger.starts()) == sorted(delayed + retried * 2)
    assert {entry.attempt for entry in rig.ledger.starts() if entry.job in delayed} == {1}


def test_priority_comes_before_time_when_they_become_due(rig: Rig) -> None:
    """Delayed ones of one instant, ready ones, and retries: highest priority first, then who was ready first."""
    rig.app(APP)
    at_ms = rig.store.now_ms() + 300
    for n, priority in ((5, -5), (0, 5), (3, 0)):
        rig.store.enqueue("default", [NewJob(new_id(), pack_row("work", (n,)), priority, fire_ms=at_ms)])
    for n in (1, 2):
        rig.store.enqueue("default", [NewJob(new_id(), pack_row("work", (n,)))])
    rig.until(lambda: rig.store.now_ms() > at_ms, "they are due")
    rig.store.promote("default")
    rig.store.enqueue("default", [NewJob(new_id(), pack_row("work", (4,)))])
    rig.start(n=1)
    rig.until_counts(done=6)
    assert order(rig) == [0, 1, 2, 3, 4, 5]


def _script_runs_on(rig: Rig) -> Callable[[], None]:
    import threading

    client = server_of(rig)

    def spin() -> None:
        try:
            client.eval("while true do end", 0)
        except Exception:  # noqa: BLE001 - it is killed
            return

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()

    def end() -> None:
        rig.until(lambda: _killed(rig), "the script is killed")
        thread.join(5)

    return end


def _killed(rig: Rig) -> bool:
    try:
        return bool(server_of(rig).script_kill())
    except Exception as error:  # noqa: BLE001 - not yet, or no longer
        return "NOTBUSY" in str(error)


def _wrong_type(name: str) -> Callable[[Rig], Callable[[], None]]:
    """Somebody's slip: a key of ours is of another type for a while."""

    def begin(rig: Rig) -> Callable[[], None]:
        client, mine = server_of(rig), key(rig, name)
        client.eval(
            "if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('RENAME', KEYS[1], KEYS[1] .. ':kept') end "
            "redis.call('SET', KEYS[1], 'not ours')",
            1,
            mine,
        )

        def end() -> None:
            client.eval(
                "redis.call('DEL', KEYS[1]) "
                "local kept = KEYS[1] .. ':kept' "
                "if redis.call('EXISTS', kept) == 1 then redis.call('RENAME', kept, KEYS[1]) end",
                1,
                mine,
            )

        return end

    return begin


def _config(**values: str) -> Callable[[Rig], Callable[[], None]]:
    def begin(rig: Rig) -> Callable[[], None]:
        client = server_of(rig)
        before = {name.replace("_", "-"): client.config_get(name.replace("_", "-")) for name in values}
        for name, value in values.items():
            client.config_set(name.replace("_", "-"), value)

        def end() -> None:
            for kept in before.values():
                for name, value in kept.items():
                    client.config_set(name, value)

        return end

    return begin


def _replica(rig: Rig) -> Callable[[], None]:
    client = server_of(rig)
    client.replicaof("127.0.0.1", "1")
    return lambda: client.replicaof("NO", "ONE")


def _kill_clients(rig: Rig) -> Callable[[], None]:
    client = server_of(rig)
    for _ in range(10):
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(0.05)
    return lambda: None


def _hang(rig: Rig) -> Callable[[], None]:
    client = server_of(rig)
    client.execute_command("DEBUG", "SLEEP", "0.8")
    return lambda: None


FAULTS = {
    "hangs": _hang,
    "busy script": _script_runs_on,
    "out of memory": _config(maxmemory="1"),
    "connections end": _kill_clients,
    "read only": _replica,
    "delayed of another type": _wrong_type("delayed"),
    **{
        f"{name} of another type": _wrong_type(name)
        for name in ("pending", "prioritized", "rows", "attempts", "notes", "leases", "wake", "timer", "meta")
    },
}
#: The same for workers of many jobs at once.
WIDE = "pending of another type, many at once"
FAULTS[WIDE] = _wrong_type("pending")
#: Those of the same kind that the default run leaves out.
MORE = ("prioritized", "attempts", "notes", "leases", "wake", "timer", "meta")


@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=pytest.mark.slow if name.split(" ")[0] in MORE else ()) for name in FAULTS],
)
def test_promotion_goes_on_after_calls_that_failed(
    serve: Callable[..., object], rig_on: Callable[..., Rig], fault: str
) -> None:
    """While jobs become due every sweep fails, by any kind of error. Then nothing is added and nobody restarts."""
    server = serve("--busy-reply-threshold", "50", "--enable-debug-command", "local")
    rig = rig_on(server)
    rig.app(APP)
    wide = ("-c", "4", "--threads") if fault == WIDE else ()
    pool = rig.start("--socket-timeout", "1s", *wide, n=2)
    ids = [rig.enqueue("work", delay_ms=delay) for delay in range(300, 800, 25)]
    end = FAULTS[fault](rig)
    stays(lambda: pool.process.poll() is None, "the master lives", 0.9)
    end()
    rig.until(lambda: {entry.job for entry in rig.ledger.ends()} >= set(ids), "all have run", within=20)
    if not fault.startswith("meta"):  # Where the totals are kept.
        rig.until_counts(done=len(ids), pending=0, delayed=0, active=0)
    assert pool.process.poll() is None
    assert len(pool.log().splitlines()) < 150, "no loop of errors"
    assert pool.stop() == 0


def test_idle_pool_notices_due_jobs_whatever_happened_to_its_connections(redis_rig: Rig) -> None:
    """One job at a time on a pool that sleeps; before every second one all connections are ended."""
    redis_rig.app(APP)
    redis_rig.start(n=4)
    client = server_of(redis_rig)
    for turn in range(8):
        job = redis_rig.enqueue("work", delay_ms=350)
        fire_ms = redis_rig.job(job).since_ms
        if turn % 2:
            for line in client.client_list():
                if int(line["id"]) != client.client_id() and line.get("name") != "pytest":
                    client.client_kill_filter(_id=line["id"])
        offset_ms = redis_rig.store.now_ms() - time.monotonic_ns() / 1e6
        redis_rig.until_started(job, within=10)
        late_ms = redis_rig.ledger.starts(job)[0].at_ns / 1e6 + offset_ms - fire_ms
        assert -2 <= late_ms <= 2500
    assert call(redis_rig, "status", "--json").ended(0).json["queues"]["default"]["totals"]["completed"] == 8


@pytest.mark.parametrize("size", [12_000, pytest.param(96_000, marks=pytest.mark.slow)])
def test_a_great_backlog_blocks_nobody(serve: Callable[..., object], rig_on: Callable[..., Rig], size: int) -> None:
    """A heap of overdue jobs: no call takes long, and what is urgent begins while they are worked off."""
    server = serve("--slowlog-log-slower-than", "1000000", "--slowlog-max-len", "1000")
    rig = rig_on(server)
    rig.app(APP)
    at_ms = rig.store.now_ms() + size // 50
    for _ in range(size // 480):
        jobs = [NewJob(new_id(), pack_row("work", (0,)), fire_ms=at_ms) for _ in range(480)]
        rig.store.enqueue("default", jobs)
    rig.until(lambda: rig.store.now_ms() > at_ms, "all are due", within=30)
    client = server_of(rig)
    client.slowlog_reset()
    pool = rig.start(n=4)
    late: list[float] = []
    while rig.stats().counts["delayed"] + rig.stats().counts["pending"] > 0:
        probe = rig.enqueue("work", 1, priority=50)
        asked = time.monotonic_ns()
        rig.until_started(probe, within=10)
        late.append((rig.ledger.starts(probe)[0].at_ns - asked) / 1e9)
    rig.until_counts(done=size + len(late), active=0, within=60)
    assert sorted(late)[int(len(late) * 0.95)] < 2
    assert client.slowlog_len() == 0, client.slowlog_get(3)
    assert pool.stop() == 0


@pytest.mark.parametrize("kills", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_promotion_that_is_killed_loses_and_doubles_nothing(rig: Rig, kills: int) -> None:
    """Two masters, one killed again and again while hundreds of jobs become due, are retried and die."""
    rig.app(APP)
    rng = random.Random(7)
    ids = []
    for _ in range(max(1, kills // 2)):
        rows = [pack_row("work" if rng.random() < 0.9 else "fails_once") for _ in range(400)]
        delays = [rng.randint(500, 500 + 300 * kills) for _ in rows]
        jobs = [NewJob(new_id(), row, 0, delay) for row, delay in zip(rows, delays, strict=True)]
        rig.store.enqueue("default", jobs)
        ids += [job.id for job in jobs]
    rig.start("--lease", "500ms", n=2)
    for _ in range(kills):
        other = rig.start("--lease", "500ms", n=1)
        let_pass(rng.uniform(0, 0.15))
        other.process.kill()
        other.wait()
        rig.stats()
    stats = rig.until_counts(done=len(ids), active=0, delayed=0, within=60)
    assert stats.totals["dead"] == 0
    assert {entry.job for entry in rig.ledger.ends()} == set(ids)
    assert stats.totals["lost"] <= kills * 128
