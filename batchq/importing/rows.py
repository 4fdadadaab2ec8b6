"""What readers hand on: a row with its value, or a row that can't be read with the reason. Both know their lines."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any, NamedTuple

from batchq.jsons import orjson

#: What is kept of the text of a rejected row.
RAW_MAX = 64 << 10
#: A record's text may be so many times longer than what it holds: escapes, doubled quotes, blanks.
TEXT_FACTOR = 4


class Unreadable(Exception):
    """The input ends here for us: what stands behind this place can't be read. What came before is good."""


class Refused(Exception):
    """The input as a whole is not what was said, or can't be understood. Found before its first row."""


class Row(NamedTuple):
    """A row that could be read."""

    #: The physical line on which it begins, from 1.
    line: int
    #: Positional arguments, or keyword arguments.
    value: list[Any] | dict[str, Any]
    #: Its text as it stands in the input, in pieces.
    raw: Sequence[bytes]


class Bad(NamedTuple):
    """A row that becomes no job."""

    line: int
    reason: str
    raw: Sequence[bytes]
    #: The last physical line of it; 0: the same.
    last: int = 0
    #: The bytes of its text, where `raw` is only their beginning; 0: all are there.
    size: int = 0

    def record(self, file: str, encoding: str, errors: str) -> bytes:
        """One line of a rejects file. `encoding`, `errors`: how the text is read."""
        text = b"".join(self.raw).rstrip(b"\r\n")
        size = self.size or len(text)
        entry: dict[str, Any] = {"file": file, "line": self.line}
        if self.last > self.line:
            entry["last_line"] = self.last
        entry["reason"] = self.reason
        kept = text[:RAW_MAX]
        try:
            # The cut may be in the middle of a character.
            entry["raw"] = codecs.getincrementaldecoder(encoding)(errors).decode(kept, size <= len(kept))
        except UnicodeDecodeError:
            # Latin-1 keeps each byte as one character.
            entry["raw"], entry["raw_is"] = kept.decode("latin-1"), "latin-1"
        if size > len(kept):
            entry["raw_bytes"] = size
        return orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE)


def shorten(text: str, most: int = 60) -> str:
    """The text for a message, cut."""
    return text if len(text) <= most else text[: most - 1] + "…"
