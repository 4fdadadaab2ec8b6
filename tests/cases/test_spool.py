"""What reaches the disk, in which order, and what a full one does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.helpers import call
from tests.process.rig import Rig

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


def traced(rig: Rig, *args: str, inject: str = "", **env: str) -> tuple[int, list[str]]:
    """Exit code and system calls of `batchq ARGS...`, those on the spool alone."""
    out = rig.folder / "trace"
    more = ["-e", f"inject={inject}"] if inject else []
    command = [
        "strace",
        "-f",
        "-y",
        "-qq",
        "-e",
        f"trace={CALLS}",
        *more,
        "-o",
        str(out),
        sys.executable,
        "-m",
        "batchq",
    ]
    ran = subprocess.run(
        [*command, *args], cwd=rig.folder, env=rig.env(**env), capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in ran.stderr, ran
    return ran.returncode, [line for line in out.read_text().splitlines() if "/fallback" in line or "/spool" in line]


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


@pytest.mark.slow
def test_a_great_heap_is_forwarded_in_time_that_grows_with_it_and_no_faster(redis_rig: Rig) -> None:
    """Twenty thousand files of one job each: four masters, each job once, nothing lists the folder for each file."""
    rig = redis_rig
    rig.app(APP)
    call(rig, "enqueue", "work", **AWAY).ended(0)
    box = rig.folder / "fallback" / "inbox"
    for n in range(20_000):
        (box / "tmp" / "x").write_bytes(b'{"job": "work", "args": [%d]}\n' % n)
        os.rename(box / "tmp" / "x", box / "new" / f"heap-{n:06}")
    pools = [rig.start("--fallback-ephemeral", n=1, ready=False) for _ in range(4)]
    call(rig, "spool", "forward", "--all", within=120, BATCHQ_FALLBACK_EPHEMERAL="1")
    rig.until(lambda: not list((box / "new").iterdir()), "all are forwarded", within=90)
    rig.until_counts(done=20_001, active=0, within=60)
    assert len({entry.job for entry in rig.ledger.starts()}) == len(rig.ledger.starts()) == 20_001
    assert all(pool.stop() == 0 for pool in pools)
