"""What reaches the disk, in which order, and what a full one does."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from batchq.spool.layout import prepare
from tests.cases.helpers import call
from tests.faults.proxy import Proxy
from tests.faults.wallclock import WallClock
from tests.outage.conftest import DURABLE
from tests.process.rig import Rig, is_stopped
from tests.servers import Server

APP = """
@app.job
def work(*args):
    note("S")
    note("E")
"""

#: A server that refuses: jobs go to the spool of this host.
AWAY = {"BATCHQ_URL": "redis://127.0.0.1:1/0", "BATCHQ_FALLBACK_EPHEMERAL": "1", "BATCHQ_ENQUEUE_TIMEOUT": "50ms"}
CALLS = "openat,write,pwrite64,fsync,fdatasync,rename,renameat,renameat2,link,linkat,unlink"


def can_trace() -> bool:
    """Whether this host lets strace look at a child."""
    return (
        bool(shutil.which("strace")) and subprocess.run(["strace", "-qq", "true"], capture_output=True).returncode == 0
    )


def traced(
    rig: Rig,
    *args: str,
    trace: str = CALLS,
    inject: str = "",
    umask: int = -1,
    everything: bool = False,
    **env: str,
) -> tuple[int, list[str]]:
    """Exit code and system calls of `batchq ARGS...`, those on the spool alone unless everything is asked for."""
    out = rig.folder / "trace"
    more = ["-e", f"inject={inject}"] if inject else []
    command = [
        "strace",
        "-f",
        "-y",
        "-qq",
        "-e",
        f"trace={trace}",
        *more,
        "-o",
        str(out),
        sys.executable,
        "-m",
        "batchq",
    ]
    ran = subprocess.run(
        [*command, *args], cwd=rig.folder, env=rig.env(**env), capture_output=True, text=True, timeout=60, umask=umask
    )
    assert "Traceback" not in ran.stderr, ran
    lines = out.read_text().splitlines()
    return ran.returncode, [line for line in lines if everything or "/fallback" in line or "/spool" in line]


def places(lines: list[str], pattern: str) -> list[int]:
    return [n for n, line in enumerate(lines) if re.search(pattern, line)]


@pytest.mark.skipif(not can_trace(), reason="this host has no strace, or lets it trace nothing")
@pytest.mark.parametrize("what", ["one", "many"])
def test_what_was_accepted_is_on_the_disk_before_anybody_hears_of_it(rig: Rig, what: str) -> None:
    """File written and flushed, then renamed, then its folder flushed; in the ledger the log is flushed."""
    (rig.folder / "rows.ndjson").write_text('{"n": 1}\n' * 100)
    args = ["enqueue", "work"] if what == "one" else ["import", "rows.ndjson", "--job", "work"]
    if rig.kind == "spool":
        code, lines = traced(rig, *args)
        assert code == 0
        writes, flushes = (
            places(lines, r"pwrite64\(\d+<[^>]*queue\.db-wal>"),
            places(lines, r"f(data)?sync\(\d+<[^>]*-wal>"),
        )
        assert writes
        assert flushes
        assert flushes[-1] > writes[-1]
        return
    if what == "many":
        pytest.skip("an import waits for its server: what it enqueues is not spooled")
    code, lines = traced(rig, *args, **AWAY)
    assert code == 0
    [moved] = places(lines, r"(rename|link)[a-z0-9]*\(.*inbox/new/")
    [written] = places(lines, r"write\(\d+<[^>]*inbox/tmp/")
    flushed = places(lines, r"f(data)?sync\(\d+<[^>]*inbox/tmp/[^>]+>")
    folder = places(lines, r"f(data)?sync\(\d+<[^>]*inbox/new>")
    assert written < flushed[0] < moved < folder[-1]


@pytest.mark.skipif(not can_trace(), reason="this host has no strace, or lets it trace nothing")
def test_a_flush_that_fails_is_no_success(rig: Rig) -> None:
    """EIO from every flush: the exit code says so, and there is no entry that could be believed in."""
    env = {} if rig.kind == "spool" else AWAY
    assert call(rig, "enqueue", "work", **env).code == 0
    code, _ = traced(rig, "enqueue", "work", inject="fsync,fdatasync:error=EIO", **env)
    assert code not in (0, 2)
    if rig.kind != "spool":
        box = rig.folder / "fallback" / "inbox"
        assert len(list((box / "new").iterdir())) == 1
        assert not list((box / "tmp").iterdir())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with three megabytes beyond what is kept free for settling."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=19m,mode=700", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(options, capture_output=True).returncode != 0:
        pytest.skip("this host lets nobody mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_refuses_loudly_and_keeps_what_it_accepted(redis_rig: Rig, small_disk: Path) -> None:
    """Filled as far as may be: each call says no room and where, leaves no rubbish, and all accepted ones run."""
    rig = redis_rig
    rig.app(APP + "\nimport sys\n")
    spool = small_disk / "spool"
    (rig.folder / "fill.py").write_text(
        """
from app import app
import sys
good = bad = 0
words = set()
for _ in range(2000):
    try:
        app.enqueue("work", ["x" * 5000])
        good += 1
    except Exception as error:
        bad += 1
        words.add(f"{type(error).__name__}: {error}"[:300])
        if bad >= 30:
            break
print(good, bad, *words, sep="\\n")
"""
    )
    env = {**AWAY, "BATCHQ_SPOOL": str(spool)}
    ran = subprocess.run(
        [sys.executable, "fill.py"], cwd=rig.folder, env=rig.env(**env), capture_output=True, text=True
    )
    good, bad, *words = ran.stdout.splitlines()
    assert ran.returncode == 0, ran
    assert int(good) > 50
    assert int(bad) == 30
    assert all("Store" in word and re.search("space|full|room", word) for word in words), words
    refused = call(rig, "enqueue", "work", "--args", '["' + "x" * 5000 + '"]', **env)
    assert refused.code not in (0, 2)
    assert str(spool) in refused.err
    assert not list((spool / "inbox" / "tmp").iterdir())
    here = {"BATCHQ_SPOOL": str(spool), "BATCHQ_FALLBACK_EPHEMERAL": "1"}
    call(rig, "enqueue", "work", **here).ended(0)
    ran = call(rig, "spool", "forward", "--all", **here)
    assert ran.code == 0, ran
    rig.run_burst(n=2, **here)
    assert rig.stats().totals["completed"] == int(good) + 1


# -- forwarding --------------------------------------------------------------------------------------------------------


def pile(rig: Rig, names: Iterable[str], job: str = "work") -> Path:
    """A file of one job for each name, made by hand, for speed. Answers the inbox."""
    prepare(str(rig.folder / "fallback"), ledger=False)
    box = rig.folder / "fallback" / "inbox"
    for name in names:
        (box / "tmp" / "x").write_text(f'{{"job": "{job}"}}\n')
        os.rename(box / "tmp" / "x", box / "new" / name)
    return box


def listed(folder: Path) -> int:
    return len(os.listdir(folder))


@pytest.mark.parametrize("size", [400, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(1000)])])
def test_many_masters_and_forwarders_empty_one_heap_with_each_job_once(redis_rig: Rig, size: int) -> None:
    """Four masters and a forwarder by hand start at once, producers go on spooling: each file is one job, memory stays
    small, and none trips over a file that another took."""
    rig = redis_rig
    rig.app(APP)
    box = pile(rig, (f"heap-{n:06}" for n in range(size)))
    began = time.monotonic()
    pools = [rig.start("--fallback-ephemeral", n=1, ready=False) for _ in range(4)]
    more = {"BATCHQ_FALLBACK_EPHEMERAL": "1"}
    command = [sys.executable, "-m", "batchq", "spool", "forward", "--all"]
    forwarder = subprocess.Popen(command, cwd=rig.folder, env=rig.env(**more), stderr=subprocess.PIPE)
    for n in range(5):
        call(rig, "enqueue", "work", **AWAY)
        pile(rig, [f"late-{n}"])
    _, said = forwarder.communicate(timeout=900)
    assert b"Traceback" not in said
    # What was spooled for another server is sent on as well, where it is asked for.
    call(rig, "spool", "forward", "--all", **more).ended(0)
    rig.until(lambda: listed(box / "new") + listed(box / "work") == 0, "all are forwarded", within=90)
    took = time.monotonic() - began
    print(f"{rig.kind}: {size} files forwarded in {took:.1f} s")
    assert size < 10_000 or took < 120
    assert all(psutil.Process(pool.pid).memory_info().rss < 150 << 20 for pool in pools)
    rig.until_counts(done=size + 10, active=0, pending=0, within=90)
    assert len({entry.job for entry in rig.ledger.starts()}) == len(rig.ledger.starts()) == size + 10
    assert rig.stats().totals["forwarded"] == size + 10
    assert listed(box / "bad") == 0
    assert all(pool.stop() == 0 for pool in pools)
    assert not any("Traceback" in pool.log() for pool in pools)


@pytest.mark.skipif(not can_trace(), reason="this host has no strace, or lets it trace nothing")
def test_a_heap_is_listed_now_and_then_and_not_for_each_file(redis_rig: Rig) -> None:
    """Calls that list the folder, for each file that is forwarded: hardly any."""
    size = 1200
    pile(redis_rig, (f"heap-{n:06}" for n in range(size)))
    code, lines = traced(redis_rig, "spool", "forward", trace="getdents64", BATCHQ_FALLBACK_EPHEMERAL="1")
    assert code == 0
    assert redis_rig.stats().counts["pending"] == size
    assert 0 < len(lines) < size / 10


def test_a_forwarder_that_is_killed_and_hears_no_answers_forwards_each_job_once(redis_rig: Rig) -> None:
    """SIGKILL in the midst, again and again, answers lost, and what came through runs meanwhile."""
    rig = redis_rig
    rig.app(APP)
    rng = random.Random(5)
    size = 1000
    box = pile(rig, (f"heap-{n:06}" for n in range(size)))
    pool = rig.start("--no-fallback", n=2)
    command = [sys.executable, "-m", "batchq", "spool", "forward", "--watch"]
    cuts = 0

    def cut(frame: bytes) -> bool:
        nonlocal cuts
        lost = rng.random() < 1 / 250
        cuts += lost
        return lost

    def left() -> int:
        return listed(box / "new") + listed(box / "work")

    with Proxy(int(rig.url.rsplit(":", 1)[1].split("/")[0])) as proxy:
        env = rig.env(BATCHQ_URL=proxy.url, BATCHQ_FALLBACK_EPHEMERAL="1")
        for turn in range(5):
            # Sent, perhaps done, and the files stand still; or some files are gone and others not.
            sent, gone = proxy.replies + rng.randint(20, 300), left() - rng.randint(1, 100)
            proxy.cut = cut if turn % 2 else None
            child = subprocess.Popen(command, cwd=rig.folder, env=env, stdout=subprocess.DEVNULL)
            try:
                # A quick one has sent all before anybody looks.
                rig.until(
                    lambda: not left() or (proxy.replies >= sent if turn % 2 else left() <= gone),  # noqa: B023
                    "it is at it",
                )
            finally:
                child.kill()
                child.wait()
        proxy.cut = None
        assert left() < size
        assert cuts
        call(rig, "spool", "forward", BATCHQ_URL=proxy.url, BATCHQ_FALLBACK_EPHEMERAL="1").ended(0)
    assert left() == 0
    rig.until_counts(done=size, active=0, pending=0)
    assert len({entry.job for entry in rig.ledger.starts()}) == len(rig.ledger.starts()) == size
    assert listed(box / "bad") == 0
    assert pool.stop() == 0


# -- producers that die ------------------------------------------------------------------------------------------------

PRODUCER = """
import os, signal, sys
from app import app
import batchq.spool.fs as fs

if len(sys.argv) > 1:
    # The file is written, and not yet in its place.
    fs.passed = lambda point: os.kill(os.getpid(), signal.SIGSTOP) if point == sys.argv[1] else None
for n in range(1 if len(sys.argv) > 1 else 10**6):
    print(app.enqueue("work", [n]).id, flush=True)
"""


def test_producers_that_die_or_stand_still_leave_whole_entries_or_none(rig: Rig) -> None:
    """SIGKILL at any moment: what was accepted runs, once; at most the one under way more. What stands half written is
    neither taken nor removed; what was left half written days ago is."""
    rig.app(APP)
    (rig.folder / "producer.py").write_text(PRODUCER)
    env = rig.env(**({} if rig.kind == "spool" else AWAY))
    rng = random.Random(11)
    accepted: set[str] = set()
    producers = [
        subprocess.Popen([sys.executable, "producer.py"], cwd=rig.folder, env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    for producer in producers:
        assert producer.stdout is not None
        accepted |= {producer.stdout.readline().strip() for _ in range(rng.randint(1, 25))}
        producer.kill()
        # What it said before its end counts too; a torn line does not.
        rest = producer.stdout.read()
        accepted |= set(rest[: rest.rfind("\n") + 1].split())
        producer.wait()
    root = rig.folder / ("spool" if rig.kind == "spool" else "fallback")
    tmp = root / "inbox" / "tmp"
    call(rig, "enqueue", "work", **({} if rig.kind == "spool" else AWAY)).ended(0)
    old = [tmp / "0006530c1a2b3c4d-77-1.1.ndjson", tmp / "somebodys.json"]
    for path in old:
        path.write_text('{"job": "wo')
        os.utime(path, (time.time() - 3 * 86_400,) * 2)
    (root / "inbox" / "new" / "foreign.txt").write_text("no parcel")
    young = set(os.listdir(tmp)) - {path.name for path in old}
    half = None
    if rig.kind != "spool":
        half = subprocess.Popen(
            [sys.executable, "producer.py", "P2"], cwd=rig.folder, env=env, stdout=subprocess.PIPE, text=True
        )
        rig.until(lambda: half is not None and is_stopped(half.pid), "it stands in the middle of a write")
    here = {"BATCHQ_FALLBACK_EPHEMERAL": "1"}
    if rig.kind != "spool":
        assert "1 files were moved aside" in call(rig, "spool", "forward", "--all", **here).ended(1).err
    pool = rig.start(n=2, **here)
    rig.until(lambda: listed(root / "inbox" / "bad") == 2, "the foreign file is aside, with its reason")
    rig.until(lambda: accepted <= {entry.job for entry in rig.ledger.ends()}, "what was accepted has run")
    rig.until_counts(active=0, pending=0)
    starts = [entry.job for entry in rig.ledger.starts()]
    assert len(accepted) + 1 <= len(starts) == len(set(starts)) <= len(accepted) + 1 + len(producers)
    rig.until(lambda: not any(path.exists() for path in old), "what was left days ago is gone")
    if half is not None:
        assert len(set(os.listdir(tmp)) - young) == 1
        half.send_signal(signal.SIGCONT)
        late = half.communicate(timeout=20)[0].strip()
        assert half.returncode == 0
        call(rig, "spool", "forward", "--all", **here).ended(0)
        rig.until(lambda: rig.ledger.ends(late), "it has run")
        assert len(rig.ledger.starts(late)) == 1
    assert set(os.listdir(tmp)) == young
    assert [path.read_text() for path in (root / "inbox" / "bad").glob("*foreign.txt")] == ["no parcel"]
    assert pool.stop() == 0


def test_delays_count_from_the_call_over_an_outage(serve: Callable[..., Server], rig_on: Callable[..., Rig]) -> None:
    """Spooled while the server is away, on a host whose clock is two hours ahead of it: what is overdue then runs at
    once, the highest priority first; what is not runs when its delay, from the call, is over."""
    server = serve(*DURABLE)
    rig = rig_on(server)
    rig.app(APP)
    host = {**WallClock(rig.folder, 7200).env(), "BATCHQ_FALLBACK_EPHEMERAL": "1", "BATCHQ_ENQUEUE_TIMEOUT": "50ms"}
    server.kill()
    asked: dict[str, float] = {}

    def spool_one(*args: str) -> str:
        began = time.monotonic()
        job = call(rig, "enqueue", "work", *args, **host).ended(0).out.strip()
        asked[job] = began
        return job

    far = spool_one("--in", "1h")
    spooled = time.monotonic()
    overdue = spool_one("--in", "300ms")
    urgent = spool_one("--in", "200ms", "--priority", "9")
    past = spool_one("--at", "2020-01-01T00:00:00Z")
    later = spool_one("--in", "5s")
    rig.until(lambda: time.monotonic() > spooled + 3, "three seconds of the hour are over, and others are overdue")
    server.start()
    pool = rig.start(n=1, **host)
    rig.until_counts(done=4, delayed=1)
    at = {entry.job: entry.at_ns / 1e9 for entry in rig.ledger.starts()}
    assert at[urgent] < at[overdue]
    assert all(at[job] < at[later] for job in (overdue, urgent, past))
    assert at[later] >= asked[later] + 5
    # Counted from the forwarding it would be three seconds more, and by the other clock hours.
    left_s = (rig.job(far).since_ms - rig.store.now_ms()) / 1000
    assert asked[far] + 3600 - 0.1 < time.monotonic() + left_s < spooled + 3600 + 1.5
    assert '": -' not in json.dumps(call(rig, "status", "--json", **host).ended(0).json)
    assert pool.stop() == 0


# -- who may read it ---------------------------------------------------------------------------------------------------

MADE = re.compile(r'(openat|mkdir|mkdirat|mknod|mknodat)\((?:AT_FDCWD[^,]*, )?"([^"]+)".*?\b(0[0-7]{3})\)? += [0-9]')
MOVED = re.compile(r'(?:rename|link)\("([^"]+)", "([^"]+)"\) = 0')


def made_by(lines: Iterable[str]) -> dict[str, str]:
    """Path -> call and mode that made it; what was moved has those of before."""
    made: dict[str, str] = {}
    for line in lines:
        if found := MOVED.search(line):
            made.setdefault(found[2], made.get(found[1], "?"))
        elif ("openat" not in line or "O_CREAT" in line) and (found := MADE.search(line)):
            made.setdefault(found[2], f"{found[1]} {found[3]}")
    return made


@pytest.mark.skipif(not can_trace(), reason="this host has no strace, or lets it trace nothing")
@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_what_holds_jobs_is_private_from_its_first_moment(rig: Rig, umask: int) -> None:
    """Every file is made 0600, every folder 0700, whatever the umask: spool, ledger, rejects, scoreboard, socket."""
    rig.app(APP.replace("*args", "*args, **kwargs"))
    (rig.folder / "rows.csv").write_text("a,b\n1,2\n3\n")
    calls = "openat,mkdir,mkdirat,mknod,mknodat,rename,link"
    runs: list[tuple[list[str], int, dict[str, str]]] = [
        (["enqueue", "work"], 0, AWAY if rig.kind != "spool" else {}),
        (["import", "rows.csv", "--job", "work"], 1, {}),
        (["start", "app:app", "-n", "1", "--burst", "--pid-file", "pool.pid"], 0, {"BATCHQ_FALLBACK": "0"}),
    ]
    # Nobody has made it yet.
    new = {"BATCHQ_URL": f"spool:{rig.folder / 'spool-of-its-own'}"} if rig.kind == "spool" else {}
    traces: list[str] = []
    for args, wanted, more in runs:
        code, lines = traced(rig, *args, trace=calls, umask=umask, everything=True, **new, **more)
        assert code == wanted, (args, code)
        traces += lines
    home = str(rig.folder)
    made = {path: how for path, how in made_by(traces).items() if path.startswith(home) or not path.startswith("/")}
    # Which process is the master is no secret; what it runs is.
    assert made.pop("pool.pid") == "openat 0644"
    assert any(path.endswith(".rejects.ndjson") for path in made), made
    assert any(path.endswith("pool.pid.board") for path in made), made
    assert any("/inbox/new/" in path or path.endswith("queue.db") for path in made), made
    assert set(made.values()) <= {"openat 0600", "mkdir 0700", "mknod 0600", "mknodat 0600"}, made
    for path in rig.folder.rglob("*"):
        if str(path).startswith((f"{home}/spool", f"{home}/fallback")) or "rejects" in path.name:
            assert path.lstat().st_mode & 0o077 == 0, path
