"""Tables of a ranking: the groups' statistics, in each environment and over all of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from flatout.errors import UsageError, nearest
from flatout.fleet.ranking_files import SHOWN, Line, Table
from flatout.fleet.runs import Row
from flatout.fleet.statistics import (
    DRAWS,
    RESAMPLES,
    Estimate,
    Strata,
    compared,
    estimates,
    improvement,
    iqm,
    mean,
    median,
)

FEW = 5
"""Runs that a sentence names."""

Counted = dict[str, list[tuple[Row, float]]]
"""A group's runs that count, with their scores, by environment."""


def table(
    env: str | None, score: str, what: str, groups: Mapping[str, Counted],
    there: Mapping[tuple[str, str], int], scale: Mapping[str, tuple[float, float]] | None = None,
) -> Table:  # fmt: skip
    """The groups' scores and statistics, the best first.

    Args:
        env: of one environment; None over several.
        score, what: as in `Table`.
        there: how many runs a group has in an environment, those without a score among them.
        scale: by environment the scores that count as 0 and 1; without one scores are raw.
    """
    scores = {name: {
        env: {row.run: _within(score, (scale or {}).get(env)) for row, score in pairs}
        for env, pairs in sorted(counted.items())
    } for name, counted in groups.items()}  # fmt: skip
    strata = {
        name: [np.array(list(one.values())) for one in by.values()] for name, by in scores.items()
    }
    found = _estimated(strata)
    ranked = sorted(groups, key=lambda name: -found[name][0].value)
    made: list[Line] = []
    for place, name in enumerate(ranked):
        members = [row for pairs in groups[name].values() for row, _ in pairs]
        pair = strata[ranked[0]], strata[name]
        beaten = None
        if place:
            beaten = compared(*pair) if place < SHOWN else Estimate(float(improvement(*pair)))
        rates = [row.steps_per_s for row in members if row.steps_per_s is not None]
        verdicts = Counter(row.verdict for row in members if row.verdict is not None)
        middle, half, average = found[name]
        made.append(Line(
            name, scores[name], sum(there[name, env] for env in scores[name]), middle, half,
            average, beaten, float(np.median(rates)) if rates and env is not None else None,
            verdicts.most_common(1)[0][0] if verdicts else None,
        ))  # fmt: skip
    return Table(env, score, what, made)


def _within(score: float, scale: tuple[float, float] | None) -> float:
    return score if scale is None else (score - scale[0]) / (scale[1] - scale[0])


def _estimated(groups: Mapping[str, Strata]) -> dict[str, list[Estimate]]:
    """The statistics of each group; those with as many runs are resampled together."""
    shapes: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, strata in groups.items():
        shapes[tuple(map(len, strata))].append(name)
    found: dict[str, list[Estimate]] = {}
    for shape, names in shapes.items():
        some = max(DRAWS // (RESAMPLES * sum(shape)), 1)
        for first in range(0, len(names), some):
            chosen = names[first : first + some]
            stacked = [np.stack(parts) for parts in zip(*(groups[n] for n in chosen), strict=True)]
            found |= zip(chosen, estimates(stacked, (iqm, median, mean)), strict=True)
    return found


def over_all(
    tables: list[Table], counted: Mapping[str, Counted],
    scale: Mapping[str, tuple[float, float]], there: Mapping[tuple[str, str], int],
) -> tuple[list[Table], list[str]]:  # fmt: skip
    """The tables with one over all environments before them, and notes.

    Args:
        scale: for each environment the scores that count as 0 and 1; empty takes those of its
            worst and its best run.

    Raises:
        UsageError: the scale does not fit the environments.
    """
    envs = [str(one.env) for one in tables]
    for env in scale:
        if env not in envs:
            raise UsageError(f"normalize {env}: no run here is of it.{nearest(env, envs)}")
    missing = [env for env in envs if env not in scale]
    if scale and missing:
        raise UsageError(f"normalize lacks {missing[0]}: name all environments, or none.")
    if len(envs) == 1:
        raise UsageError(f"normalize is for several environments; all runs are of {envs[0]}.")
    whole = {name: by for name, by in counted.items() if len(by) == len(envs)}
    part = [name for name, by in counted.items() if 0 < len(by) < len(envs)]
    if not whole:
        return tables, ["no group has runs of every environment, so none is ranked over all"]
    kinds = [one.what.partition(",")[0] for one in tables]
    name = kinds[0] if len(set(kinds)) == 1 else "scores of the tables below"
    words = f"{name}, on the scale 0 to 1 of --normalize"
    if not scale:
        every = {env: [s for by in whole.values() for _, s in by[env]] for env in envs}
        scale = {
            env: (min(s), max(s) if max(s) > min(s) else min(s) + 1) for env, s in every.items()
        }
        words = f"{name}, from 0 (its worst run here) to 1 (its best) in each environment"
    notes = [f"not ranked over all environments, for want of runs: {few(part)}"] if part else []
    score = ",".join(dict.fromkeys(one.score for one in tables))
    return [table(None, score, words, whole, there, scale), *tables], notes


def few(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - FEW:,} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more
