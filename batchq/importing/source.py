"""Where rows come from: a file, a pipe, stdin. Opened once, never counted before."""

from __future__ import annotations

import codecs
import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from batchq.cli.output import utf8
from batchq.importing.compression import LOOK, kind_of, unpacked
from batchq.importing.rows import Refused, Unreadable

#: What one read asks for.
BLOCK = 256 << 10
#: What is looked at to find format and dialect.
HEAD = 64 << 10

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    # Before UTF-16: its mark begins with that one's.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass(slots=True)
class Source:
    """An open input."""

    #: As it was given on the command line.
    path: str
    file: BinaryIO
    #: Bytes, of a regular file; None of a stream.
    size: int | None
    _changed_ns: int = 0
    #: Bytes read so far, as they lie on the disk.
    read: int = 0
    #: gzip, bzip2, xz, zstd or "".
    compression: str = ""
    #: What the text is written in.
    written_in: str = "utf-8"
    #: What `head` and `blocks` are in: the same, or UTF-8 where bytes can't be told apart in that.
    encoding: str = "utf-8"
    #: The first bytes of the text.
    head: bytes = b""
    _rest: Iterator[bytes] = field(default_factory=lambda: iter(()))
    #: Why the input ends in its very head.
    _broken: Unreadable | None = None

    @property
    def is_stream(self) -> bool:
        """Can't be read a second time: an interrupted import of it can't go on."""
        return self.size is None

    @property
    def shown(self) -> str:
        return "stdin" if self.path == "-" else utf8(self.path)

    @property
    def errors(self) -> str:
        """How `head` and `blocks` are read where they are no text: bytes of the input are kept as they are, what stands
        for them in a transcoded text is nobody's."""
        return "strict" if self.encoding == self.written_in else "replace"

    def begin(self, encoding: str | None) -> None:
        """Reads the head, which tells compression and encoding. Raises Refused."""
        raw = self._blocks()
        first = b""
        for block in raw:
            first += block
            if len(first) >= LOOK:
                break
        self.compression = kind_of(first)
        plain = _chain(first, raw)
        if self.compression:
            plain = unpacked(plain, self.compression)
        begun = b""
        try:
            for block in plain:
                begun += block
                if len(begun) >= HEAD:
                    break
        except Unreadable as error:
            self._broken = error
        if self.compression:
            # A second time: what is inside may be an archive.
            inner = kind_of(begun)
            if inner:
                raise Refused(f"is {self.compression} around {inner}; unpack it once before")
        self.written_in, text = _encoding_of(begun, encoding)
        self.encoding = self.written_in
        self._rest = plain
        if not splits_by_bytes(self.encoding):
            self._rest = _transcoded(_chain(text, plain), self.encoding)
            text = next(self._rest, b"")
            while len(text) < HEAD and (more := next(self._rest, b"")):
                text += more
            self.encoding = "utf-8"
            text = text.removeprefix(codecs.BOM_UTF8)
        self.head = text

    def blocks(self) -> Iterator[bytes]:
        """The text, from its beginning, without its byte order mark. Raises Unreadable where it can't go on."""
        if self.head:
            yield self.head
        if self._broken is not None:
            raise self._broken
        yield from self._rest

    def _blocks(self) -> Iterator[bytes]:
        while True:
            try:
                block = self.file.read(BLOCK)
            except OSError as error:
                raise Unreadable(f"can't be read further ({error.strerror})") from error
            if not block:
                return
            self.read += len(block)
            yield block

    def fingerprint(self) -> dict[str, object]:
        """What stands for a regular file's content: its size, and a digest of all of it, for a row may have changed
        anywhere. That takes about a hundredth of the time that the rows will take."""
        digest = hashlib.sha256()
        place = 0
        while block := os.pread(self.file.fileno(), BLOCK, place):
            digest.update(block)
            place += len(block)
        return {"size": self.size, "sha256": digest.hexdigest()}

    def change(self) -> str:
        """How a regular file has changed since it was opened; "" where it has not."""
        if self.size is None:
            return ""
        now = os.fstat(self.file.fileno())
        if now.st_size != self.size:
            return f"it had {self.size} bytes when it was opened and has {now.st_size} now"
        return "it was written to" if now.st_mtime_ns != self._changed_ns else ""

    def close(self) -> None:
        with suppress(OSError):
            self.file.close()


def open_source(path: str) -> Source:
    """Opens one input; `-` is stdin. Raises Refused for what can't be read."""
    try:
        if path == "-":
            if sys.stdin is None:
                raise Refused("stdin is closed; give a file")
            # Unbuffered: a pipe's rows are taken as they come.
            file: BinaryIO = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
        else:
            file = open(path, "rb", buffering=0)  # noqa: SIM115 - the source keeps it
    except OSError as error:
        raise Refused(_os_words(error)) from error
    facts = os.fstat(file.fileno())
    if stat.S_ISDIR(facts.st_mode):
        file.close()
        raise Refused("is a directory; name the files in it")
    if not stat.S_ISREG(facts.st_mode) or path == "-":
        return Source(path, file, None)
    return Source(path, file, facts.st_size, facts.st_mtime_ns)


def look_at(path: str) -> None:
    """Whether it can be opened, without opening a FIFO, which would wait. Raises Refused."""
    if path == "-":
        return
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise Refused(_os_words(error) if isinstance(error, OSError) else "is no path") from error
    if stat.S_ISDIR(mode):
        raise Refused("is a directory; name the files in it")
    if stat.S_ISSOCK(mode):
        raise Refused("is a socket; pipe what it says into batchq import -")
    if not os.access(path, os.R_OK):
        raise Refused("can't be read by this user (Permission denied)")


def _os_words(error: OSError) -> str:
    return f"can't be opened ({error.strerror})"


def check_encoding(name: str) -> str:
    """The codec's own name. Raises Refused for one that is not known, or no text."""
    try:
        known = codecs.lookup(name)
        "a".encode(name, "ignore")
    except (LookupError, ValueError, TypeError):
        raise Refused(f"{name!r:.40} is no encoding; write utf-8, utf-16, cp1252, latin-1 or another name") from None
    return "utf-8" if known.name == "utf-8-sig" else known.name


def splits_by_bytes(encoding: str) -> bool:
    """Line ends and ASCII are single bytes of their own in it, and those bytes are never part of another character: in
    Shift JIS and its like a backslash or a bracket may be."""
    probe = 'a\n\r,"[{'
    if probe.encode(encoding) != probe.encode("ascii"):
        return False
    return min("é表丂許가갂".encode(encoding, "ignore"), default=0x80) >= 0x80


def _encoding_of(begun: bytes, asked: str | None) -> tuple[str, bytes]:
    """The encoding and the text without its mark. A mark decides where nobody says otherwise."""
    for mark, name in _MARKS:
        if begun.startswith(mark) and (asked is None or asked == name):
            # The codecs of UTF-16 and UTF-32 read their mark themselves.
            return name, begun[len(mark) :] if name == "utf-8" else begun
    if asked is None and b"\0" in begun[:64] and begun[:64].count(0) * 3 > len(begun[:64]):
        raise Refused("looks like UTF-16 without a byte order mark, or is no text; give --encoding")
    return asked or "utf-8", begun


#: What stands in a transcoded text for a character that is none: a byte that is no UTF-8, so that its row is rejected.
DAMAGED = b"\xff"


def _damaged(error: UnicodeError) -> tuple[str | bytes, int]:
    """To a decoder a lone surrogate, to the encoder behind it DAMAGED."""
    assert isinstance(error, UnicodeDecodeError | UnicodeEncodeError)
    return ("\udcff" if isinstance(error, UnicodeDecodeError) else DAMAGED), error.end


codecs.register_error("batchq.damaged", _damaged)


def _transcoded(blocks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """The same text in UTF-8, but for characters that are none, see DAMAGED."""
    try:
        decoder = codecs.getincrementaldecoder(encoding)("batchq.damaged")
        for block in blocks:
            yield decoder.decode(block).encode("utf-8", "batchq.damaged")
        yield decoder.decode(b"", final=True).encode("utf-8", "batchq.damaged")
    except UnicodeError as error:
        reason = getattr(error, "reason", str(error))
        raise Unreadable(f"is no valid {encoding} from here on ({reason}); give its --encoding") from error


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest
