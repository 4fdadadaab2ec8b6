"""Memory runs out: the kernel takes a worker, not the master, and the job's error says what happened."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.lifecycle import State
from batchq.system.memory import RAISE
from tests.process.rig import Rig

APP = """
@app.job(max_attempts=1)
def grow(mib):
    note("S")
    kept = bytearray(mib << 20)
    for at in range(0, len(kept), 4096):
        kept[at] = 1
    os.kill(os.getpid(), signal.SIGKILL)


@app.job
def short():
    note("S")
    note("E")
"""

LIMIT_MIB = 192


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with a limit, of whichever kind this host has."""
    kinds = (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    )
    for root, limit in kinds:
        made = root / f"batchq-{os.getpid()}"
        try:
            made.mkdir()
            (made / limit).write_text(str(LIMIT_MIB << 20))
        except OSError:
            with contextlib.suppress(OSError):
                made.rmdir()
            continue
        with contextlib.suppress(OSError):
            (made / "memory.swap.max").write_text("0")
        yield made
        made.rmdir()
        return
    pytest.skip("NO CONTROL GROUP CAN BE MADE HERE: a real want of memory is not tested")


@pytest.mark.skipif(not os.path.exists("/proc/self/oom_score_adj"), reason="Linux only")
def test_workers_go_before_the_master(redis_rig: Rig) -> None:
    """Their adjustment is higher by so much."""
    redis_rig.app(APP)
    pool = redis_rig.start(n=2)
    [master, *workers] = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (pool.pid, *pool.workers())]
    assert workers == [min(1000, master + RAISE)] * 2
    assert pool.stop() == 0


def test_peak_memory_stands_in_the_error_of_a_crash(redis_rig: Rig) -> None:
    """What it had at most, although it is gone."""
    redis_rig.app(APP)
    job = redis_rig.enqueue("grow", 100)
    redis_rig.run_burst()
    dead = redis_rig.job(job)
    assert dead.state is State.DEAD
    text = dead.errors[0]["error"]
    assert "SIGKILL" in text
    peak = int(text.rpartition("peak memory ")[2].removesuffix(" MiB"))
    assert 100 <= peak < 250


def test_a_kill_by_the_kernel_is_told_from_others(redis_rig: Rig, group: Path) -> None:
    """The master and the other worker live on; the error names the want of memory."""
    redis_rig.app(APP)
    job = redis_rig.enqueue("grow", 2 * LIMIT_MIB)
    enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
    pool = redis_rig.start(n=2, before=("sh", "-c", enter, "sh"))
    redis_rig.until_counts(dead=1)
    text = redis_rig.job(job).errors[0]["error"]
    assert "SIGKILL: out of memory" in text
    redis_rig.enqueue_many("short", [()] * 20)
    redis_rig.until_counts(done=20)
    assert pool.process.poll() is None
    assert pool.stop() == 0
