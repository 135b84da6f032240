"""What the GPUs tell: one that is never computed on, several held and one used, no memory left."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from flatout.explain.diagnosis import Finding
from flatout.explain.program.evidence import Evidence
from flatout.planning.predict import ASSUMED

IDLE = 0.02
"""Busy for less than this share, a GPU is not computed on."""

RESERVED_MB = 200
"""Memory that a program holds on a card before it counts as reserved there."""

FULL = 0.92
FIRST_GAIN = 1.1
"""A cause about devices comes first only where its gain exceeds this."""

LEARNING_ON_GPU = 0.25
"""What remains of large learning on a GPU; small networks gain nothing there."""


def findings(evidence: Evidence, learn: float) -> list[Finding]:
    """Findings about GPUs, from the monitor's samples alone.

    Args:
        evidence: what was recorded.
        learn: share of the time spent learning.
    """
    samples = [sample for sample in evidence.monitor if sample.gpus][2:]
    if not samples:
        return []
    count = min(len(sample.gpus) for sample in samples)
    busy = [_mean([s.gpus[i].busy for s in samples]) for i in range(count)]
    held = [max(s.gpus[i].ours_mb or 0 for s in samples) for i in range(count)]
    used = [samples[-1].gpus[i] for i in range(count)]
    names = used[0].name or "the GPU"
    found: list[Finding] = []
    ours = [
        i for i in range(count) if held[i] >= RESERVED_MB or any(s.gpus[i].ours for s in samples)
    ]
    working = [i for i in ours if (busy[i] or 0.0) > IDLE]
    if not working and all(share is not None for share in busy):
        gain = 1 / (1 - learn * (1 - LEARNING_ON_GPU))
        reach = gain if learn > 0.5 else 1.0
        found.append(
            Finding(
                "gpu-unused", learn,
                (f"{count} GPU(s) ({names}) are visible, and this program computed on none.",),
                "Move learning there (`.to('cuda')`; for JAX install its CUDA build) if the "
                "network is large; a small one runs faster on the CPU.",
                reach, 1.0, max(1.0, 2 * gain - 1), kind=ASSUMED,
            )
        )  # fmt: skip
    idle = [i for i in ours if i not in working and held[i] >= RESERVED_MB]
    if idle and working:
        sizes = ", ".join(f"gpu:{i} {held[i]:,} MiB" for i in idle)
        found.append(
            Finding(
                "devices-reserved", len(idle) / count,
                (f"Only gpu:{working[0]} computes; memory is also held on {sizes}.",),
                f"Make one card visible (CUDA_VISIBLE_DEVICES={working[0]}), or let memory grow "
                "(XLA_PYTHON_CLIENT_PREALLOCATE=false, set_memory_growth).",
            )
        )  # fmt: skip
    for i in working:
        card = used[i]
        if card.total_mb and card.used_mb / card.total_mb > FULL and card.others:
            found.append(
                Finding(
                    "memory-contended", card.used_mb / card.total_mb,
                    (f"gpu:{i} has {card.total_mb - card.used_mb:,} MiB left of "
                     f"{card.total_mb:,}, and {card.others} other process(es) hold memory.",),
                    "Cap the memory of each program (XLA_PYTHON_CLIENT_MEM_FRACTION, "
                    "torch.cuda.set_per_process_memory_fraction).",
                )
            )  # fmt: skip
    return found


def ranked(found: Sequence[Finding], about: Sequence[Finding]) -> list[Finding]:
    """Findings about devices come first only where they gain more than a little."""
    first = [one for one in about if one.gain > FIRST_GAIN]
    return [*first, *found, *(one for one in about if one not in first)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
