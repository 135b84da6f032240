"""Findings about GPUs: unused ones, memory held on idle ones, full memory."""

from __future__ import annotations

from flatout.explain.diagnosis import Finding
from flatout.explain.program.evidence import Evidence
from flatout.explain.report import mean

IDLE = 0.02  # a GPU that is busy for less than this share is unused
RESERVED_MB = 200  # minimum memory with which a program counts as holding a card

FULL = 0.92


def findings(evidence: Evidence, learn: float) -> tuple[list[Finding], list[Finding]]:
    """Findings about GPUs, from the monitor's samples; `learn` is learning's share of the time.

    Returns:
        Those that come before all others, and those that come after them. Memory takes no share
        of the time.
    """
    samples = [sample for sample in evidence.monitor if sample.gpus][2:]
    if not samples:
        return [], []
    gpus = range(min(len(sample.gpus) for sample in samples))
    busy = [mean(s.gpus[i].busy for s in samples) for i in gpus]
    held_mb = [max(s.gpus[i].ours_mb or 0 for s in samples) for i in gpus]
    reserved = [i for i in gpus if held_mb[i] >= RESERVED_MB]
    ours = {i for i in gpus if any(s.gpus[i].ours for s in samples)}.union(reserved)
    working = [i for i in gpus if i in ours and (busy[i] or 0.0) > IDLE]
    cards = samples[-1].gpus
    first: list[Finding] = []
    last: list[Finding] = []
    if not working and all(share is not None for share in busy):
        name = cards[0].name or "the GPU"
        words = (
            "Move learning there (`.to('cuda')`; for JAX install its CUDA build) if the network is "
            "large; a small one runs faster on the CPU."
        )
        seen = f"{len(gpus)} GPU(s) ({name}) are visible, and this program computed on none."
        last.append(Finding("gpu-unused", learn, (seen,), words))
    idle = [i for i in reserved if i not in working]
    if idle and working:
        sizes = ", ".join(f"gpu:{i} {held_mb[i]:,} MiB" for i in idle)
        seen = f"Only gpu:{working[0]} computes; memory is also held on {sizes}."
        words = (
            f"Make one card visible (CUDA_VISIBLE_DEVICES={working[0]}), or let memory grow "
            "(XLA_PYTHON_CLIENT_PREALLOCATE=false, set_memory_growth)."
        )
        most = 2 * sum(held_mb[i] for i in idle) > sum(held_mb)
        (first if most else last).append(Finding("devices-reserved", 0.0, (seen,), words))
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
            last.append(Finding("memory-contended", 0.0, (seen,), words))
    return first, last
