"""What an operator wants to know: each question stands in `batchq --help` with the one command that answers it."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from batchq.job import NewJob, Retried, pack_error, pack_row

from .conftest import Run, Scene


@pytest.fixture
def url(any_url: str) -> str:
    """Both kinds of store."""
    return any_url


def commands_of(text: str) -> dict[str, str]:
    """Question -> what the help says to type, the first of several."""
    return dict(re.findall(r"^ *(\w[\w ]+\?)\s+batchq ([^,(\n]+)", text, re.MULTILINE))


def test_eight_questions(run: Run, scene: Scene, here: Path) -> None:
    """Each is answered by one command, which the help names, on either store."""
    # Else imports of other runs on this host would be listed too.
    run = partial(run, env={"BATCHQ_SPOOL": str(here / "inbox")})
    now = scene.store.now_ms()
    for number in range(3):
        scene.dead(f"d{number}", "mail", "deliver", f"no user {number}")
    scene.dead("other", "mail", "resize", "too large")
    worker, claim = scene.active("r", "mail", "deliver")
    error = pack_error("ValueError", "no user 7", attempt=1, at_ms=now, worker=worker, trace="line\nno user 7")
    scene.store.retry("mail", worker, [Retried(claim, 600_000, 5, error)])
    scene.pending("old", "mail")
    late = NewJob("late", pack_row("deliver"), delay_ms=2 * 3_600_000, given=True)
    scene.store.enqueue("mail", [late])
    busy = {"host": "h", "state": "busy", "queue": "mail", "rss": 1 << 20, "handler": "deliver"}
    workers = [busy | {"id": f"w{n}", "pid": n, "job": f"j{n}", "running_ms": n * 60_000} for n in (1, 9, 5)]
    scene.store.publish("m", {"workers": workers}, 60_000)
    (here / "rows.csv").write_text("to\nann\nbob\n")
    run("import", "rows.csv", "--job", "deliver", "-q", "rows").ended(0)

    text = run("--help").ended(0).out
    asked = commands_of(text)
    answers = {question: run(*command.replace(" ID", " d1").split()).ended(0).out
               for question, command in asked.items() if not command.startswith(("top", "doctor"))}  # fmt: skip

    assert "or batchq workers" in text
    assert run("workers").ended(0).out.splitlines()[1].startswith("w9 "), "what is slow now"
    first = answers["Which handler fails most?"].splitlines()[1]
    assert first.split()[:4] == ["4", "3", "deliver", "mail"]
    assert "no user" in first
    assert [line.split()[:2] for line in answers["On which host?"].splitlines()[1:]] == [["4", "host"]]
    mail = next(line for line in answers["What waits longest?"].splitlines() if line.startswith("mail"))
    assert re.search(r"\d+(ms|s)", mail)
    assert "batchq jobs -s pending -n 1" in text
    assert run("jobs", "-s", "pending", "-n", "1").ended(0).out.splitlines()[1].startswith("old ")
    assert [line.split()[0] for line in answers["What is due in the next hour?"].splitlines()[1:]] == ["r"]
    why = answers["Why did that job die?"]
    assert "ValueError: no user 1" in why
    assert "buried" in why
    assert re.search(r"rows\.csv\s+finished\s+100%\s+2\b", answers["How far is the import?"])
    assert re.search(r"^jobs +0$", answers["Is the spool empty?"], re.MULTILINE)
