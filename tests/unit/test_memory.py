"""Where the kernel's count of kills stands, and what is said of a SIGKILL."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchq.system.memory import HIGHEST, RAISE, KillCount, be_first_to_go, hint


@pytest.mark.parametrize(
    ("own", "place"),
    [
        ("0::/system.slice/batchq.service\n", "system.slice/batchq.service/memory.events"),
        ("0::/kubepods/pod1/c2\n", "memory.events"),
        ("9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n", "memory/docker/abc/memory.oom_control"),
        ("4:memory:/docker/abc\n", "memory/memory.oom_control"),
    ],
    ids=["unified", "unified in a container", "old", "old in a container"],
)
def test_count_is_found_and_followed(tmp_path: Path, own: str, place: str) -> None:
    """It grows: True, once."""
    (tmp_path / "own").write_text(own)
    file = tmp_path / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("low 0\noom 7\noom_kill 2\noom_group_kill 5\n")
    count = KillCount(tmp_path, tmp_path / "own")
    assert count.has_grown() is False
    file.write_text("low 0\noom 8\noom_kill 3\noom_group_kill 5\n")
    assert count.has_grown() is True
    assert count.has_grown() is False
    file.unlink()
    assert count.has_grown() is None


def test_nobody_can_say_where_nothing_is_counted(tmp_path: Path) -> None:
    """No group, no file, no such line."""
    assert KillCount(tmp_path, tmp_path / "none").has_grown() is None
    (tmp_path / "own").write_text("0::/x\n")
    assert KillCount(tmp_path, tmp_path / "own").has_grown() is None
    (tmp_path / "memory.events").write_text("low 0\n")
    assert KillCount(tmp_path, tmp_path / "own").has_grown() is None


def test_the_three_hints_differ() -> None:
    """By the kernel, by others, unknown."""
    assert len({hint(True), hint(False), hint(None)}) == 3


def test_adjustment_is_raised_and_never_too_high(tmp_path: Path) -> None:
    """From any value; nothing happens where there is no such file."""
    file = tmp_path / "oom_score_adj"
    for before, after in ((0, RAISE), (-500, RAISE - 500), (900, HIGHEST), (1000, HIGHEST)):
        file.write_text(f"{before}\n")
        be_first_to_go(file)
        assert int(file.read_text()) == after
    be_first_to_go(tmp_path / "none")
