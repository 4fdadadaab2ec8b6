"""Physical lines of a stream of blocks, as bytes with their ends, in bounded memory.

A line ends at LF, CRLF or CR, and nowhere else: U+2028, form feed and the like are text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from batchq.importing.rows import RAW_MAX

#: How a line may end, for a last one that is still open.
_CR = b"\r"


class Long(NamedTuple):
    """A line above the limit: its beginning, its size, and how many quotes are in it."""

    head: bytes
    size: int
    quotes: int


def split_lines(blocks: Iterator[bytes], limit: int, quote: bytes = b"") -> Iterator[bytes | Long]:
    """Each line with its end; one longer than `limit` as a Long. The last one needs no end."""
    rest = b""
    for block in blocks:
        data = rest + block
        found = data.splitlines(True)
        # A CR at the end may be half of a CRLF.
        rest = b"" if data.endswith(b"\n") else found.pop()
        if len(data) > limit:
            yield from (line if len(line) <= limit else _long(line, quote) for line in found)
        else:
            yield from found
        if len(rest) > limit:
            long, rest = _skip(blocks, rest, quote)
            yield long
    if rest:
        # Only ever one line, but for the limit that a last block may have passed.
        yield from (line if len(line) <= limit else _long(line, quote) for line in rest.splitlines(True))


def _long(line: bytes, quote: bytes) -> Long:
    return Long(line[:RAW_MAX], len(line), line.count(quote) if quote else 0)


def _skip(blocks: Iterator[bytes], begun: bytes, quote: bytes) -> tuple[Long, bytes]:
    """Reads to the end of a line that is too long; answers what is known of it, and what stands behind it."""
    head, size, quotes = _long(begun.rstrip(_CR), quote)
    data = begun[size:]
    for block in blocks:
        data += block
        first = data.splitlines(True)[0]
        if first.endswith(b"\n") or (first.endswith(_CR) and len(first) < len(data)):
            size, quotes = size + len(first), quotes + (first.count(quote) if quote else 0)
            return Long(head, size, quotes), data[len(first) :]
        data = _CR if first.endswith(_CR) else b""
        size, quotes = size + len(first) - len(data), quotes + (first.count(quote) if quote else 0)
    return Long(head, size + len(data), quotes), b""
