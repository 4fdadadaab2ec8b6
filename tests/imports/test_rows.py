"""What rows become, and that every one of them is accounted for."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from batchq.importing.progress import LINE_S, Lines
from batchq.importing.run import Counts
from batchq.job import NewJob, pack_row
from batchq.lifecycle import State
from batchq.tally import NewBatch
from tests.cli.conftest import Ran
from tests.process.rig import let_pass

from .conftest import Place

APP = """
import os
from batchq import App, Dead

app = App()


@app.job(queue="typed", max_attempts=1)
def load(n: int, paid: bool, price: float | None, tags: list[str], note: str, when="never") -> None:
    if n == 13:
        raise Dead("thirteen")


@app.job(queue="open")
def anything(*args, **kwargs) -> None:
    pass
"""


def test_every_row_is_accounted_for(place: Place) -> None:
    """Good rows go on past rejected ones, known ids are duplicates, the sums add up, and 1 is the exit code."""
    name = place.write("rows.csv", "id,n\na,1\nb,2\na,3\nno id,4\nc\nd,5\n")
    args = (name, "--job", "echo", "--id", "id")
    done = place.imported(*args)
    counted = {key: done[key] for key in ("rows", "enqueued", "duplicates", "rejected", "earlier", "code")}
    assert counted == {"rows": 6, "enqueued": 3, "duplicates": 1, "rejected": 2, "earlier": 0, "code": 1}
    assert [job.id for job in place.jobs()] == ["a", "b", "d"]
    assert place.jobs()[0].kwargs == {"id": "a", "n": "1"}
    rejects = [json.loads(line) for line in (place.folder / f"{name}.rejects.ndjson").read_bytes().splitlines()]
    assert [(one["line"], one["raw"]) for one in rejects] == [(5, "no id,4"), (6, "c")]
    assert "job_id: 'no id' is no id" in rejects[0]["reason"]
    text = place.run("import", *args, "--restart").ended(1, "line 5", "line 6", "rejects.ndjson")
    assert text.out == "rows.csv: 0 jobs enqueued + 4 duplicates + 2 rejected = 6 rows\n"


def test_terms_of_the_jobs(spool: Place) -> None:
    """--priority, --max-attempts, --in and --queue are every row's."""
    name = spool.write("rows.ndjson", '{"n":1}\n{"n":2}\n')
    spool.imported(name, "--job", "echo", "--priority", "7", "--max-attempts", "3", "-q", "mail", "--in", "1h")
    jobs = spool.jobs("mail", State.DELAYED)
    assert [(job.job, job.priority, job.max_attempts, job.kwargs) for job in jobs] == [
        ("echo", 7, 3, {"n": 1}),
        ("echo", 7, 3, {"n": 2}),
    ]
    assert 3_590_000 < jobs[0].since_ms - spool.store.now_ms() <= 3_600_000


def test_strict_stops_at_the_first(place: Place) -> None:
    """What was sent is said, and no more than that is in the store."""
    rows = "n\n" + "".join(f"{n}\n" for n in range(600)) + "1,2\n" + "7\n" * 600
    done = place.imported(place.write("rows.csv", rows), "--job", "echo", "--strict")
    assert (done["end"], done["code"], done["enqueued"], done["rejected"]) == ("strict", 1, 480, 1)
    assert "stopped at line 602" in done["err"]
    assert len(place.jobs()) == 480
    small = place.imported(place.write("small.csv", "n\n1\n1,2\n"), "--job", "echo", "--strict", "-q", "small")
    assert (small["enqueued"], place.jobs("small")) == (0, [])
    # Nothing was sent: the mended file needs no --restart.
    place.write("small.csv", "n\n1\n2\n")
    assert place.imported("small.csv", "--job", "echo", "--strict", "-q", "small")["code"] == 0


def test_a_dry_run_changes_nothing(place: Place) -> None:
    """It counts and reports as the real one would; neither store nor folder nor state know of it."""
    name = place.take("broken_middle.ndjson")
    before = sorted(path.name for path in place.folder.iterdir())
    done = place.imported(name, "--job", "echo", "--dry-run")
    assert (done["enqueued"], done["rejected"], done["code"], done["dry_run"]) == (7, 3, 1, True)
    assert all(f"line {line}: " in done["err"] for line in (4, 7, 9))
    assert place.store.queues() == []
    assert sorted(path.name for path in place.folder.iterdir()) == before
    assert place.imported(name, "--job", "echo", "--dry-run", "--rejects", "r.ndjson")["rejects"] == "r.ndjson"


def test_rejected_rows_can_be_mended_and_imported(spool: Place) -> None:
    """As the documentation says: the raw text with --columns."""
    name = spool.write("rows.csv", "a,b\n1,2\n3\n")
    spool.imported(name, "--job", "echo")
    [line] = (spool.folder / f"{name}.rejects.ndjson").read_bytes().splitlines()
    mended = spool.write("mended.csv", json.loads(line)["raw"] + ",4\n")
    spool.imported(mended, "--job", "echo", "--columns", "a,b")
    assert [job.kwargs for job in spool.jobs()] == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]


@pytest.mark.parametrize("encoding", ["cp1251", "koi8-r", "utf-16", "shift_jis"])
def test_a_rejected_row_can_be_read_whatever_it_was_written_in(spool: Place, encoding: str) -> None:
    """Else nobody could mend it, and the mended rows would be other text."""
    name = spool.write("rows.csv", "имя,b\nЮля\n".encode(encoding))
    spool.imported(name, "--job", "echo", "--encoding", encoding)
    [line] = (spool.folder / f"{name}.rejects.ndjson").read_bytes().splitlines()
    assert json.loads(line) == {
        "file": name,
        "line": 2,
        "reason": "expected 2 cells (имя, b), found 1",
        "raw": "Юля",
    }


def test_a_rejected_row_that_is_no_text_keeps_its_bytes(spool: Place) -> None:
    """Of a text that had to be transcoded these are not at hand. A cut costs no more than the character it is in."""
    long = "é" * 40_000
    spool.write("bytes.csv", b"a,b\n1,\xe9\n")
    spool.write("wide.csv", "a,b\n1,é".encode("utf-16") + b"\x00\xd8")
    spool.write("long.csv", f"a,b\n{long}\n")
    found = []
    for name in ("bytes.csv", "wide.csv", "long.csv"):
        spool.imported(name, "--job", "echo")
        [line] = (spool.folder / f"{name}.rejects.ndjson").read_bytes().splitlines()
        found.append({key: value for key, value in json.loads(line).items() if key.startswith("raw")})
    assert found == [
        {"raw": "1,\xe9", "raw_is": "latin-1"},
        {"raw": "1,é\ufffd"},
        {"raw": long[: 32 << 10], "raw_bytes": 80_000},
    ]


def test_nobody_s_file_is_overwritten(spool: Place) -> None:
    """A rejects path that holds something else is refused; a link is not followed."""
    name = spool.write("rows.csv", "a\n1\n1,2\n")
    spool.write("mine.txt", "mine\n")
    spool.run("import", name, "--job", "echo", "--rejects", "mine.txt").refused(2, "holds something else")
    (spool.folder / "rows.csv.rejects.ndjson").symlink_to("mine.txt")
    spool.run("import", name, "--job", "echo").refused(2, "--rejects")
    assert (spool.folder / "mine.txt").read_text() == "mine\n"
    old = spool.write("old.ndjson", '{"file":"x"}\n')
    spool.run("import", old, "--job", "echo", "--rejects", old).refused(2, "is the file that is imported")
    assert (spool.folder / old).exists()
    assert spool.store.queues() == []


def test_several_files(spool: Place) -> None:
    """Each has its sums, all of them a total; one --rejects path takes the rejected rows of all."""
    names = [spool.write(f"{n}.csv", f"a\n{n}\n1,2\n") for n in range(3)]
    done = spool.run("import", *names, "--job", "echo", "--rejects", "all.ndjson", "--json").ended(1)
    *each, total = done.lines
    assert [(one["file"], one["rows"], one["rejected"]) for one in each] == [(name, 2, 1) for name in names]
    assert (total["event"], total["enqueued"], total["rejected"], total["rows"]) == ("total", 3, 3, 6)
    kept = [json.loads(line) for line in (spool.folder / "all.ndjson").read_bytes().splitlines()]
    assert [(one["file"], one["line"]) for one in kept] == [(name, 3) for name in names]


def test_a_reader_that_leaves_does_not_end_the_import(spool: Place) -> None:
    """`batchq import ... | head`: the rows are in, and the exit code says how that went."""
    name = spool.write("rows.csv", "a\n1\n1,2\n")
    reading, writing = os.pipe()
    os.close(reading)
    for more in ((), ("--json", "--restart")):
        done = subprocess.run(
            spool.command("import", name, name, "--job", "echo", *more),
            stdout=writing,
            stderr=subprocess.PIPE,
            cwd=spool.folder,
            env=spool.env(),
            timeout=30,
            check=False,
        )
        assert done.returncode == 1, done
        assert b"Traceback" not in done.stderr
    os.close(writing)
    assert len(spool.jobs()) == 3


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "--job is missing"),
        (("--job", "no name"), "no handler's name"),
        (("--job", "x", "-q", "no queue"), "no queue name"),
        (("--envelope", "--id", "n"), "--id"),
        (("--envelope", "--args"), "--args"),
        (("--job", "x", "--new-ids"), "--new-ids"),
        (("--job", "x", "--id", "z"), "no column 'z'"),
        (("--job", "x", "--types", "z:int"), "no column 'z'"),
        (("--job", "x", "--types", "handler"), "--app"),
        (("--job", "x", "--encoding", "klingon"), "no encoding"),
        (("--job", "x", "--delimiter", "ab"), "one ASCII character"),
        (("--job", "x", "--columns", "a"), None),
        (("--job", "x", "--columns", "a,b", "--header"), "2 names for 1 columns"),
        (("--job", "x", "--format", "ndjson", "--types", "n:int"), "of use with CSV only"),
        (("--job", "x", "--no-header", "--kwargs"), "no names"),
        (("--job", "x", "--envelope"), "write envelopes as NDJSON"),
        (("--job", "x", "--dry-run", "--wait"), "--wait"),
        (("--job", "x", "--in", "20000d"), "2039"),
        (("--job", "x", "--in", "5000d"), "2039"),
    ],
)
def test_wrong_options_are_refused_before_the_first_row(
    inside: Callable[..., Ran], spool: Place, args: tuple[str, ...], said: str | None
) -> None:
    """One line, exit 2, nothing in the store."""
    name = spool.write("rows.csv", "n\n1\n")
    done = inside("import", name, *args)
    if said is None:
        done.ended(0)
    else:
        done.refused(2, said)
        assert spool.store.queues() == []


def test_types_by_the_handler(spool: Place) -> None:
    """Annotations say what cells are, the handler where they go, and its signature which columns it takes."""
    spool.write("tasks.py", APP)
    name = spool.write("rows.csv", 'n,paid,price,tags,note\n007,yes,,"[""a""]",1\n8,no,2.5,[],\nx,no,1,[],\n')
    args = ("--job", "load", "--types", "handler", "--app", "tasks:app")
    done = spool.imported(name, *args)
    assert (done["enqueued"], done["rejected"]) == (2, 1)
    assert [job.kwargs for job in spool.jobs("typed")] == [
        {"n": 7, "paid": True, "price": None, "tags": ["a"], "note": "1"},
        {"n": 8, "paid": False, "price": 2.5, "tags": [], "note": ""},
    ]
    spool.run("import", spool.write("few.csv", "n,paid\n1,yes\n"), *args).refused(2, "load() missing")
    spool.run("import", spool.write("many.csv", "n,wrong\n1,yes\n"), *args).refused(2, "load()")
    rows = spool.write("rows.ndjson", '[1,true,null,[],"x"]\n[1]\n[1,2,3,4,5,6,7]\n')
    done = spool.imported(rows, "--job", "load", "--app", "tasks:app")
    assert (done["enqueued"], done["rejected"]) == (1, 2)
    assert spool.jobs("typed")[-1].args == [1, True, None, [], "x"]
    spool.run("import", name, "--job", "nobody", "--types", "handler", "--app", "tasks:app").ended(1, "nobody")


def test_positional_rows(spool: Place) -> None:
    """--args, rows without names, lists; ids by name or by number."""
    spool.imported(spool.write("a.csv", "a,b\n1,2\n"), "--job", "echo", "--args", "--id", "b")
    spool.imported(spool.write("b.csv", "3,4\n"), "--job", "echo", "--no-header", "--id", "1", "--types", "2:int")
    spool.imported(spool.write("c.ndjson", "[5,6]\n"), "--job", "echo", "--id", "2")
    assert [(job.id, job.args) for job in spool.jobs()] == [("2", ["1", "2"]), ("3", ["3", 4]), ("6", [5, 6])]


# -- envelopes and export -------------------------------------------------------------------------------------------


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_envelopes_say_what_they_are(place: Place) -> None:
    """Each line its own handler, queue, arguments, id, time; --job and --queue for lines that say nothing."""
    name = place.write(
        "rows.ndjson",
        lines(
            {"job": "a", "args": [1], "kwargs": {"x": 2}, "id": "one", "queue": "mail", "priority": 5},
            {"job": "b", "delay": 0.5, "max_attempts": 2},
            {"kwargs": {"y": 3}},
            {"job": "c", "at": "2035-01-01T00:00:00+01:00"},
            {"v": 1, "job": "d", "delay_ms": 60000, "max": 4, "given": False},
            {"job": "e", "kwarg": {}},
            {"job": "f", "at": "2035-01-01T00:00:00"},
            {"job": "g", "delay": 1, "at": 5},
            {"job": "h", "priority": 101},
            {"job": "i", "args": {}},
            {"job": "j", "delay": 10**12},
            {"job": "k k"},
        ),
    )
    done = place.imported(name, "--envelope", "--job", "other", "-q", "rest")
    assert (done["enqueued"], done["rejected"]) == (5, 7)
    [one] = place.jobs("mail")
    assert (one.id, one.job, one.args, one.kwargs, one.priority) == ("one", "a", [1], {"x": 2}, 5)
    assert [job.job for job in place.jobs("rest")] == ["other"]
    delayed = {job.job: job for job in place.jobs("rest", State.DELAYED)}
    assert sorted(delayed) == ["b", "c", "d"]
    assert (delayed["b"].max_attempts, delayed["d"].max_attempts) == (2, 4)
    assert delayed["c"].since_ms == 2_051_218_800_000
    reasons = done["err"]
    assert "did you mean kwargs?" in reasons
    assert "no time zone" in reasons
    # Both queues go on under their own marks.
    assert place.imported(name, "--envelope", "--job", "other", "-q", "rest")["earlier"] == 5


def test_an_object_with_a_job_in_it_is_no_envelope_by_itself(spool: Place) -> None:
    """Nothing is guessed: without --envelope it is arguments."""
    spool.imported(spool.write("rows.ndjson", lines({"job": "clerk", "args": [1]})), "--job", "hire")
    [job] = spool.jobs()
    assert (job.job, job.kwargs) == ("hire", {"job": "clerk", "args": [1]})


def test_export_is_what_import_takes(place: Place) -> None:
    """The dead go out with their errors and come in again: known under their ids, new with --new-ids."""
    place.write("tasks.py", APP)
    rows = lines(*({"n": n, "paid": True, "price": 1.0, "tags": [], "note": "é"} for n in (13, 1, 13)))
    place.imported(place.write("rows.ndjson", rows), "--job", "load", "--app", "tasks:app", "--max-attempts", "1")
    place.run("start", "-n", "1", "tasks:app", "--burst", BATCHQ_FALLBACK="false").ended(0)
    out = place.run("export", "--state", "dead", "-q", "typed").ended(0, "2 jobs").out
    exported = [json.loads(line) for line in out.splitlines()]
    assert [(one["state"], one["job"], one["error"], one["kwargs"]["n"]) for one in exported] == [
        ("dead", "load", "thirteen", 13)
    ] * 2
    assert all(one["errors"] and one["max_attempts"] == 1 for one in exported)
    place.write("dead.ndjson", out)
    known = place.imported("dead.ndjson", "--envelope")
    assert (known["enqueued"], known["duplicates"], known["code"]) == (0, 2, 0)
    again = place.imported("dead.ndjson", "--envelope", "--new-ids", "--restart")
    assert again["enqueued"] == 2
    jobs = place.jobs("typed")
    assert [(job.job, job.kwargs, job.max_attempts) for job in jobs] == [
        (one["job"], one["kwargs"], 1) for one in exported
    ]
    listed = place.run("jobs", "--json", "--state", "dead", "-q", "typed").ended(0).out
    done = place.imported("-", "--envelope", "--new-ids", "--format", "ndjson", stdin=listed.encode())
    assert done["enqueued"] == 2
    assert place.run("export", "-s", "pending", "--limit", "1").ended(0).out.count("\n") == 1


def test_a_job_s_own_terms_come_with_it(place: Place) -> None:
    """Its attempts, time limit and the retention of its result; its batch is a matter of the past."""
    place.store.begin("default", NewBatch("b"))
    row = pack_row("load", [1], max_attempts=2, timeout_ms=7000, keep_ms=60_000)
    place.store.enqueue("default", [NewJob("a", row, given=True, batch="b")])
    out = place.run("export", "--state", "pending").ended(0).out
    place.imported("-", "--envelope", "--new-ids", "--format", "ndjson", stdin=out.encode())
    old, new = place.jobs()
    assert (new.max_attempts, new.timeout_ms, new.keep_ms) == (2, 7000, 60_000)
    assert (old.batch, new.batch) == ("b", "")


# -- the second stage ------------------------------------------------------------------------------------------------


def test_wait_sees_the_last_row_settled(place: Place) -> None:
    """It ends when nothing stands in the queue; a job that died makes the exit code 1, and what is counted is said."""
    place.write("tasks.py", APP)
    rows = lines(*({"n": n, "paid": True, "price": 1.0, "tags": [], "note": ""} for n in range(600)))
    name = place.write("rows.ndjson", rows)
    pool = subprocess.Popen(
        place.command("start", "-n", "1", "-q", "typed", "-q", "open", "tasks:app"),
        cwd=place.folder,
        env=place.env(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        done = place.run("import", name, "--job", "load", "--app", "tasks:app", "--wait", "--json")
        assert done.code == 1, done
        settled = done.lines[-1]
        assert (settled["event"], settled["queue"], settled["completed"], settled["dead"]) == (
            "settled",
            "typed",
            599,
            1,
        )
        assert settled["waiting"] == 0
        assert "whoever enqueued there" in done.err
        good = place.run("import", name, "--job", "anything", "-q", "open", "--wait")
        good.ended(0)
        assert "queue open: 600 completed, 0 dead" in good.out
        # Nothing new: the baseline is that of the import, not of this run.
        assert "600 completed" in place.run("import", name, "--job", "anything", "-q", "open", "--wait").ended(0).out
    finally:
        pool.terminate()
        pool.wait(20)


def test_lines_and_events_while_it_runs(spool: Place) -> None:
    """Once a second is over the next chunk brings a line with rows and rate, or an event for programs."""
    rows = b"n\n" + b"1\n" * 40_000

    def begin(*more: str) -> subprocess.Popen[bytes]:
        args = ("import", "-", "--job", "echo", "--format", "csv", "--dry-run", *more)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(spool.command(*args), cwd=spool.folder, env=spool.env(), **pipes)  # type: ignore[call-overload,no-any-return]

    plain, events = begin(), begin("--json")
    for process in (plain, events):
        assert process.stdin is not None
        process.stdin.write(rows)
        process.stdin.flush()
        # It has begun once it says what it reads.
        assert process.stderr is not None
        assert b"csv" in process.stderr.readline()
    let_pass(LINE_S)
    (_, said), (out, _) = (process.communicate(rows[2:], timeout=30) for process in (plain, events))
    assert re.search(rb"^stdin: \d+ rows, \d+ rows/s$", said, re.MULTILINE)
    shown = [json.loads(line) for line in out.splitlines()]
    assert [one["event"] for one in shown][-1] == "summary"
    progress = [one for one in shown if one["event"] == "progress"]
    assert progress
    assert 0 < progress[0]["rows"] <= 80_000
    assert progress[0]["total_bytes"] is None


def test_the_time_left_is_by_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the bytes took two seconds: two are left. Packed files count as they lie on the disk."""
    lines = Lines()
    lines.begin("rows.csv", 1000)
    lines._show(Counts(enqueued=90, rejected=10), 500, 2.0)
    lines._show(Counts(earlier=5), 0, 2.0)
    assert capsys.readouterr().err == (
        "rows.csv: 100 rows, 10 rejected, 50%, 50 rows/s, 2s left\n"
        "rows.csv: 5 rows, 5 by an earlier run, 0%, 2 rows/s\n"
    )
