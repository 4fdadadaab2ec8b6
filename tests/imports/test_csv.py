"""CSV and TSV: dialects, names, types, and every way in which a row can be broken."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.importing.columns import check_names
from batchq.importing.csv_rows import CsvRows, Dialect, sniff
from batchq.importing.rows import Bad, Refused, Row

from .conftest import Reader, split


def rows_of(data: bytes, *, limit: int = 1000, block: int = 0, **more: Any) -> list[Row | Bad]:
    """Reads the bytes, in blocks of that size."""
    step = block or len(data) or 1
    blocks = (data[at : at + step] for at in range(0, len(data), step))
    options: dict[str, Any] = {"dialect": Dialect(), "encoding": "utf-8", "written_in": "utf-8", "header": True}
    options |= {"names": None, "types": lambda names: {}, "positional": False}
    return list(CsvRows(iter(blocks), limit=limit, **options | more))


@pytest.mark.parametrize(
    ("head", "delimiter"),
    [
        ("a,b,c\n1,2,3\n", ","),
        ("a;b;c\n1,5;2,5;3,5\n", ";"),
        ("a\tb\n1\t2,5\n", "\t"),
        ("a|b\n1|2\n", "|"),
        ('name,"note; long"\nx,"a;b;c"\n', ","),
        ("one\n1,5\n2,5\n", ","),
        ("", ","),
        ('a,b\n"never closed\n', ","),
    ],
)
def test_the_delimiter_is_found(head: str, delimiter: str) -> None:
    """By the header's number of cells, not by which character is frequent."""
    assert sniff(head, '"') == delimiter


def test_overrides_win(read: Reader) -> None:
    """--delimiter, --quote, --columns, --header and --no-header say how it is read."""
    data = b"a,b;c\n'x;y';z\n"
    assert read.values("f.csv", data, delimiter=";", quote="'") == [{"a,b": "x;y", "c": "z"}]
    assert read.values("f.csv", b"1,2\n3,4\n", header=False) == [["1", "2"], ["3", "4"]]
    assert read.values("f.csv", b"1,2\n", columns=("a", "b")) == [{"a": "1", "b": "2"}]
    assert read.values("f.csv", b"x,y\n1,2\n", columns=("a", "b"), header=True) == [{"a": "1", "b": "2"}]
    assert read.values("f.csv", b"x,y\n1,2\n", positional=True) == [["1", "2"]]
    assert read.values("f.csv", b'x,y\n1,"2\n', quote="") == [{"x": "1", "y": '"2'}]
    assert read.values("f.tsv", b"x\ty,z\n1\t2,3\n") == [{"x": "1", "y,z": "2,3"}]


@pytest.mark.parametrize(
    "names",
    [
        ["a", "a"],
        ["a", "A"],
        ["a", " a "],
        ["a", ""],
        ["a", " "],
        ["queue", "queue"],
        ["\ufb01x", "fix"],
        ["a b", "a  b"],
    ],
)
def test_names_that_can_not_be_told_apart_are_refused(names: list[str]) -> None:
    """Duplicates, blanks, case, look-alike forms."""
    with pytest.raises(Refused, match="the header can't be used"):
        check_names(names)


def test_names_lose_the_blanks_around_them() -> None:
    """`a, b, c` is how people write headers."""
    assert check_names(["a", " b", "c d "]) == ["a", "b", "c d"]


@pytest.mark.parametrize("block", [0, 1, 7])
def test_line_numbers_are_physical(block: int) -> None:
    """Lines inside quotes, blank ones and every kind of line end count."""
    data = b'a,b\r\n1,"x\r\ny"\r\n\n2\n3,"z\nz"\r4,4\n5\n'
    good, bad = split(rows_of(data, block=block))
    assert [row["b"] for row in good] == ["x\r\ny", "z\nz", "4"]
    assert [line for line, _ in bad] == [5, 9]


def test_a_stray_quote_costs_its_own_row() -> None:
    """The lines behind it are whole rows by themselves: only the first one is passed by, whatever shows the fault."""
    at_end = b'a,b\n1,2\n3,"4\n5,6\n7,8\n'
    good, bad = split(rows_of(at_end))
    assert [row["a"] for row in good] == ["1", "5", "7"]
    assert bad == [(3, "a quote is opened and not closed")]
    by_another = b'a,b\n1,2\n3,"4\n5,"6"\n7,8\n'
    good, bad = split(rows_of(by_another))
    assert [row["a"] for row in good] == ["1", "5", "7"]
    assert [line for line, _ in bad] == [3]


def test_no_row_is_made_from_what_may_be_quoted_text() -> None:
    """Lines behind a broken quote that are no rows by themselves are passed by with it, and all of them are kept."""
    data = b'a,b\n1,"a letter, in\nseveral lines\n2,3\n'
    found = rows_of(data)
    assert [type(one) for one in found] == [Bad]
    [bad] = found
    assert isinstance(bad, Bad)
    assert (bad.line, bad.last, b"".join(bad.raw)) == (2, 4, data[4:])


def test_one_column_never_mends() -> None:
    """Any text is a row of one cell: nothing tells rows from the lines of a field."""
    [bad] = rows_of(b'a\n"x\ny\nz\n')
    assert isinstance(bad, Bad)
    assert (bad.line, bad.last) == (2, 4)


def test_quotes_inside_quotes_are_no_guess() -> None:
    """A quote that is not doubled is an error of that row."""
    good, bad = split(rows_of(b'a,b\n1,"say "no""\n2,3\n'))
    assert [row["a"] for row in good] == ["2"]
    assert bad == [(2, "a closing quote is followed by more text; a quote inside a quoted cell is written twice")]


@pytest.mark.parametrize("block", [0, 1, 100])
def test_what_is_too_long_is_passed_by(block: int) -> None:
    """One cell of one line, one over many lines, and one that never ends: the rows behind it go on."""
    long = b"x" * 1500
    lines = b"line, line, line\n" * 100
    data = b'a,b\n1,2\n3,"' + long + b'"\n4,5\n6,"' + lines + b'"\n7,8\n9,"' + long + b"\n10,11\n"
    good, bad = split(rows_of(data, block=block))
    assert [row["a"] for row in good] == ["1", "4", "7"]
    assert [line for line, _ in bad] == [3, 5, 107]
    assert "at most 1000" in bad[0][1]
    assert "at most 1000" in bad[1][1]
    assert "not closed before the end" in bad[2][1]


def test_a_stray_quote_before_many_rows_is_mended_in_bounded_memory() -> None:
    """More rows than a record may be long stand behind it: they are rows all the same."""
    data = b'a,b\n0,"\n' + b"".join(b"%d,x\n" % n for n in range(1, 1001))
    good, bad = split(rows_of(data))
    assert [line for line, _ in bad] == [2]
    assert [row["a"] for row in good] == [str(n) for n in range(1, 1001)]


def test_bytes_that_are_no_text_cost_their_row() -> None:
    """A wrong character or a NUL is named with its place; the rows around it are good."""
    good, bad = split(rows_of(b"a,b\n1,\xff\n2,3\n4,\0\n5,6\n"))
    assert [row["a"] for row in good] == ["2", "5"]
    assert bad[0] == (2, "no valid utf-8 at byte 2 of line 2; see --encoding")
    assert bad[1] == (4, "a NUL byte in line 4: damaged, or no text")


def test_types_are_what_was_said(read: Reader) -> None:
    """Cells stay strings unless a type is given; one that does not fit is that row's fault."""
    data = b'i,f,b,j,d,s\n007,1.50,yes,"[1,{""a"":2}]",2030-01-31,007\n,,,,,\nx,1,no,1,2030-01-31,s\n'
    types = "i:int,f:float,b:bool,j:json,d:date"
    good, bad = split(read("f.csv", data, types=types))
    assert good == [{"i": 7, "f": 1.5, "b": True, "j": [1, {"a": 2}], "d": "2030-01-31", "s": "007"}]
    assert bad == [
        (3, "expected 6 cells, found empty ones only"),
        (4, "column i: expected a whole number, found 'x'"),
    ]
    assert read.values("f.csv", b"a,b\n1,\n", types="a:int?,b:int?") == [{"a": 1, "b": None}]
    assert read.values("f.csv", b"1,2\n", header=False, types="2:int") == [["1", 2]]


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        ("int", "1.0"),
        ("int", "1e3"),
        ("int", "1_000"),
        ("int", "\u0661"),
        ("int", str(2**64)),
        ("int", ""),
        ("float", "nan"),
        ("float", "inf"),
        ("float", "1e999"),
        ("float", "1,5"),
        ("bool", "maybe"),
        ("json", "{'a': 1}"),
        ("json", '{""a"": 1, ""a"": 2}'),
        ("json", "NaN"),
        ("date", "31.01.2030"),
    ],
)
def test_a_cell_that_does_not_fit_its_type_is_rejected(read: Reader, kind: str, cell: str) -> None:
    """Nothing is rounded, cut or read with good will."""
    good, bad = split(read("f.csv", f'a,b\n"{cell}",1\n'.encode(), types=f"a:{kind}"))
    assert good == []
    assert bad[0][1].startswith("column a: ")


@pytest.mark.parametrize("types", ["a", "a:", "a:number", "z:int", "a:int,a:str", ""])
def test_types_that_make_no_sense_are_refused(read: Reader, types: str) -> None:
    """Before the first row."""
    with pytest.raises(Refused, match="--types"):
        read("f.csv", b"a,b\n1,2\n", types=types)


_cells = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


@given(st.lists(st.lists(_cells, min_size=2, max_size=2), max_size=12), st.integers(1, 40), st.sampled_from(",;\t|"))
def test_what_the_library_writes_is_read_as_it_was(table: list[list[str]], block: int, delimiter: str) -> None:
    """Whatever the cells hold and wherever blocks end: the same cells, and no row is lost or doubled."""
    import csv
    import io

    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows([["p", "q"], *table])
    found = rows_of(text.getvalue().encode(), block=block, dialect=Dialect(delimiter), limit=100_000)
    expected = [row for row in table if any(row) and row != ["p", "q"]]
    assert [list(one.value.values()) for one in found if isinstance(one, Row)] == expected  # type: ignore[union-attr]
    assert len(found) == len(table)


@given(st.binary(max_size=200), st.integers(1, 20))
def test_no_bytes_at_all_break_the_reader(data: bytes, block: int) -> None:
    """Every line of any input is in a row, blank, or passed by with a reason; nothing is read past its limit."""
    try:
        found = rows_of(b"p,q\n" + data, block=block, limit=40)
    except Refused:
        return
    lines = [one.line for one in found]
    assert lines == sorted(lines)
    assert len(set(lines)) == len(lines)
    whole = rows_of(b"p,q\n" + data, limit=40)
    assert [(type(a), a.line) for a in found] == [(type(b), b.line) for b in whole]


def test_a_quote_that_swallows_many_lines_costs_little_memory() -> None:
    """They are rows, each by itself. Their text is held up to the limit, but not the cells of all of them as well."""
    limit = 40_000
    data = b'a,b\n1,"\n' + b"x,y\n" * (limit // 2)
    tracemalloc.start()
    try:
        found = CsvRows(
            (data[at : at + 4096] for at in range(0, len(data), 4096)),
            dialect=Dialect(),
            encoding="utf-8",
            written_in="utf-8",
            limit=limit,
            header=True,
            names=None,
            types=lambda names: {},
            positional=False,
        )
        assert sum(isinstance(row, Row) for row in found) == limit // 2
        # A line of four bytes takes some 40 as an object, and twice as much again as a list of cells.
        assert tracemalloc.get_traced_memory()[1] < 33 * limit
    finally:
        tracemalloc.stop()
