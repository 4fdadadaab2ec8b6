"""Every statement of the engine reads what it needs and no more: a scan of a million rows is a fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import batchq.spool
from batchq.spool import SpoolStore
from batchq.spool.schema import STATEMENTS


def _parameters(statement: str) -> int:
    numbered = [int(n) for n in re.findall(r"\?(\d+)", statement)]
    return max(numbered) if numbered else statement.count("?")


def test_no_statement_scans_or_sorts_the_jobs(tmp_path: Path) -> None:
    """SQLite answers each from an index, in the index's order."""
    store = SpoolStore(tmp_path / "s")
    with store._ledger.read() as db:
        plans = {
            statement: [
                line[3] for line in db.execute(f"EXPLAIN QUERY PLAN {statement}", (1,) * _parameters(statement))
            ]
            for statement in STATEMENTS
        }
    store.close()
    assert len(plans) > 30
    for statement, plan in plans.items():
        for step in plan:
            assert not re.match(r"SCAN (TABLE )?(job|note|mark|gone|lease|batch)\b", step), (statement, plan)
            assert "TEMP B-TREE" not in step, (statement, plan)


def test_each_state_has_an_index_that_its_statements_use(tmp_path: Path) -> None:
    """A partial index is used only where the literal stands in the text."""
    store = SpoolStore(tmp_path / "s")
    used = set()
    with store._ledger.read() as db:
        for statement in STATEMENTS:
            for line in db.execute(f"EXPLAIN QUERY PLAN {statement}", (1,) * _parameters(statement)):
                used |= set(re.findall(r"INDEX (\w+)", line[3]))
    store.close()
    assert used >= {"job_id", "job_pending", "job_delayed", "job_active", "job_dead", "job_completed", "gone_until"}


@pytest.mark.parametrize("module", sorted(Path(batchq.spool.__file__).parent.glob("*.py")), ids=lambda p: p.name)
def test_no_statement_bypasses_the_list(module: Path) -> None:
    """What is executed is either written down with sql(), or no query at all."""
    allowed = r'"(BEGIN|COMMIT|ROLLBACK|PRAGMA|VACUUM|REINDEX|SELECT count\(\*\) FROM sqlite_master)'
    for call in re.findall(r"\.execute(?:many)?\(\s*f?(\"[^\"]*\")", module.read_text()):
        assert re.match(allowed, call), (module.name, call)


def test_no_statement_stands_twice() -> None:
    """One move, one place."""
    assert len(STATEMENTS) == len(set(STATEMENTS))
