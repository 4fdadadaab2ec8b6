"""A pool on a disk that is full: what stands is finished, what was dropped waits and is said to, once."""

from __future__ import annotations

from pathlib import Path

from batchq.job import NewJob, pack_row
from batchq.spool import drop
from tests.process.rig import opened
from tests.unit.spool.mounts import fill, small

APP = """
@app.job(backoff=fixed(0.01))
def work(number):
    if number % 10 == 0 and current_job().attempt == 1:
        raise ValueError("x" * 300)
"""


def test_pool_on_a_full_disk_finishes_what_stands(tmp_path: Path) -> None:
    """It starts there, retries included; when there is room again the inbox goes on."""
    with small(tmp_path / "disk") as disk, opened(tmp_path, "spool", f"spool:{disk / 's'}", "x") as rig:
        rig.app(APP)
        rig.enqueue_many("work", [(n,) for n in range(300)])
        rig.store.sweep_inbox()
        drop(disk / "s", [("default", NewJob("dropped", pack_row("work", [1])))])
        full = fill(disk)
        pool = rig.start(n=2)
        rig.until_counts(done=300, pending=0, delayed=0, active=0, within=40)
        rig.until(lambda: pool.lines("inbox_stands"), "it says that the inbox waits")
        assert "expected at least 16 MiB free" in pool.log()
        full.unlink()
        rig.until_counts(done=301, within=20)
        rig.until(lambda: pool.lines("inbox_goes_on"), "the inbox goes on")
        assert len(pool.lines("inbox_stands")) == len(pool.lines("inbox_goes_on")) == 1
        assert not pool.lines("worker_died")
        assert pool.stop() == 0
