"""Payload: what the handler gets is what was sent, or it is refused with the path."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import uuid
from collections import OrderedDict, defaultdict, namedtuple
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.payload import MAX_DEPTH, pack, parse

INTS = st.integers(-(2**63), 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | INTS | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


@dataclasses.dataclass
class Point:
    x: int = 1


Pair = namedtuple("Pair", "a b")


def same(one: Any, two: Any) -> bool:
    """Equal, and of the same types all through: 1, 1.0 and True are not the same."""
    if type(one) is not type(two):
        return False
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, float):
        return bool(one.hex() == two.hex())
    return bool(one == two)


@given(JSON)
def test_what_json_can_hold_arrives_unchanged(value: Any) -> None:
    """Types, order of keys, the sign of zero and the last bit of a float included."""
    assert same(orjson.loads(pack(value)), value)


@given(JSON)
def test_what_was_packed_is_read_by_parse_as_well(value: Any) -> None:
    """One JSON for both ways in."""
    assert same(parse(pack(value)), value)


REFUSED: list[tuple[Any, type[Exception], str]] = [
    (math.nan, ValueError, "nan"),
    (math.inf, ValueError, "inf"),
    (-math.inf, ValueError, "inf"),
    (2**64, ValueError, "64 bits"),
    (-(2**63) - 1, ValueError, "64 bits"),
    (10**400, ValueError, "64 bits"),
    ("\ud800", ValueError, "surrogate"),
    ("a\udfffb", ValueError, "surrogate"),
    ((1, 2), TypeError, "tuple"),
    ((), TypeError, "tuple"),
    (Pair(1, 2), TypeError, "Pair"),
    (datetime(2026, 1, 1, tzinfo=UTC), TypeError, "isoformat"),
    (date(2026, 1, 1), TypeError, "isoformat"),
    (Decimal("1.5"), TypeError, "str"),
    (Fraction(1, 2), TypeError, "Fraction"),
    (b"bytes", TypeError, "base64"),
    (bytearray(b"x"), TypeError, "base64"),
    ({1, 2}, TypeError, "sorted"),
    (frozenset({1}), TypeError, "sorted"),
    (uuid.UUID(int=1), TypeError, "str"),
    (Colour.RED, TypeError, "Colour"),
    (Point(), TypeError, "Point"),
    (Point, TypeError, "type"),
    (object(), TypeError, "object"),
    (1j, TypeError, "complex"),
    (range(3), TypeError, "range"),
    (OrderedDict(a=1), TypeError, "OrderedDict"),
    (defaultdict(int, a=1), TypeError, "defaultdict"),
    ({1: "a"}, TypeError, "key 1"),
    ({(1, 2): "a"}, TypeError, "key"),
    ({None: "a"}, TypeError, "key"),
    ({True: "a"}, TypeError, "key"),
    ({1.5: "a"}, TypeError, "key"),
    ({Word.YES: "a"}, TypeError, "key"),
    ({"\ud800": 1}, ValueError, "surrogate"),
]


@pytest.mark.parametrize(("value", "error", "hint"), REFUSED, ids=[f"{n}" for n in range(len(REFUSED))])
@pytest.mark.parametrize("wrap", ["bare", "list", "dict", "deep"])
def test_what_json_would_change_is_refused_with_its_path(
    value: Any, error: type[Exception], hint: str, wrap: str
) -> None:
    """The message names the place inside the argument and what to send instead."""
    wrapped, path = {
        "bare": (value, "args"),
        "list": ([0, value], "args[1]"),
        "dict": ({"ok": 1, "when": value}, "args.when"),
        "deep": ([{"a": [{}, {"b": value}]}], "args[0].a[1].b"),
    }[wrap]
    with pytest.raises(error) as caught:
        pack(wrapped)
    assert type(caught.value) is error
    assert str(caught.value).startswith(f"{path}: ")
    assert hint in str(caught.value)


def test_name_of_the_argument_begins_the_path() -> None:
    """What the caller calls it."""
    with pytest.raises(TypeError, match=r"^kwargs\.to\[0\]: "):
        pack({"to": [set()]}, "kwargs")


def test_first_fault_in_reading_order_is_named() -> None:
    """One fault is enough; the first is the one to mend."""
    with pytest.raises(ValueError, match=r"^args\[0\]\[1\]: "):
        pack([[1, math.nan], {"a": set()}])


def test_members_of_int_and_str_enums_arrive_as_their_value() -> None:
    """They equal it, and no more is promised."""
    assert orjson.loads(pack([Level.LOW, Word.YES])) == [1, "yes"]


def test_nesting_up_to_the_limit_passes_and_beyond_is_refused() -> None:
    """Also far beyond what recursion could walk."""
    value: Any = 1
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert orjson.loads(pack(value)) == value
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ValueError, match="deeper"):
        pack(value)
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="deeper"):
        pack(loop)


# -- parse: JSON written by others -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
        ("9007199254740993", 2**53 + 1),
        ("0.1", 0.1),
        ("1e5", 1e5),
        ("1.7976931348623157e308", 1.7976931348623157e308),
        ('"\\u0000\\ud83d\\ude00"', "\x00\U0001f600"),
        (" [ ] ", []),
        ('{"a":{"a":1},"b":[{"a":1},{"a":2}]}', {"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]}),
    ],
)
def test_parse_reads_exactly(text: str, value: Any) -> None:
    """Big integers stay integers; the same key in different objects is fine."""
    assert same(parse(text), value)
    assert same(parse(text.encode()), value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('{"a":1,"a":2}', "'a' stands twice"),
        ('[{"b":{"x":1,"y":2,"x":1}}]', "'x' stands twice"),
        ("NaN", "NaN"),
        ("[Infinity]", "Infinity"),
        ('{"a":-Infinity}', "Infinity"),
        ("1e999", "inf"),
        ("[-1e400]", "inf"),
        ("18446744073709551616", "64 bits"),
        ("[123456789012345678901234567890]", "64 bits"),
        ('"\\ud800"', "surrogate"),
        ("", "line 1 column 1"),
        ("{", "line 1 column 2"),
        ("[1,]", "line 1 column"),
        ("[1]\n x", "line 2 column 2"),
        ("{'a':1}", "line 1"),
        ("01", "line 1"),
        ("nul", "line 1"),
        ('"a\nb"', "line 1"),
        ("[1] // no", "line 1"),
        ("[" * 300 + "]" * 300, "deeper"),
        ("[" * 200_000, "deeper"),
    ],
)
def test_parse_is_strict_and_names_the_place(text: str, hint: str) -> None:
    """What orjson or json would take silently, changed, is refused."""
    with pytest.raises(ValueError, match=r"^line 7") as caught:
        parse(text, "line 7")
    assert hint in str(caught.value)


@pytest.mark.parametrize("data", [b'"\xff"', b"\xc3", b'{"a":"\xed\xa0\x80"}', "\ud800"])
def test_parse_refuses_what_is_no_utf_8(data: Any) -> None:
    """Encoded surrogates included; the byte is named."""
    with pytest.raises(ValueError, match=r"UTF-8 at byte \d"):
        parse(data)


@given(st.binary(max_size=40))
def test_parse_of_any_bytes_is_a_value_or_a_value_error(data: bytes) -> None:
    """Nothing else ever comes out of a file that somebody dropped."""
    try:
        value = parse(data)
    except ValueError:
        return
    assert same(orjson.loads(pack(value)), value)


@given(JSON)
def test_parse_agrees_with_the_standard_library(value: Any) -> None:
    """On what is valid there is one reading."""
    assert same(parse(json.dumps(value)), value)
