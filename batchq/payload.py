"""Arguments and results as JSON, strictly: what the handler gets is what was sent, or it is refused with the path.

`pack` proves it in C: orjson's dumps and loads, and `==`. Only a refused value is walked, to name the place.
Members of an int- or str-Enum equal their value and arrive as that. No pickle, anywhere.
"""

from __future__ import annotations

import enum
import json
import math
import re
from typing import Any, NoReturn

from batchq.jsons import orjson

#: Levels of nesting that arguments may have: what orjson writes.
MAX_DEPTH = 250

_OPTIONS = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def pack(value: Any, name: str = "args") -> bytes:
    """JSON bytes of a value that JSON keeps as it is.

    Raises TypeError for a type that JSON has not (datetime, Decimal, bytes, a tuple inside, a key that is no str) and
    ValueError for a value that it can't hold (NaN, an int beyond 64 bits, a lone surrogate, too deep a nesting);
    the message names the path, e.g. `args[0].when`.
    """
    try:
        data = orjson.dumps(value, option=_OPTIONS)
        # Deeper than orjson reads back, or a value that came back changed (a tuple, NaN): _fault_of finds it.
        if orjson.loads(data) == value:
            return data
    except (TypeError, ValueError, RecursionError):
        pass
    raise _fault_of(value, name)


def _fault_of(value: Any, name: str) -> Exception:
    """The error that names the first place which can't be sent."""
    for path, item, depth in _walk(value, name):
        if depth > MAX_DEPTH:
            return ValueError(
                f"{name}: nested deeper than {MAX_DEPTH} levels; flatten it, or store it elsewhere and send its path"
            )
        what = _fault(item)
        if what:
            return what[0](f"{path}: {what[1]}")
    return TypeError(f"{name}: JSON would change this value; send plain str, int, float, bool, None, list and dict")


def _fault(item: Any) -> tuple[type[Exception], str] | None:
    """Why this single value (not what it contains) can't be sent."""
    kind = type(item)
    if isinstance(item, enum.Enum):
        return None if isinstance(item, int | str) else (TypeError, f"{kind.__name__} is no JSON type; send its value")
    if kind is float:
        return None if math.isfinite(item) else (ValueError, f"{item} has no form in JSON; send None or a string")
    if kind is int:
        if -(2**63) <= item < 2**64:
            return None
        return ValueError, "an integer beyond 64 bits; send it as a string"
    if kind is str:
        try:
            item.encode()
        except UnicodeEncodeError:
            return ValueError, "a string with a lone surrogate is no UTF-8; decode it with errors='replace' first"
        return None
    if kind is dict:
        for key in item:
            if type(key) is not str:
                return TypeError, f"the key {key!r:.60} is a {type(key).__name__}; JSON keys are strings: send str(key)"
            if _fault(key):
                return ValueError, "a key with a lone surrogate is no UTF-8"
        return None
    if item is None or kind in (bool, list):
        return None
    if kind is tuple:
        return TypeError, "a tuple would arrive as a list; send a list"
    hints = {
        "datetime": "send isoformat()",
        "date": "send isoformat()",
        "Decimal": "send str(value)",
        "bytes": "send base64 text",
        "bytearray": "send base64 text",
        "set": "send sorted(value)",
        "frozenset": "send sorted(value)",
        "UUID": "send str(value)",
    }
    return TypeError, f"{kind.__name__} is no JSON type; {hints.get(kind.__name__, 'send plain JSON values')}"


def _walk(value: Any, name: str) -> Any:
    """Every value inside with its path, breadth first and without recursion: nesting may be deeper than the stack."""
    todo: list[tuple[str, Any, int]] = [(name, value, 1)]
    while todo:
        path, item, depth = todo.pop()
        yield path, item, depth
        if depth > MAX_DEPTH:
            return
        if type(item) is list:
            todo += reversed([(f"{path}[{i}]", inner, depth + 1) for i, inner in enumerate(item)])
        elif type(item) is dict:
            todo += reversed([(f"{path}.{key}", inner, depth + 1) for key, inner in item.items()])


# Only text with a long run of digits or an exponent can hold a number that orjson would read inexactly, and only an
# escape of the surrogates' range a lone one.
_RISKY = re.compile(rb"\d{17}|\d[eE]|\\u[dD]")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r:.60} stands twice in one object")
    return out


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def parse(text: str | bytes, name: str = "JSON") -> Any:
    """Reads JSON written by others, exactly: big integers stay integers, a key that stands twice is refused.

    Raises ValueError that names the place (`name`, with line and column where the text is broken).
    """
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_pairs, parse_constant=_constant)
    except RecursionError:
        raise ValueError(f"{name}: nested deeper than {MAX_DEPTH} levels") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: no valid UTF-8 at byte {error.start}") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if _RISKY.search(raw) or raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        pack(value, name)
    return value
