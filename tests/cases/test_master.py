"""The master under signals, broken apps, its workers' programs, and a health check that tells deaf from idle."""

from __future__ import annotations

import contextlib
import http.server
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from batchq.config import Settings
from batchq.worker.recycle import Recycling
from tests.cases.helpers import call, gaps_s
from tests.process.rig import Rig, is_running, let_pass, until
from tests.servers import Server

APP = """
@app.job
def work(seconds=0.0):
    note("S")
    time.sleep(seconds)
    note("E")


@app.job
def deaf():
    note("S")
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(60)
    note("E")
"""

#: Signals, and the shutdown timeout beside them: the first waits for it, the second does not.
STOPS = {
    "one": ([signal.SIGTERM], "900ms"),
    "two": ([signal.SIGTERM, signal.SIGTERM], "60s"),
    "interrupt and term": ([signal.SIGINT, signal.SIGTERM], "60s"),
    "a burst": ([signal.SIGTERM] * 200, "60s"),
}


@pytest.mark.parametrize("kind", STOPS)
def test_one_signal_waits_and_the_second_does_not(rig: Rig, kind: str) -> None:
    """Short jobs may end after one, nothing new begins, and a deaf handler holds nobody longer than was said."""
    rig.app(APP)
    signals, timeout = STOPS[kind]
    short, long, deaf = rig.enqueue("work", 0.4), rig.enqueue("work", 60), rig.enqueue("deaf")
    pool = rig.start("--shutdown-timeout", timeout, "--grace", "200ms", n=3)
    for job in (short, long, deaf):
        rig.until_started(job)
    later = rig.enqueue_many("work", [()] * 10)
    for number in signals[:1]:
        pool.send(number)
    rig.until(lambda: pool.lines("stopping"), "it has heard the first")
    began = time.monotonic()
    for number in signals[1:]:
        pool.send(number)
    assert pool.wait(60) == 0
    # The handlers end after a minute, and one of them never hears a thing.
    assert time.monotonic() - began < 20
    rig.until_clean()
    assert {entry.job for entry in rig.ledger.starts()} == {short, long, deaf}
    stats = rig.stats()
    assert stats.counts["active"] == 0
    assert stats.counts["pending"] == len(later) + 2 + (short not in {entry.job for entry in rig.ledger.ends()})
    assert {rig.job(job).attempt for job in (long, deaf)} == {0}


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT], ids=lambda n: n.name)
def test_a_signal_at_any_moment_of_the_start_leaves_no_half_pool(redis_rig: Rig, number: signal.Signals) -> None:
    """Before the handlers stand it ends the process whole; from then on it is obeyed. No worker without its master."""
    rig = redis_rig
    rig.app(APP)
    stood = 0
    for delay_ms in (0, 80, 160, 240, 320, 400, None):
        pool = rig.start(n=2, ready=False)
        if delay_ms is None:
            rig.until(lambda pool=pool: pool.lines("started"), "it has started")  # type: ignore[misc]
        else:
            let_pass(delay_ms / 1000)
        pool.send(number)
        rig.until(
            lambda pool=pool: pool.process.poll() is not None or len(pool.registered("default")) == 2,  # type: ignore[misc]
            "it is over, or complete",
            within=20,
        )
        if pool.process.poll() is None and number != signal.SIGQUIT:
            stood += 1
            rig.until_started(rig.enqueue("work"))
            pool.send(signal.SIGQUIT)
        assert pool.wait(20) in (0, -number)
        assert "Traceback" not in pool.log()
        rig.until_clean()
    assert stood or number == signal.SIGQUIT


def test_a_master_that_buries_and_reloads_while_its_log_is_stuck_lives(rig: Rig) -> None:
    """stderr is a pipe that is read slowly, workers are killed and signals come all the while."""
    rig.app(APP)
    read, write = os.pipe()
    command = [sys.executable, "-m", "batchq", "start", "app:app", "-n", "4", "--log-level", "debug"]
    process = subprocess.Popen(command, cwd=rig.folder, env=rig.env(), stdout=write, stderr=write)
    os.close(write)
    said = b""
    try:
        master = psutil.Process(process.pid)
        until(lambda: len(master.children()) >= 4, "the workers are there", 20)
        end = time.monotonic() + 2.5
        turn = 0
        while time.monotonic() < end:
            with_pid = [child.pid for child in master.children() if is_running(child.pid)]
            for pid in with_pid[:1]:
                with contextlib.suppress(ProcessLookupError):  # it had been killed before, and is gone by now
                    os.kill(pid, signal.SIGKILL)
            process.send_signal(signal.SIGUSR1 if turn % 5 else signal.SIGHUP)
            turn += 1
            said += os.read(read, 1000)
            time.sleep(0.05)
        assert process.poll() is None
        reader = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(read, 65536), b"")], daemon=True)
        reader.start()
        rig.until(lambda: len(rig.store.leases("default").ends) >= 4, "all are back", within=15)
        rig.until_started(rig.enqueue("work"))
        assert b"reentrant" not in said
    finally:
        process.terminate()
        process.wait(15)
        os.close(read)


IMPORTS = {
    "a missing module": ("import no_such_module", 3, "no_such_module"),
    "a syntax error": ("def broken(:", 3, "SyntaxError"),
    "sys.exit": ("sys.exit(7)", 3, "exit"),
    "an exception": ("raise RuntimeError('no database')", 3, "no database"),
    "os._exit": ("os._exit(1)", 1, ""),
    "a crash": ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV, ""),
    "ten megabytes of output": ("print('x' * (10 << 20))\nraise RuntimeError('after all that')", 3, "after all that"),
}


@pytest.mark.parametrize("kind", IMPORTS)
def test_an_app_that_can_not_be_imported_forks_nobody_and_says_why_once(rig: Rig, kind: str) -> None:
    """It ends before the first fork, with the reason where Python lets anybody say it; jobs stay untouched."""
    source, code, word = IMPORTS[kind]
    job = rig.enqueue("work")
    rig.app(APP + "\n" + source + "\n")
    pool = rig.start(n=8, ready=False)
    began = psutil.Process(os.getpid()).cpu_times().children_user
    assert pool.wait(20) == code
    assert psutil.Process(os.getpid()).cpu_times().children_user - began < 5
    assert pool.log()[-4000:].count(word) >= (word != "")
    assert not pool.lines("started")
    assert len(pool.log()[(10 << 20) if "megabytes" in kind else 0 :]) < 5000
    assert rig.job(job).attempts == 0


def test_a_slow_import_is_waited_for(rig: Rig) -> None:
    """There is no limit for it: two seconds are as good as none, and it is imported once for all workers."""
    rig.app(APP + "\ntime.sleep(2)\nopen('imported', 'a').write('x')\n")
    job = rig.enqueue("work")
    pool = rig.start(n=4)
    rig.until_started(job)
    assert (rig.folder / "imported").read_text() == "x"
    assert pool.stop() == 0


@pytest.mark.slow
def test_recycling_is_spread_and_loses_nothing(rig: Rig) -> None:
    """Workers that began together do not reach their limits together: each job runs once."""
    rig.app(APP + "\n\n@app.job(batch_claim=False)\ndef single():\n    note('S')\n")
    ids = rig.enqueue_many("single", [()] * 300)
    pool = rig.start("--max-jobs", "40", n=3, ready=False)
    rig.until(lambda: len(pool.workers()) == 3, "all are there")
    rig.until_counts(done=len(ids), within=90)
    assert len(pool.lines("recycled")) >= 6
    # What each worker draws for itself: from three quarters of the setting up to it.
    drawn = [Recycling(Settings(max_jobs=1000)) for _ in range(200)]
    due = [next(n for n in range(1, 1001) if one.due(n)) for one in drawn]
    assert 750 <= min(due) < 800
    assert 950 < max(due) <= 1000
    assert Counter(entry.job for entry in rig.ledger.starts()) == Counter(ids)
    assert pool.stop() == 0


def test_whoever_of_a_pool_dies_is_replaced_or_ends_it_whole(rig: Rig) -> None:
    """Each process in turn, by three signals: due jobs, expired leases and new ones are seen to within seconds."""
    rig.app(APP)
    pool = rig.start("--lease", "600ms", n=2)
    for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP):
        held = rig.enqueue("work", 1.0)
        rig.until_started(held)
        for pid in pool.workers():
            os.kill(pid, number)
        probes = [rig.enqueue("work"), rig.enqueue("work", delay_ms=300)]
        if number == signal.SIGSTOP:
            other = rig.start("--lease", "600ms", n=1)
        for probe in probes:
            rig.until_started(probe, within=20)
        rig.until_started(held, times=2)
    assert other.stop() == 0
    pool.send(signal.SIGKILL)
    pool.wait()
    rig.until_clean()
    second = rig.start("--lease", "600ms", n=2)
    rig.until_started(rig.enqueue("work", delay_ms=200))
    rig.until_counts(active=0, pending=0, delayed=0)
    assert second.stop() == 0


THREADS = """
import logging, random

class Busy(logging.Handler):
    def emit(self, record):
        self.format(record)

logging.getLogger("busy").addHandler(Busy())


def chatter():
    while True:
        # Nearly all the time it stands in here, for the reader is slow.
        print("x" * 20_000, file=sys.stderr)
        logging.getLogger("busy").warning("line %s", random.random())
        __import__("json").dumps({})


for _ in range(2):
    threading.Thread(target=chatter, daemon=True).start()


@app.job
def logs():
    note("S")
    logging.getLogger("busy").warning("mine %s", random.random())
    print("mine", file=sys.stderr)
    import http.client
    note("E")
"""


@contextmanager
def slow_reader(fifo: Path) -> Iterator[None]:
    """Somebody who reads all that is written into a FIFO, a little at a time."""
    os.mkfifo(fifo)
    end, over = os.open(fifo, os.O_RDWR | os.O_NONBLOCK), threading.Event()

    def read() -> None:
        while not over.wait(0.001):
            with suppress(BlockingIOError):
                os.read(end, 16_384)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join()
        os.close(end)


def test_forks_beside_threads_that_hold_locks_hang_nobody(rig: Rig) -> None:
    """The app's threads print to a slow reader, log, draw and import; workers forked beside them do the same."""
    rig.app(THREADS)
    ids = rig.enqueue_many("logs", [()] * 60)
    with slow_reader(rig.folder / "said"):
        pool = rig.start("--max-jobs", "5", n=2, ready=False, before=("sh", "-c", 'exec "$@" 2>said', "sh"))
        rig.until_counts(done=len(ids), active=0)
        assert len({entry.pid for entry in rig.ledger.starts()}) > 5
        assert pool.stop() == 0


LEFTOVERS = """
@app.job(timeout=1.5, max_attempts=1)
def leaves(end):
    note("S")
    subprocess.Popen("sleep 1000 & exec sleep 1000", shell=True)
    subprocess.Popen(["nohup", "sleep", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    import multiprocessing
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,)).start()
    note("R")
    if end == "exits":
        os._exit(1)
    if end == "times out":
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        # Between two it would hear what its other thread has taken.
        time.sleep(1000)
"""


@pytest.mark.parametrize("end", ["times out", "exits", "cancelled", "stopped"])
def test_programs_of_a_handler_go_with_its_worker(rig: Rig, end: str) -> None:
    """A shell's children, nohup and multiprocessing: none is left, however the job ends its worker."""
    rig.app(LEFTOVERS.replace("timeout=1.5", "timeout=1.5" if end == "times out" else "timeout=60"))
    pool = rig.start("--grace", "200ms", "--shutdown-timeout", "200ms", n=1)
    job = rig.enqueue("leaves", end)
    rig.until(lambda: rig.ledger.entries("R", job), "its programs run")
    worker = rig.ledger.starts(job)[0].pid
    if end == "cancelled":
        call(rig, "cancel", job).ended(0)
        rig.until_counts(cancelled=1)
        # The worker goes on after a job that listened; what that one left goes with the worker.
        os.kill(worker, signal.SIGTERM)
    if end == "stopped":
        assert pool.stop() == 0
    rig.until(lambda: not is_running(worker), "the worker is gone")

    def left() -> list[int]:
        expected = {pool.pid, *pool.workers()}
        return [pid for pid in rig.processes() if pid not in expected]

    rig.until(lambda: not left(), "its programs are gone", within=5)


class Receiver(http.server.BaseHTTPRequestHandler):
    """Answers by what the path says."""

    seen: ClassVar[dict[str, list[float]]] = defaultdict(list)

    def do_POST(self) -> None:
        kind = self.path.split("/")[1]
        self.seen[self.path].append(time.monotonic())
        if kind in ("never", "drips"):
            if kind == "drips":
                self.send_response(200)
            for _ in range(100):
                if self.server.gone.wait(0.1):  # type: ignore[attr-defined]
                    return
                if kind == "drips":
                    self.wfile.write(b"x")
            return
        if kind == "reset":
            self.close_connection = True
            return
        late = kind.startswith("retry") and len(self.seen[self.path]) == 1
        self.send_response(429 if late else 500 if kind == "broken" else 200)
        if late:
            self.send_header("Retry-After", kind.removeprefix("retry"))
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def receiver() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.daemon_threads = True
    server.gone = threading.Event()  # type: ignore[attr-defined]
    Receiver.seen.clear()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.gone.set()  # type: ignore[attr-defined]
        server.shutdown()
        server.server_close()


HOOKS = """
import http.client


@app.job(max_attempts=4, timeout=0.6, backoff=[0.1, 0.3, 0.6])
def deliver(port, path):
    note("S")
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request("POST", path)
        answer = connection.getresponse()
        answer.read()
    finally:
        connection.close()
    if answer.status == 429:
        raise Retry(after=float(answer.headers["Retry-After"]))
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}")
    note("E")
"""


def test_slow_and_broken_receivers_get_what_was_agreed_and_hold_up_nobody(rig: Rig) -> None:
    """Timeouts free their worker, delays follow the list, Retry-After is honoured up to the cap; four tries at most."""
    rig.app(HOOKS)
    with receiver() as port:
        kinds = ["never/1", "drips/1", "broken/1", "reset/1", "retry0.5/1", "retry0/1", "retry-7/1", "good/1", "good/2"]
        jobs = {kind: rig.enqueue("deliver", port, f"/{kind}") for kind in kinds}
        unbounded = rig.enqueue("deliver", port, "/retry1000000000000/1")
        rig.start("--grace", "200ms", n=4)
        rig.until_counts(dead=4, done=5, delayed=1, within=25)
        for kind in ("broken/1", "reset/1", "never/1", "drips/1"):
            gaps = gaps_s(rig.ledger.starts(jobs[kind]))
            took = 0.6 if kind in ("never/1", "drips/1") else 0.0
            assert len(gaps) == 3, kind
            assert all(gap >= wanted + took - 0.02 for wanted, gap in zip((0.1, 0.3, 0.6), gaps, strict=True)), kind
            # By the default, a second that doubles, it would be seven.
            assert sum(gaps) < 1.0 + 3 * took + 4, kind
            assert len(Receiver.seen[f"/{kind}"]) <= 4
        assert gaps_s(rig.ledger.starts(jobs["retry0.5/1"]))[0] >= 0.5
        for kind in ("retry0/1", "retry-7/1"):
            assert gaps_s(rig.ledger.starts(jobs[kind]))[0] < 5
        waits_ms = rig.job(unbounded).since_ms - rig.store.now_ms()
        assert waits_ms <= 3_600_000, "the cap of the policy, an hour where a list has none"
        assert rig.job(jobs["never/1"]).reason == "timed_out"


def until_said(rig: Rig, code: int, *words: str) -> None:
    """Until `batchq doctor` ends with that code, having found all of that to be bad or worth a look. It never hangs."""

    def said() -> bool:
        ran = call(rig, "doctor", "--json", within=20, BATCHQ_FALLBACK_EPHEMERAL="1")
        found = [one["text"] for one in ran.lines if one["level"] != "ok" and one["about"] != "app"]
        return ran.code == code and len(found) >= len(words) and all(word in "; ".join(found) for word in words)

    # What a master says of its workers is five seconds old at most.
    rig.until(said, f"doctor ends with {code} and says {words}", within=20)


def test_health_tells_a_deaf_pool_from_an_idle_one(serve: Callable[..., Server], rig_on: Callable[..., Rig]) -> None:
    """Whatever stands still is a failure that names its cause, in bounded time; and none when it goes on again."""
    server = serve("--appendonly", "yes")
    rig = rig_on(server)
    rig.app(APP)
    rig.enqueue("work")
    # Also while the app is still being imported, or hangs at it.
    until_said(rig, 1, "1 jobs wait and no master serves it")
    pool = rig.start("--lease", "500ms", "--fallback-ephemeral", "--pid-file", "pool.pid", n=2)
    rig.until_counts(done=1)
    # Somebody's wish: to be looked at, and no failure.
    call(rig, "pause", "default").ended(0)
    until_said(rig, 0, "default is paused")
    call(rig, "resume", "default").ended(0)
    # Whoever keeps the time hangs: what becomes due would wait for ever.
    pool.send(signal.SIGSTOP)
    later = rig.enqueue("work", delay_ms=3_600_000)
    until_said(rig, 1, "left their leases")
    pool.send(signal.SIGCONT)
    call(rig, "cancel", later).ended(0)
    until_said(rig, 0)
    # The server answers nothing; then it is gone.
    for act in (lambda: os.kill(server.pid, signal.SIGSTOP), server.kill):
        act()
        until_said(rig, 1, "the server")
        ran = call(rig, "status", "--json", within=20)
        assert (ran.code, ran.json["store"]["up"]) == (4, False)
    server.start()
    rig.until_started(rig.enqueue("work"))
    # This host's spool is no folder that can be read.
    (rig.folder / "fallback").write_text("")
    until_said(rig, 1, "fallback")
    (rig.folder / "fallback").unlink()
    until_said(rig, 0)
    assert pool.stop() == 0


@pytest.mark.parametrize("how_many", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_workers_that_are_stopped_by_a_signal_are_told(redis_rig: Rig, how_many: int) -> None:
    """The master lives, answers and renews; those who should work do not. All of them: a failure."""
    rig = redis_rig
    rig.app(APP)
    pool = rig.start(n=2)
    for pid in pool.workers()[:how_many]:
        os.kill(pid, signal.SIGSTOP)

    def told() -> set[str]:
        return {one["state"] for one in call(rig, "workers", "--json").lines}

    rig.until(lambda: told() == ({"stopped", "idle"} if how_many == 1 else {"stopped"}), "they are told", within=20)
    found = [one for one in call(rig, "doctor", "--json").lines if one["about"] == "workers"]
    assert [(one["level"], one["text"][:31]) for one in found] == [
        ("warn" if how_many == 1 else "bad", f"{how_many} of 2 workers are stopped by a")
    ]
    for pid in pool.workers():
        os.kill(pid, signal.SIGCONT)
    rig.until_started(rig.enqueue("work"))
    assert pool.stop() == 0


STUBBORN = """
import ctypes, re, zlib

KINDS = {}
TERMS = dict(timeout=0.4, max_attempts=1)


def kind(function):
    KINDS[function.__name__] = function
    return function


@app.job(**TERMS)
def stubborn(name):
    note("S")
    KINDS[name]()
    note("E")


@app.job
def work():
    note("S")

@kind
def native_sleep():
    # With the interpreter's lock held: no other thread runs, no handler of a signal either.
    ctypes.PyDLL(None).usleep(60_000_000)

@kind
def regular_expression():
    re.match("(a+)+$", "a" * 40 + "b")

@kind
def reads_a_fifo():
    os.mkfifo(f"fifo-{os.getpid()}")
    while True:
        try:
            open(f"fifo-{os.getpid()}").read()
        except BaseException:
            pass

@kind
def stops_itself():
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)

@kind
def decompresses():
    packed = zlib.compress(b"0" * (64 << 20))
    while True:
        try:
            zlib.decompress(packed)
        except BaseException:
            pass

@kind
def swallows_exceptions():
    while True:
        try:
            time.sleep(0.2)
        except Exception:
            pass

@kind
def swallows_all():
    while True:
        try:
            time.sleep(0.2)
        except:
            pass

@kind
def generator():
    def numbers():
        while True:
            try:
                yield time.sleep(0.1)
            except Exception:
                pass
    for _ in numbers():
        pass

@kind
def finally_sleeps():
    try:
        time.sleep(60)
    finally:
        time.sleep(60)

@kind
def finalizer():
    class Slow:
        def __del__(self):
            time.sleep(60)
    Slow()

@kind
def with_statement():
    class Quiet:
        def __enter__(self):
            return self
        def __exit__(self, *exc):
            return True
    while True:
        with Quiet():
            time.sleep(60)
"""


def test_no_code_outlives_its_time_limit(rig: Rig) -> None:
    """Native code, a stopped process, code that swallows whatever is raised in it: timed out, and never done."""
    rig.app(STUBBORN)
    names = re.findall(r"@kind\ndef (\w+)", STUBBORN)
    jobs = {name: rig.enqueue("stubborn", name) for name in names}
    pool = rig.start("--grace", "300ms", "--lease", "30s", n=4, ready=False)
    rig.until_counts(dead=len(jobs), within=60)
    for name, job in jobs.items():
        assert (name, rig.job(job).reason) == (name, "timed_out")
        assert len(rig.ledger.starts(job)) == 1
        # What is raised in a finalizer Python passes by: the handler comes to its end, too late.
        assert name == "finalizer" or not rig.ledger.ends(job), name
    assert rig.stats().totals["lost"] == 0
    rig.until_started(rig.enqueue("work"))
    assert pool.stop() == 0
