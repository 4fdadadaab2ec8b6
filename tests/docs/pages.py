"""The fenced blocks of the documentation, as tests see them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: All that people read.
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md"])

_FENCE = re.compile(
    r"(?P<before><!-- not run: [^\n]*-->\n)?^```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A fenced block. `run` is false where a comment before it says `not run: why`."""

    kind: str
    #: The file that it is to be written to; "" for none.
    title: str
    text: str
    run: bool
    line: int


def blocks(page: Path, *kinds: str) -> Iterator[Block]:
    """Those of that kind, all where none is given, in their order."""
    text = page.read_text("utf-8")
    for match in _FENCE.finditer(text):
        if not kinds or match["kind"] in kinds:
            line = text.count("\n", 0, match.start("kind")) + 1
            yield Block(match["kind"], match["title"] or "", match["text"], match["before"] is None, line)


def commands(block: Block) -> Iterator[str]:
    """Its command lines without comments; lines that go on are joined."""
    for line in block.text.replace("\\\n", " ").splitlines():
        plain = re.split(r"\s+#\s", line, maxsplit=1)[0].strip()
        if plain and not plain.startswith("#"):
            yield plain
