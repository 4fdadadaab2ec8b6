"""`batchq demo` as people call it: real workers, a real server, on both stores, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from tests.servers import Server

DEADLINE_S = 100.0


def _environment(tmp: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BATCHQ_")}
    # The user's own settings must not reach the demo's workers.
    return kept | {"TMPDIR": str(tmp), "BATCHQ_MAX_ATTEMPTS": "1"}


def _batchq(tmp: Path, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "batchq", *args],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=cwd or tmp,
        env=_environment(tmp),
        check=False,
    )


def _demo(tmp: Path, *args: str) -> dict[str, Any]:
    """Runs it to a good end and answers its object."""
    done = _batchq(tmp, "demo", "--json", *args)
    assert done.returncode == 0, done
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _check(found: dict[str, Any]) -> None:
    """The numbers add up by our own arithmetic, not only by the demo's word."""
    assert found["ok"] is True
    assert found["faults"] == []
    assert found["unaccounted"] == 0
    assert len(found["checks"]) > 10
    assert all(check["counted"] == check["expected"] for check in found["checks"])
    for kind in found["kinds"].values():
        assert kind["enqueued"] == kind["completed"] + kind["dead"]
    for name, total in found["total"].items():
        assert total == sum(kind[name] for kind in found["kinds"].values())
    kinds = found["kinds"]
    assert kinds["import"]["completed"] == 5000
    assert kinds["webhooks"]["retried"] >= 50
    assert kinds["failing"]["dead"] == kinds["failing"]["enqueued"]
    assert kinds["crashing"]["crashed"] >= 10
    assert kinds["crashing"]["dead"] == 1
    assert found["reasons"] == {"buried": 1, "max_attempts": 5, "poison": 1}
    # Never before their time.
    assert found["late_ms"]["median"] >= 0


def test_demo_on_a_throw_away_spool_adds_up_and_leaves_nothing(tmp_path: Path) -> None:
    """The default: one command, no server, exit 0, and the temporary folder is empty again."""
    _check(_demo(tmp_path, "--seed", "1"))
    assert list(tmp_path.iterdir()) == []


def test_demo_on_redis_adds_up_and_leaves_no_key(tmp_path: Path, redis_server: Server) -> None:
    """In somebody's Redis: under a prefix of its own, which is removed; other keys stay."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.set("demo:of-somebody-else", "1")
        before = set(client.scan_iter())
        _check(_demo(tmp_path, "--url", redis_server.url))
        assert set(client.scan_iter()) == before
        client.delete("demo:of-somebody-else")
    assert list(tmp_path.iterdir()) == []


def test_kept_store_can_be_looked_at_in_its_folder(tmp_path: Path) -> None:
    """--keep: the commands that it prints work in that folder without any option."""
    found = _demo(tmp_path, "--keep")
    folder = Path(found["kept"])
    assert folder.parent == tmp_path
    listed = _batchq(tmp_path, "jobs", "--state", "dead", "--json", cwd=folder)
    dead = [json.loads(line) for line in listed.stdout.splitlines()]
    assert sorted(job["reason"] for job in dead) == ["buried", *["max_attempts"] * 5, "poison"]
    assert _batchq(tmp_path, "requeue", "--all", cwd=folder).returncode == 0
    assert _batchq(tmp_path, "start", "-n", "2", "--burst", cwd=folder).returncode == 0
    again = _batchq(tmp_path, "jobs", "--state", "dead", "--json", cwd=folder)
    assert len(again.stdout.splitlines()) == 7


def test_people_see_a_table_progress_and_what_comes_next(tmp_path: Path) -> None:
    """Data on stdout, progress on stderr, and a hint at the end."""
    done = _batchq(tmp_path, "demo")
    assert done.returncode == 0, done
    assert "All of it adds up." in done.stdout
    assert "FAULT" not in done.stdout
    assert "Next: " in done.stdout
    assert "import 5000/5000" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_url_that_names_no_server_ends_with_4(tmp_path: Path) -> None:
    """The store can't be reached: one line, exit 4, no folder left."""
    done = _batchq(tmp_path, "demo", "--url", "redis://127.0.0.1:1/0")
    assert done.returncode == 4, done
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@contextmanager
def _started(tmp: Path) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """A demo whose pool runs: (the demo, the pool's master)."""
    with subprocess.Popen(
        [sys.executable, "-m", "batchq", "demo", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp,
        env=_environment(tmp),
    ) as demo:
        try:
            yield demo, _wait_for_pool(demo)
        finally:
            if demo.poll() is None:
                demo.kill()


def _wait_for_pool(demo: subprocess.Popen[str]) -> psutil.Process:
    """The master, once all its workers are there."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and demo.poll() is None:
        for child in psutil.Process(demo.pid).children():
            if len(child.children()) >= 8:
                return child
        time.sleep(0.02)
    raise AssertionError(f"no pool: {demo.communicate()}")


def _gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=15)
    return not alive


def test_sigterm_takes_workers_and_store_along(tmp_path: Path) -> None:
    """An end from outside is orderly: no worker and no folder is left."""
    with _started(tmp_path) as (demo, master):
        pool = [master, *master.children()]
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(30) == 128 + signal.SIGTERM
        assert _gone(pool)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_master_is_told_and_ends_with_1(tmp_path: Path) -> None:
    """Work that was not done does not add up: exit 1, and the object says what is missing."""
    with _started(tmp_path) as (demo, master):
        pool = master.children()
        master.kill()
        out, _ = demo.communicate(timeout=60)
        assert _gone(pool)
        assert demo.returncode == 1
    found = json.loads(out)
    assert found["ok"] is False
    assert "the workers' master ended with exit code -9" in found["faults"]
    assert any(fault.startswith("left over: ") for fault in found["faults"])


@pytest.mark.parametrize("url", ["memory:", "spool:."])
def test_a_url_that_can_not_be_used_ends_with_2(tmp_path: Path, url: str) -> None:
    """Wrong usage is told before anything is made."""
    done = _batchq(tmp_path, "demo", "--url", url)
    assert done.returncode == 2, done
    assert done.stderr.startswith("batchq: error: url: ")
    assert list(tmp_path.iterdir()) == []
