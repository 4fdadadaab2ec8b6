"""Rows of NDJSON and of one JSON array, exactly: no number is rounded, no key that stands twice is dropped in silence.

An array is split into its elements by a scan for brackets and strings, so that one of them is in memory at a time and
a broken one can be passed by. (ijson would give values or events, not the text that a rejected row is reported with.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from batchq.importing.lines import Long, split_lines
from batchq.importing.rows import RAW_MAX, Bad, Row, Unreadable
from batchq.importing.source import DAMAGED
from batchq.jsons import orjson
from batchq.payload import MAX_DEPTH, parse

# Text that orjson may read otherwise than it was meant (a long run of digits, an exponent, an escaped surrogate), and
# blanks before a colon, which the count of keys below does not expect.
_RISKY = re.compile(rb'\d{17}|\d[eE]|\\u[dD]|"[ \t\r\n]+:')


def read_json(text: bytes) -> Any:
    """`payload.parse`, and what it answers; quicker where the text proves harmless. Raises ValueError, TypeError."""
    try:
        value = orjson.loads(text)
    except ValueError:
        # Its words name the place.
        return parse(text)
    if (
        _RISKY.search(text)
        or text.count(b"{") + text.count(b"[") > MAX_DEPTH
        # Every key stands in front of a `":`. Where there are no more of these than keys, none stands twice.
        or text.count(b'":') > _keys(value)
    ):
        return parse(text)
    return value


def _keys(value: Any) -> int:
    """How many keys all objects inside have."""
    if type(value) is dict:
        return len(value) + sum(_keys(one) for one in value.values() if type(one) is dict or type(one) is list)
    if type(value) is list:
        return sum(_keys(one) for one in value if type(one) is dict or type(one) is list)
    return 0


class Shapes:
    """Objects are keyword arguments, lists positional ones. One input holds one kind: what its first row is, or what
    was asked for."""

    def __init__(self, wanted: type | None, encoding: str, written_in: str) -> None:
        self._kind = wanted
        self._since = 0
        self._encoding = encoding
        self._written_in = written_in

    def read(self, line: int, text: bytes, last: int = 0) -> Row | Bad:
        """One row from its text."""
        try:
            value = read_json(text if self._encoding == "utf-8" else text.decode(self._encoding).encode())
        except UnicodeDecodeError as error:
            return Bad(line, f"no valid {self._encoding} at byte {error.start}", (text,), last)
        except (ValueError, TypeError) as error:
            if self._written_in != self._encoding and DAMAGED in text:
                return Bad(line, f"no valid {self._written_in}; see --encoding", (text,), last)
            return Bad(line, _placed(str(error), line), (text,), last)
        kind = type(value)
        if kind is self._kind:
            return Row(line, value, (text,))
        if self._kind is None and kind in (dict, list):
            self._kind, self._since = kind, line
            return Row(line, value, (text,))
        expected = "an object or a list" if self._kind is None else _NAMES[self._kind]
        since = f" as in line {self._since}" if self._since else ""
        return Bad(line, f"expected {expected}{since}, found {_NAMES.get(kind, 'a number')}", (text,), last)


_PLACE = re.compile(r": line (\d+) column (\d+) \(char \d+\)$")


def _placed(words: str, line: int) -> str:
    """The parser's words with the place by the lines of the input."""

    def place(found: re.Match[str]) -> str:
        behind = int(found[1]) - 1
        return f" at column {found[2]}" + (f" of line {line + behind}" if behind else "")

    return _PLACE.sub(place, words.removesuffix(" at").replace(" at: line", ": line"))


_NAMES: dict[type | None, str] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    type(None): "null",
}


def read_ndjson(blocks: Iterator[bytes], shapes: Shapes, limit: int) -> Iterator[Row | Bad]:
    """A row a line. Blank lines count as lines and are no rows."""
    for number, line in enumerate(split_lines(blocks, limit), 1):
        if isinstance(line, Long):
            yield Bad(number, too_long(line.size, limit), (line.head,), size=line.size)
        elif line.strip():
            yield shapes.read(number, line.rstrip())


def too_long(size: int, limit: int) -> str:
    """Why a record of that size is none of ours."""
    return f"a record of {size} bytes; at most {limit} can become a job (see max_payload)"


# -- one array -------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(rb'\\[\s\S]|["\[\]{},]')


def read_array(blocks: Iterator[bytes], shapes: Shapes, limit: int) -> Iterator[Row | Bad]:
    """A row an element of the one array. Raises Unreadable where its brackets break, and where it does not end."""
    for element in _Splitter(limit).split(blocks):
        if element.size > limit:
            reason = too_long(element.size, limit)
            yield Bad(element.line, reason, (element.text,), element.last, element.size)
        else:
            yield shapes.read(element.line, element.text, element.last)


class _Element(NamedTuple):
    """The text of one element, or its beginning where it is longer than the limit."""

    line: int
    last: int
    text: bytes
    size: int


class _Splitter:
    """Cuts the text of one array at the commas between its elements. What stands inside them is not its business."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        #: Brackets that are open: 1 between the elements.
        self._depth = 0
        #: Where the text ends that was looked at, and where the element under way begins.
        self._line = self._begin = 1
        #: The element under way, from blocks before, and its size; above the limit only its beginning is kept.
        self._parts: list[bytes] = []
        self._size = 0
        self._is_first = True

    def split(self, blocks: Iterator[bytes]) -> Iterator[_Element]:
        quoted = ended = False
        held = b""
        for fresh in blocks:
            block = held + fresh
            # An escape is two bytes: half of one waits for the next block.
            held = b"\\" if (len(block) - len(block.rstrip(b"\\"))) % 2 else b""
            block = block.removesuffix(held)
            begin = 0
            for match in _TOKEN.finditer(block):
                token = match[0]
                if quoted:
                    quoted = token != b'"'
                    continue
                if ended:
                    break
                if self._depth == 0:
                    self._open(block[: match.end()])
                    begin = match.end()
                elif token == b'"':
                    quoted = True
                elif token in (b"[", b"{"):
                    self._depth += 1
                elif token == b",":
                    if self._depth == 1:
                        yield self._cut(block[begin : match.start()])
                        begin = match.end()
                elif token in (b"]", b"}"):
                    self._depth -= 1
                    if self._depth == 0:
                        ended = True
                        last = self._cut(block[begin : match.start()])
                        begin = match.end()
                        # `[]` has no element.
                        if last.text or not self._is_first:
                            yield last
            self._keep(block[begin:])
            if ended and b"".join(self._parts).strip():
                raise Unreadable(
                    f"line {self._line}: the array ends here and more follows; if each line is a list of its own, say "
                    "--format ndjson"
                )
        if self._depth or b"".join(self._parts).strip():
            raise Unreadable(f"line {self._line}: the input ends before the array does")

    def _open(self, text: bytes) -> None:
        """The array's first bracket, at the end of this text."""
        before = b"".join(self._parts) + text[:-1]
        if before.strip() or not text.endswith(b"["):
            raise Unreadable(f"line 1: expected [, the beginning of an array, found {(before + text).strip()[:20]!r}")
        self._line += before.count(b"\n")
        self._parts, self._size, self._depth = [], 0, 1

    def _keep(self, text: bytes) -> None:
        """Part of an element, whose rest may come with the next block."""
        if not self._size:
            bare = text.lstrip()
            self._line += text[: len(text) - len(bare)].count(b"\n")
            self._begin, text = self._line, bare
        self._line += text.count(b"\n")
        self._size += len(text)
        if self._size <= self._limit:
            self._parts.append(text)
        elif len(self._parts) != 1 or len(self._parts[0]) < RAW_MAX:
            self._parts = [b"".join([*self._parts, text])[:RAW_MAX]]

    def _cut(self, end: bytes) -> _Element:
        """The element that ends with this text."""
        self._is_first = self._is_first and self._depth == 0
        self._keep(end)
        text, size = b"".join(self._parts).rstrip(), self._size
        last = self._line - end[len(end.rstrip()) :].count(b"\n") if size else self._line
        self._parts, self._size = [], 0
        return _Element(self._begin, max(self._begin, last), text, size if size > self._limit else len(text))
