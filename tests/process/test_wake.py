"""Wake-ups: none is lost, nothing is early, and an idle pool costs next to nothing."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import statistics
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from batchq.lifecycle import State
from batchq.system.scoreboard import IDLE, Scoreboard
from tests.process.rig import Rig

APP = """
@app.job
def tick():
    note("S")
"""


def test_idle_workers_pick_up_each_job_at_once(rig: Rig) -> None:
    """300 single jobs at random gaps on an idle pool of four: no hint is lost."""
    rig.app(APP)
    rig.start(n=4)
    rng = random.Random(20)
    calls: dict[str, int] = {}
    accepted: dict[str, int] = {}
    for _ in range(300):
        # The gap is the input here, not a wait for something.
        time.sleep(rng.random() * 0.012)
        called = time.monotonic_ns()
        job = rig.enqueue("tick")
        accepted[job] = time.monotonic_ns()
        calls[job] = called
    rig.until_counts(done=300)
    began = {entry.job: entry.at_ns for entry in rig.ledger.starts()}
    late_ms = sorted(max(0, began[job] - at) / 1e6 for job, at in accepted.items())
    median, last = statistics.median(late_ms), late_ms[-1]
    whole_ms = statistics.median((began[job] - at) / 1e6 for job, at in calls.items())
    print(
        f"{rig.kind}: pickup after the enqueue has returned: median {median:.2f} ms, p99 {late_ms[296]:.2f} ms, "
        f"last {last:.2f} ms; after its call: median {whole_ms:.2f} ms"
    )
    # A look now and then would take half a second and more.
    assert median < 200
    assert last < 2500


def test_delayed_jobs_are_never_early_and_hardly_late(rig: Rig) -> None:
    """By the store's clock, which is this host's: each starts at or after its fire-time."""
    rig.app(APP)
    rig.start(n=2)
    rng = random.Random(21)
    fire_ms = {}
    for _ in range(60):
        # So late and so far apart that a pause of a busy machine is over by then, or meets a few of them.
        job = rig.enqueue("tick", delay_ms=rng.randrange(1500, 4500))
        fire_ms[job] = rig.job(job).since_ms
    own_ms = []
    for due in sorted(fire_ms.values()):
        # How late this machine makes a process that only sleeps.
        time.sleep(max(0.0, due / 1000 - time.time()))
        own_ms.append(time.time() * 1000 - due)
    stats = rig.until_counts(done=60)
    wall_ns = time.time_ns() - time.monotonic_ns()
    late_ms = sorted((entry.at_ns + wall_ns) / 1e6 - fire_ms[entry.job] for entry in rig.ledger.starts())
    own = statistics.median(own_ms)
    print(f"{rig.kind}: late median {statistics.median(late_ms):.2f} ms, last {late_ms[-1]:.2f}, sleep {own:.2f} ms")
    # The two clocks were read one after the other.
    assert late_ms[0] > -0.5
    assert statistics.median(late_ms) < 200 + own
    assert late_ms[-1] < 2500
    assert stats.totals["promoted"] == 60


class Monitor:
    """Counts the commands that clients send to a server; those that scripts call are not among them."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._socket = socket.create_connection((where.hostname, where.port or 6379))
        self._socket.sendall(b"MONITOR\r\n")
        self._file = self._socket.makefile("rb")
        assert self._file.readline() == b"+OK\r\n"
        self.lines: list[bytes] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            self.lines += [line for line in self._file if b" lua] " not in line]

    def stop(self) -> list[bytes]:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        return self.lines


def cpu_s(pid: int) -> float:
    """CPU seconds that a process used: exact on Linux, where cpu_times counts whole ticks of 10 ms."""
    if sys.platform == "linux":
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def naps(pid: int) -> int:
    """How often the threads of a process went to sleep: one that polls does so all the time. 0 where nobody tells."""
    lines = [line for task in Path(f"/proc/{pid}/task").glob("*/status") for line in task.read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def test_idle_pool_costs_next_to_nothing(rig: Rig) -> None:
    """Eight idle workers for some seconds: few commands, hardly any CPU and no polling, in master and workers."""
    rig.app(APP)
    pool = rig.start(n=8)
    # Longer than an idle worker of that store waits before it looks by itself.
    seconds = max(4.0, rig.store.traits.idle_wait_s + 1)
    pids = [pool.pid, *pool.workers()]
    monitor = None if rig.kind == "spool" else Monitor(rig.url)
    before = [cpu_s(pid) for pid in pids]
    asleep = [naps(pid) for pid in pids]
    # The time is what is measured over.
    time.sleep(seconds)
    used = [cpu_s(pid) - was for pid, was in zip(pids, before, strict=True)]
    naps_s = [(naps(pid) - was) / seconds for pid, was in zip(pids, asleep, strict=True)]
    print(f"{rig.kind}: sleeps a second: master {naps_s[0]:.1f}, workers {max(naps_s[1:]):.1f} at most")
    # A poll of 10 ms would be a hundred.
    assert max(naps_s) < 25
    master, workers = used[0] / seconds, sum(used[1:]) / seconds
    print(f"{rig.kind}: idle CPU of the master {master:.2%}, of 8 workers {workers:.2%} of a core")
    assert master < 0.02
    assert workers < 0.05
    if monitor is not None:
        lines = [line for line in monitor.stop() if rig.prefix.encode() in line or b'"TIME"' in line]
        print(f"{rig.kind}: {len(lines) / seconds:.1f} commands a second")
        assert len(lines) / seconds < 20


@pytest.mark.parametrize("workers", [1, 3])
def test_paused_queue_wakes_its_pool_when_it_is_resumed(rig: Rig, workers: int) -> None:
    """Jobs that came while the queue was paused begin at the resume, not at some later look."""
    rig.app(APP)
    rig.start(n=workers)
    rig.store.pause("default")
    rig.enqueue_many("tick", [()] * 3)
    resumed = time.monotonic_ns()
    rig.store.resume("default")
    rig.until_counts(done=3)
    assert (rig.ledger.starts()[0].at_ns - resumed) / 1e9 < rig.store.traits.idle_wait_s * 0.8


def test_idle_worker_that_is_stopped_keeps_no_job_from_the_others(rig: Rig) -> None:
    """It may have asked for the next job already; when it goes on, it is there again."""
    rig.app(APP)
    pool = rig.start("--lease", "60s", "--pid-file", str(rig.folder / "pool.pid"), n=2)
    board = Scoreboard.at(str(rig.folder / "pool.pid.board"))
    rig.until(lambda: [board.slot(place).state for place in (0, 1)] == [IDLE, IDLE], "both are idle")
    stopped, other = pool.workers()
    at = next(place for place in (0, 1) if board.slot(place).process[0] == other)
    os.kill(stopped, signal.SIGSTOP)
    rig.until(lambda: pool.lines("worker_stopped"), "the master has seen it")
    jobs = [rig.enqueue("tick") for _ in range(4)]
    # The end of the lease is a minute away.
    rig.until_counts(done=4)
    assert {entry.pid for job in jobs for entry in rig.ledger.starts(job)} == {other}
    # It has let go of the store.
    rig.until(lambda: board.slot(at).state == IDLE, "the other is idle")
    os.kill(other, signal.SIGSTOP)
    os.kill(stopped, signal.SIGCONT)
    job = rig.enqueue("tick")
    assert rig.until_started(job) == stopped
    rig.until_counts(done=5)
    assert rig.stats().totals["lost"] == 0
    os.kill(other, signal.SIGCONT)
    assert pool.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a thread blocks")
def test_none_but_the_main_thread_of_a_worker_hears_that_it_goes_on(rig: Rig) -> None:
    """The main thread would begin what had come meanwhile before another one's handler has run."""
    rig.app(APP)
    [worker] = rig.start(n=1).workers()

    def blocked() -> dict[int, bool]:
        found = {}
        for thread in Path(f"/proc/{worker}/task").iterdir():
            mask = (thread / "status").read_text().partition("SigBlk:")[2].split()[0]
            found[int(thread.name)] = bool(int(mask, 16) >> (signal.SIGCONT - 1) & 1)
        return found

    def is_done() -> bool:
        found = blocked()
        return len(found) > 1 and all(is_blocked != (one == worker) for one, is_blocked in found.items())

    rig.until(is_done, "all others block it")


def test_idle_worker_that_goes_on_begins_nothing_that_others_have_done(rig: Rig) -> None:
    """Its master was late to see that it was stopped, and a job had come to it by then."""
    rig.app(APP)
    pool = rig.start("--lease", "60s", "--pid-file", str(rig.folder / "pool.pid"), n=2)
    board = Scoreboard.at(str(rig.folder / "pool.pid.board"))
    rig.until(lambda: [board.slot(place).state for place in (0, 1)] == [IDLE, IDLE], "both are idle")
    frozen = pool.freeze()
    job = rig.enqueue("tick")
    claimed = [job.worker for job in rig.store.jobs("default", State.ACTIVE).jobs]
    stopped = int(claimed[0].rsplit(".", 2)[1]) if claimed else frozen[-1]
    pool.thaw(pid for pid in frozen if pid != stopped)
    rig.until_counts(done=1, active=0)
    os.kill(stopped, signal.SIGCONT)
    rig.until(lambda: stopped in pool.registered("default"), "it is there again")
    again = rig.enqueue("tick")
    rig.until_counts(done=2, active=0)
    assert [len(rig.ledger.starts(one)) for one in (job, again)] == [1, 1]
    assert rig.stats().totals["fenced"] == 0
