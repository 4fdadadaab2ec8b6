"""Rows of CSV and TSV: fields may hold delimiters, quotes and any kind of line end; line numbers are physical ones.

A row that can't be read is passed by, and with it as little as can be: see `_mend`. No row is ever made from text that
may stand inside quotes.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from batchq.importing.columns import Cell, cells_of, check_names, convert
from batchq.importing.json_rows import too_long
from batchq.importing.lines import Long, split_lines
from batchq.importing.rows import RAW_MAX, Bad, Refused, Row, shorten

#: The types of columns, from their names: see columns.read_types.
Types = Callable[[Sequence[str]], dict[str, str]]

DELIMITERS = (",", "\t", ";", "|")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the cells of a line are told apart."""

    delimiter: str = ","
    #: "": no quotes, every character is a cell's own.
    quote: str = '"'

    def reader(self, lines: Iterable[str]) -> Iterator[list[str]]:
        # Strict: what is ambiguous is an error, and not a guess of the library's.
        if not self.quote:
            return csv.reader(lines, delimiter=self.delimiter, quoting=csv.QUOTE_NONE, strict=True)
        return csv.reader(lines, delimiter=self.delimiter, quotechar=self.quote, doublequote=True, strict=True)


def sniff(head: str, quote: str) -> str:
    """The delimiter: the one by which most of the first rows have the header's number of cells, and more than one. A
    comma where there is none."""
    lines = head.splitlines(True)
    # The last line may be cut off.
    lines = lines[:200] if len(lines) > 200 else lines[:-1] or lines
    best, best_score = ",", (0.0, 0)
    for delimiter in DELIMITERS:
        widths = _widths(lines, Dialect(delimiter, quote))
        if widths and widths[0] > 1:
            score = (sum(width == widths[0] for width in widths) / len(widths), widths[0])
            if score > best_score:
                best, best_score = delimiter, score
    return best


def _widths(lines: Sequence[str], dialect: Dialect) -> list[int]:
    widths: list[int] = []
    rows = dialect.reader(lines)
    while True:
        try:
            cells = next(rows)
        except StopIteration:
            return widths
        except csv.Error:
            # Counted as a row that does not fit.
            widths.append(0)
            continue
        if cells:
            widths.append(len(cells))


class _TooMuch(Exception):
    """The record under way is longer than what can become a job."""


class _Feed:
    """Decodes lines for csv.reader and keeps those of the record under way."""

    def __init__(self, lines: Iterator[bytes | Long], encoding: str, written_in: str, limit: int) -> None:
        self._lines = lines
        self._encoding = encoding
        self._written_in = written_in
        self._limit = limit
        #: The last physical line that was read.
        self.number = 0
        self.held: list[bytes] = []
        self._size = 0
        #: What is wrong with the bytes of the record.
        self.fault = ""
        #: The line that alone is too long.
        self.long: Long | None = None

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        if isinstance(line, Long):
            self.long = line
            raise _TooMuch
        self.held.append(line)
        self._size += len(line)
        if self._size > self._limit:
            raise _TooMuch
        if b"\0" in line:
            self.fault = self.fault or f"a NUL byte in line {self.number}: damaged, or no text"
        try:
            return line.decode(self._encoding)
        except UnicodeDecodeError as error:
            # Of a transcoded line the byte would be another one in the file.
            byte = f"byte {error.start} of " if self._encoding == self._written_in else ""
            self.fault = self.fault or f"no valid {self._written_in} at {byte}line {self.number}; see --encoding"
            return line.decode(self._encoding, "replace")

    def begin(self) -> None:
        """A new record begins."""
        self.held = []
        self._size = 0
        self.fault = ""
        self.long = None

    def skip(self, quote: bytes) -> tuple[int, bool]:
        """Reads on to the line that closes the quotes that are open; answers its bytes, and whether there was one."""
        size = 0
        for line in self._lines:
            self.number += 1
            size += line.size if isinstance(line, Long) else len(line)
            if (line.quotes if isinstance(line, Long) else line.count(quote)) % 2:
                return size, True
        return size, False


class CsvRows:
    """The rows of one input. Reads the header at once: raises Refused where it can't be used."""

    def __init__(
        self,
        blocks: Iterator[bytes],
        *,
        dialect: Dialect,
        encoding: str,
        written_in: str,
        limit: int,
        header: bool,
        names: Sequence[str] | None,
        types: Types,
        positional: bool,
    ) -> None:
        # Once a process: what is too much is known before the module would complain.
        csv.field_size_limit(max(csv.field_size_limit(), 2 * limit))
        self._dialect = dialect
        self._limit = limit
        self._quote = dialect.quote.encode(encoding)
        self._feed = _Feed(split_lines(blocks, limit, self._quote), encoding, written_in, limit)
        self._reader = dialect.reader(self._feed)
        self._header: list[str] = self._read_header() if header else []
        if names is not None and self._header and len(names) != len(self._header):
            raise Refused(f"--columns: {len(names)} names for {len(self._header)} columns")
        named = names if names is not None else self._header
        #: The columns' names; empty where there are none, or nothing at all.
        self.names = check_names(named) if named else []
        self._positional = positional or not self.names
        self._types = types
        self._width = len(self.names)
        self._typed: list[tuple[int, str, Cell, bool]] = []
        if self.names:
            self._typed = cells_of(types(self.names), self.names)

    def _read_header(self) -> list[str]:
        while True:
            self._feed.begin()
            try:
                cells = next(self._reader)
            except StopIteration:
                return []
            except _TooMuch:
                raise Refused(
                    f"the header is longer than {self._limit} bytes; give --delimiter, or --no-header"
                ) from None
            except csv.Error as error:
                raise Refused(f"the header can't be read: {_words(error)}") from error
            if self._feed.fault:
                raise Refused(f"the header can't be read: {self._feed.fault}")
            if any(cell.strip() for cell in cells) or len(cells) > 1:
                return cells

    def __iter__(self) -> Iterator[Row | Bad]:
        feed, reader = self._feed, self._reader
        while True:
            feed.begin()
            begin = feed.number + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except _TooMuch:
                yield from self._too_much(begin)
                continue
            except csv.Error as error:
                yield from self._mend(begin, _words(error))
                continue
            row = self._row(begin, cells, feed.held, feed.fault)
            if row is not None:
                yield row

    def _row(self, line: int, cells: list[Any], raw: list[bytes], fault: str = "") -> Row | Bad | None:
        """One row from its cells; None for a blank line."""
        width = len(cells)
        last = line + len(raw) - 1
        if fault:
            return Bad(line, fault, raw, last)
        if width != self._width or width <= 1:
            if not cells or (width == 1 != self._width and not cells[0].strip()):
                return None
            if not self._width:
                self._first(width)
            if width != self._width:
                names = f" ({shorten(', '.join(self.names))})" if self.names else ""
                return Bad(line, f"expected {self._width} cells{names}, found {width}", raw, last)
        if cells == self._header or cells == self.names:
            return Bad(line, "the header once more", raw, last)
        if width > 1 and not any(cells):
            return Bad(line, f"expected {self._width} cells, found empty ones only", raw, last)
        if self._typed:
            try:
                convert(cells, self._typed)
            except ValueError as error:
                return Bad(line, str(error), raw, last)
        return Row(line, cells if self._positional else dict(zip(self.names, cells, strict=True)), raw)

    def _first(self, width: int) -> None:
        """Without header and names the first row says how many cells there are."""
        self._width = width
        places = [str(place) for place in range(1, width + 1)]
        self._typed = cells_of(self._types(places), places)

    # -- what is broken

    def _mend(self, begin: int, why: str) -> Iterator[Row | Bad]:
        """A record over some lines that the reader refuses. Most often a quote in its first line has swallowed the
        lines behind it: where each of these is a whole row by itself, with the right number of cells, more than one,
        only the first line is passed by. Else all of them are: they may be one field's text."""
        lines = self._feed.held
        if not self._are_rows(lines):
            yield Bad(begin, why, lines, begin + len(lines) - 1)
            return
        yield Bad(begin, why, lines[:1])
        for place, line in enumerate(islice(lines, 1, None), begin + 1):
            # Again: of a million short lines there is no room for all their cells.
            row = self._row(place, self._alone(line) or [], [line])
            if row is not None:
                yield row

    def _are_rows(self, lines: Sequence[bytes]) -> bool:
        """Whether there are lines behind the first, each a whole row by itself."""
        return (
            len(lines) > 1 and self._width > 1 and all(self._alone(line) is not None for line in islice(lines, 1, None))
        )

    def _alone(self, line: bytes) -> list[str] | None:
        """The cells of a line that is a whole row by itself, [] for a blank one; None for any other."""
        try:
            [cells] = self._dialect.reader([line.decode(self._feed._encoding)])
        except (csv.Error, UnicodeDecodeError, ValueError):
            return None
        return cells if not cells or (len(cells) == self._width and b"\0" not in line) else None

    def _too_much(self, begin: int) -> Iterator[Bad | Row]:
        """A record above the limit: passed by to its end, without keeping it."""
        feed = self._feed
        held, long = feed.held, feed.long
        if long is None and self._are_rows(held):
            yield from self._mend(begin, "a quote is opened and not closed")
            return
        size = sum(map(len, held)) + (long.size if long else 0)
        quotes = sum(line.count(self._quote) for line in held) + (long.quotes if long else 0) if self._quote else 0
        closed = True
        if quotes % 2:
            more, closed = feed.skip(self._quote)
            size += more
        reason = too_long(size, self._limit) if closed else "a quote is opened and not closed before the end"
        head = b"".join(held)[:RAW_MAX] or (long.head if long else b"")
        yield Bad(begin, reason, (head,), feed.number, size)


def _words(error: csv.Error) -> str:
    """What is wrong, in words of ours: those of the module are for programmers."""
    text = str(error)
    if "unexpected end of data" in text:
        return "a quote is opened and not closed"
    if "expected after" in text:
        return "a closing quote is followed by more text; a quote inside a quoted cell is written twice"
    if "new-line" in text:
        return "a carriage return in the middle of a cell that is not quoted"
    return f"not CSV ({text})"
