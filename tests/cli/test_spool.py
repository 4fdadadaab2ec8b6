"""`batchq spool ...`: looking into a spool, mending it, taking it elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .conftest import Run, Scene


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def drop(path: Path, name: str, text: str) -> None:
    (path / "inbox" / "tmp" / name).write_text(text)
    (path / "inbox" / "tmp" / name).rename(path / "inbox" / "new" / name)


def test_check_of_a_well_spool(run: Run, scene: Scene) -> None:
    scene.dead("d")
    scene.active("a")
    assert "all is well" in run("spool", "check").ended(0).out
    found = run("spool", "check", "--json").ended(0).json
    assert found["well"]
    assert {one["level"] for one in found["findings"]} <= {"note"}


def test_check_says_what_repair_would_mend(run: Run, scene: Scene) -> None:
    """1 while something is to be done, 0 once it is."""
    scene.pending("p")
    run("spool", "sql", "--write", "UPDATE tally SET n_pending=5").ended(0)
    broken = run("spool", "check").ended(1, "--repair mends what is mendable")
    assert "mendable  1 queues whose counts" in broken.out
    assert "mended    1 queues whose counts" in run("spool", "check", "--repair").ended(0).out
    assert "mend" not in run("spool", "check").ended(0).out


def test_check_where_there_is_no_spool(run: Run, tmp_path: Path) -> None:
    run("spool", "check", "--spool", str(tmp_path / "none"), "--repair").refused(4, "found nothing there")
    for command in (("dump",), ("vacuum",), ("sql", "SELECT 1"), ("ls",), ("cat", "x"), ("salvage", "new")):
        run("spool", *command, "--spool", str(tmp_path / "none")).refused(4, "expected a")
    assert not (tmp_path / "none").exists()


def test_dump_and_load_move_a_spool(run: Run, scene: Scene, tmp_path: Path) -> None:
    """Through a pipe, with a line changed on its way."""
    scene.dead("d")
    scene.pending("p")
    scene.delayed("z")
    dumped = run("spool", "dump").ended(0)
    assert len(dumped.lines) > 4
    new = str(tmp_path / "new")
    changed = dumped.out.replace('"state":"dead"', '"state":"pending"')
    assert run("spool", "load", "-", "--spool", new, stdin=changed).ended(0).out == "3 jobs\n"
    listed = run("jobs", "--url", f"spool:{new}", "--json").ended(0).lines
    assert {one["id"]: one["state"] for one in listed} == {"d": "pending", "p": "pending", "z": "delayed"}
    run("spool", "check", "--spool", new).ended(0)
    run("spool", "load", "-", "--spool", new, stdin=changed).refused(1, "expected an empty spool")
    run("spool", "load", "-", "--spool", str(tmp_path / "x"), stdin="{}\n").refused(
        2, "dump: line 1: expected batchq_dump"
    )


def test_people_can_look_inside(run: Run, scene: Scene, path: Path) -> None:
    """As into a directory of files."""
    scene.pending("p", queue="mail", job="send", n=1)
    scene.dead("d")
    drop(path, "order.json", '{"job":"send"}\n')
    top = run("spool", "ls").ended(0).out
    assert "inbox/new/" in top
    assert "mail/pending/" in top
    assert run("spool", "ls", "mail/pending", "--json").ended(0).lines[0]["path"] == "mail/pending/p"
    assert "inbox/new/order.json" in run("spool", "ls", "inbox/new").ended(0).out
    assert "default/dead/d" in run("spool", "ls", "default").ended(0).out
    run("spool", "ls", "nowhere").refused(2, "no such place")
    # A name may be any bytes.
    (path / "inbox" / "new" / os.fsdecode(b"a\xff")).touch()
    assert "inbox/new/a\\udcff" in [one["path"] for one in run("spool", "ls", "inbox/new", "--json").ended(0).lines]
    (path / "inbox" / "new" / os.fsdecode(b"a\xff")).unlink()
    assert run("spool", "cat", "inbox/new/order.json").ended(0).out == '{"job":"send"}\n'
    assert run("spool", "cat", "mail/pending/p").ended(0).json["kwargs"] == {"n": 1}
    # The line makes the job anew.
    drop(path, "own.json", '{"job":"send","id":"own","queue":"mail","max":2,"timeout":3000,"keep":4000,"args":["x"]}')
    scene.store.sweep_inbox()
    drop(path, "again.json", run("spool", "cat", "own").ended(0).out.replace('"id":"own"', '"id":"q"'))
    scene.store.sweep_inbox()
    again = scene.store.get("mail", "q")
    assert again is not None
    assert (again.job, again.args) == ("send", ["x"])
    assert (again.max_attempts, again.timeout_ms, again.keep_ms) == (2, 3000, 4000)
    run("spool", "cat", "none").refused(1, "no such job")
    run("spool", "cat", "inbox/../queue.db").refused(1, "expected inbox/<folder>/<file>")


def test_file_that_was_moved_aside_is_mended_and_accepted(run: Run, scene: Scene, path: Path) -> None:
    drop(path, "order.json", '{"job":')
    scene.store.sweep_inbox()
    assert "accept" in run("spool", "check").ended(1).out
    [name] = [one for one in os.listdir(path / "inbox" / "bad") if not one.endswith(".why")]
    run("spool", "accept", name).refused(1, "still is no parcel")
    (path / "inbox" / "bad" / name).write_text('{"job":"send"}')
    assert run("spool", "accept", name).ended(0).out == f"1 jobs of {name}\n"
    run("spool", "check").ended(0)
    assert scene.store.sweep_inbox().jobs == 1


def test_sql_of_several_lines(run: Run, scene: Scene) -> None:
    """A shell by its stdin: each statement is run when its semicolon has come."""
    scene.pending("p")
    text = "SELECT id\n  FROM job;\nSELECT n_pending, paused FROM tally;"
    assert run("spool", "sql", "--json", stdin=text).ended(0).lines == [{"id": "p"}, {"n_pending": 1, "paused": 0}]
    run("spool", "sql", "DELETE FROM job").refused(2, "to write say --write")
    assert run("spool", "sql", "SELECT id, owner FROM job").ended(0).out.split() == ["id", "owner", "p"]


def test_salvage_and_vacuum(run: Run, scene: Scene, tmp_path: Path) -> None:
    scene.pending("p")
    scene.store.close()
    assert "1 jobs saved" in run("spool", "salvage", str(tmp_path / "new")).ended(0).out
    assert run("jobs", "--url", f"spool:{tmp_path / 'new'}", "--json").ended(0).json["id"] == "p"
    done = run("spool", "vacuum", "--json").ended(0).json
    assert done["after"] <= done["before"]


def test_share_and_back(run: Run, scene: Scene, path: Path) -> None:
    """With a group that this process is in; `check` finds that in order."""
    group = str(os.getgid())
    assert f"members of {group} may drop files" in run("spool", "share", group).ended(0).out
    assert (path / "inbox" / "new").stat().st_mode & 0o7777 == 0o3770
    assert "all is well" in run("spool", "check").ended(0).out
    run("spool", "share", "--off").ended(0)
    assert (path / "inbox" / "new").stat().st_mode & 0o7777 == 0o700
    run("spool", "share").refused(2, "expected a GROUP, or --off")
    run("spool", "share", "no-such-group").refused(2, "no group of this host")
