"""--autoreload: a changed file of the app is a reload."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time

import pytest

from tests.process.rig import Rig

APP = """
@app.job
def version():
    note(%r)
"""


@pytest.mark.skipif(
    importlib.util.find_spec("watchfiles") is None, reason="NO watchfiles HERE: pip install -e '.[dev-reload]'"
)
def test_changed_file_is_a_reload(redis_rig: Rig) -> None:
    """The new code runs; a broken file is told and survived; nothing is left running."""
    redis_rig.app(APP % "V1")
    pool = redis_rig.start("--autoreload")

    def runs(version: str) -> bool:
        job = redis_rig.enqueue("version")
        redis_rig.until(lambda: redis_rig.ledger.entries(job=job), "it ran")
        return redis_rig.ledger.entries(job=job)[0].kind == version

    assert runs("V1")
    # Written again where it is not seen: the watcher may only just be starting.
    written = 0.0
    for version in ("V2", "V3"):

        def is_new(version: str = version) -> bool:
            nonlocal written
            if time.monotonic() > written + 3:
                redis_rig.app(APP % version + f"# {os.urandom(4).hex()}\n")
                written = time.monotonic()
            return runs(version)

        redis_rig.until(is_new, f"{version} runs", within=30)
        written = 0.0
    redis_rig.until(lambda: pool.lines("reloaded"), "it was a reload")
    (redis_rig.folder / "app.py").write_text("import no_such_module_at_all\n")
    redis_rig.until(lambda: pool.lines("reload_failed"), "it is told", within=30)
    assert "no_such_module_at_all" in pool.lines("reload_failed")[0]
    assert pool.stop() == 0
    redis_rig.until_clean()


def test_autoreload_without_watchfiles_says_what_to_install(redis_rig: Rig) -> None:
    """Wrong usage, in one line, before anything starts."""
    redis_rig.app(APP % "V1")
    hidden = "import sys; sys.modules['watchfiles'] = None; from batchq.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "start", "app:app", "--autoreload"],
        cwd=redis_rig.folder,
        env=redis_rig.env(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "dev-reload" in done.stderr
    assert done.stderr.count("\n") == 1
