"""The table of cases: all are there, and what it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent.parent

#: The numbers of the cases: those between that are not here were dropped when they were collected.
NUMBERS = """
1-3 5-8 10-12 14-17 19-20 22 24-30 32 34-35 37-40 42 45-48 50-51 53-54 56-58 60 62 64 66-69 71 73 75-77 79 81 83 85-86
88-89 91-92 94-95 97 99 101-105 108-109 111-112 114 116 118-121 123 125-126 128-129 131 133-137 140 143-144 146-149 152
154-156 158-159 163-167 170-175
"""


class Row(NamedTuple):
    case: str
    kind: str
    tests: list[str]
    outcome: str


def rows() -> list[Row]:
    lines = (TESTS / "cases" / "README.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| C")]
    return [Row(case, kind, re.findall(r"`([^`]+)`", tests), outcome) for case, kind, tests, outcome in cells]


@cache
def functions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_case_has_its_row() -> None:
    """Once, with its kind and an outcome."""
    wanted = []
    for part in NUMBERS.split():
        first, _, last = part.partition("-")
        wanted += [f"C{number:03}" for number in range(int(first), int(last or first) + 1)]
    assert len(wanted) == 118
    found = rows()
    assert sorted(row.case for row in found) == wanted
    assert all(row.kind and row.outcome for row in found)


def test_every_named_test_exists() -> None:
    """No row is without one, and each is a function of that file."""
    for row in rows():
        assert row.tests, row.case
        for test in row.tests:
            file, _, name = test.partition("::")
            assert name in functions(TESTS / file), f"{row.case}: {test}"


def test_few_cases_are_argued() -> None:
    """Each of them has its section among the decisions."""
    argued = [row for row in rows() if row.outcome.startswith("argued")]
    assert len(argued) <= 6
    decisions = (TESTS.parent / "docs" / "decisions.md").read_text()
    assert decisions.count("\n## ") >= len(argued)
