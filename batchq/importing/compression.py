"""Compressed input, recognised by its first bytes whatever the file is called: gzip, bzip2, xz, zstd.

All members are read. What is cut off, damaged, or followed by something else ends in `Unreadable`, after everything
that came out whole was handed on. A block that unpacks to gigabytes comes out in pieces.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from batchq.importing.rows import Refused, Unreadable

#: The most that one step unpacks.
PIECE = 256 << 10

#: First bytes -> what it is.
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
#: First bytes of what is no text, and what it is.
_FOREIGN = {
    b"PK\x03\x04": "a zip archive (or xlsx)",
    b"PAR1": "a Parquet file",
    b"SQLite format 3\x00": "an SQLite database",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"\x04\x22\x4d\x18": "an lz4 file",
    b"%PDF-": "a PDF",
    b"\xd0\xcf\x11\xe0": "an old Office file (xls)",
}
#: Bytes that are enough to tell.
LOOK = 16


class Decoder(Protocol):
    """One member's decoder, as bz2 and lzma have it."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


def kind_of(head: bytes) -> str:
    """gzip, bzip2, xz, zstd, or "" for plain. Raises Refused for what is no text at all."""
    for magic, name in _FOREIGN.items():
        if head.startswith(magic):
            raise Refused(f"is {name}; export it as CSV or NDJSON")
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            # A CSV may begin with the letters BZh: the next byte is a digit, then a block's or the end's mark.
            if name == "bzip2" and head[4:10] not in (b"1AY&SY", b"\x17rE8P\x90"):
                continue
            return name
    return ""


def unpacked(blocks: Iterator[bytes], kind: str) -> Iterator[bytes]:
    """The plain bytes. Raises Unreadable where the input is damaged or ends too soon, Refused without the library."""
    make = _makers(kind)
    errors: tuple[type[Exception], ...] = (zlib.error, OSError, EOFError, ValueError, *_errors(kind))
    decoder: Decoder | None = None
    members = 0
    fresh = False
    for block in blocks:
        data = block
        while data or (decoder is not None and not decoder.eof and _hungry(decoder)):
            if decoder is None:
                # Zeros between and behind members are padding: of tapes for gzip, by its format for xz.
                data = data.lstrip(b"\0") if members and kind in ("gzip", "xz") else data
                if not data:
                    break
                decoder, members = make(), members + 1
                fresh = True
            try:
                out = decoder.decompress(data, PIECE)
            except errors as error:
                if members > 1 and fresh:
                    raise Unreadable(f"something that is no {kind} stands behind the end of the {kind} data") from error
                raise Unreadable(f"the {kind} data is damaged ({_words(error)})") from error
            data = b""
            if out:
                yield out
                fresh = False
            if decoder.eof:
                data, decoder = decoder.unused_data, None
    if decoder is not None:
        raise Unreadable(f"the {kind} data ends in the middle: the file was cut off")


def _hungry(decoder: Decoder) -> bool:
    """It can go on without more input."""
    return not getattr(decoder, "needs_input", True)


def _words(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__


class _Gzip:
    """zlib's decompressobj, under the names of the others."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self._full = False

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail and not self._full

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        out = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        # As much as was allowed: there may be more inside, though all input is taken.
        self._full = len(out) == max_length
        return out


class _Zstd:
    """The decompressobj of `zstandard`, which knows no limit: it is fed in small bites."""

    #: A bite unpacks to at most 32 MiB: a block of four bytes holds 128 KiB.
    BITE = 1 << 10

    def __init__(self, make: Callable[[], Any]) -> None:
        self._inner = make()
        self._left = b""

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inner.unused_data) + self._left

    @property
    def needs_input(self) -> bool:
        return not self._left

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        data = self._left + data
        out = []
        size = place = 0
        while place < len(data) and size < max_length and not self._inner.eof:
            piece = self._inner.decompress(data[place : place + self.BITE])
            place += self.BITE
            size += len(piece)
            out.append(piece)
        self._left = data[place:]
        return b"".join(out)


def _makers(kind: str) -> Callable[[], Decoder]:
    match kind:
        case "gzip":
            return _Gzip
        case "bzip2":
            import bz2

            return bz2.BZ2Decompressor
        case "xz":
            import lzma

            return lzma.LZMADecompressor
        case _:
            return _zstd()


def _zstd() -> Callable[[], Decoder]:
    from importlib import import_module

    try:
        # Python 3.14 and newer.
        made: Callable[[], Decoder] = import_module("compression.zstd").ZstdDecompressor
        return made
    except ImportError:
        pass
    try:
        library = import_module("zstandard")
    except ImportError:
        raise Refused(
            "is compressed with zstd, which this Python can't read; pip install 'batchq[zstd]', "
            "or pipe it: zstd -dc FILE | batchq import - ..."
        ) from None
    return lambda: _Zstd(lambda: library.ZstdDecompressor(max_window_size=1 << 27).decompressobj())


def _errors(kind: str) -> tuple[type[Exception], ...]:
    """What the libraries raise that is none of Python's own errors."""
    if kind == "xz":
        import lzma

        return (lzma.LZMAError,)
    if kind == "zstd":
        from importlib import import_module

        found = []
        for module, name in (("compression.zstd", "ZstdError"), ("zstandard", "ZstdError")):
            try:
                found.append(getattr(import_module(module), name))
            except ImportError:
                continue
        return tuple(found)
    return ()
