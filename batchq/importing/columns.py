"""The columns of a CSV: names that can be told apart, or none of its rows is read; and what its cells become."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Any

from batchq.importing.rows import Refused, shorten
from batchq.payload import parse


def check_names(names: Sequence[str]) -> list[str]:
    """The names of the columns, without blanks around them. Raises Refused for blank ones, and for those that differ
    by nothing, by blanks or by case."""
    clean = [name.strip() for name in names]
    faults = [f"column {place} has no name" for place, name in enumerate(clean, 1) if not name]
    places: dict[str, list[int]] = {}
    for place, name in enumerate(clean):
        if name:
            places.setdefault(_folded(name), []).append(place)
    for same in places.values():
        if len(same) > 1:
            shown = ", ".join(f"{shorten(names[place])!r} (column {place + 1})" for place in same)
            exact = len({names[place] for place in same}) == 1
            faults.append(f"{shown} are the same name" if exact else f"{shown} differ by blanks, case or form only")
    if faults:
        raise Refused(
            f"the header can't be used: {'; '.join(faults)}; mend it, or give --columns A,B,... with --header"
        )
    return clean


def _folded(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


# -- cells -----------------------------------------------------------------------------------------------------------

Cell = Callable[[str], Any]

_INT = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_FLOAT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _int(text: str) -> int:
    if not _INT.fullmatch(text.strip()):
        raise ValueError("expected a whole number")
    number = int(text)
    if not -(2**63) <= number < 2**64:
        raise ValueError("expected a whole number of at most 64 bits")
    return number


def _float(text: str) -> float:
    number = float(text) if _FLOAT.fullmatch(text.strip()) else float("inf")
    if number in (float("inf"), float("-inf")):
        raise ValueError("expected a finite number with a decimal point")
    return number


def _bool(text: str) -> bool:
    try:
        return _BOOLS[text.strip().lower()]
    except KeyError:
        raise ValueError("expected true or false, yes or no, 1 or 0") from None


def _json(text: str) -> Any:
    try:
        return parse(text)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _date(text: str) -> str:
    """Looked at, and handed on as it is: JSON has no dates."""
    try:
        date.fromisoformat(text)
    except ValueError:
        try:
            datetime.fromisoformat(text)
        except ValueError:
            raise ValueError("expected a date or time in ISO 8601") from None
    return text


TYPES: dict[str, Cell] = {"str": str, "int": _int, "float": _float, "bool": _bool, "json": _json, "date": _date}


def read_types(text: str) -> dict[str, str]:
    """`col:int,other:float?` as a table. Raises Refused."""
    out: dict[str, str] = {}
    for part in text.split(","):
        # The last colon: a column's name may hold others.
        name, colon, kind = part.strip().rpartition(":")
        if not colon or kind.removesuffix("?") not in TYPES:
            raise Refused(
                f"--types: {shorten(part.strip())!r} is no column with its type; write COLUMN:TYPE,... with "
                f"{', '.join(TYPES)}, and a ? behind it where an empty cell is null"
            )
        if name in out:
            raise Refused(f"--types: column {shorten(name)!r} stands there twice")
        out[name] = kind
    return out


def cells_of(types: dict[str, str], names: Sequence[str]) -> list[tuple[int, str, Cell, bool]]:
    """(place, name, reader, empty is null) of the columns that are no plain strings. Raises Refused for a column that
    is not there."""
    out = []
    for name, kind in types.items():
        if name not in names:
            raise Refused(
                f"--types: there is no column {shorten(name)!r}, only {shorten(', '.join(names), 200)}; "
                "columns without names are 1, 2, ..."
            )
        if kind != "str":
            out.append((names.index(name), name, TYPES[kind.removesuffix("?")], kind.endswith("?")))
    return out


def convert(cells: list[Any], typed: Sequence[tuple[int, str, Cell, bool]]) -> None:
    """Turns the typed cells of one row into their values, in place. Raises ValueError that names the column."""
    for place, name, read, empty_is_null in typed:
        text = cells[place]
        if not text and empty_is_null:
            cells[place] = None
            continue
        try:
            cells[place] = read(text)
        except ValueError as error:
            raise ValueError(f"column {shorten(name)}: {error}, found {shorten(text)!r}") from None
