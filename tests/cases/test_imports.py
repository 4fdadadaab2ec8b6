"""Archives that are damaged or not what their names say, and inputs in which nothing is: by the command line."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable

import pytest

from tests.imports.conftest import Place, spool

__all__ = ["spool"]

ROWS = b"".join(b'{"n": %d}\n' % n for n in range(2000))


def spoilt(data: bytes, at: int) -> bytes:
    """One bit is another."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


#: What is imported: its name, its bytes, how many jobs come of it at least and at most, the exit code.
ARCHIVES: dict[str, tuple[str, Callable[[bytes], bytes], int, int, int]] = {
    "three members": ("a.ndjson.gz", lambda packed: packed * 3, 6000, 6000, 0),
    "cut off": ("a.ndjson.gz", lambda packed: packed[: len(packed) // 2], 1, 1999, 1),
    "only its end is cut off": ("a.ndjson.gz", lambda packed: packed[:-4], 0, 2000, 1),
    "a wrong checksum": ("a.ndjson.gz", lambda packed: spoilt(packed, len(packed) - 6), 0, 2000, 1),
    "a wrong bit": ("a.ndjson.gz", lambda packed: spoilt(packed, len(packed) // 2), 0, 1999, 1),
    "something behind it": ("a.ndjson.gz", lambda packed: packed + b"and more", 0, 2000, 1),
    "plain, and named .gz": ("a.ndjson.gz", lambda packed: ROWS, 2000, 2000, 0),
    "packed, and not named so": ("a.ndjson", lambda packed: packed, 2000, 2000, 0),
    "nothing at all": ("a.ndjson.gz", lambda packed: b"", 0, 0, 0),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_an_archive_is_read_whole_or_said_to_be_damaged(spool: Place, kind: str) -> None:
    """Every member; what is cut off or damaged is exit 1 with the number of jobs that are in; names mean nothing."""
    name, make, least, most, code = ARCHIVES[kind]
    done = spool.imported(spool.write(name, make(gzip.compress(ROWS))), "--job", "echo")
    assert done["code"] == code, done
    found = spool.jobs()
    assert least <= len(found) <= most
    assert len(found) == done["enqueued"]
    # No row of a damaged end is taken for one.
    assert [job.kwargs["n"] for job in found] == [n % 2000 for n in range(len(found))]
    if code:
        assert done["end"] == "unreadable"
        assert any(word in done["err"] for word in ("cut off", "damaged", "stands behind the end")), done["err"]


def test_nothing_in_it_is_no_failure_and_nothing_usable_is_one(spool: Place) -> None:
    """`0 jobs` and exit 0 from files, a device and a pipe; exit 1 where there were rows and none was good."""
    empty = {"empty.ndjson": b"", "mark.ndjson": b"\xef\xbb\xbf", "newline.csv": b"\n", "header.csv": b"a,b"}
    for name, data in empty.items():
        assert "0 jobs enqueued" in spool.run("import", spool.write(name, data), "--job", "echo").ended(0).out
    for path in (os.devnull, "-"):
        ran = spool.run("import", path, "--job", "echo", "--format", "ndjson", "--rejects", "r.ndjson")
        assert "0 jobs enqueued" in ran.ended(0).out
    ran = spool.run("import", spool.write("broken.ndjson", b"{\n[1\n7\n"), "--job", "echo").ended(1, "line 1", "line 3")
    assert "0 jobs enqueued" in ran.out
    assert spool.store.queues() == []
