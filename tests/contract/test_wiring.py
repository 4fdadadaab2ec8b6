"""One verb, one place: the move, its method, its script, its test file and its row in the docs name the same set."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from batchq.lifecycle import VERBS
from batchq.memory_store import MemoryStore
from batchq.redis.store import RedisStore
from batchq.spool import SpoolStore
from batchq.store import Store
from tests.contract.conftest import STORES

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

#: What a store does besides the moves: two moves in one round trip, the reads, the waits, the handle's life.
NO_MOVES = {
    "exchange",
    *("queues", "stats", "get", "jobs", "batch", "batches", "gates", "leases", "now_ms", "info"),
    *("wake_waiter", "timer_waiter", "publish", "masters"),
    *("before_fork", "after_fork", "close"),
}
#: The contract files that are of no single verb.
OTHER_FILES = {
    "exchange",
    "reads",
    "waiters",
    "totals",
    "limits",
    "wiring",
    "state_machine",
    "gate_walks",
    "traces",
    "notes",
}
#: Runs once, not once a store.
ONCE = ("test_wiring.py",)

CLASSES: list[type[Store]] = [MemoryStore, SpoolStore, RedisStore]


def test_verbs_are_the_moves_of_the_contract() -> None:
    """Every abstract method of Store is a verb of lifecycle.py, or declared to be none."""
    assert Store.__abstractmethods__ == set(VERBS) | NO_MOVES
    assert len(set(VERBS)) == len(VERBS)


def test_every_verb_has_its_script() -> None:
    """lua/<verb>.lua, and no script that is no verb."""
    assert {path.stem for path in (ROOT / "lua").glob("*.lua")} == set(VERBS)


def test_every_verb_has_its_contract_file() -> None:
    """tests/contract/test_<verb>.py, and none that nobody knows."""
    files = {path.stem.removeprefix("test_") for path in HERE.glob("test_*.py")}
    assert files == set(VERBS) | OTHER_FILES


def test_the_table_of_moves_names_the_places() -> None:
    """Each row's script and spool file exist, and the spool file has a function of that name."""
    rows = re.findall(
        r"^\| (\w+) \|.*\| `(lua/\w+\.lua)` \| `(spool/\w+\.py)` \|$", (ROOT / "ARCHITECTURE.md").read_text(), re.M
    )
    assert [verb for verb, _, _ in rows] == list(VERBS)
    for verb, script, module in rows:
        assert script == f"lua/{verb}.lua"
        assert f"\ndef {verb}(" in (ROOT / module).read_text(), f"{verb} is not in {module}"


def test_every_verb_has_its_row_in_the_table_of_moves() -> None:
    """ARCHITECTURE.md: the table that has a row `enqueue` has a row for each verb, in the order of lifecycle.py."""
    tables: list[list[str]] = [[]]
    for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines():
        row = re.match(r"\|\s*`?([a-z_]+)`?\s*\|", line)
        if row:
            tables[-1].append(row[1])
        elif not line.startswith("|"):
            tables.append([])
    [moves] = [table for table in tables if "enqueue" in table]
    assert [name for name in moves if name in VERBS] == list(VERBS)
    assert set(moves) - set(VERBS) <= {"move", "verb"}


@pytest.mark.parametrize("store", CLASSES)
def test_every_store_has_every_method_with_the_contract_s_arguments(store: type[Store]) -> None:
    """No move is left abstract, and a caller of the contract can call each by the same names and defaults."""
    assert store.__abstractmethods__ == frozenset()
    for name in (*VERBS, *sorted(NO_MOVES)):
        said, done = (inspect.signature(getattr(cls, name)).parameters for cls in (Store, store))
        assert [(p.name, p.kind, p.default) for p in said.values()] == [
            (p.name, p.kind, p.default) for p in done.values()
        ], f"{store.__name__}.{name}"


def test_every_contract_test_is_collected_for_every_store() -> None:
    """A behaviour is tested on all stores or on none."""
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-o", "addopts=", "-p", "no:cacheprovider", str(HERE)],
        cwd=ROOT,
        env=os.environ | {"PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    found: dict[str, list[str]] = defaultdict(list)
    for line in answer.stdout.splitlines():
        if "::" not in line or any(name in line for name in ONCE):
            continue
        test, _, parameters = line.partition("[")
        words = parameters.rstrip("]").split("-")
        stores = [word for word in words if word in STORES]
        rest = "-".join(word for word in words if word not in STORES)
        found[f"{test}[{rest}]"] += stores or ["none"]
    assert len(found) > 200
    assert {test: stores for test, stores in found.items() if sorted(stores) != sorted(STORES)} == {}
