"""Groups of runs that differ in their seeds, ranked: which setting is better, and how sure that is.

Only the small files of finished runs are read, and the curves of those that went further than the
others.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flatout.errors import UsageError, damage, short
from flatout.output import json_text
from flatout.reports.figure import check_file
from flatout.reports.ranking_tables import (
    Counted,
    Table,
    few,
    flat,
    over_all,
    table,
    text,
)
from flatout.reports.runs import ENDED, NOT_TELLING, Row, alike, rows
from flatout.run.metric_rows import value_at
from flatout_explain import output_file

FILES = (".csv", ".json", ".html", ".png")
"""Endings of a report's files."""
LACKS = "no "
"""Why a run is left out that has no metric of this name."""
FINISHED = {ENDED[why] for why in ("steps", "return", "callback")}
"""States of the runs that count. A run that could be resumed does not."""
AS_LONG = 1.05
"""Runs count as equally long up to this ratio of their steps."""

SCORES = {
    "eval": ("mean return of the last evaluation", "eval/return_mean"),
    "return": ("mean return of the last 100 training episodes", "rollout/return_mean_100"),
}
"""Scores by which runs are compared, and their names in the metrics; the first that all runs of an
environment have is the default."""
TESTED = ("accuracy on the test set", "eval/accuracy")
"""The score of classifiers."""


@dataclass(frozen=True)
class Asked:
    """The scores that are compared.

    Attributes:
        at: after how many steps: a number, "end" (each run's own), or None (as many as every run of
            an environment has).
        score: a key of `SCORES`; by default the first that all runs of an environment have.
        scale: for each of several environments the scores that count as 0 and 1 where they are
            taken together; by default those of its worst and its best run. Alone scores are raw.
    """

    at: int | str | None = None
    score: str | None = None
    scale: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])

    def __post_init__(self) -> None:
        """Raises `UsageError` for impossible values."""
        if self.score is not None and self.score not in SCORES:
            raise UsageError(f"score = {self.score!r} is neither {' nor '.join(SCORES)}.")
        if self.at not in (None, "end") and not (isinstance(self.at, int) and self.at > 0):
            raise UsageError(f"at = {self.at!r} is neither a number of steps nor 'end'.")
        for env, pair in self.scale.items():
            try:
                low, high = map(float, pair)
            except (TypeError, ValueError):
                raise UsageError(
                    f"normalize[{env!r}] = {short(pair)} is not two scores, such as (0, 500)."
                ) from None
            if not -math.inf < low < high < math.inf:
                raise UsageError(
                    f"normalize {env}={low:g},{high:g}: the first score counts as 0 and the second "
                    "as 1, so it is greater, and both are finite."
                )


@dataclass(frozen=True)
class Report:
    """Ranked tables: over all environments first where there are several, then of each of them.

    `print` shows them, a notebook draws them, `save` writes them.
    """

    tables: list[Table]
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        """The same as plain values, each run's score among them."""
        tables = [{"verdict": table.verdict(), **asdict(table)} for table in self.tables]
        return {"tables": tables, "notes": self.notes}

    def save(self, path: str | Path) -> Path:
        """Write it as .csv, .json or .html (one page that needs nothing else), or draw it as .png.

        Raises:
            UsageError: another ending, or there is no matplotlib for a .png.
            FlatoutError: it cannot be written.
        """
        path = Path(path)
        check_file(path, FILES)
        if path.suffix == ".csv":
            lines = io.StringIO(newline="")
            csv.writer(lines).writerows(flat(self.tables))
            output_file.write(path, lines.getvalue())
        elif path.suffix == ".json":
            output_file.write(path, json_text(self.as_json(), indent=1) + "\n")
        elif path.suffix == ".html":
            output_file.write(path, self._repr_html_())
        else:
            from flatout.reports.ranking_page import draw

            draw(self.tables, path)
        return path

    def __str__(self) -> str:
        return text(self.tables, self.notes)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from flatout.reports.ranking_page import page

        return page(self.tables, self.notes)


PLAIN = Asked()


def of_groups(groups: Mapping[str, Sequence[Path]], asked: Asked = PLAIN) -> Report:
    """The report of groups with these names: their run folders.

    Raises:
        UsageError: no run can be compared, or `asked` fits none.
    """
    return _ranked({name: _rows(paths) for name, paths in groups.items()}, asked)


def of_folders(
    paths: Sequence[Path], group: Sequence[str] = (), asked: Asked = PLAIN
) -> Report:  # fmt: skip
    """The report of all runs in these folders and below them.

    Args:
        group: settings that tell groups apart; without any, all but seed, folder and environment.

    Raises:
        UsageError: as `of_groups`, or no run has a setting by which to group.
    """
    found = _rows(paths)
    if "env" in group:
        raise UsageError("group env: each environment has a table of its own; leave env out.")
    whole = [row for row in found if row.settings]
    groups: dict[str, list[Row]] = defaultdict(list)
    for label, places in alike([r.settings for r in whole], group, (*NOT_TELLING, "env")):
        groups[label or str(whole[places[0]].algorithm)] += [whole[place] for place in places]
    damaged = [row for row in found if not row.settings]
    return _ranked(groups, asked, damaged, shorten=not group)


def _rows(paths: Iterable[Path]) -> list[Row]:
    """The rows of all runs in these folders, with their paths as names; no run stands twice."""
    found: dict[str, Row] = {}
    for path in paths:
        if not path.is_dir():
            there = "it is no folder" if path.exists() else "there is no such folder"
            found[str(path)] = Row(str(path), state=there)
            continue
        for row in rows(path):
            name = str(path / row.run)
            found[name] = replace(row, run=name)
    return list(found.values())


def _short_names(groups: Mapping[str, Sequence[Row]]) -> dict[str, str]:
    """Return each group's name without the settings that all of these groups share."""
    if len(groups) < 2:
        return {}
    every = [(name, row.settings) for name, members in groups.items() for row in members]
    found = alike([settings for _, settings in every], (), (*NOT_TELLING, "env"))
    return {
        every[place][0]: label or str(every[place][1].get("algorithm"))
        for label, places in found
        for place in places
    }


def _ranked(
    groups: Mapping[str, Sequence[Row]], asked: Asked, damaged: Sequence[Row] = (),
    shorten: bool = False,
) -> Report:  # fmt: skip
    """Rank groups.

    Args:
        damaged: runs without readable settings, which are left out.
        shorten: whether names leave out the settings in which only groups without a score differ.
    """
    left = {row.run: row.state for row in damaged}
    there: Counter[tuple[str, str]] = Counter()
    ended: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for name, members in groups.items():
        for row in members:
            there[name, _env(row)] += 1
            if row.state not in FINISHED:
                left[row.run] = row.state
            elif row.steps is None or row.steps < 1:  # the shortest is what others are cut to
                left[row.run] = "damaged: its summary names no steps"
            else:
                ended[_env(row)][name].append(row)
    tables: list[Table] = []
    counted: dict[str, Counted] = {name: {} for name in groups}
    kinds: dict[str, tuple[str, str]] = {}
    for env, found in sorted(ended.items()):
        score, at, what = _compared([row for rows in found.values() for row in rows], asked)
        kinds[env] = score, what
        for name, members in found.items():
            if pairs := _scored(members, at, score, left):
                counted[name][env] = pairs
    if shorten:
        names = _short_names({name: groups[name] for name, by in counted.items() if by})
        # Groups that only a run without a score told apart have one name, and no environment in
        # common.
        every, counted = counted, {}
        for name, by in every.items():
            if by:
                counted.setdefault(names.get(name, name), {}).update(by)
        listed, there = there, Counter[tuple[str, str]]()
        for (name, env), n in listed.items():
            if not names or name in names:
                there[names.get(name, name), env] += n
    for env, (score, what) in kinds.items():
        here = {name: {env: by[env]} for name, by in counted.items() if env in by}
        if here:
            tables.append(table(env, score, what, here, there))
    if not tables:
        reason = "".join(f": {run} ({why})" for run, why in list(left.items())[:1])
        raise UsageError(f"there is no finished run to compare{reason}.")
    notes: list[str] = []
    if len(tables) > 1 or asked.scale:
        tables, notes = over_all(tables, counted, asked.scale, there)
    return Report(tables, [*notes, *_repeated(counted), *_left_out(left)])


def _env(row: Row) -> str:
    return row.env or "unknown"


def _compared(members: Sequence[Row], asked: Asked) -> tuple[str, int | None, str]:
    """Return the score by which the runs of one environment are compared, after how many steps
    (None: at their ends), and both in words."""
    score, what = asked.score, ""
    if score is None:
        score, at = "eval", _at(members, asked)[0]
        if any(_score(row, at, score)[1].startswith(LACKS) for row in members):
            score = "return"
            if any(row.evaluation is not None for row in members):
                what = " (not all runs have an evaluation)"
    if score == "return":  # the shortest run is what others are cut to
        members = [row for row in members if row.value is not None or row.classifies] or members
    at, when = _at(members, asked)
    name = TESTED[0] if members[0].classifies else SCORES[score][0]
    return score, at, f"{name}{what}, {when}"


def _at(members: Sequence[Row], asked: Asked) -> tuple[int | None, str]:
    """After how many steps runs are compared (None: at their ends), also in words."""
    if isinstance(asked.at, int):
        return asked.at, f"after {asked.at:,} steps"
    shortest = min(members, key=lambda row: (row.steps or 0, row.run))
    least, most = shortest.steps or 0, max(row.steps or 0 for row in members)
    if asked.at == "end" or most <= AS_LONG * least:
        steps = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        return None, f"at the runs' ends, after {steps} steps"
    return least, (
        f"after {least:,} steps: {shortest.run} has no more, the longest run {most:,} "
        "(flatout report --at end compares their ends)"
    )


def _scored(
    members: Sequence[Row], at: int | None, score: str, left: dict[str, str]
) -> list[tuple[Row, float]]:
    """The runs that have a score, with it; of the others it is noted why they are `left` out."""
    found: list[tuple[Row, float]] = []
    for row in members:
        value, why = _score(row, at, score)
        if value is None:
            left[row.run] = why
        else:
            found.append((row, float(value)))
    return found


def _score(row: Row, at: int | None, score: str) -> tuple[float | None, str]:
    """A run's score after `at` steps (None: at its end), or None and why it has none."""
    steps = row.steps or 0
    if at is not None and steps * AS_LONG < at:
        return None, f"it has {steps:,} steps"
    trained = score == "return" and not row.classifies
    if at is None or steps <= AS_LONG * at:
        value = row.value if trained else row.evaluation
        if value is not None:
            return value, ""
        if trained:
            return None, "no episode has ended"
    name = (TESTED if row.classifies else SCORES[score])[1]
    try:
        value = value_at(Path(row.run) / "metrics.jsonl", at, name)
        until = "" if at is None else f" up to {at:,} steps"
        return value, f"{LACKS}{name}{until}" if value is None else ""
    except OSError as error:
        return None, f"damaged: {error.strerror or error}"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return None, f"damaged: its metrics.jsonl: {damage(error)[:100]}"


def _repeated(counted: Mapping[str, Counted]) -> list[str]:
    """Groups with two runs of one seed, which are not independent."""
    found = [
        f"{name} (seed {seed})"
        for name, by in counted.items()
        for pairs in by.values()
        for seed, count in Counter(str(row.settings.get("seed")) for row, _ in pairs).items()
        if count > 1
    ]
    words = "several runs of one seed in one group count as if their seeds differed"
    return [f"{words}: {few(found)}"] if found else []


def _left_out(left: Mapping[str, str]) -> list[str]:
    runs = "1 run is" if len(left) == 1 else f"{len(left):,} runs are"
    named = [f"{run} ({why})" for run, why in left.items()]
    return [f"{runs} left out: {few(named)}"] if left else []
