"""The order of findings, and how sure it is. Pure.

One rule orders the findings of programs, of traces and of Flatout's own runs (`ordered`). A share
of the time has an interval, from how much it varies between parts of the observation (`interval`).
If the intervals of the first two causes overlap and neither is far smaller, neither is the verdict
alone (`tied`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from flatout_explain.causes import DEVICES, OVERLAPPING, UNKNOWN
from flatout_explain.diagnosis import Finding

LEAST_SHARE = 0.04  # minimum share of a finding, or of what a sentence names

LOST = 0.15
"""A cause with a smaller share of the time is not named before computing."""

MOSTLY = 0.5
"""A cause that takes this part of the computing or more is named before it."""

TIED = 0.5
"""A cause with less than this part of the first one's share does not tie with it. Where the first
one's time is in few blocks, such as one long compilation, its interval reaches from nearly nothing
to nearly everything and overlaps that of any other cause."""

LEAST_BLOCK_S = 1.0
"""A shorter part of an observation has too few samples to say how its shares vary."""

MOST_BLOCKS = 20
"""More blocks narrow an interval little, and shorter ones depend on each other more: Schmeiser,
"Batch size effects in the analysis of simulation output", Operations Research 30 (1982), advises
10 to 30."""

STUDENT = (
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13
)  # fmt: skip
"""Quantiles (97.5 %) of Student's t with 1, 2, ... degrees of freedom; the last one for more."""


# --- How sure ---------------------------------------------------------------------------------


def block_ends(
    begin: float, end: float, cycles: Sequence[float] = (), least_s: float = LEAST_BLOCK_S
) -> tuple[float, ...]:
    """Divide a steady state into at most `MOST_BLOCKS` blocks of `least_s` seconds or more.

    Args:
        begin, end: of the steady state, in seconds.
        cycles: ends of its whole cycles. Then each block consists of some of these, else the
            blocks are equally long.

    Returns:
        The blocks' ends in order; empty where there is no room for two.
    """
    if not cycles:
        count = min(int((end - begin) / least_s), MOST_BLOCKS)
        ends = [begin + (end - begin) * number / count for number in range(1, count + 1)]
        return tuple(ends) if count > 1 else ()
    ends, least = [begin], max((end - begin) / MOST_BLOCKS, least_s)
    for cycle in cycles:
        if ends[-1] + least <= cycle <= end:
            ends.append(cycle)
    return (*ends[1:-1], end) if len(ends) > 2 else ()


def interval(share: float, parts: Iterable[tuple[float, float]]) -> tuple[float, float] | None:
    """Return a 95 % interval for a share of the time; None with less than two blocks.

    Args:
        share: of the whole time.
        parts: for each block the amount that the share is made of, and the block's length. Their
            totals may have another ratio than `share`; then the interval is scaled.
    """
    found = interval_of_ratio(share, parts)
    return None if found is None else (found[0], min(found[1], 1.0))


def interval_of_ratio(
    value: float, parts: Iterable[tuple[float, float]]
) -> tuple[float, float] | None:
    """Return the same for any ratio of two sums, such as a rate."""
    known = [(part, length) for part, length in parts if length > 0.0]
    n, total = len(known), sum(length for _, length in known)
    ratio = sum(part for part, _ in known) / total if total else 0.0
    if n < 2 or ratio <= 0.0:
        return None
    # The variance of a ratio of two sums over n blocks of unequal lengths: Cochran, "Sampling
    # Techniques" (3rd edition, 1977), section 2.11, without its correction for finite populations.
    squares = sum((part - ratio * length) ** 2 for part, length in known)
    deviation = math.sqrt(n / (n - 1) * squares) / total
    half = STUDENT[min(n - 1, len(STUDENT)) - 1] * deviation * value / ratio
    return max(value - half, 0.0), value + half


# --- The order --------------------------------------------------------------------------------


def ordered(findings: Iterable[Finding | None], busy: float | None = None) -> list[Finding]:
    """Sort findings in the order of the report: the larger share first, with four exceptions.

    - ``contended`` comes first, because the shares are of what other programs left.
    - Causes of `OVERLAPPING` lengthen the phases in which their time is also counted. Those of
      `MOSTLY` of ``compute-bound``, or of ``unknown`` (learning that may be computing), come
      before it, because arithmetic that mostly waits is not healthy.
    - Where a device computes, causes of `LOST` or more come before its computing, smaller ones
      after it. Where it computes nearly always, the host is not late, and all causes come after it.
    - Findings about devices come last.

    Args:
        busy: the share of the time in which devices compute; None where none does.
    """
    healthy = busy is not None and 1.0 - busy < LOST

    def group(finding: Finding) -> int:
        if finding.id in DEVICES:
            return 4
        if finding.id == "compute-bound" and busy is not None:
            return 2
        if healthy or (busy is not None and finding.share < LOST and finding.id != UNKNOWN):
            return 3
        return 0 if finding.id == "contended" else 1

    found = sorted(filter(None, findings), key=lambda finding: (group(finding), -finding.share))
    may_compute = (at for at, one in enumerate(found) if one.id in ("compute-bound", UNKNOWN))
    at = next(may_compute, len(found))
    if healthy or at == len(found):
        return found
    least = max(MOSTLY * found[at].share, LOST)
    late = [one for one in found[at:] if one.id in OVERLAPPING and one.share >= least]
    return [*found[:at], *late, *(one for one in found[at:] if one not in late)]


def causes(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings whose shares of the time can be compared: neither those about devices,
    nor what other programs took."""
    return [one for one in findings if one.id not in (*DEVICES, UNKNOWN, "contended")]


def tied(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the first two causes if their intervals overlap and the second one's share is at least
    `TIED` of the first one's; else nothing."""
    if not findings or findings[0].id in (*DEVICES, UNKNOWN):
        return ()
    first = causes(findings)[:2]
    if len(first) < 2 or first[0].interval is None or first[1].interval is None:
        return ()
    if first[1].share < TIED * first[0].share:
        return ()
    lows, highs = zip(first[0].interval, first[1].interval, strict=True)
    return tuple(first) if max(lows) <= min(highs) else ()
