"""What handlers do to themselves and to their worker, and how they steer their own job."""

from __future__ import annotations

import os
from itertools import pairwise

import psutil

from batchq import App
from batchq.lifecycle import State
from tests.process.rig import Rig, is_running

BAD = """
import ctypes, resource

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@app.job(max_attempts=1)
def exits():
    sys.exit(3)


@app.job(max_attempts=1)
def interrupts():
    raise KeyboardInterrupt


@app.job(max_attempts=1)
def unspeakable():
    raise Unspeakable


@app.job(max_attempts=1)
def recurses():
    def deeper():
        return deeper() + 1
    deeper()


@app.job(max_attempts=1)
def prints():
    sys.stdout.close()
    print("into nothing")


@app.job(max_attempts=1)
def surrogate():
    raise ValueError("\\udcff" * 10 + "x" * 100_000)


@app.job(max_attempts=1, result=True)
def unpackable():
    return {1, 2}


@app.job(max_attempts=1)
def takes_two(one, two):
    pass


@app.job(max_attempts=1)
def leaves():
    note("S")
    os._exit(3)


@app.job(max_attempts=1)
def leaves_well():
    note("S")
    os._exit(0)


@app.job(max_attempts=1)
def crashes():
    note("S")
    ctypes.string_at(0)


@app.job
def short():
    note("S")
    note("E")
"""

#: Handler -> reason of its death, kind of the error, and what its text holds.
ENDS = {
    "exits": ("max_attempts", "SystemExit", "3"),
    "interrupts": ("max_attempts", "KeyboardInterrupt", "KeyboardInterrupt"),
    "unspeakable": ("max_attempts", "Unspeakable", "__str__ raises"),
    "recurses": ("max_attempts", "RecursionError", "maximum recursion depth"),
    "prints": ("max_attempts", "ValueError", "closed file"),
    "surrogate": ("max_attempts", "ValueError", "udcff"),
    "unpackable": ("max_attempts", "TypeError", "result"),
    "takes_two": ("max_attempts", "TypeError", "missing 1 required positional argument: 'two'"),
    "leaves": ("crashed", "WorkerCrashed", "exit code 3"),
    "leaves_well": ("crashed", "WorkerCrashed", "exit code 0"),
    "crashes": ("crashed", "WorkerCrashed", "SIGSEGV"),
}


def test_bad_ends_are_failed_attempts_or_charged_crashes(rig: Rig) -> None:
    """Whatever a handler raises or does to its process, its attempt says so, and the pool works on."""
    rig.app(BAD)
    jobs = {name: rig.enqueue(name, *([1] if name == "takes_two" else [])) for name in ENDS}
    good = rig.enqueue_many("short", [()] * 40)
    rig.run_burst(n=2)
    for name, (reason, kind, text) in ENDS.items():
        dead = rig.job(jobs[name])
        assert (name, dead.state, dead.reason, dead.attempt) == (name, State.DEAD, reason, 1)
        assert (name, dead.errors[0]["kind"]) == (name, kind)
        assert text in dead.errors[0]["error"]
        assert len(dead.errors[0]["error"]) <= 8192
        # The history tells how long it ran, also where its worker died of it.
        assert 0 <= dead.errors[0]["at_ms"] - dead.errors[0]["started_ms"] < 60_000
    stats = rig.stats()
    assert (stats.totals["crashed"], stats.totals["dead"]) == (3, len(ENDS))
    assert stats.totals["completed"] == len(good)
    assert len({entry.job for entry in rig.ledger.ends()}) == len(good)


SPAWNS = """
@app.job
def leaves_child():
    note("S")
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    open("child", "w").write(str(pid))
    os.rename("child", "child.pid")
    note("E")


@app.job
def leaves_program():
    note("S")
    program = subprocess.Popen(["sleep", "600"])
    open("program", "w").write(str(program.pid))
    os.rename("program", "program.pid")
    note("E")


@app.job(result=True)
def uses_programs():
    return [
        subprocess.run(["sh", "-c", "echo out"], capture_output=True, text=True).stdout,
        subprocess.run(["sh", "-c", "exit 4"]).returncode,
        # A program that is interrupted ends by it, as it would under a shell.
        subprocess.run(["sh", "-c", "kill -INT $$; echo survived"], capture_output=True).returncode,
        subprocess.run(["sh", "-c", "kill -HUP $$; echo survived"], capture_output=True).returncode,
    ]


@app.job(result=True)
def maps():
    import multiprocessing
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-1, -2, -3])


@app.job(max_attempts=1)
def comes_back_twice():
    note("S")
    os.fork()
    note("E")


@app.job
def short():
    note("S")
    note("E")
"""


def test_what_a_handler_left_running_goes_with_its_worker(rig: Rig) -> None:
    """A forked child and a started program outlive their job, but not the worker: killed, or stopped in order."""
    rig.app(SPAWNS)
    pool = rig.start(n=1)
    [first] = pool.workers()
    job = rig.enqueue("leaves_child")
    rig.until_counts(done=1)
    child = int((rig.folder / "child.pid").read_text())
    assert is_running(child)
    os.kill(first, 9)
    rig.until(lambda: not is_running(child), "the child is gone")
    program_job = rig.enqueue("leaves_program")
    rig.until_counts(done=2)
    program = int((rig.folder / "program.pid").read_text())
    assert is_running(program)
    assert pool.stop() == 0
    rig.until(lambda: not is_running(program), "the program is gone", within=5)
    assert {rig.ledger.starts(one)[0].attempt for one in (job, program_job)} == {1}


def test_handlers_use_programs_and_forks_as_any_program_does(rig: Rig) -> None:
    """subprocess and multiprocessing work inside a handler; the pool's signal settings are not inherited."""
    rig.app(SPAWNS)
    pool = rig.start(n=2)
    with App(rig.url, prefix=rig.prefix, spool=rig.settings.spool) as app:
        used = app.enqueue("uses_programs", result=True)
        mapped = app.enqueue("maps", result=True)
        assert used.result(timeout=10) == ["out\n", 4, -2, -1]
        assert mapped.result(timeout=10) == [1, 2, 3]
    assert pool.stop() == 0


def test_handler_that_comes_back_in_two_processes_is_settled_by_one(rig: Rig) -> None:
    """A handler that forks and returns twice: the copy is no worker. It settles nothing and claims nothing."""
    rig.app(SPAWNS)
    pool = rig.start(n=1)
    [worker] = pool.workers()
    job = rig.enqueue("comes_back_twice")
    rig.until(lambda: len(rig.ledger.ends(job)) == 2, "both have come back")
    rig.until_counts(done=1, active=0)
    jobs = rig.enqueue_many("short", [()] * 100)
    stats = rig.until_counts(done=1 + len(jobs))
    assert {entry.pid for entry in rig.ledger.starts() if entry.job in jobs} == {worker}
    assert stats.totals["fenced"] == 0
    assert [child for child in psutil.Process(worker).children() if is_running(child.pid)] == []
    assert pool.stop() == 0
    assert not pool.lines("unknown_claims")


STEER = """
@app.job(result=True)
def add(one, two=0):
    return {"sum": one + two, "token": current_job().token, "attempt": current_job().attempt, "id": current_job().id}


@app.job(result=True)
async def add_async(one, two):
    import asyncio
    await asyncio.sleep(0.01)
    return one + two


@app.job(result=True, max_attempts=3, backoff=fixed(60))
def asks_for_time():
    note("S")
    if current_job().attempt == 1:
        raise Retry("later, please", after=0.3)
    return current_job().attempt


@app.job(result=True, max_attempts=1)
def snoozes():
    note("S")
    for name in ("first", "second"):
        if not os.path.exists(name):
            open(name, "w").close()
            raise Snooze(0.2)
    return current_job().attempt


@app.job(max_attempts=9)
def gives_up():
    note("S")
    raise Dead("no such customer")
"""


def test_results_and_steering_end_to_end(rig: Rig) -> None:
    """Results come back; Retry(after=), Snooze and Dead do what they say; tokens count claims, attempts count tries."""
    rig.app(STEER)
    pool = rig.start(n=2)
    with App(rig.url, prefix=rig.prefix, spool=rig.settings.spool) as app:
        added = app.enqueue("add", [2], {"two": 3}, result=True)
        result = added.result(timeout=10)
        assert (result["sum"], result["attempt"], result["id"]) == (5, 1, added.id)
        assert result["token"] >= 1
        assert app.enqueue("add_async", [2, 5], result=True).result(timeout=10) == 7
        late, sleepy = app.enqueue("asks_for_time", result=True), app.enqueue("snoozes", result=True)
        lost = app.enqueue("gives_up")
        assert late.result(timeout=10) == 2
        assert sleepy.result(timeout=10) == 1
        first, second = rig.ledger.starts(late.id)
        assert 0.3 <= (second.at_ns - first.at_ns) / 1e9 < 10
        starts = rig.ledger.starts(sleepy.id)
        assert [entry.attempt for entry in starts] == [1, 1, 1]
        assert all(0.2 <= (b.at_ns - a.at_ns) / 1e9 < 10 for a, b in pairwise(starts))
        assert starts[0].token < starts[1].token < starts[2].token
        rig.until(lambda: lost.status() is State.DEAD, "it is dead")
    dead = rig.job(lost.id)
    assert (dead.reason, dead.errors[0]["error"], dead.attempt) == ("buried", "no such customer", 1)
    assert len(rig.ledger.starts(lost.id)) == 1
    assert pool.stop() == 0
