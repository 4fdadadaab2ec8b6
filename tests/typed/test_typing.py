"""What the type checker says of users' code: right calls pass, wrong ones are found."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from subprocess import run

import pytest

pytest.importorskip("mypy", reason="mypy is in the extra `dev`")

HERE = Path(__file__).parent


@pytest.mark.timeout(300)
def test_right_calls_pass_and_wrong_ones_are_found(tmp_path: Path) -> None:
    """The lines that mypy --strict refuses are exactly those marked E; it knows the package as typed."""
    done = run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            "--config-file=",
            f"--cache-dir={tmp_path}",
            str(HERE / "good.py"),
            str(HERE / "bad.py"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=280,
        check=False,
    )
    assert done.stderr == ""
    found = {(Path(file).name, int(line)) for file, line in re.findall(r"^(.+?):(\d+): error:", done.stdout, re.M)}
    lines = (HERE / "bad.py").read_text("utf-8").splitlines()
    expected = {("bad.py", number) for number, line in enumerate(lines, 1) if line.endswith("# E")}
    assert found == expected, done.stdout
    assert len(expected) > 20
