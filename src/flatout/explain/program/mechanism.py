"""Inside learning: is it arithmetic, or the overhead of many tiny operations?"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from flatout.explain.program import tags
from flatout.explain.program.calls import SHORT_NS, Replay
from flatout.explain.program.evidence import Leaf, Process
from flatout.explain.program.places import Places, Site
from flatout.explain.program.timeline import Moment

EAGER_NS = 500_000
"""The same for JAX's operations outside of a compiled function, which cost more to start."""

BACKWARD = ("run_backward", "_run_backward")
LEAST_S = 0.002
"""Learning seen in windows for less than this tells nothing."""


@dataclass(frozen=True)
class Learning:
    """How learning's time is made up.

    Attributes:
        launch: share spent in operations too short to be more than overhead; None: unknown.
        operations: such operations per second of learning.
        exact: from windows rather than from samples.
    """

    launch: float | None
    operations: float = 0.0
    exact: bool = False


def learning(
    process: Process,
    places: Places,
    moments: list[Moment],
    windows: Iterable[Replay],
) -> Learning:
    """How coarse learning's operations are, from windows where there are any.

    Args:
        process, places: of the driver.
        moments: the driver's steady moments.
        windows: of the explained time.
    """
    seen: dict[tuple[Site, str, bool], list[float]] = defaultdict(list)
    for window in windows:
        for interval in window.intervals:
            if any(tags.COMPILERS.search(process.codes[at].file) for at, _ in interval.frames):
                continue
            mark = places.mark(interval.frames, interval.leaf)
            if mark.phase in ("learn", "transfer"):
                forward = any(
                    tags.NETWORK_FILES.search(process.codes[code].file)
                    for code, _ in interval.frames
                )
                seen[interval.frames[0], interval.name, forward].append(interval.ns)
    sums = {True: [0.0, 0.0], False: [0.0, 0.0]}  # forward -> [short, long]
    backward, count = 0.0, 0
    for (site, name, forward), lengths in seen.items():
        # The median: a thread that is put off its core for some milliseconds looks busy for long.
        usual = statistics.median(lengths)
        if name in BACKWARD:
            backward += usual * len(lengths)
            continue
        count += len(lengths) if name else 0
        file = process.codes[site[0]].file
        limit = EAGER_NS if "/jax/_src/" in file else SHORT_NS
        sums[forward][usual >= limit] += usual * len(lengths)
    short, long = (sums[True][i] + sums[False][i] for i in range(2))
    # The backward pass is one call: as coarse as the forward pass that it retraces.
    coarse = sums[True] if sum(sums[True]) else [short, long]
    part = coarse[0] / sum(coarse) if sum(coarse) else 0.0
    total = short + long + backward
    if total < LEAST_S * 1e9:
        return _sampled(process, moments)
    return Learning((short + part * backward) / total, count / (total / 1e9), True)


def _sampled(process: Process, moments: list[Moment]) -> Learning:
    """Without windows: time seen in compiled functions and products against all other places."""
    heavy = total = 0.0
    for moment in moments:
        if moment.mark.phase != "learn":
            continue
        stack = process.stacks[moment.stack]
        leaf: Leaf = process.leaf(stack)
        total += moment.dt
        if leaf.kind.get("compiled") or leaf.call == "@" or leaf.word in (
            "block_until_ready", "matmul", "dot", "einsum", "run_backward", "asarray", "float",
            "TF_SessionRun_wrapper", "TFE_Py_Execute",
        ):  # fmt: skip
            heavy += moment.dt
    return Learning(1 - heavy / total if total else None)
