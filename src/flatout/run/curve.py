"""Learning curves: a run's points, and curves drawn as SVG by hand, in a millisecond and without a
library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from flatout.output import printable

VALUES = {
    "rollout/return_mean_100": "mean return of the last 100 training episodes",
    "train/accuracy": "accuracy on the batches",
}
"""Metrics of training that a curve shows, the first that the rows have, and their names."""

RETURNS, ACCURACIES = VALUES.values()
"""The names for agents and for classifiers."""

EVALUATIONS = {
    "eval/return_mean": "mean return of an evaluation",
    "eval/accuracy": "accuracy on the test set",
}
"""The same for evaluations."""

AXES = {"steps": "environment steps", "seconds": "seconds since the run's start"}


def axis(by: str, values: str) -> str:
    """Return what a curve runs over: `by` is a key of `AXES`, and `values` says what it shows."""
    accuracies = values in (ACCURACIES, EVALUATIONS["eval/accuracy"])
    return "optimiser steps" if by == "steps" and accuracies else AXES[by]


FEWEST_RUNS = 3
"""Fewest runs of one setting that have an interval: resamples of two differ in three ways."""

COLOURS = ("#1f77b4", "#d95f02", "#2a9d5c", "#c02a7a", "#7570b3", "#a6761d", "#444444", "#17a2b8")
BLOCKS = "▁▂▃▄▅▆▇█"
"""A curve in characters."""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 680, 400, 70, 20, 34, 48

Points = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Steps, seconds and values ``[K]``."""


@dataclass(frozen=True)
class Curve:
    """Values ``[K]`` at `x`, and the interval around them if they are of `FEWEST_RUNS` or more."""

    label: str
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: int = 1

    @property
    def name(self) -> str:
        """As it is called in a legend."""
        return printable(self.label) + (f" ({self.runs} runs)" if self.runs > 1 else "")


def points(
    rows: Iterable[Mapping[str, Any]], values: Mapping[str, str] = VALUES
) -> tuple[Points, str]:
    """Return a run's points from its rows of metrics, and the name of their values; there may be
    no point.

    Args:
        values: `VALUES` or `EVALUATIONS`.
    """
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in values}
    for row in rows:
        for name, kept in found.items():
            point: list[Any] = [row.get(key) for key in ("step", "time/wall_s", name)]
            if all(type(v) in (int, float) and abs(v) < 1e300 for v in point):
                kept.append((point[0], point[1], point[2]))
    name = next((name for name, kept in found.items() if kept), next(iter(values)))
    table = np.array(found[name], float).reshape(-1, 3)
    table = table[np.unique(table[:, 0], return_index=True)[1]]
    return (table[:, 0], table[:, 1], table[:, 2]), values[name]


def svg(curves: Sequence[Curve], title: str, x_label: str, y_label: str) -> str:
    """Return curves as a picture; at least one of them has a point."""
    x_ticks = _ticks([curve.x for curve in curves])
    y_ticks = _ticks([part for curve in curves for part in (curve.low, curve.high)])
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at_x(x: Any) -> Any:
        return LEFT + wide * (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])

    def at_y(y: Any) -> Any:
        return TOP + high * (y_ticks[-1] - y) / (y_ticks[-1] - y_ticks[0])

    def path(x: np.ndarray, y: np.ndarray) -> str:
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(at_x(x), at_y(y), strict=True))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12" fill="#333">',
        f"<title>{_text(title)}</title>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{_text(title)}</text>',
        f'<text x="{LEFT + wide / 2}" y="{HEIGHT - 10}" text-anchor="middle">{_text(x_label)}'
        "</text>",
        f'<text transform="translate(14 {TOP + high / 2}) rotate(-90)" text-anchor="middle">'
        f"{_text(y_label)}</text>",
    ]
    for tick in y_ticks:
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at_y(tick):.1f}" y2="{at_y(tick):.1f}" '
            f'stroke="#ddd"/><text x="{LEFT - 6}" y="{at_y(tick) + 4:.1f}" text-anchor="end">'
            f"{tick:,.10g}</text>"
        )
    for tick in x_ticks:
        parts.append(
            f'<text x="{at_x(tick):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
            f"{tick:,.10g}</text>"
        )
    for number, curve in enumerate(curves):
        chosen = np.linspace(0, len(curve.x) - 1, min(len(curve.x), WIDTH)).astype(int)
        x, mean, low, top = (a[chosen] for a in (curve.x, curve.mean, curve.low, curve.high))
        colour = COLOURS[number % len(COLOURS)]
        if curve.runs >= FEWEST_RUNS:
            band = f"{path(x, top)} {path(x[::-1], low[::-1])}"
            parts.append(f'<polygon points="{band}" fill="{colour}" fill-opacity="0.2"/>')
        parts.append(
            f'<polyline points="{path(x, mean)}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
        )
        if len(x) == 1:
            parts.append(f'<circle cx="{at_x(x[0])}" cy="{at_y(mean[0])}" r="3" fill="{colour}"/>')
        if len(curves) > 1:
            y = TOP + 14 + 16 * number
            parts.append(
                f'<line x1="{LEFT + 8}" x2="{LEFT + 28}" y1="{y - 4}" y2="{y - 4}" '
                f'stroke="{colour}" stroke-width="2"/><text x="{LEFT + 34}" y="{y}">'
                f"{_text(curve.name)}</text>"
            )
    return "\n".join([*parts, "</svg>\n"])


def drawing(title: str, points_: Points, label: str = RETURNS) -> str:
    """Return one run's curve over steps, as SVG."""
    steps, _, values = points_
    return svg([Curve(title, steps, values, values, values)], title, axis("steps", label), label)


def blocks(values: Sequence[float] | np.ndarray, low: float, high: float) -> str:
    """Return values between `low` and `high` as block characters."""
    scale = (len(BLOCKS) - 1) / max(high - low, 1e-12)
    return "".join(BLOCKS[round((value - low) * scale)] for value in values)


def _ticks(values: Sequence[np.ndarray]) -> np.ndarray:
    """Return 3 to 7 round numbers, evenly spaced, that enclose all values."""
    low, high = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(power * n for n in (1, 2, 5, 10) if span / (power * n) <= 5)
    first, last = math.floor(low / step), math.ceil(high / step)
    return np.arange(first, max(last, first + 1) + 1) * step


def _text(text: str) -> str:
    return escape(printable(text))
