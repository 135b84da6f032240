from collections.abc import Sequence


def iqm(scores: Sequence[float]) -> float:
    ordered = sorted(scores)
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)
