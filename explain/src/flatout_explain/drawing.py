"""Timelines and curves with bounded detail, for drawings: spans as segments, samples as steps."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from flatout_explain.report import in_order
from flatout_explain.timespans import covered, union, weighted_mean

PIXELS = 1500  # width of the drawings: a lane is merged to one phase for each of these

SAMPLES = 600  # points of a curve of utilisation: more samples are averaged


def merge(
    spans: Sequence[tuple[float, float, str]], end: float, pixels: int = PIXELS
) -> list[tuple[int, int, str]]:
    """Return spans as few segments: each pixel goes to the phase that fills most of it, or to none.

    Args:
        spans: (start, end, phase) in seconds, finite; of one lane, so they do not overlap.
        end: the time, above 0, that the pixels share equally, from 0 on.

    Returns:
        (first pixel, pixel after the last, phase), in time's order; empty pixels are in none.
    """
    edges = [*(end / pixels * number for number in range(pixels)), end]
    phases = in_order(phase for _, _, phase in spans)
    filled = [
        covered(union((a, b) for a, b, of in spans if of == phase), edges) for phase in phases
    ]
    winners = list[str]()
    for (a, b), *shares in zip(pairwise(edges), *filled, strict=True):
        fullest = max([*shares, b - a - sum(shares)])
        winners.append(phases[shares.index(fullest)] if fullest in shares else "")
    cuts = [0, *(at for at in range(1, pixels) if winners[at] != winners[at - 1]), pixels]
    return [(a, b, winners[a]) for a, b in pairwise(cuts) if winners[a]]


def curve(
    times: Sequence[float], values: Sequence[float | None], end: float
) -> list[tuple[float, float, float | None]]:
    """Return samples as at most `SAMPLES` steps: (start, end, mean), None where nothing is known.

    Each step reaches half-way to its neighbours, the outer ones as far outwards as inwards.
    """
    bins: defaultdict[int, list[tuple[float, float | None]]] = defaultdict(list)
    for time, value in sorted(zip(times, values, strict=True), key=lambda sample: sample[0]):
        if 0.0 <= time <= end:
            bins[min(int(time / end * SAMPLES), SAMPLES - 1)].append((time, value))
    centres = [statistics.fmean(time for time, _ in some) for some in bins.values()]
    middles = [(a + b) / 2 for a, b in pairwise(centres)]
    edges = [0.0, end]
    if middles:
        edges = [2 * centres[0] - middles[0], *middles, 2 * centres[-1] - middles[-1]]
    steps = zip(pairwise(edges), bins.values(), strict=False)  # there may be none
    return [
        (max(a, 0.0), min(b, end), weighted_mean((value, 1.0) for _, value in some))
        for (a, b), some in steps
    ]
