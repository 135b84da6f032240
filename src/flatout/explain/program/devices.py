"""Findings about GPUs: unused ones, memory held on idle ones, full memory."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.explain.diagnosis import Finding
from flatout.explain.program.evidence import Evidence
from flatout.explain.report import WORTHWHILE, mean
from flatout.planning.gains import ASSUMED

IDLE = 0.02  # a GPU that is busy for less than this share is unused
RESERVED_MB = 200  # minimum memory with which a program counts as holding a card

FULL = 0.92
LEARNING_ON_GPU = 0.25  # share of a large network's learning that remains on a GPU


def findings(evidence: Evidence, learn: float) -> list[Finding]:
    """Findings about GPUs, from the monitor's samples; `learn` is learning's share of the time."""
    samples = [sample for sample in evidence.monitor if sample.gpus][2:]
    if not samples:
        return []
    gpus = range(min(len(sample.gpus) for sample in samples))
    busy = [mean(s.gpus[i].busy for s in samples) for i in gpus]
    held_mb = [max(s.gpus[i].ours_mb or 0 for s in samples) for i in gpus]
    reserved = [i for i in gpus if held_mb[i] >= RESERVED_MB]
    ours = {i for i in gpus if any(s.gpus[i].ours for s in samples)}.union(reserved)
    working = [i for i in gpus if i in ours and (busy[i] or 0.0) > IDLE]
    cards = samples[-1].gpus
    results: list[Finding] = []
    if not working and all(share is not None for share in busy):
        gain = 1 / (1 - learn * (1 - LEARNING_ON_GPU))
        name = cards[0].name or "the GPU"
        words = (
            "Move learning there (`.to('cuda')`; for JAX install its CUDA build) if the network is "
            "large; a small one runs faster on the CPU."
        )
        seen = f"{len(gpus)} GPU(s) ({name}) are visible, and this program computed on none."
        results.append(
            Finding("gpu-unused", learn, (seen,), words, gain if learn > 0.5 else 1.0, 1.0,
                    max(1.0, 2 * gain - 1), kind=ASSUMED)
        )  # fmt: skip
    idle = [i for i in reserved if i not in working]
    if idle and working:
        sizes = ", ".join(f"gpu:{i} {held_mb[i]:,} MiB" for i in idle)
        seen = f"Only gpu:{working[0]} computes; memory is also held on {sizes}."
        words = (
            f"Make one card visible (CUDA_VISIBLE_DEVICES={working[0]}), or let memory grow "
            "(XLA_PYTHON_CLIENT_PREALLOCATE=false, set_memory_growth)."
        )
        results.append(Finding("devices-reserved", len(idle) / len(gpus), (seen,), words))
    for i in working:
        card = cards[i]
        share = card.used_mb / card.total_mb if card.total_mb else 0.0
        if share > FULL and card.others:
            seen = (
                f"gpu:{i} has {card.total_mb - card.used_mb:,} MiB left of {card.total_mb:,}, and "
                f"{card.others} other process(es) hold memory."
            )
            words = (
                "Cap the memory of each program (XLA_PYTHON_CLIENT_MEM_FRACTION, "
                "torch.cuda.set_per_process_memory_fraction)."
            )
            results.append(Finding("memory-contended", share, (seen,), words))
    return results


def ranked(others: Sequence[Finding], about: Sequence[Finding]) -> list[Finding]:
    """Findings about devices come first only if they are worthwhile."""
    first = [finding for finding in about if finding.gain > WORTHWHILE]
    return [*first, *others, *(finding for finding in about if finding not in first)]
