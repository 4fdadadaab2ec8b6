"""What commands print: data to stdout, as JSON for programs, aligned columns for pipes, tables on a terminal.

Everything that came from a job is escaped for people, so that a payload can't move a terminal's cursor.
JSON is UTF-8 whatever the locale says.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from batchq.cli.endings import OutputFailed

#: Below so many columns a table would be cut to nothing.
NARROW = 40


class Column(NamedTuple):
    """One column of a table. Numbers stand to the right and are never cut. Text that has no room is cut, so that a row
    stays a line: pipes and --json have all of it."""

    title: str
    right: bool = False
    #: Never cut: what people copy.
    whole: bool = False
    #: Folded instead of cut: sentences, and what stands nowhere else.
    fold: bool = False
    #: Left out where there is no room, the lowest first; 0: never.
    spare: int = 0
    #: What the others leave it at least before spare columns go, if it needs as much.
    least: int = 10


#: Between two columns, and as rich has it.
_GAP = 2
_PADDING = (0, _GAP, 0, 0)


def fit(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """How wide each column is to be, 0 for one that is left out. `widths` is what each would need.

    Spare columns go, the lowest first, until the others have what they need at least; then the widest text gives first.
    The sum is more than there is room for only where what must not be cut is.
    """
    wanted = list(widths)
    firm = [column.right or column.whole for column in columns]
    low = [
        width if is_firm else min(width, max(column.least, len(column.title)))
        for column, width, is_firm in zip(columns, widths, firm, strict=True)
    ]
    last = [width if is_firm else min(width, 1) for width, is_firm in zip(widths, firm, strict=True)]
    for _, at in sorted((column.spare, at) for at, column in enumerate(columns) if column.spare):
        if _needs(low) <= room:
            break
        low[at] = wanted[at] = last[at] = 0
    for least in (low, last):
        while _needs(wanted) > room and (wide := [at for at in range(len(wanted)) if wanted[at] > least[at]]):
            wanted[max(wide, key=lambda at: wanted[at])] -= 1
    return wanted


def _needs(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (sum(map(bool, widths)) - 1)


def on_terminal() -> bool:
    """stdout is a person's."""
    return sys.stdout is not None and sys.stdout.isatty()


def write_whole_frames() -> None:
    """From now on what is written to a terminal comes at the next flush, not line by line: nothing flickers."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(line_buffering=False)


def write(text: str) -> None:
    """Text as it is, to stdout. Raises OutputFailed, and BrokenPipeError where the reader has gone."""
    if sys.stdout is None:
        raise OutputFailed("stdout is closed: the answer has nowhere to go")
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(f"stdout: {error.strerror}") from error


def json_line(value: Any, *, indent: bool = True) -> None:
    """One JSON value on a line of its own; indented on a terminal unless it is one of many."""
    from batchq.jsons import orjson

    if sys.stdout is None:
        raise OutputFailed("stdout is closed: the answer has nowhere to go")
    option = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if on_terminal() and indent else 0)
    try:
        line = orjson.dumps(value, option=option)
    except TypeError:
        line = orjson.dumps(_all_utf8(value), option=option)
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(line)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(f"stdout: {error.strerror}") from error


def _all_utf8(value: Any) -> Any:
    if isinstance(value, str):
        return utf8(value)
    if isinstance(value, dict):
        return {_all_utf8(key): _all_utf8(one) for key, one in value.items()}
    return [_all_utf8(one) for one in value] if isinstance(value, list | tuple) else value


def utf8(text: str) -> str:
    """The text, with escapes for what has no form in UTF-8: the bytes of a path may be any."""
    return text.encode("utf-8", "backslashreplace").decode()


class Table:
    """Rows under titles, a page at a time: any number of rows in constant memory.

    Plain columns take their widths from the first page and only grow from there.
    """

    def __init__(self, *columns: Column) -> None:
        self._columns = columns
        self._widths = [len(column.title) for column in columns]
        #: Those that this terminal has room for: what the first page says goes for all.
        self._kept: set[int] | None = None
        self._begun = False

    def page(self, rows: Iterable[Sequence[str]]) -> None:
        """Prints these rows; the titles before the first page."""
        cells = [[clean(cell) for cell in row] for row in rows]
        room = shutil.get_terminal_size().columns
        widths = self._fits(cells, room) if on_terminal() and room >= NARROW else None
        if widths is None:
            self._plain(cells)
        else:
            self._rich(cells, widths)
        self._begun = True

    def _plain(self, rows: list[list[str]]) -> None:
        for row in rows:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, row, strict=True)]
        titles = [] if self._begun else [[column.title for column in self._columns]]
        for row in titles + rows:
            cells = [
                cell.rjust(width) if column.right else cell.ljust(width)
                for cell, width, column in zip(row, self._widths, self._columns, strict=True)
            ]
            write("  ".join(cells).rstrip() + "\n")

    def _fits(self, rows: list[list[str]], room: int) -> list[int] | None:
        """The width of each column, None where what must not be cut has no room."""
        from rich.cells import cell_len

        need = [
            max([len(column.title), *(cell_len(row[at]) for row in rows)])
            if self._kept is None or at in self._kept
            else 0
            for at, column in enumerate(self._columns)
        ]
        widths = fit(self._columns, need, room)
        return widths if _needs(widths) <= room else None

    def _rich(self, rows: list[list[str]], widths: list[int]) -> None:
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        self._kept = {at for at, width in enumerate(widths) if width}
        table = RichTable(box=None, pad_edge=False, show_header=not self._begun, header_style="bold", padding=_PADDING)
        for at in sorted(self._kept):
            column = self._columns[at]
            table.add_column(
                column.title,
                justify="right" if column.right else "left",
                width=widths[at],
                overflow="fold" if column.fold else "ellipsis",
                no_wrap=not column.fold,
            )
        for row in rows:
            table.add_row(*(Text(row[at], style=_STYLES.get(row[at], "")) for at in sorted(self._kept)))
        Console(file=sys.stdout, highlight=False, markup=False, emoji=False).print(table)


#: Words that a terminal shows in colour.
_STYLES = {
    "dead": "red",
    "failed": "red",
    "BAD": "bold red",
    "paused": "yellow",
    "look": "yellow",
    "active": "cyan",
    "completed": "green",
    "ok": "green",
}


def fields(pairs: Iterable[tuple[str, str]]) -> None:
    """`name  value` lines, the names as wide as the widest."""
    known = [(name, clean(value)) for name, value in pairs]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        write(f"{name.ljust(width)}  {value}\n".replace("  \n", "\n"))


def clean(text: str) -> str:
    """The text with everything escaped that is no printable character."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shorten(text: str, width: int) -> str:
    """The first line of the text, cut to a width."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= width else line[: width - 1] + "…"


def span(ms: float, *, tenths: bool = False) -> str:
    """A length of time for people: 850ms, 12s, 5m10s, 3h20m, 4d2h. Two units are enough. `tenths`: 1.2s, up to 10 s."""
    ms = max(0, int(ms))
    if ms < 1000:
        return f"{ms}ms"
    if tenths and ms < 9950:
        return f"{ms / 1000:.1f}s".replace(".0s", "s")
    seconds = ms // 1000
    for unit, size, lower, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size}{unit}" + (f"{rest}{lower}" if rest else "")
    return f"{seconds}s"


def named(kind: str, version: str) -> str:
    """A store's kind and version, where the version does not begin with it."""
    return version if version.startswith(kind) else f"{kind} {version}"


def when(ms: int) -> str:
    """An instant for people, in this machine's time zone, with its offset."""
    try:
        return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
