"""`batchq backoff`: table, plot, herd and pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Run

APP = """
from batchq import App, exponential
app = App()

@app.job(max_attempts=3, backoff=exponential(2.0, cap=60, jitter=0))
def deliver(): ...

@app.job
def plain(): ...
"""


@pytest.fixture
def app(here: Path) -> str:
    (here / "shop.py").write_text(APP)
    return "shop:app"


def test_the_default_policy(run: Run) -> None:
    """What jobs get that say nothing: a row a retry, and when the job is dead."""
    done = run("backoff", "--json").ended(0).json
    assert done["attempts"] == 5
    assert [step["base_ms"] for step in done["steps"]] == [1000, 2000, 4000, 8000]
    out = run("backoff").ended(0).out
    assert "Attempt 5 is the last: dead 15s after the first failure" in out
    assert "3.2s" in out
    assert "█" in out


def test_a_handlers_own_policy(run: Run, app: str) -> None:
    """--job takes policy and attempts from the code."""
    done = run("backoff", "--job", "deliver", "--app", app, "--json").ended(0).json
    assert [(step["low_ms"], step["high_ms"]) for step in done["steps"]] == [(2000, 2000), (4000, 4000)]
    assert run("backoff", "--job", "plain", "--json", env={"BATCHQ_APP": app}).ended(0).json["attempts"] == 5
    run("backoff", "--job", "nope", "--app", app).refused(1, "handler 'nope'", "deliver, plain")
    run("backoff", "--job", "deliver").refused(2, "no app given")


def test_a_herd(run: Run) -> None:
    """Two histograms of the same jobs: at once without jitter, spread with it."""
    args = ("backoff", "--herd", "1000", "--fixed", "--base", "10s", "--full-jitter", "--attempts", "3")
    found = run(*args, "--json").ended(0).json["herd"]
    assert (found["returns"], found["peak_without"]) == (2000, 1000)
    assert found["peak_jittered"] < 50
    out = run(*args).ended(0).out
    assert "without jitter: at most 1,000 within 100ms" in out
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_picture(run: Run, here: Path, kind: str) -> None:
    """Written as that kind."""
    run("backoff", "--herd", "10", f"--{kind}", f"out.{kind}").ended(0)
    data = (here / f"out.{kind}").read_bytes()
    assert data.startswith(b"\x89PNG" if kind == "png" else b"<?xml")


def test_a_terminal_without_block_characters(run: Run) -> None:
    """In ASCII it draws with what there is."""
    out = run("backoff", "--herd", "10", env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}).ended(0).out
    assert out.isascii()
    assert "####" in out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--jitter", "20%"), "fraction"),
        (("--jitter", "2"), "fraction"),
        (("--attempts", "1"), "--attempts"),
        (("--delays", "1s,x"), "--delays"),
        (("--delays", "1s", "--base", "2s"), "--delays"),
        (("--job", "deliver", "--base", "2s"), "--job"),
        (("--herd", "0"), "--herd"),
    ],
)
def test_wrong_options(run: Run, args: tuple[str, ...], said: str) -> None:
    """One line, exit 2."""
    run("backoff", *args).refused(2, said)
