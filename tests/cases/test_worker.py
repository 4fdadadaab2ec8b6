"""Handlers that hurt their worker: every kind costs one attempt, names itself, and the pool works on."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from batchq.job import Job
from batchq.lifecycle import State
from tests.cases.helpers import all_jobs, app_on, call, gaps_s, server_of
from tests.process.rig import Rig, is_running

HEAD = """
import ctypes, resource

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
# One at a time: what stood finished behind a crash would run again.
TERMS = dict(max_attempts=2, backoff=fixed(0.05), batch_claim=False)
KINDS = {}


def kind(function):
    KINDS[function.__name__] = function
    return function


@app.job(result=True, **TERMS)
def bad(name):
    note("S")
    return KINDS[name]()


@app.job
def work(n=0):
    note("S")
    note("E")

"""

CRASHES = """
@kind
def reads_null():
    ctypes.string_at(0)

@kind
def aborts():
    os.abort()

@kind
def exits_0():
    os._exit(0)

@kind
def exits_3():
    os._exit(3)

@kind
def kills_itself():
    os.kill(os.getpid(), signal.SIGKILL)

@kind
def terminates_itself():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)

@kind
def divides():
    signal.signal(signal.SIGFPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGFPE)

@kind
def eats_memory():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    return len(bytearray(2 << 30))

@kind
def recurses_natively():
    sys.setrecursionlimit(10**7)
    deep = []
    for _ in range(10**5):
        deep = [deep]
    return repr(deep)
"""

CRASH_WORDS = {
    "reads_null": "SIGSEGV",
    "aborts": "SIGABRT",
    "exits_0": "exit code 0",
    "exits_3": "exit code 3",
    "kills_itself": "SIGKILL",
    "terminates_itself": "SIGTERM",
    "divides": "SIGFPE",
    "eats_memory": "",
    "recurses_natively": "",
}


def run_bad(rig: Rig, app: str, names: list[str], good: int = 60) -> dict[str, Job]:
    """Runs each twice, between good jobs: all good ones are done, the bad are dead. Answers the dead by name."""
    rig.app(HEAD + app)
    jobs = {name: rig.enqueue("bad", name) for name in names}
    fine = rig.enqueue_many("work", [(n,) for n in range(good)])
    pool = rig.start("--max-crashes", "5", n=2, ready=False)
    rig.until_counts(dead=len(names), within=60)
    probe = rig.enqueue("work")
    rig.until_started(probe)
    rig.until_counts(done=len(fine) + 1, active=0, pending=0)
    dead = {}
    for name, job in jobs.items():
        assert [entry.attempt for entry in rig.ledger.starts(job)] == [1, 2], name
        dead[name] = rig.job(job)
    rig.until(lambda: len(pool.workers()) == 2, "both places are taken again")
    assert pool.process.poll() is None
    assert pool.stop() == 0
    return dead


def test_every_crash_is_a_failed_attempt_that_names_its_death(rig: Rig) -> None:
    """Signals, exits (also with 0), memory, the native stack: two attempts, then dead; good jobs run beside them."""
    for name, dead in run_bad(rig, CRASHES, list(CRASH_WORDS)).items():
        error = dead.errors[0]["error"]
        assert CRASH_WORDS[name] in error, (name, error)
        assert error.strip(), name


BASES = """
import asyncio, io

class Own(BaseException):
    pass

class Text(str):
    pass

@kind
def system_exit_0():
    raise SystemExit(0)

@kind
def system_exit_text():
    raise SystemExit("x")

@kind
def keyboard_interrupt():
    raise KeyboardInterrupt

@kind
def generator_exit():
    raise GeneratorExit

@kind
def own_base():
    raise Own("mine")

@kind
def cancelled_error():
    raise asyncio.CancelledError

@kind
def stop_iteration():
    raise StopIteration(3)

@kind
def with_a_cause():
    raise ValueError(Text("wrong")) from KeyError(Text("cause"))

@kind
def quits():
    quit()

@kind
def exits_in_a_thread():
    thread = threading.Thread(target=sys.exit)
    thread.start()
    thread.join()
    raise RuntimeError("the thread has left")
"""


def test_exceptions_beyond_exception_are_failed_attempts(rig: Rig) -> None:
    """Requests to exit, interrupts and what derives from BaseException end the attempt and not the worker."""
    names = re.findall(r"@kind\ndef (\w+)", BASES)
    kinds = {
        "system_exit_0": "SystemExit",
        "system_exit_text": "SystemExit",
        "keyboard_interrupt": "KeyboardInterrupt",
        "generator_exit": "GeneratorExit",
        "own_base": "Own",
        "cancelled_error": "CancelledError",
        "stop_iteration": "StopIteration",
        "with_a_cause": "ValueError",
        "quits": "SystemExit",
        "exits_in_a_thread": "RuntimeError",
    }
    for name, dead in run_bad(rig, BASES, names).items():
        assert (dead.reason, dead.errors[0]["kind"]) == ("max_attempts", kinds[name]), name


ODD = """
import socket

class Three(Exception):
    def __init__(self, one, two, three):
        super().__init__(one)

class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no text")

class NoRepr(Exception):
    def __repr__(self):
        return 7

class NoReduce(Exception):
    def __reduce__(self):
        raise RuntimeError("no way")

@kind
def three_arguments():
    raise Three(1, 2, 3)

@kind
def holds_a_lock():
    raise ValueError(threading.Lock(), socket.socket())

@kind
def no_text():
    raise NoText

@kind
def no_repr():
    raise NoRepr("text") from NoRepr("cause")

@kind
def no_reduce():
    raise NoReduce("text")

@kind
def a_megabyte():
    raise ValueError("x" * (1 << 20))

@kind
def a_circle_of_causes():
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    raise one

@kind
def groups_in_groups():
    error = ValueError("inmost")
    for depth in range(50):
        error = ExceptionGroup(f"depth {depth}", [error])
    raise error

@kind
def five_thousand_frames():
    sys.setrecursionlimit(20_000)
    def deeper(n):
        if n == 0:
            raise ValueError("deep")
        deeper(n - 1)
    deeper(5000)

@kind
def a_local_class():
    class Local(Exception):
        pass
    raise Local("local")

@kind
def notes_that_are_none():
    error = ValueError("noted")
    error.__notes__ = 7
    raise error
"""


def test_exceptions_that_can_hardly_be_told_are_recorded_all_the_same(rig: Rig) -> None:
    """Whatever stands in it or breaks when it is looked at: type and some text are kept, bounded."""
    names = re.findall(r"@kind\ndef (\w+)", ODD)
    for name, dead in run_bad(rig, ODD, names).items():
        error = dead.errors[0]
        assert dead.reason == "max_attempts", name
        assert error["kind"] in ("Three", "ValueError", "NoText", "NoRepr", "NoReduce", "ExceptionGroup", "Local"), name
        assert error["error"], name
        assert len(str(error)) < 40_000, name


TEXTS = """
TEXTS = [
    "with \\0 inside",
    "x" * (5 << 20),
    "lone \\udcff surrogate",
    "\\x1b[31mred\\x1b[0m \\x9b31m",
    "two\\nlines\\r\\nthree",
    b"bytes",
    "",
    "\\u202eright to left",
    "\\x07bell\\x08",
]

@app.job(**TERMS)
def says(n):
    note("S")
    raise ValueError(TEXTS[n])
"""


def test_no_text_of_an_error_keeps_it_from_being_stored_or_breaks_a_line(rig: Rig) -> None:
    """NUL, megabytes, surrogates, escapes, line ends: two attempts, dead, one printable line a job."""
    rig.app(HEAD + TEXTS)
    jobs = [rig.enqueue("says", n) for n in range(9)]
    rig.run_burst(n=2, within=40)
    for job in jobs:
        assert [entry.attempt for entry in rig.ledger.starts(job)] == [1, 2]
        dead = rig.job(job)
        assert (dead.state, dead.errors[0]["kind"]) == (State.DEAD, "ValueError")
        assert 0 < len(dead.errors[0]["error"].encode("utf-8", "surrogatepass")) <= 8192
    shown = call(rig, "jobs", "--state", "dead").ended(0).out
    assert len([line for line in shown.splitlines() if "says" in line]) == 9
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown)
    assert len(call(rig, "jobs", "--state", "dead", "--json").lines) == 9


RESULTS = """
class Lazy:
    def __iter__(self):
        raise RuntimeError("not now")

def circle():
    one = []
    one.append(one)
    return one

async def coroutine():
    pass

VALUES = {
    "object": object,
    "generator": lambda: (n for n in range(3)),
    "file": lambda: open(__file__),
    "bytes": lambda: b"x",
    "nan": lambda: float("nan"),
    "inf in a list": lambda: [1, float("inf")],
    "large": lambda: "x" * (50 << 20),
    "mixed keys": lambda: {1: "a", "1": "b"},
    "circle": circle,
    "lazy": Lazy,
    "tuple": lambda: (1, 2),
    "set": lambda: {1},
    "coroutine": coroutine,
    "surrogate": lambda: "\\udcff",
    "long": lambda: 2**64,
}

@app.job(result=True, **TERMS)
def returns(name):
    note("S")
    return VALUES[name]()

@app.job(result=True)
def nothing():
    return None

@app.job(**TERMS)
def not_kept(name):
    note("S")
    return VALUES[name]()
"""


def test_a_result_that_can_not_be_stored_is_a_failed_attempt_that_says_so(rig: Rig) -> None:
    """Never active for ever, never changed on the way; where the result is not kept, nobody looks at it."""
    rig.app(HEAD + RESULTS)
    names = re.findall(r'"([\w ]+)": ?(?:lambda|object|circle|Lazy|coroutine)', RESULTS)
    assert len(names) == 15
    jobs = {name: rig.enqueue("returns", name) for name in names}
    ignored = [rig.enqueue("not_kept", name) for name in names]
    none = rig.enqueue("nothing")
    pool = rig.start(n=2)
    stats = rig.until_counts(dead=len(jobs), done=len(ignored) + 1, active=0, within=30)
    assert stats.counts["completed"] == 1
    assert rig.job(none).result is None
    for name, job in jobs.items():
        dead = rig.job(job)
        assert len(rig.ledger.starts(job)) == 2, name
        assert dead.reason == "max_attempts", name
        assert "result" in dead.errors[0]["error"], (name, dead.errors[0])
    with app_on(rig) as app:
        kept = app.enqueue("nothing", result=True)
        assert kept.result(timeout=10) is None
    assert pool.stop() == 0
    assert pool.log().count("worker_died") == 0


MANNERS = """
import gc, locale, random, socket

def _keep(*args):
    _keep.things = [*getattr(_keep, "things", []), *args]

@kind
def ignores_signals():
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)

@kind
def masks_all_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

@kind
def sets_a_timer():
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)

@kind
def makes_a_session():
    try:
        os.setsid()
    except PermissionError:
        pass

@kind
def stands_in_no_folder():
    import tempfile
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)

@kind
def umask():
    os.umask(0o777)

@kind
def clears_the_environment():
    os.environ.clear()

@kind
def socket_timeout():
    socket.setdefaulttimeout(0.001)

@kind
def seeds():
    random.seed(1)

@kind
def little_recursion():
    sys.setrecursionlimit(60)

@kind
def no_gc():
    gc.disable()

@kind
def leaves_threads():
    for _ in range(5):
        threading.Thread(target=time.sleep, args=(600,)).start()

@kind
def leaves_a_pool():
    import multiprocessing
    _keep(multiprocessing.get_context("fork").Pool(2))

@kind
def sets_a_wakeup_fd():
    signal.set_wakeup_fd(-1)

@kind
def sets_a_trace():
    sys.settrace(lambda *_: None)

@app.job(result=True)
def misbehaves(name):
    note("S")
    KINDS[name]()
    note("E")

@app.job(timeout=0.4, max_attempts=1)
def too_long():
    note("S")
    time.sleep(60)
"""


#: What is done to the interpreter alone comes together; to signals, processes and files each by itself.
TOGETHER = ("clears_the_environment", "socket_timeout", "seeds", "little_recursion", "no_gc", "sets_a_trace")
MANNER_GROUPS = [(name,) for name in re.findall(r"@kind\ndef (\w+)", MANNERS) if name not in TOGETHER] + [TOGETHER]


@pytest.mark.parametrize("manners", MANNER_GROUPS, ids="-".join)
def test_what_a_handler_does_to_its_process_hurts_no_other_job(rig: Rig, manners: tuple[str, ...]) -> None:
    """Signals, masks, folders, limits, threads left behind: the next jobs run, limits and stops reach them."""
    rig.app(HEAD + MANNERS)
    for manner in manners:
        rig.enqueue("misbehaves", manner)
    rig.enqueue_many("work", [(n,) for n in range(20)])
    pool = rig.start("--grace", "200ms", "--shutdown-timeout", "300ms", n=1, ready=False)
    rig.until_counts(done=20 + len(manners))
    late = rig.enqueue("too_long")
    rig.until_counts(dead=1)
    assert rig.job(late).reason == "timed_out"
    rig.enqueue("misbehaves", manners[0])
    rig.until_counts(done=21 + len(manners))
    began = time.monotonic()
    assert pool.stop() == 0
    # By the handler it would be a minute, or ten.
    assert time.monotonic() - began < 15


CLIENT = """
import redis

client = redis.Redis.from_url(os.environ["BATCHQ_URL"])
pipe = client.pipeline()
client.set("mine", 0)

@app.job
def counts(n):
    note("S")
    client.incr("mine")
    pipe.set(f"own-{n}", n).get(f"own-{n}")
    assert pipe.execute() == [True, str(n).encode()]
    note("E")
"""


def test_a_client_that_the_app_opened_before_the_fork_mixes_no_answers(redis_rig: Rig) -> None:
    """Eight workers, recycled all the while, use the module's own client; the pool's connections are its own."""
    rig = redis_rig
    rig.app(HEAD + CLIENT)
    ids = rig.enqueue_many("counts", [(n,) for n in range(1200)])
    pool = rig.start("--max-jobs", "60", n=4, ready=False)
    rig.until_counts(done=len(ids), dead=0, retried=0, within=40)
    client = server_of(rig)
    assert int(client.get("mine")) == len(ids)
    assert not pool.lines("worker_died")
    assert not pool.lines("worker_failed")
    assert pool.stop() == 0


GRANDCHILD = """
@app.job
def starts_one():
    note("S")
    child = subprocess.Popen(["setsid", "sleep", "300"], close_fds=False, stdin=subprocess.DEVNULL)
    open("pid", "w").write(str(child.pid))
    os.rename("pid", "grandchild.pid")
    note("E")
"""


def test_a_grandchild_in_a_session_of_its_own_holds_nothing_of_ours(rig: Rig) -> None:
    """It inherits every descriptor that may be inherited: no socket, lock or pipe of the pool is among them."""
    rig.app(HEAD + GRANDCHILD)
    pid_file = str(rig.folder / "pool.pid")
    pool = rig.start("--pid-file", pid_file, n=2)
    job = rig.enqueue("starts_one")
    rig.until_counts(done=1)
    grandchild = int((rig.folder / "grandchild.pid").read_text())
    try:
        assert gaps_s(rig.ledger.entries(job=job))[0] < 15
        rig.until(lambda: psutil.Process(grandchild).name() == "sleep", "it is what it became")
        held = [os.readlink(f"/proc/{grandchild}/fd/{fd}") for fd in os.listdir(f"/proc/{grandchild}/fd")]
        mine = [
            name for name in held if re.match(r"socket:|pipe:|anon_inode|.*(pool\.pid|\.lock|queue\.db|gate)", name)
        ]
        assert not mine, held
        began = time.monotonic()
        assert pool.stop() == 0
        assert time.monotonic() - began < 15
        second = rig.start("--pid-file", pid_file, n=1)
        rig.until_started(rig.enqueue("work"))
        assert second.stop() == 0
    finally:
        if is_running(grandchild):
            os.kill(grandchild, signal.SIGKILL)


PRINTS = """
@app.job
def prints():
    note("S")
    for _ in range(200):
        print("x" * 1000)
        print("y" * 1000, file=sys.stderr)
    sys.stdout.flush()
    note("E")
"""


def filled(pipe: int) -> None:
    """Writes as much into it as it holds."""
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x" * 4096)
    os.set_blocking(pipe, True)


@pytest.mark.parametrize("kind", ["reader leaves", "nobody reads", "all closed", "full disk"])
def test_output_that_goes_nowhere_stops_no_job(rig: Rig, kind: str) -> None:
    """stdout and stderr are a pipe that has ended or is full, closed descriptors, a full device: the jobs are done."""
    rig.app(HEAD + PRINTS)
    ids = [*rig.enqueue_many("prints", [()] * 10), *rig.enqueue_many("work", [()] * 60)]
    read, write = os.pipe()
    command = [sys.executable, "-m", "batchq", "start", "app:app", "-n", "2", "--log-level", "debug", "--burst"]
    if kind == "all closed":
        command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
    if kind == "nobody reads":
        filled(write)
    with open("/dev/full" if kind == "full disk" else os.devnull, "wb") as file:
        target = write if kind in ("reader leaves", "nobody reads") else file
        pool = subprocess.Popen(command, cwd=rig.folder, env=rig.env(), stdout=target, stderr=target)
    try:
        os.close(write)
        if kind == "reader leaves":
            os.read(read, 10)
            os.close(read)
        rig.until_counts(done=len(ids), active=0)
        assert pool.wait(30) == 0
    finally:
        pool.kill()
        pool.wait()
    assert (rig.stats().totals["crashed"], rig.stats().totals["retried"]) == (0, 0)
    assert len(rig.ledger.starts()) == len(ids)


def test_ends_are_told_apart(rig: Rig) -> None:
    """Timed out, cancelled by a person, its worker killed, and a stop that cut it off: four reasons, four counters."""
    rig.app(
        HEAD
        + """
@app.job(max_attempts=1)
def long(limit):
    note("S")
    time.sleep(60)
"""
    )
    cancelled, killed, cut = (rig.enqueue("long", n) for n in range(3))
    timed = rig.enqueue("long", 9, timeout_ms=300, max_attempts=1)
    pool = rig.start("--grace", "200ms", "--shutdown-timeout", "200ms", n=4)
    for job in (timed, cancelled, killed, cut):
        rig.until_started(job)
    call(rig, "cancel", cancelled).ended(0)
    os.kill(rig.ledger.starts(killed)[0].pid, signal.SIGKILL)
    rig.until_counts(cancelled=1, crashed=1, timed_out=1)
    assert pool.stop() == 0
    stats = rig.stats()
    assert (rig.job(timed).reason, rig.job(killed).reason) == ("timed_out", "crashed")
    assert rig.store.get("default", cancelled) is None
    assert (rig.job(cut).state, rig.job(cut).attempt) == (State.PENDING, 0)
    assert rig.job(cut).errors[0]["kind"] == "Interrupted"
    assert [stats.totals[name] for name in ("timed_out", "cancelled", "crashed")] == [1, 1, 1]
    log = pool.log()
    assert all(word in log for word in ("timed_out", "cancel", "SIGKILL", "interrupted"))
    assert len(all_jobs(rig, State.DEAD)) == 2
