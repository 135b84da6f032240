"""The bar chart of README.md, as SVG in light and dark colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from published import median_interval

COLOURS = {
    "light": {"text": "#1f2328", "faint": "#59636e", "gain": "#2563ab", "none": "#8c959f"},
    "dark": {"text": "#f0f6fc", "faint": "#9198a1", "gain": "#6cb0f5", "none": "#656c76"},
}
WIDTH, LABELS, UNIT, ROW, TOP = 780, 350, 32, 30, 40
"""Pixels: of the picture, of the names, of a multiple of one, of a bar, and above the bars."""


class Bar(NamedTuple):
    """Flatout's speed relative to one peer: `name` is for the chart, titles are for the tables, and
    `ratios` are those of each pair, ``steady`` and ``whole``."""

    name: str
    title: str
    zh: str
    peer: str
    ratios: Mapping[str, Sequence[float]]
    marks: Sequence[str]


def chart(bars: Sequence[Bar], scheme: str) -> str:
    """Draw a bar and its interval for each comparison, with a line at equal speed."""
    colours, height = COLOURS[scheme], TOP + ROW * len(bars) + 14
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="system-ui, sans-serif" font-size="14">',
        "<title>Speed of Flatout while learning, relative to other libraries at equal work</title>",
        f'<text x="12" y="18" fill="{colours["faint"]}">'
        "times as fast at equal work, while learning (bar: median, line: interval)</text>",
    ]
    for number, bar in enumerate(bars):
        middle, low, high = median_interval(bar.ratios["steady"])
        y = TOP + ROW * number
        colour = colours["gain" if low > 1.05 else "none"]
        centre, end = y + 9, LABELS + UNIT * high
        lines += [
            f'<text x="{LABELS - 12}" y="{y + 14}" text-anchor="end" fill="{colours["text"]}">'
            f'{escape(bar.name)} <tspan fill="{colours["faint"]}">/ {escape(short(bar.peer))}'
            '</tspan></text>',
            f'<rect x="{LABELS}" y="{y}" width="{UNIT * middle:.1f}" height="18" '
            f'fill="{colour}"/>',
            f'<line x1="{LABELS + UNIT * low:.1f}" y1="{centre}" x2="{end:.1f}" y2="{centre}" '
            f'stroke="{colours["text"]}" stroke-width="1.5"/>',
            f'<text x="{end + 8:.1f}" y="{y + 14}" fill="{colours["text"]}">'
            f'{middle:.{2 if middle < 1.1 else 1}f}</text>',
        ]  # fmt: skip
    x, bottom = LABELS + UNIT, TOP + ROW * len(bars)
    lines.append(
        f'<line x1="{x}" y1="{TOP - 8}" x2="{x}" y2="{bottom}" stroke="{colours["faint"]}" '
        'stroke-dasharray="4 3"/>'
    )
    return "\n".join([*lines, "</svg>", ""])


def short(peer: str) -> str:
    """A peer's name without what explains it."""
    return peer.partition(" (")[0]
