"""NDJSON and JSON arrays: exact values, physical lines, and broken records that cost nobody else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.handler import pack_arguments
from batchq.importing.build import Terms, plain
from batchq.importing.json_rows import Shapes, read_array, read_json, read_ndjson
from batchq.importing.rows import Bad, Row, Unreadable
from batchq.payload import parse

from .conftest import Reader, split


def rows_of(
    data: bytes, *, array: bool, limit: int = 10_000, block: int = 0, kind: type | None = None
) -> list[Row | Bad]:
    step = block or len(data) or 1
    blocks = iter([data[at : at + step] for at in range(0, len(data), step)])
    return list((read_array if array else read_ndjson)(blocks, Shapes(kind, "utf-8", "utf-8"), limit))


def until_broken(rows: Iterator[Row | Bad]) -> tuple[list[Row | Bad], bool]:
    """What was handed on, and whether the input broke behind it."""
    found: list[Row | Bad] = []
    try:
        found.extend(rows)
    except Unreadable:
        return found, True
    return found, False


def test_one_kind_of_row_an_input(read: Reader) -> None:
    """The first row says whether rows are objects or lists; --args and --kwargs say it before."""
    good, bad = split(read("f.ndjson", b'[1]\n{"a":1}\n[2]\n'))
    assert good == [[1], [2]]
    assert bad == [(2, "expected a list as in line 1, found an object")]
    good, bad = split(read("f.ndjson", b'[1]\n{"a":1}\n', positional=False))
    assert good == [{"a": 1}]
    assert bad == [(1, "expected an object, found a list")]


@pytest.mark.parametrize(
    ("name", "data", "rows"),
    [
        ("f.json", b'[{"a":1},{"a":2}]', [{"a": 1}, {"a": 2}]),
        ("f.json", b' [\n {"a":1} ,\n {"a":2}\n]\n', [{"a": 1}, {"a": 2}]),
        ("f.json", b'{"a":1}\n{"a":2}\n', [{"a": 1}, {"a": 2}]),
        ("f", b'[{"a":1}]', [{"a": 1}]),
        ("f.jsonl", b"[1,2]\n[3]\n", [[1, 2], [3]]),
        ("f.json", b"[[1,2],[3]]", [[1, 2], [3]]),
        ("f.txt", b'\n  {"a":1}\n', [{"a": 1}]),
    ],
)
def test_name_and_first_character_tell_the_format(read: Reader, name: str, data: bytes, rows: list[Any]) -> None:
    """.ndjson is lines; .json and unnamed ones begin with [ for an array, with { for lines."""
    assert read.values(name, data) == rows


HOSTILE = [
    '{"a":1,"a":2}',
    '{"a":{"b":1,"b":2}}',
    '{"a" :1,"a"\t:2}',
    '{"a":"\\":","a":2}',
    '{"a":NaN}',
    '{"a":[Infinity]}',
    '{"a":-Infinity}',
    '{"a":1e999}',
    '{"a":18446744073709551616}',
    '{"a":-9223372036854775809}',
    '{"a":"\\ud800"}',
    '{"a":1}}',
    '{"a":01}',
    "{'a':1}",
    '{"a":"\x01"}',
    '{"a":' + "[" * 300 + "]" * 300 + "}",
    "[" * 100_000,
    '{"a":' * 100_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_json_would_change_is_rejected(text: str) -> None:
    """Doubled keys, NaN, numbers out of range, lone surrogates, deep nesting: that line alone, with its reason."""
    good, bad = split(rows_of(b'{"ok":1}\n' + text.encode() + b'\n{"ok":2}\n', array=False, limit=10**6))
    assert good == [{"ok": 1}, {"ok": 2}]
    assert [line for line, _ in bad] == [2]


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(_json, st.booleans(), st.sampled_from([None, (",", ":"), (" , ", " : ")]))
def test_the_quick_way_reads_what_the_strict_one_reads(value: Any, ascii_only: bool, marks: Any) -> None:
    """Exactly the same value, of the same types, however it is written."""
    text = json.dumps(value, ensure_ascii=ascii_only, separators=marks).encode()
    quick, strict = read_json(text), parse(text)
    assert repr(quick) == repr(strict)


@given(st.lists(_json, max_size=6), st.integers(1, 30), st.sampled_from([None, 1]))
def test_an_array_is_split_where_its_elements_end(values: list[Any], block: int, indent: int | None) -> None:
    """Whatever stands in strings, and wherever blocks end."""
    text = json.dumps(values, indent=indent, ensure_ascii=False).encode()
    found = rows_of(text, array=True, block=block)
    shaped = [one for one in found if isinstance(one, Row) or "expected" in one.reason]
    assert len(found) == len(values) == len(shaped)
    kind = next((type(value) for value in values if type(value) in (dict, list)), None)
    assert [one.value for one in found if isinstance(one, Row)] == [value for value in values if type(value) is kind]


@pytest.mark.parametrize("block", [0, 1, 5])
def test_a_broken_element_costs_nobody_else(block: int) -> None:
    """It is named with the lines on which it stands."""
    data = b'[\n{"a":1},\n{"a":},\n{"a":\n1,"a":2},\n{"a":3}\n]'
    found = rows_of(data, array=True, block=block)
    good, bad = split(found)
    assert good == [{"a": 1}, {"a": 3}]
    assert [line for line, _ in bad] == [3, 4]
    assert isinstance(found[2], Bad)
    assert (found[2].last, found[2].reason) == (5, "JSON: the key 'a' stands twice in one object")


@pytest.mark.parametrize("block", [0, 1, 64])
def test_an_element_that_is_too_long_is_passed_by(block: int) -> None:
    """Its size is said, its beginning kept, and lines go on counting."""
    data = b'[{"a":1},\n{"a":"' + b"[x,\\n\n" * 500 + b'"},\n{"a":2}\n,3]'
    found = rows_of(data, array=True, block=block, limit=1000)
    good, bad = split(found)
    assert good == [{"a": 1}, {"a": 2}]
    assert [line for line, _ in bad] == [2, 504]
    assert isinstance(found[1], Bad)
    assert "at most 1000" in found[1].reason
    assert (found[1].size, found[1].last) == (3008, 502)


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b'[{"a":1},{"a":2', 1),
        (b'[{"a":1},{"a":2}', 1),
        (b'[{"a":1},"', 1),
        (b'[{"a":1}] x', 1),
        (b"[1]\n[2]\n", 0),
        (b"x[1]", 0),
        (b'{"a":[1]}', 0),
    ],
)
@pytest.mark.parametrize("block", [0, 1])
def test_an_array_that_breaks_ends_the_input(data: bytes, rows: int, block: int) -> None:
    """What came before is handed on; the end is no silent one."""
    step = block or len(data)
    blocks = iter([data[at : at + step] for at in range(0, len(data), step)])
    found, broke = until_broken(read_array(blocks, Shapes(None, "utf-8", "utf-8"), 1000))
    assert broke
    assert sum(isinstance(one, Row) for one in found) == rows


@given(st.binary(max_size=120), st.integers(1, 20), st.booleans())
def test_no_bytes_at_all_break_the_reader(data: bytes, block: int, array: bool) -> None:
    """Blocks change nothing, and the only ends are the input's and Unreadable."""

    def outcome(size: int) -> tuple[list[tuple[type, int]], bool]:
        step = size or len(data) or 1
        blocks = iter([data[at : at + step] for at in range(0, len(data), step)])
        found, broke = until_broken((read_array if array else read_ndjson)(blocks, Shapes(None, "utf-8", "utf-8"), 40))
        return [(type(one), one.line) for one in found], broke

    assert outcome(block) == outcome(0)


def test_one_depth_for_all_entrances() -> None:
    """What is nested as deep as the API takes is a job; one level more is a rejected row."""
    build = plain(Terms(job="echo", queue="q"))
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        for depth in range(240, 260):
            text = '{"a":' + opening * depth + "1" + closing * depth + "}"
            [found] = rows_of(text.encode(), array=False)
            assert accepts(lambda found=found: build(found.value)) == accepts(  # type: ignore[misc]
                lambda text=text: pack_arguments((), parse(text))  # type: ignore[misc]
            )


def accepts(make: Callable[[], object]) -> bool:
    try:
        make()
    except (ValueError, TypeError, AttributeError):
        return False
    return True
