"""FORMAT.md is exact: it names all there is, and who knows nothing but it can read a spool."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

import batchq.spool
from batchq.job import Buried, pack_error
from batchq.spool import SpoolStore
from batchq.spool.parcel import ROUTE
from batchq.spool.schema import USER_VERSION
from tests.unit.spool.helpers import Q, a_job, claim_all

TEXT = (Path(batchq.spool.__file__).parent / "FORMAT.md").read_text()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store = SpoolStore(tmp_path / "s")
    store.enqueue(Q, [a_job("low", priority=-3), a_job("dead", priority=99), a_job("first"), a_job("second")])
    [claim] = [one for one in claim_all(store, "w1", want=1) if one.id == "dead"]
    store.bury(Q, "w1", [Buried(claim, "bad", pack_error("E", "boom", attempt=1, at_ms=1))])
    store.enqueue(Q, [a_job("high", priority=7), a_job("later", delay_ms=9000), a_job("soon", delay_ms=5000)])
    store.close()
    return tmp_path / "s"


def test_every_table_and_column_is_explained(path: Path) -> None:
    db = sqlite3.connect(path / "queue.db")
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall():
        assert re.search(rf"`{table}`|### {table}:", TEXT), table
        for _, column, *_ in db.execute(f"PRAGMA table_info({table})"):
            if not column.startswith("n_") and table != "tally":
                assert f"`{column}`" in TEXT, (table, column)
    db.close()
    assert f"`user_version` {USER_VERSION}" in TEXT


def test_every_file_and_every_key_of_a_line_is_explained(path: Path) -> None:
    for file in path.rglob("*"):
        if file.parent.name == "waiting":
            # <kind>:<queue>: and the like.
            continue
        assert re.search(rf"\b{re.escape(file.name)}\b", TEXT), file
    for key in ROUTE - {"t"}:
        assert f"`{key}`" in TEXT, key


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="READ BY PYTHON ALONE: no sqlite3 shell on PATH")
def test_another_reader_finds_what_the_page_says(path: Path) -> None:
    """SQLite's own shell, with the orders, states and joins of the page."""

    def ask(statement: str) -> list[list[str]]:
        done = subprocess.run(
            ["sqlite3", "-readonly", str(path / "queue.db"), statement], capture_output=True, text=True, check=True
        )
        return [line.split("|") for line in done.stdout.splitlines()]

    pending = ask(f"SELECT id FROM job WHERE queue='{Q}' AND state=0 ORDER BY rank, place")
    assert pending == [["high"], ["first"], ["second"], ["low"]]
    assert ask(f"SELECT id FROM job WHERE queue='{Q}' AND state=1 ORDER BY at, place") == [["soon"], ["later"]]
    [[reason, errors]] = ask("SELECT reason, errors FROM job JOIN note USING(seq) WHERE state=3 AND noted=1")
    assert (reason, json.loads(errors)["error"]) == ("bad", "boom")
    law = "enqueued+requeued = n_pending+n_delayed+n_active+completed+dead+cancelled+purged+dropped"
    assert ask(f"SELECT {law} FROM tally") == [["1"]]
    [[row]] = ask("SELECT row FROM job WHERE id='first'")
    assert json.loads(row)["job"] == "send"
