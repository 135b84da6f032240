"""Scores of a few runs, and what they tell of others: robust means with intervals, profiles, and
the probability that one setting is better than another.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice". Scores
come as strata: one array ``[..., n]`` for each environment (the paper's task), n its runs, which
may differ between environments. Leading axes are kept: those of resamples, or of many groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb, prod

import numpy as np

from flatout.run.curve import FEWEST_RUNS

Strata = Sequence[np.ndarray]
Statistic = Callable[[Strata], np.ndarray]

RESAMPLES, FEWEST = 2000, 200
"""Bootstrap resamples of a group, and of a very large one: of those, fewer are as good."""
DRAWS = 2_000_000
"""Scores drawn for a group, beyond which it is resampled less often."""
COVERED = (0.025, 0.975)
"""The quantiles of a 95 % interval."""
CHANCE = 0.05
"""How often a difference may be called one that is none."""


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval; None where too few runs were made for one."""

    value: float
    low: float | None = None
    high: float | None = None


def iqm(strata: Strata) -> np.ndarray:
    """The interquartile mean ``[...]``: of all runs of all environments, without the lowest and
    the highest quarter (each rounded down to whole runs)."""
    pooled = _in_order(np.concatenate(strata, axis=-1))
    cut = pooled.shape[-1] // 4
    return pooled[..., cut : pooled.shape[-1] - cut].mean(-1)


def mean(strata: Strata) -> np.ndarray:
    """The mean ``[...]`` of the environments' means."""
    return np.mean([scores.mean(-1) for scores in strata], axis=0)


def median(strata: Strata) -> np.ndarray:
    """The median ``[...]`` over environments of their means; of one environment, over its runs."""
    values = strata[0] if len(strata) == 1 else np.stack([s.mean(-1) for s in strata], axis=-1)
    values, count = _in_order(values), values.shape[-1]
    return (values[..., (count - 1) // 2] + values[..., count // 2]) / 2


def _in_order(values: np.ndarray) -> np.ndarray:
    # Resamples of one environment are drawn in order: to see that takes a tenth of sorting them.
    in_order = (values[..., 1:] >= values[..., :-1]).all()
    return values if in_order else np.sort(values, axis=-1)


def profile(strata: Strata, thresholds: np.ndarray) -> np.ndarray:
    """The run-score distribution ``[..., K]``: the share of runs above each of K increasing
    thresholds, by the mean over environments."""
    counts = [_counted(np.searchsorted(thresholds, s), len(thresholds) + 1) for s in strata]
    below = [
        np.cumsum(c, axis=-1)[..., :-1] / s.shape[-1] for c, s in zip(counts, strata, strict=True)
    ]
    return 1 - np.mean(below, axis=0)


def improvement(ours: Strata, theirs: Strata) -> np.ndarray:
    """The probability ``[...]`` that a run of ours scores more than one of theirs, by the mean over
    environments; a tie is half. It is the Mann-Whitney U statistic over n m.

    Args:
        ours: scores ``[..., n]`` of each environment.
        theirs: ``[..., m]`` of the same environments in the same order.
    """
    return _above(*_ranked(ours, theirs))


def _ranked(ours: Strata, theirs: Strata) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Scores as whole numbers from 0 on, in the same order, equal ones alike."""
    ranks: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for x, y in zip(ours, theirs, strict=True):
        _, places = np.unique(np.concatenate([x.ravel(), y.ravel()]), return_inverse=True)
        ranks[0].append(places[: x.size].reshape(x.shape))
        ranks[1].append(places[x.size :].reshape(y.shape))
    return ranks


def _above(ours: Strata, theirs: Strata) -> np.ndarray:
    """`improvement` of ranks, by counting each of them: n m comparisons would be too many."""
    chances: list[np.ndarray] = []
    for x, y in zip(ours, theirs, strict=True):
        size = int(max(x.max(), y.max())) + 1
        wins, lost = (_counted(ranks, size) for ranks in (x, y))
        below = np.cumsum(lost, axis=-1) - lost / 2
        chances.append((wins * below).sum(-1) / (x.shape[-1] * y.shape[-1]))
    return np.mean(chances, axis=0)


def _counted(ranks: np.ndarray, size: int) -> np.ndarray:
    """How often each rank occurs ``[..., size]``."""
    rows = ranks.reshape(-1, ranks.shape[-1])
    places = (rows + size * np.arange(len(rows))[:, None]).ravel()
    return np.bincount(places, minlength=len(rows) * size).reshape(*ranks.shape[:-1], size)


def resampled(strata: Strata, random: np.random.Generator) -> list[np.ndarray]:
    """Resamples ``[..., R, n]`` of each environment's runs with replacement, so that each keeps its
    number of runs (the stratified bootstrap). Groups of leading axes share what is drawn; each
    resample is in increasing order."""
    total = sum(scores.shape[-1] for scores in strata)
    times = int(np.clip(DRAWS // total, FEWEST, RESAMPLES))
    draws: list[np.ndarray] = []
    for scores in strata:
        count = scores.shape[-1]
        picks = np.sort(random.integers(count, size=(times, count)), axis=-1)
        draws.append(np.sort(scores, axis=-1)[..., picks])
    return draws


def interval(value: np.ndarray, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % percentile interval of a statistic ``[...]`` by its resamples ``[..., R]``; the
    statistic is in it also where sums were rounded differently."""
    ordered, bounds = np.sort(samples, axis=-1), list[np.ndarray]()  # np.quantile is far slower
    for share in COVERED:
        place, rest = divmod(share * (samples.shape[-1] - 1), 1.0)
        below, above = ordered[..., int(place)], ordered[..., int(place) + 1]
        bounds.append(below + rest * (above - below))
    return np.minimum(bounds[0], value), np.maximum(bounds[1], value)


def enough(strata: Strata) -> bool:
    """Whether the last axes hold enough runs for an interval: as many different resamples as
    `FEWEST_RUNS` runs of one environment have."""
    sizes = [scores.shape[-1] for scores in strata]
    return prod(comb(2 * n - 1, n) for n in sizes) >= comb(2 * FEWEST_RUNS - 1, FEWEST_RUNS)


def comparable(ours: Strata, theirs: Strata) -> bool:
    """Whether there are enough runs to call one group better. There are not where one of the two
    groups is ahead in all pairs more than once in 20 times by chance, or has only one run."""
    sizes = [(len(x), len(y)) for x, y in zip(ours, theirs, strict=True)]
    if any(all(pair[side] == 1 for pair in sizes) for side in (0, 1)):
        return False
    return prod(comb(n + m, n) for n, m in sizes) >= 2 / CHANCE


def estimates(strata: Strata, statistics: Sequence[Statistic]) -> list[list[Estimate]]:
    """Each statistic with its interval, for each of G groups.

    Args:
        strata: scores ``[G, n]`` of each environment.
        statistics: such as `iqm`.

    Returns:
        For each group an estimate of each statistic. The same scores always get the same interval.
    """
    if not enough(strata):
        found = np.stack([statistic(strata) for statistic in statistics], axis=-1)
        return [[Estimate(float(value)) for value in row] for row in found]
    draws = resampled(strata, np.random.default_rng(0))
    columns: list[list[Estimate]] = []
    for statistic in statistics:
        value = statistic(strata)
        low, high = interval(value, statistic(draws))
        columns.append([
            Estimate(*map(float, one)) for one in zip(value, low, high, strict=True)
        ])  # fmt: skip
    return [list(row) for row in zip(*columns, strict=True)]


def compared(ours: Strata, theirs: Strata) -> Estimate:
    """`improvement` of scores ``[n]`` over ``[m]``, with its interval if they are `comparable`."""
    value = improvement(ours, theirs)
    if not comparable(ours, theirs):
        return Estimate(float(value))
    random = np.random.default_rng(0)
    draws = [resampled(strata, random) for strata in _ranked(ours, theirs)]
    times = min(draw[0].shape[0] for draw in draws)
    low, high = interval(value, _above(*([d[:times] for d in draw] for draw in draws)))
    return Estimate(float(value), float(low), float(high))


def profiled(strata: Strata, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`profile` of scores ``[n]`` with the lower and upper ends of its pointwise intervals ``[K]``;
    of one run all three are the same."""
    value = profile(strata, thresholds)
    draws = profile(resampled(strata, np.random.default_rng(0)), thresholds)
    return value, *interval(value, draws.T)
