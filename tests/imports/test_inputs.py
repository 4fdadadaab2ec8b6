"""The stored inputs, each with what must come of it, on every store."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable

import pytest

from batchq.lifecycle import State
from tests.cli.conftest import Ran

from .conftest import Place

#: file -> jobs, lines that are reported, exit code.
EXPECTED: dict[str, tuple[int, list[int], int]] = {
    "bigints.ndjson": (5, [6, 7, 8], 1),
    "dupkeys.ndjson": (2, [2, 3, 4, 5], 1),
    "bom.csv": (3, [], 0),
    "bom.ndjson": (2, [], 0),
    "multiline_crlf.csv": (6, [], 0),
    "ragged.csv": (4, [3, 5, 6, 8], 1),
    "multi.ndjson.gz": (9, [], 0),
    "truncated.ndjson.gz": (264, [], 1),
    "blank_lines.ndjson": (5, [], 0),
    "broken_middle.ndjson": (7, [4, 7, 9], 1),
    "all_broken.ndjson": (0, [1, 2, 3, 4], 1),
    "empty.csv": (0, [], 0),
    "header_only.csv": (0, [], 0),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_each_input_has_its_outcome(spool: Place, name: str) -> None:
    """Jobs, reported lines and exit code are those of the table; what is rejected is kept with its line."""
    check(spool, name)


def test_some_inputs_on_every_store(place: Place) -> None:
    """What is read does not depend on where it goes: two are enough to see that it goes there."""
    check(place, "ragged.csv")
    for job in place.jobs():
        assert place.store.purge("default", State.PENDING, [job.id]) == 1
    check(place, "broken_middle.ndjson")


def check(place: Place, name: str) -> None:
    """One row of the table."""
    enqueued, reported, code = EXPECTED[name]
    done = place.imported(place.take(name), "--job", "echo")
    assert (done["enqueued"], done["rejected"], done["code"]) == (enqueued, len(reported), code), done
    assert len(place.jobs()) == enqueued
    rejects = place.folder / f"{name}.rejects.ndjson"
    assert rejects.exists() == bool(reported)
    if reported:
        lines = [json.loads(line) for line in rejects.read_bytes().splitlines()]
        assert [line["line"] for line in lines] == reported
        assert all(line["reason"] for line in lines)
        assert stat.S_IMODE(rejects.stat().st_mode) == 0o600


def test_a_header_that_can_not_be_used_is_refused_before_the_first_row(place: Place) -> None:
    """Same, blank and nearly same names, a reserved one twice: exit 2, all of them named, nothing in the store."""
    done = place.run("import", place.take("dup_header.csv"), "--job", "echo")
    done.refused(2, "column 7 has no name", "'queue' (column 2)", "'n' (column 3)", "' note' (column 6)")
    assert place.store.queues() == []


def test_big_integers_arrive_as_they_are(place: Place) -> None:
    """Up to 64 bits an integer is that integer and no float; what is longer is reported."""
    place.imported(place.take("bigints.ndjson"), "--job", "echo")
    values = [job.kwargs["payload"]["big"] for job in place.jobs()]
    assert values == [2**53 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1]
    assert all(type(value) is int for value in values)


def test_cells_are_exact_from_files_and_pipes(place: Place) -> None:
    """Line ends inside quotes, blanks, doubled quotes and a mark in the middle come through byte by byte."""
    notes = [
        "two\nlines with LF",
        "two\r\nlines with CRLF",
        'she wrote "stop" twice, with a comma',
        "  blanks kept  ",
        "",
        "last row has no newline",
    ]
    name = place.take("multiline_crlf.csv")
    data = (place.folder / name).read_bytes()
    place.imported(name, "--job", "echo")
    place.imported("-", "--job", "echo", "--format", "csv", "-q", "piped", stdin=data)
    for queue in ("default", "piped"):
        jobs = place.jobs(queue)
        assert [job.kwargs["note"] for job in jobs] == notes
        assert [job.kwargs["n"] for job in jobs] == ["1", "2", "3", "4", "5", "6"]
    place.imported(place.take("bom.csv"), "--job", "echo", "-q", "bom")
    assert [job.kwargs for job in place.jobs("bom")][1] == {
        "handler": "echo",
        "queue": "trial",
        "n": "2",
        "note": "a mark \ufeff inside",
    }


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("nothing.ndjson", b""),
        ("mark.csv", b"\xef\xbb\xbf"),
        ("newline.csv", b"\n"),
        ("header.csv", b"a,b"),
        ("array.json", b"[]"),
        ("nothing.json", b""),
        ("nothing.gz", b""),
        ("blank", b" \n\t\n"),
    ],
)
def test_nothing_in_it_is_no_failure(inside: Callable[..., Ran], spool: Place, name: str, data: bytes) -> None:
    """Exit 0 and a visible `0 jobs`, from a file and from a pipe."""
    done = inside("import", spool.write(name, data), "--job", "echo", "--dry-run").ended(0)
    assert "0 jobs would be enqueued" in done.out
    if name == "mark.csv":
        assert spool.run("import", "-", "--job", "echo", stdin=data).ended(0).out.startswith("stdin: 0 jobs enqueued")
