"""Horizontal bars as SVG, in panels side by side: what a few medians need, without a library."""

from __future__ import annotations

from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, NAMES, BARS, ROW, HEAD, GAP = 460, 120, 250, 18, 34, 26
OURS, THEIRS, INK = "#1a7f5a", "#a8b3bd", "#57606a"


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    value: float
    #: Drawn in the other colour.
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    #: From the best to the worst.
    bars: list[Bar]
    digits: int


def panels(shown: list[Panel], title: str, across: int = 2) -> str:
    """A whole SVG document. Lengths are by value, within a panel."""
    rows = [shown[start : start + across] for start in range(0, len(shown), across)]
    heights = [HEAD + GAP + ROW * max(len(panel.bars) for panel in row) for row in rows]
    parts, top = [], 30
    for row, height in zip(rows, heights, strict=True):
        parts += [_panel(panel, place * WIDTH, top) for place, panel in enumerate(row)]
        top += height
    size = f'width="{across * WIDTH}" height="{top}" viewBox="0 0 {across * WIDTH} {top}"'
    style = f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}"'
    head = f'<text x="10" y="18" font-size="13" font-weight="600">{escape(title)}</text>'
    paper = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{paper}\n{head}\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _panel(panel: Panel, left: int, top: int) -> str:
    longest = max((bar.value for bar in panel.bars), default=1.0) or 1.0
    lines = [f'<text x="{left + 10}" y="{top + 20}" font-weight="600">{escape(panel.title)}</text>']
    for place, bar in enumerate(panel.bars):
        y = top + HEAD + place * ROW
        length = max(1.0, BARS * max(0.0, bar.value) / longest)
        colour = OURS if bar.is_ours else THEIRS
        shape = f'width="{length:.1f}" height="{ROW - 5}" rx="2" fill="{colour}"'
        lines += [
            f'<text x="{left + NAMES - 6}" y="{y + 12}" text-anchor="end">{escape(bar.name)}</text>',
            f'<rect x="{left + NAMES}" y="{y + 2}" {shape}/>',
            f'<text x="{left + NAMES + length + 5:.1f}" y="{y + 12}">{bar.value:,.{panel.digits}f}</text>',
        ]
    return "\n".join(lines)
