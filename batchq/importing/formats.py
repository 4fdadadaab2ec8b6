"""Which reader an input needs. The file's name decides, else its first character; compression never matters here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from batchq.importing.columns import read_types
from batchq.importing.csv_rows import CsvRows, Dialect, sniff
from batchq.importing.json_rows import Shapes, read_array, read_ndjson
from batchq.importing.rows import TEXT_FACTOR, Bad, Refused, Row
from batchq.importing.source import Source, check_encoding
from batchq.jsons import orjson

FORMATS = ("csv", "tsv", "ndjson", "json")

_BY_NAME = {"csv": "csv", "tsv": "tsv", "tab": "tsv", "ndjson": "ndjson", "jsonl": "ndjson", "json": "json"}
_PACKED = re.compile(r"\.(gz|gzip|bz2|xz|zst|zstd)$", re.IGNORECASE)
_SUFFIX = re.compile(r"\.([A-Za-z0-9]+)$")

#: The types of named columns by the handler's annotations.
HandlerTypes = Callable[[Sequence[str], bool], dict[str, str]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """How inputs are to be read, where somebody said so. None: as the input itself suggests."""

    format: str | None = None
    encoding: str | None = None
    delimiter: str | None = None
    quote: str | None = None
    header: bool | None = None
    columns: tuple[str, ...] | None = None
    #: `col:int,...`; "handler" is answered by `handler_types`.
    types: str | None = None
    #: True: rows are positional arguments; False: keyword arguments.
    positional: bool | None = None
    envelope: bool = False
    #: The greatest row of a job: what is much longer is no row.
    max_payload: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Opened:
    """The rows of an input, and how they are read: all that where chunks end depends on."""

    rows: Iterator[Row | Bad]
    #: For people: `csv, delimiter ';', utf-8, gzip`.
    shown: str
    #: For the lane.
    facts: dict[str, object]
    #: Names of the columns of a CSV that has them.
    names: list[str] = field(default_factory=list)
    positional: bool = False


def open_rows(source: Source, wanted: Wanted, handler_types: HandlerTypes | None) -> Opened:
    """Reads the head of an open source. Raises Refused where it can't be read as it is asked."""
    source.begin(None if wanted.encoding is None else check_encoding(wanted.encoding))
    format_ = wanted.format or _format_of(source, wanted)
    facts: dict[str, object] = {"format": format_, "encoding": source.written_in, "max_payload": wanted.max_payload}
    limit = TEXT_FACTOR * wanted.max_payload
    shown = [format_]
    if source.written_in != "utf-8":
        shown.append(source.written_in)
    if source.compression:
        shown.append(source.compression)
    if format_ in ("csv", "tsv"):
        return _open_csv(source, wanted, handler_types, format_, limit, facts, shown)
    _refuse_csv_options(wanted, format_)
    kind = dict if wanted.envelope or wanted.positional is False else list if wanted.positional else None
    facts["shape"] = None if kind is None else kind.__name__
    shapes = Shapes(kind, source.encoding, source.written_in)
    read = read_ndjson if format_ == "ndjson" else read_array
    return Opened(read(source.blocks(), shapes, limit), ", ".join(shown), facts)


def _open_csv(
    source: Source,
    wanted: Wanted,
    handler_types: HandlerTypes | None,
    format_: str,
    limit: int,
    facts: dict[str, object],
    shown: list[str],
) -> Opened:
    if wanted.envelope:
        raise Refused("--envelope: a CSV has columns; write envelopes as NDJSON")
    quote = '"' if wanted.quote is None else wanted.quote
    delimiter = wanted.delimiter
    if delimiter is None:
        delimiter = "\t" if format_ == "tsv" else sniff(source.head.decode(source.encoding, "replace"), quote)
    if delimiter == quote:
        raise Refused("--delimiter and --quote are the same character")
    header = wanted.header if wanted.header is not None else wanted.columns is None
    positional = bool(wanted.positional)
    table = {} if wanted.types in (None, "handler") else read_types(wanted.types or "")

    def types(names: Sequence[str]) -> dict[str, str]:
        return table if handler_types is None else handler_types(names, positional)

    rows = CsvRows(
        source.blocks(),
        dialect=Dialect(delimiter, quote),
        encoding=source.encoding,
        written_in=source.written_in,
        limit=limit,
        header=header,
        names=wanted.columns,
        types=types,
        positional=positional,
    )
    if wanted.positional is False and not rows.names and not header:
        raise Refused("--kwargs: the columns have no names; give --columns A,B,... or --header")
    facts |= {"delimiter": delimiter, "quote": quote, "header": header, "columns": rows.names}
    facts |= {"positional": positional, "types": types(rows.names) if rows.names else wanted.types}
    shown.insert(1, f"delimiter {_NAMED.get(delimiter, delimiter)}")
    if rows.names:
        shown.append(f"columns {', '.join(rows.names)}")
    return Opened(iter(rows), ", ".join(shown), facts, rows.names, positional or not rows.names)


_CSV_ONLY = ("delimiter", "quote", "header", "columns", "types")

_NAMED = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar", " ": "space"}


def _refuse_csv_options(wanted: Wanted, format_: str) -> None:
    for name in _CSV_ONLY:
        if getattr(wanted, name) is not None:
            raise Refused(f"--{name}: of use with CSV only, and this is {format_}; say --format csv if it is one")


def _format_of(source: Source, wanted: Wanted) -> str:
    suffix = _SUFFIX.search(_PACKED.sub("", source.path))
    named = _BY_NAME.get(suffix[1].lower()) if suffix else None
    first = source.head.decode(source.encoding, "replace").lstrip()[:1]
    if named in ("csv", "tsv", "ndjson"):
        return named
    if named is None and (any(getattr(wanted, name) is not None for name in _CSV_ONLY)):
        return "csv"
    if first == "[":
        return "json"
    if first == "{":
        # Also under the name .json: NDJSON is often called that.
        line, *more = source.head.strip().splitlines()
        try:
            orjson.loads(line)
        except ValueError:
            if more and (named == "json" or line.strip() == b"{"):
                raise Refused(
                    "expected one array, or an object a line; found an object over several lines; write its rows as "
                    "NDJSON: jq -c '.rows[]' FILE"
                ) from None
        return "ndjson"
    if named == "json" and first:
        raise Refused(f"expected [ or {{ at the beginning of JSON, found {first!r}; say --format if it is another")
    return named or ("csv" if first else "ndjson")


def check_character(text: str, flag: str) -> str:
    """One character for the CSV dialect; `tab` for one that shells make hard. Raises Refused."""
    named = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "bar": "|", "pipe": "|", "space": " "}
    character = named.get(text, text)
    if len(character) != 1 or character in "\r\n\0" or not character.isascii():
        raise Refused(f"{flag}: expected one ASCII character (or tab), found {text!r:.40}")
    return character
