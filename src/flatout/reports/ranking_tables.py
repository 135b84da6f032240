"""Tables of a ranking: the groups' statistics in the order of their scores, in each environment
and over all of them; as values, in text and for CSV."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flatout.errors import UsageError, nearest
from flatout.output import printable, text_table
from flatout.reports.runs import Row
from flatout.reports.statistics import (
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

SHOWN = 30
"""Maximum rows of a table in text, which are compared with the first one. Files have all rows."""
TOO_FEW = "too few runs"
HEADS = ("group", "runs", "IQM", "95 % interval", "median", "mean", "P(1 is better)", "steps/s",
         "verdict")  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One group.

    Attributes:
        name: what sets it apart.
        scores: by environment and run folder.
        asked: how many runs it has, those included that do not count.
        beaten: the probability that a run of the table's first group scores more than one of this;
            None of the first itself.
        steps_per_s: the runs' median; None over several environments.
        verdict: what most runs were held up by.
    """

    name: str
    scores: dict[str, dict[str, float]]
    asked: int
    iqm: Estimate
    median: Estimate
    mean: Estimate
    beaten: Estimate | None
    steps_per_s: float | None
    verdict: str | None

    @property
    def runs(self) -> int:
        """How many count."""
        return sum(map(len, self.scores.values()))

    def strata(self) -> list[np.ndarray]:
        """The scores ``[n]`` of each environment."""
        return [np.array(list(scores.values())) for scores in self.scores.values()]


@dataclass(frozen=True)
class Table:
    """Groups in one environment, or over all of them, the best interquartile mean first.

    Attributes:
        env: its name; None over all.
        score: by which runs are compared, a key of `ranking.SCORES`; over several environments
            those of their tables, joined by commas.
        what: the score, and after how many steps, in words.
    """

    env: str | None
    score: str
    what: str
    lines: list[Line]

    def verdict(self) -> str:
        """Whether the first group is better than the second, in a sentence; empty of one group."""
        if len(self.lines) < 2:
            return ""
        first, second = self.lines[:2]
        chance = second.beaten
        assert chance is not None
        if chance.low is None:
            if 1 in (first.runs, second.runs):
                return f"{first.name} may be ahead by chance: one run tells nothing of other seeds."
            return (
                f"{first.name} and {second.name} have too few runs to be told apart: "
                f"{first.runs} and {second.runs}."
            )
        words = (
            f"a run of the first scores more than one of the second with probability "
            f"{chance.value:.2f} [{chance.low:.2f}, {chance.high:.2f}]"
        )
        if chance.low > 0.5:
            return f"{first.name} is better than {second.name}: {words}."
        return f"{first.name} and {second.name} cannot be told apart: {words}."


def text(tables: Sequence[Table], notes: Sequence[str]) -> str:
    """The tables, what they show, and notes."""
    parts: list[str] = []
    for table in tables:
        parts += [f"{title(table)}: {table.what}", *text_table(cells(table), (1, 4, 7, 9))]
        if (more := len(table.lines) - SHOWN) > 0:
            parts.append(f"... {more:,} more: --out FILE.csv has all")
        parts += ["", words, ""] if (words := table.verdict()) else [""]
    parts += [f"· {note}" for note in notes]
    return "\n".join(printable(" ".join(part.split("\n"))) for part in parts).rstrip()


def title(table: Table) -> str:
    """Which environment a table is of."""
    return table.env or f"All {len(table.lines[0].scores)} environments"


def cells(table: Table) -> list[list[str]]:
    """A row of words for its heads, and one for each line, the first `SHOWN` of them."""
    digits = digits_of(table.lines)
    rows = [["", *HEADS]]
    for place, line in enumerate(table.lines[:SHOWN], 1):
        runs = f"{line.runs}" if line.runs == line.asked else f"{line.runs} of {line.asked}"
        rate = "" if line.steps_per_s is None else f"{line.steps_per_s:,.0f}"
        one = "one run" if line.runs == 1 else TOO_FEW
        beaten = ""
        if line.beaten is not None:
            beaten = f"{line.beaten.value:.2f} {between(line.beaten, 2) or f'({TOO_FEW})'}"
        rows.append([
            str(place), line.name, runs, f"{line.iqm.value:,.{digits}f}",
            between(line.iqm, digits) or one,
            *(f"{one.value:,.{digits}f}" for one in (line.median, line.mean)), beaten, rate,
            line.verdict or "",
        ])  # fmt: skip
    return rows


def between(estimate: Estimate, digits: int) -> str:
    """The interval in words; empty where there are too few runs for one."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"[{estimate.low:,.{digits}f}, {estimate.high:,.{digits}f}]"


def digits_of(lines: Sequence[Line]) -> int:
    most = max(abs(line.mean.value) for line in lines)
    return 3 if most < 10 else 2 if most < 100 else 1


def flat(tables: Sequence[Table]) -> list[list[object]]:
    """Every group of every table as a row; of many tables, with their environment."""
    names = ("iqm", "median", "mean", "first_is_better")
    bounds = [f"{name}{end}" for name in names for end in ("", "_low", "_high")]
    rows: list[list[object]] = [
        ["environment", "place", "group", "runs", "of", *bounds, "steps_per_s", "verdict"]
    ]
    for table in tables:
        for place, line in enumerate(table.lines, 1):
            found = (line.iqm, line.median, line.mean, line.beaten)
            numbers = [v for e in found for v in ((e.value, e.low, e.high) if e else [None] * 3)]
            rows.append([
                table.env or "all", place, printable(line.name), line.runs, line.asked, *numbers,
                line.steps_per_s, line.verdict,
            ])  # fmt: skip
    return rows


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
