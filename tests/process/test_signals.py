"""What signals to the master do besides stopping: quiet and on, stacks to the log, all of them in any order."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter

import pytest

from batchq.lifecycle import State
from batchq.master.control import ask
from tests.process.rig import Rig, let_pass

APP = """
import hashlib, re, threading


@app.job
def run(seconds):
    note("S")
    time.sleep(seconds)
    note("E")


@app.job
def short():
    note("S")
    note("E")


@app.job
def work():
    note("S")
    time.sleep(0.004)
    note("E")


@app.job
def listening(seconds):
    signal.signal(signal.SIGUSR2, lambda *_: note("heard"))
    note("S")
    time.sleep(seconds)


@app.job
def stuck_in_c():
    note("S")
    re.match("(a+)+$", "a" * 60 + "b")  # It holds the interpreter, for ages.


@app.job
def stuck_in_a_lock():
    note("S")
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
"""


def test_quiet_pool_finishes_what_runs_and_claims_nothing(rig: Rig) -> None:
    """TSTP: the running job ends well, those behind it are given back, new ones wait. CONT: on it goes."""
    rig.app(APP)
    warm = rig.enqueue_many("short", [()] * 30)
    pool = rig.start("--pid-file", str(rig.folder / "pool.pid"), n=2)
    rig.until_counts(done=30)
    rig.store.pause("default")
    jobs = [rig.enqueue("run", 0.5), rig.enqueue("run", 0.5)]
    behind = rig.enqueue_many("short", [()] * 6)
    rig.store.resume("default")
    for job in jobs:
        rig.until_started(job)
    pool.send(signal.SIGTSTP)
    rig.until_counts(done=32, pending=6, active=0)
    rig.until(lambda: said(rig) == {"quiet"}, "every worker says that it is quiet")
    rig.until(lambda: [master["state"] for master in rig.store.masters()] == ["quiet"], "the store knows it too")
    late = rig.enqueue_many("short", [()] * 4)
    pool.send(signal.SIGTTIN)
    rig.until(lambda: len(pool.workers()) == 3, "a third worker")
    rig.until(lambda: len(pool.registered("default")) == 3, "it is registered")
    for _ in range(20):
        assert rig.stats().counts["pending"] == 10
        time.sleep(0.02)
    pool.send(signal.SIGCONT)
    rig.until_counts(done=42)
    rig.until(lambda: said(rig) == {"idle"}, "every worker says that it is idle")
    assert all(len(rig.ledger.starts(job)) == 1 for job in (*warm, *jobs, *behind, *late))
    assert {entry.attempt for entry in rig.ledger.starts()} == {1}
    assert pool.stop() == 0


def said(rig: Rig) -> set[str]:
    """What the workers do, by the control socket."""
    return {worker["state"] for worker in ask(str(rig.folder / "pool.pid.sock"), {"do": "workers"})["workers"]}


def test_quiet_pool_stops_in_order(rig: Rig) -> None:
    """TERM while it is quiet and a job runs."""
    rig.app(APP)
    job = rig.enqueue("run", 0.4)
    pool = rig.start(n=2)
    rig.until_started(job)
    pool.send(signal.SIGTSTP)
    rig.until(lambda: pool.lines("quiet"), "it is quiet")
    assert pool.stop() == 0
    assert rig.stats().totals["completed"] == 1


@pytest.mark.parametrize("handler", ["stuck_in_c", "stuck_in_a_lock"])
def test_stacks_of_workers_go_to_the_log(redis_rig: Rig, handler: str) -> None:
    """USR1: what each worker does, also one whose handler is stuck in C or in a lock, and nothing is disturbed."""
    redis_rig.app(APP)
    job = redis_rig.enqueue(handler)
    pool = redis_rig.start(n=2)
    worker = redis_rig.until_started(job)
    source = (redis_rig.folder / "app.py").read_text().splitlines()
    place = next(n for n, line in enumerate(source, 1) if line.startswith(f"def {handler}"))

    def dumps(call: str) -> list[str]:
        """Asks again each time: who is between two calls shows another stack."""
        dumped = len(pool.lines("scoreboard"))
        pool.send(signal.SIGUSR1)
        redis_rig.until(lambda: len(pool.lines("scoreboard")) > dumped, "the scoreboard is there")
        until = time.monotonic() + 0.15
        redis_rig.until(lambda: time.monotonic() > until, "the stacks had time to come")
        return [line for line in pool.lines("stack") if f"{call} /" in line]

    redis_rig.until(lambda: dumps("_wait"), "the idle one's stack")
    stuck = redis_rig.until(lambda: dumps(handler), "the stuck one's stack")
    assert all(f"pid={worker} " in line and f"job={job} " in line for line in stuck)
    assert all(any(f"app.py:{place + offset}" in line for offset in (2, 4)) for line in stuck)
    assert any(f"pid={worker} " in line and "state=busy" in line for line in pool.lines("worker"))
    assert len(pool.workers()) == 2
    other = redis_rig.enqueue("short")
    redis_rig.until_started(other)
    assert pool.stop(signal.SIGQUIT) == 0
    assert redis_rig.job(job).state is State.PENDING


def test_worker_answers_without_a_signal_while_it_can(redis_rig: Rig) -> None:
    """Stacks that are read from a signal handler move meanwhile: it ended workers by SIGSEGV, one in thousands."""
    redis_rig.app(APP)
    job = redis_rig.enqueue("listening", 20)
    pool = redis_rig.start(n=1)
    redis_rig.until_started(job)
    for asked in range(1, 4):
        pool.send(signal.SIGUSR1)

        def told(times: int = asked) -> bool:
            return sum("listening /" in line for line in pool.lines("stack")) == times

        redis_rig.until(told, "its stack is told")
    assert not redis_rig.ledger.entries("heard")
    assert pool.stop(signal.SIGQUIT) == 0


def test_stopped_worker_is_named_instead_of_its_stack(redis_rig: Rig) -> None:
    """It can't write anything: that is said after a moment, and the others' stacks come all the same."""
    redis_rig.app(APP)
    pool = redis_rig.start(n=2)
    first, second = pool.workers()
    os.kill(first, signal.SIGSTOP)
    pool.send(signal.SIGUSR1)
    redis_rig.until(lambda: pool.lines("no_stack"), "it is said")
    assert f"pid={first} " in pool.lines("no_stack")[0]
    assert "stopped" in pool.lines("no_stack")[0]
    assert all(f"pid={second} " in line for line in pool.lines("stack"))
    assert pool.lines("stack")
    os.kill(first, signal.SIGCONT)
    assert pool.stop() == 0


ANY = (
    signal.SIGHUP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGTSTP,
    signal.SIGCONT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGCHLD,
)


@pytest.mark.parametrize(
    "number", [40, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])], ids=["short", "full"]
)
def test_signals_in_any_order_and_number_disturb_no_job(rig: Rig, number: int) -> None:
    """Reloads, sizes, quiet and stacks, at random and in bursts, under load; then all is done once, and it stops."""
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(2**31))
    print(f"CHAOS_SEED={seed}")
    rng = random.Random(seed)
    rig.app(APP)
    pool = rig.start("--pid-file", str(rig.folder / "pool.pid"), n=3)
    ids: list[str] = []
    sent = []
    while len(sent) < number:
        if rig.stats().counts["pending"] < 100:
            ids += rig.enqueue_many("work", [()] * 100)
        for _ in range(rng.choice((1, 1, 2, 8))):
            sent.append(rng.choice(ANY))
            pool.send(sent[-1])
        time.sleep(rng.choice((0.0, 0.001, 0.05, 0.2)))
        assert pool.process.poll() is None, f"{sent}\n{rig.logs()}"
    pool.send(signal.SIGCONT)
    stats = rig.until_counts(within=60, done=len(ids), active=0)
    assert not any(stats.totals[name] for name in ("lost", "crashed", "fenced", "dead", "retried")), stats
    entries = rig.ledger.entries()
    begun = Counter(entry.job for entry in entries if entry.kind == "S")
    assert not [entry for entry in entries if begun[entry.job] != 1], rig.logs()
    assert sorted(begun) == sorted(ids)
    assert not pool.lines("worker_died")
    assert {entry.attempt for entry in entries} == {1}
    rig.until(lambda: pool.process.poll() is None and pool.workers(), "there are workers")
    assert pool.stop(within=20) == 0
    rig.until_clean()
    assert not rig.store.leases("default").ends
    assert not list(rig.folder.glob("pool.pid*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT], ids=lambda n: n.name)
def test_signals_while_it_starts_end_it_cleanly(redis_rig: Rig, number: signal.Signals) -> None:
    """Before there is a pid file the process just ends, from then on in order; nothing is left either way."""
    redis_rig.app(APP + "\ntime.sleep(0.05)\n")
    pid_file = redis_rig.folder / "pool.pid"
    seen = 0
    for delay_ms in (0, 70, 140, 200, 260, None):
        pool = redis_rig.start("--pid-file", str(pid_file), n=2, ready=False)
        if delay_ms is None:
            redis_rig.until(pid_file.exists, "the pid file is there")
        else:
            let_pass(delay_ms / 1000)
        seen += pid_file.exists()
        pool.send(number)
        code = pool.wait()
        assert code in (0, 1, 130, -number), pool.log()
        redis_rig.until_clean()
        assert not list(redis_rig.folder.glob("pool.pid*")), (delay_ms, code)
        assert not redis_rig.store.leases("default").ends
    assert seen
