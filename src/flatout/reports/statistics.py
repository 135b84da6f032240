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
COVERED = 0.95
"""How often an interval is to hold the number that many runs would have."""
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
    pooled = np.sort(np.concatenate(strata, axis=-1))
    cut = pooled.shape[-1] // 4
    return pooled[..., cut : pooled.shape[-1] - cut].mean(-1)


def mean(strata: Strata) -> np.ndarray:
    """The mean ``[...]`` of the environments' means."""
    return np.mean([scores.mean(-1) for scores in strata], axis=0)


def median(strata: Strata) -> np.ndarray:
    """The median ``[...]`` over environments of their means; of one environment, over its runs."""
    values = strata[0] if len(strata) == 1 else np.stack([s.mean(-1) for s in strata], axis=-1)
    return np.median(values, axis=-1)


def profile(strata: Strata, thresholds: np.ndarray) -> np.ndarray:
    """The run-score distribution ``[K, ...]``: the share of runs above each of K thresholds, by the
    mean over environments."""
    shares = [[(scores > one).mean(-1) for one in thresholds] for scores in strata]
    return np.mean(shares, axis=0)


def improvement(ours: Strata, theirs: Strata) -> np.ndarray:
    """The probability ``[...]`` that a run of ours scores more than one of theirs, by the mean over
    environments; a tie is half. It is the Mann-Whitney U statistic over n m.

    Args:
        ours: scores ``[..., n]`` of each environment.
        theirs: ``[..., m]`` of the same environments in the same order.
    """
    from scipy.stats import rankdata  # here and below: it takes half a second to import

    chances = list[np.ndarray]()
    for x, y in zip(ours, theirs, strict=True):
        n, m = x.shape[-1], y.shape[-1]
        ranks = rankdata(np.concatenate([x, y], axis=-1), axis=-1)[..., :n].sum(-1)
        chances.append((ranks - n * (n + 1) / 2) / (n * m))
    return np.mean(chances, axis=0)


def interval(strata: Strata, statistic: Statistic) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A statistic and the ends of its 95 % interval, each ``[...]``: the percentile interval of a
    stratified bootstrap, in which each environment keeps its number of runs.

    The same scores always get the same interval.
    """
    value = statistic(strata)
    several = [place for place, scores in enumerate(strata) if scores.shape[-1] > 1]
    if not several:
        return value, value, value
    from scipy.stats import bootstrap

    def resampled(*drawn: np.ndarray, axis: int) -> np.ndarray:
        # SciPy resamples no single score: it is the same in each resample.
        whole = [np.broadcast_to(s[..., None, :1], (*drawn[0].shape[:-1], 1)) for s in strata]
        for place, scores in zip(several, drawn, strict=True):
            whole[place] = scores
        return statistic(whole)

    total = sum(scores.shape[-1] for scores in strata)
    found = bootstrap(
        [strata[place] for place in several], resampled, vectorized=True, axis=-1,
        method="percentile",
        n_resamples=int(np.clip(DRAWS // total, FEWEST, RESAMPLES)), rng=np.random.default_rng(0),
        confidence_level=COVERED, batch=max(DRAWS // sum(scores.size for scores in strata), 1),
    ).confidence_interval  # fmt: skip
    # The statistic is in it also where sums were rounded differently.
    return value, np.minimum(found.low, value), np.maximum(found.high, value)


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
        For each group an estimate of each statistic.
    """
    if not enough(strata):
        found = np.stack([statistic(strata) for statistic in statistics], axis=-1)
        return [[Estimate(float(value)) for value in row] for row in found]
    columns = [
        [Estimate(*map(float, one)) for one in zip(*interval(strata, statistic), strict=True)]
        for statistic in statistics
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def compared(ours: Strata, theirs: Strata) -> Estimate:
    """`improvement` of scores ``[n]`` over ``[m]``, with its interval if they are `comparable`."""
    if not comparable(ours, theirs):
        return Estimate(float(improvement(ours, theirs)))
    count = len(ours)
    found = interval([*ours, *theirs], lambda both: improvement(both[:count], both[count:]))
    return Estimate(*map(float, found))


def profiled(strata: Strata, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`profile` of scores ``[n]`` with the lower and upper ends of its pointwise intervals ``[K]``;
    of one run all three are the same."""
    return interval(strata, lambda scores: profile(scores, thresholds))
