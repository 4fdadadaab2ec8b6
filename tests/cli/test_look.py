"""status, jobs, show, workers and spool: what people and programs see."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from batchq.cli import output
from batchq.cli.endings import flush
from batchq.lifecycle import TOTALS, unaccounted

from .conftest import BATCHQ, DEADLINE_S, Run, Scene, environment


def test_status_of_an_empty_store(run: Run, url: str) -> None:
    """Nothing there is an answer, not an error."""
    assert "nothing was ever enqueued" in run("status").ended(0).out
    found = run("status", "--json").ended(0).json
    assert found["store"]["url"] == url
    assert (found["store"]["kind"], found["store"]["up"]) == ("spool", True)
    assert (found["queues"], found["workers"]) == ({}, [])
    assert set(found["spool"]) == {"path", "files", "jobs", "bad"}


@pytest.mark.parametrize(
    "command", [("status",), ("jobs",), ("show", "x"), ("workers",), ("export", "--state", "dead")]
)
def test_looking_makes_no_spool(run: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    """Neither the one that is named nor the default one: it would look like a place where jobs wait."""
    home = tmp_path / "home"
    ran = run(*command, env={"BATCHQ_SPOOL": str(home / "spool")})
    assert ran.code in (0, 1), ran
    assert not home.exists()
    assert not (tmp_path / "spool").exists()


def test_status_counts_each_state(run: Run, scene: Scene) -> None:
    """Counts are jobs in that state now, totals obey the law."""
    scene.dead("d")
    scene.completed("c")
    scene.active("a")
    scene.pending("p1")
    scene.pending("p2")
    scene.delayed("z")
    queue = run("status", "--json").ended(0).json["queues"]["default"]
    assert queue["counts"] == {"pending": 2, "delayed": 1, "active": 1, "completed": 1, "dead": 1}
    assert set(queue["totals"]) == set(TOTALS)
    assert unaccounted(queue["counts"], queue["totals"]) == 0
    assert queue["oldest_pending_age_ms"] >= 0
    titles, row = (line.split() for line in run("status").out.splitlines()[-2:])
    assert dict(zip(titles, row, strict=False)) | {"LAG": ""} == {
        "QUEUE": "default",
        "PENDING": "2",
        "DELAYED": "1",
        "ACTIVE": "1",
        "DEAD": "1",
        "KEPT": "1",
        "DONE": "1",
        "LAG": "",
    }


def test_status_watches_until_it_is_interrupted(here: Path, url: str, scene: Scene) -> None:
    """--watch answers again and again; Ctrl-C ends it with 130 and without a traceback."""
    scene.pending("p")
    with subprocess.Popen(
        [*BATCHQ, "status", "--watch", "--every", "100ms", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=here,
        env=environment(BATCHQ_URL=url),
    ) as watch:
        assert watch.stdout is not None
        looks = [json.loads(watch.stdout.readline()) for _ in range(3)]
        watch.send_signal(signal.SIGINT)
        _, err = watch.communicate(timeout=DEADLINE_S)
    assert [look["queues"]["default"]["counts"]["pending"] for look in looks] == [1, 1, 1]
    assert watch.returncode == 130
    assert "Traceback" not in err


def test_watch_ends_when_its_reader_leaves(here: Path, url: str) -> None:
    """`batchq status --watch | head -1` ends, quietly."""
    with subprocess.Popen(
        [*BATCHQ, "status", "--watch", "--every", "100ms", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=here,
        env=environment(BATCHQ_URL=url),
    ) as watch:
        assert watch.stdout is not None
        assert watch.stderr is not None
        watch.stdout.readline()
        watch.stdout.close()
        assert watch.wait(timeout=DEADLINE_S) == 0
        assert watch.stderr.read() == ""


@pytest.mark.parametrize(
    ("args", "ids"),
    [
        ((), {"a", "d", "d2", "c", "p", "z", "m"}),
        (("--state", "pending"), {"p", "m"}),
        (("--state", "dead"), {"d", "d2"}),
        (("--state", "delayed"), {"z"}),
        (("--state", "active"), {"a"}),
        (("--state", "completed"), {"c"}),
        (("-q", "mail"), {"m"}),
        (("--queue", "default", "--state", "pending"), {"p"}),
        (("--job", "import"), {"d2"}),
        (("--job", "none"), set()),
    ],
)
def test_jobs_filters(run: Run, scene: Scene, args: tuple[str, ...], ids: set[str]) -> None:
    """By state, queue and handler; as a table and as JSON lines."""
    scene.dead("d")
    scene.dead("d2", job="import")
    scene.completed("c")
    scene.active("a")
    scene.pending("p")
    scene.pending("m", "mail")
    scene.delayed("z")
    found = run("jobs", *args, "--json").ended(0)
    assert {job["id"] for job in found.lines} == ids
    if ids:
        assert {line.split()[0] for line in run("jobs", *args).ended(0).out.splitlines()[1:]} == ids
    else:
        run("jobs", *args).ended(0, "batchq: no ", " job")


def test_dead_jobs_say_why(run: Run, scene: Scene) -> None:
    """The keys that programs rely on for the dead."""
    scene.dead("d", error="boom \x1b[31m")
    [job] = run("jobs", "--state", "dead", "--json").ended(0).lines
    assert {"id", "queue", "job", "state", "attempts", "priority", "enqueued_ms", "error", "reason", "died_ms"} <= set(
        job
    )
    assert (job["reason"], job["error"]) == ("buried", "boom \x1b[31m")
    assert "\x1b" not in run("jobs").out


def test_jobs_says_that_there_are_more(run: Run, scene: Scene) -> None:
    """The limit cuts, and says so; 0 lists all."""
    for number in range(105):
        scene.pending(f"p{number}")
    assert len(run("jobs", "--json").ended(0, "more than 100").lines) == 100
    assert len(run("jobs", "--json", "--limit", "7").ended(0, "more than 7").lines) == 7
    everything = run("jobs", "--json", "--limit", "0").ended(0)
    assert ([job["id"] for job in everything.lines], everything.err) == ([f"p{n}" for n in range(105)], "")
    exactly = run("jobs", "--json", "--limit", "105").ended(0)
    assert (len(exactly.lines), exactly.err) == (105, "")
    assert len(run("jobs", "--limit", "105").ended(0).out.splitlines()) == 106


def test_the_first_line_of_many(here: Path, url: str, scene: Scene) -> None:
    """A reader that takes one line of many ends it, without a word."""
    for number in range(3000):
        scene.pending(f"p{number}", text="x" * 100)
    command = f"{' '.join(BATCHQ)} jobs --limit 0 --json | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        cwd=here,
        env=environment(BATCHQ_URL=url),
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["id"] == "p0"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--state", "waiting"), "--state"),
        (("--limit", "-1"), "--limit"),
        (("--limit", "1_0"), "--limit"),
        (("--limit", "many"), "--limit"),
        (("--queue", "a b"), "queue"),
    ],
)
def test_jobs_refuses(run: Run, args: tuple[str, ...], said: str) -> None:
    """Wrong filters are wrong usage."""
    run("jobs", *args).refused(2, said)


def test_a_queue_that_was_never_used_is_said(run: Run, scene: Scene) -> None:
    """An empty list of a queue that nobody knows is most likely a slip."""
    scene.pending("p")
    run("jobs", "-q", "defualt").ended(0, "nothing was ever enqueued to queue defualt; known are: default")


def test_show_says_all(run: Run, scene: Scene) -> None:
    """State, arguments and errors, with their traces."""
    scene.dead("d", error="boom")
    out = run("show", "d").ended(0).out
    for text in ("state", "dead", "buried", '["x"]', "ATTEMPT", "boom"):
        assert text in out
    shown = run("show", "d", "--json").ended(0).json
    assert shown["errors"][0]["kind"] == "ValueError"
    scene.completed("c")
    assert run("show", "c", "--json").ended(0).json["result"] == {"sent": 1}


@pytest.mark.parametrize("job_id", ["nope", "", "a b", "x" * 5000, "\x1b[31m", "a\nb", "*"])
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_show_of_an_unknown_job(run: Run, scene: Scene, job_id: str, more: tuple[str, ...]) -> None:
    """Exit 1, and which."""
    scene.pending("p")
    done = run("show", job_id, *more).refused(1, "not in any queue")
    assert "\x1b" not in done.err


def test_show_in_one_queue(run: Run, scene: Scene) -> None:
    """-q looks there only."""
    scene.pending("p", "mail")
    run("show", "p", "-q", "mail").ended(0)
    run("show", "p", "-q", "default").ended(1, "not in queue default")


def test_workers(run: Run, scene: Scene) -> None:
    """What masters published; none is an answer."""
    run("workers").ended(0, "no master is running")
    assert run("workers", "--json").ended(0).out == ""
    one = {
        "id": "w1",
        "host": "h",
        "pid": 7,
        "state": "busy",
        "job": "j1",
        "handler": "deliver",
        "queue": "q",
        "running_ms": 61_000,
        "rss": 1 << 20,
    }
    idle = {"id": "w2", "host": "h", "pid": 8, "state": "idle", "job": "", "queue": "", "running_ms": 0, "rss": 0}
    scene.store.publish("m", {"workers": [one, idle]}, 60_000)
    assert run("workers", "--json").ended(0).lines == [one, idle]
    rows = [line.split() for line in run("workers").ended(0).out.splitlines()]
    assert rows[1] == ["w1", "h", "7", "busy", "q", "deliver", "j1", "1m1s", "1MiB"]
    assert rows[2] == ["w2", "h", "8", "idle", "-", "-", "-", "-", "-"]
    assert "2 on 1 host: 1 busy, 1 idle" in run("status").ended(0).out


def test_spool_status(run: Run, scene: Scene, tmp_path: Path) -> None:
    """Files of the inbox, what was moved aside and why; without a spool it says so and makes none."""
    spool = tmp_path / "spool"
    (spool / "inbox" / "new" / "a.json").write_text('{"job":"deliver"}\n')
    found = run("spool", "status", "--json").ended(0).json
    assert (found["path"], found["exists"], found["files"], found["jobs"], found["bad"]) == (str(spool), True, 1, 1, 0)
    (spool / "inbox" / "new" / "b.json").write_text("{")
    scene.store.promote("default")
    scene.store.sweep_inbox()  # type: ignore[attr-defined]
    found = run("spool", "status", "--json").ended(0).json
    assert (found["files"], found["bad"]) == (0, 1)
    [aside] = found["moved_aside"]
    assert aside["file"].endswith("b.json")
    assert "line 1" in aside["why"]
    assert aside["why"] in run("spool", "status").ended(0).out
    nowhere = tmp_path / "nowhere"
    assert run("spool", "status", "--spool", str(nowhere), "--json").ended(0).json["exists"] is False
    assert not nowhere.exists()


def test_no_colour_and_no_tables_in_a_pipe(run: Run, scene: Scene) -> None:
    """What is not a terminal gets aligned columns without a single escape."""
    scene.dead("d")
    for args in (("status",), ("jobs",), ("show", "d"), ("workers",)):
        done = run(*args, env={"FORCE_COLOR": "1", "TERM": "xterm-256color"}).ended(0)
        assert "\x1b" not in done.out + done.err


@pytest.mark.parametrize("more", [{}, {"NO_COLOR": "1"}])
@pytest.mark.parametrize("columns", ["1", "200"])
def test_tables_on_a_terminal(here: Path, url: str, scene: Scene, more: dict[str, str], columns: str) -> None:
    """A terminal of any width gets a table, in colour unless NO_COLOR is set; payloads move no cursor."""
    scene.dead("d", error="boom \x1b[2J [red]x[/red]")
    primary, secondary = os.openpty()
    env = environment(BATCHQ_URL=url, TERM="xterm-256color", COLUMNS=columns, **more)
    done = subprocess.Popen([*BATCHQ, "jobs"], stdout=secondary, stderr=subprocess.PIPE, cwd=here, env=env)
    os.close(secondary)
    shown = b""
    try:
        while part := os.read(primary, 65536):
            shown += part
    except OSError:
        pass  # The other side is closed: that is how a pty says so.
    finally:
        os.close(primary)
    _, err = done.communicate(timeout=DEADLINE_S)
    assert (done.returncode, err) == (0, b"")
    assert b"\x1b[2J" not in shown
    if columns == "200":
        assert (b"\x1b[31m" in shown) == (not more)
        assert b"boom \\x1b[2J [red]x[/red]" in shown


def test_text_that_the_locale_can_not_show(run: Run, scene: Scene) -> None:
    """An ASCII terminal gets escapes, JSON is UTF-8 all the same."""
    scene.pending("p", text="🙂")
    ascii_only = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert "\\U0001f642" in run("show", "p", env=ascii_only).ended(0).out
    assert run("show", "p", "--json", env=ascii_only).ended(0).json["kwargs"] == {"text": "🙂"}


def test_a_frame_of_watch_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands on several lines reaches a terminal in one piece: nobody sees half of it."""
    under = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BufferedWriter(under), line_buffering=True))
    output.write("a line\n")
    assert under.getvalue() == b"a line\n"
    output.write_whole_frames()
    output.write("one\n")
    output.write("two\n")
    assert under.getvalue() == b"a line\n"
    flush()
    assert under.getvalue() == b"a line\none\ntwo\n"
