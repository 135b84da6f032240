"""One score by which every command compares runs: evaluations where all of them have one."""

from __future__ import annotations

import io
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from flatout.cli import sweep_screen
from flatout.cli.population import table as members_table
from flatout.reports.curves import Run, View, curves, picture, readable, text
from flatout.reports.ranking import Asked, Report, of_folders
from flatout.reports.ranking_page import pictures
from flatout.reports.statistics import comparable, compared, enough, estimates, iqm
from flatout.run.curve import EVALUATIONS
from flatout.run.metric_rows import WHOLE, evaluated
from flatout.sweeps.sweep import DONE
from flatout_explain.documents import LONGEST_LINE
from tests.conftest import Result
from tests.runs_made import folder

Cli = Callable[..., Result]
RATES = (1e-3, 1e-4)
TRAINING, EVALUATION = "last 100 training episodes", "last evaluation"


def opposite(root: Path, seeds: int = 4, evaluations: int = 3) -> Path:
    """Two learning rates: 0.001 is better in training, 0.0001 in evaluations."""
    for rate, trained, evaluated_ in zip(RATES, (200.0, 100.0), (50.0, 400.0), strict=True):
        for seed in range(seeds):
            values = [evaluated_ + seed + n for n in range(evaluations)]
            folder(root / f"{rate}-{seed}", [10.0, 20.0, trained + seed], evaluations=values,
                   learning_rate=rate, seed=seed)  # fmt: skip
    return root


def by_sweep(root: Path) -> Report:
    """The table with which a sweep of these runs ends."""
    groups = {
        f"learning_rate={rate}": [
            SimpleNamespace(path=path, state=DONE) for path in sorted(root.glob(f"{rate}-*"))
        ]
        for rate in RATES
    }  # fmt: skip
    report = sweep_screen._report(SimpleNamespace(groups=groups))  # type: ignore[arg-type]
    assert report is not None
    return report


def test_every_command_names_the_same_winner_and_the_score(flatout: Cli, tmp_path: Path) -> None:
    """`sweep` ranked by evaluations, `report` by training episodes."""
    root = opposite(tmp_path / "runs")
    for report in (by_sweep(root), of_folders([root])):
        (table,) = report.tables
        assert [line.name for line in table.lines] == [f"learning_rate={r}" for r in RATES[::-1]]
        assert EVALUATION in str(report).splitlines()[0]
        assert "0.0001 is better than learning_rate=0.001" in table.verdict()
        assert {picture.y_label.partition(", ")[2] for picture in pictures(table)[:2]} == {
            "mean return of an evaluation"
        }
    trained = flatout("report", root, "--score", "return").out
    assert TRAINING in trained.splitlines()[0]
    assert "0.001 is better than learning_rate=0.0001" in trained
    drawn = picture(readable(sorted(root.iterdir())))
    assert drawn.y_label == "mean return of an evaluation"
    assert [curve.mean[-1] for curve in drawn.curves] == [403.5, 53.5]
    result = flatout("runs", "--compare", root / "0.001-0", root / "0.0001-0", "--json")
    found = json.loads(result.out)
    assert found["score"] == "mean return of an evaluation"
    assert found["return_at_steps"] == [52.0, 402.0]
    assert "CURVES  mean return of an evaluation" in flatout(
        "runs", "--compare", root / "0.001-0", root / "0.0001-0"
    ).out  # fmt: skip
    head, *rows = flatout("runs", root, "--sort", "evaluation").out.splitlines()
    assert re.search(r"evaluation +training return", head), head
    assert [row.split()[0] for row in rows[:4]] == [f"0.0001-{seed}" for seed in (3, 2, 1, 0)]


@pytest.mark.parametrize("score", [None, "return", "eval"])
def test_classifiers_are_ranked_by_their_accuracies(tmp_path: Path, score: str | None) -> None:
    """Their `env` names the data."""
    for seed, steps in ((0, 300), (1, 400)):
        path = folder(tmp_path / str(seed), [0.0], algorithm="classify", env="digits", seed=seed)
        rows = [{"step": 100 * n, "time/wall_s": n, "train/accuracy": 1.0, "eval/accuracy": n / 8}
                for n in range(1, steps // 100 + 1)]  # fmt: skip
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        summary = json.loads((path / "summary.json").read_text())
        summary |= {"steps": steps, "return_mean_last": None, "test_accuracy": steps / 800}
        (path / "summary.json").write_text(json.dumps(summary))
    (table,) = of_folders([tmp_path], asked=Asked(score=score)).tables
    assert table.what.startswith("accuracy on the test set, after 300 steps")
    (line,) = table.lines
    assert list(line.scores["digits"].values()) == [0.375, 0.375]
    assert pictures(table)[0].x_label == "optimiser steps"
    assert picture(readable([tmp_path])).x_label == "optimiser steps"
    (table,) = of_folders([tmp_path], asked=Asked(at="end", score=score)).tables
    assert list(table.lines[0].scores["digits"].values()) == [0.375, 0.5]


def test_a_run_has_no_value_before_its_first_point(flatout: Cli, tmp_path: Path) -> None:
    folder(tmp_path / "a", [1.0, 2.0, 3.0])
    folder(tmp_path / "b", [7.0, 8.0], every=1000)
    words = ("runs", "--compare", tmp_path / "a", tmp_path / "b")
    assert json.loads(flatout(*words, "--json").out)["return_at_steps"] == [3.0, None]
    assert "at 300 steps: A 3.00, B has no value yet" in flatout(*words).out


def test_curves_in_characters_have_one_axis() -> None:
    def run(rate: float, seconds: float) -> Run:
        ends = np.array([0.0, 1.0])
        return Run("", 100 * ends, ends, {"learning_rate": rate, "env": "X"}, seconds * ends)

    runs = [run(1e-3, 9.0), run(1e-4, 20.0)]
    bars = [line[:40] for line in text(curves(runs, View("seconds"))).splitlines()]
    assert [len(bar.rstrip()) for bar in bars] == [19, 40]
    assert [len(line[:40].rstrip()) for line in text(curves(runs)).splitlines()] == [40, 40]


def test_members_of_a_population_are_ranked_by_the_same_score() -> None:
    def state(name: str, trained: float, evaluation: float | None) -> Any:
        summary = {"last_eval_return": evaluation}
        return SimpleNamespace(member=SimpleNamespace(name=name), summary=summary, mean=trained,
                               steps=1, wall_s=1.0, ended="steps")  # fmt: skip

    for second, heading, first in ((9.0, "evaluation", "b"), (None, "training return", "a")):
        states = [state("a", 5.0, 1.0), state("b", 2.0, second)]
        made = members_table(SimpleNamespace(states=states), 9)  # type: ignore[arg-type]
        assert made.columns[2].header == heading
        assert next(iter(made.columns[0].cells)) == first


def test_names_of_members_are_whole_in_a_narrow_terminal() -> None:
    names = [f"learning_rate=1e-3_gamma=0.98_ent_coef=0.01_gae_lambda=0.9_seed={n}" for n in (0, 1)]
    states = [SimpleNamespace(member=SimpleNamespace(name=name), summary={}, mean=100.0, steps=9000,
                              wall_s=100.0, ended="steps") for name in names]  # fmt: skip
    console = Console(file=io.StringIO(), width=60)
    console.print(members_table(SimpleNamespace(states=states), 24))  # type: ignore[arg-type]
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    shown = "".join(line[:30].split()[0] for line in lines[1:] if line[:1].strip())
    assert all(name in shown for name in names), lines


def test_where_a_run_has_no_evaluation_all_are_compared_by_training(tmp_path: Path) -> None:
    root = opposite(tmp_path / "runs")
    folder(root / "0.001-9", [1.0, 2.0, 210.0], learning_rate=1e-3, seed=9)
    for report in (by_sweep(root), of_folders([root])):
        (table,) = report.tables
        assert (table.score, table.lines[0].name) == ("return", "learning_rate=0.001")
        assert f"{TRAINING} (not all runs have an evaluation)" in table.what
        assert TRAINING in pictures(table)[0].y_label
        assert sum(line.runs for line in table.lines) == 9, "none is left out"
    assert TRAINING in picture(readable(sorted(root.iterdir()))).y_label


def test_runs_that_were_evaluated_once_have_curves_of_training(tmp_path: Path) -> None:
    """A sweep evaluates at the end alone: one point is no curve."""
    (table,) = of_folders([opposite(tmp_path / "runs", evaluations=1)]).tables
    assert table.score == "eval"
    assert TRAINING in pictures(table)[0].y_label


def test_a_damaged_run_does_not_choose_the_score(tmp_path: Path) -> None:
    root = opposite(tmp_path / "runs")
    odd = root / "0.001-0"
    summary = json.loads((odd / "summary.json").read_text()) | {"last_eval_return": "12"}
    (odd / "summary.json").write_text(json.dumps(summary))
    (odd / "metrics.jsonl").write_text("[" * 3000)
    report = of_folders([root])
    assert report.tables[0].score == "eval"
    assert "0.001-0 (damaged" in report.notes[-1]


def test_evaluations_of_a_large_file_are_all_found(tmp_path: Path) -> None:
    """Of a large file only some rows are read for the curve of training."""
    path = tmp_path / "metrics.jsonl"
    with path.open("w") as file:
        for step in range(1, 30_001):
            row: dict[str, Any] = {"step": step, "time/wall_s": step / 2, "x": "y" * 200}
            file.write(json.dumps(row | ({"eval/return_mean": 1.0} if step % 5000 == 0 else {})))
            file.write("\n")
        file.write("z" * 3 * LONGEST_LINE)
    assert path.stat().st_size > WHOLE
    assert [row["step"] for row in evaluated(path, EVALUATIONS)] == list(range(5000, 30_001, 5000))


small = st.integers(0, 3).map(float)
runs_of_a_group = st.lists(st.tuples(small, st.none() | small), min_size=1, max_size=3)


def test_compare_says_which_run_lacks_evaluations(flatout: Cli, tmp_path: Path) -> None:
    for name, evaluations in (("none", ()), ("one", (5.0,)), ("many", (4.0, 5.0, 6.0))):
        folder(tmp_path / name, [1.0, 2.0, 3.0], evaluations=evaluations)
    folder(tmp_path / "short", [1.0], ended="signal")
    (tmp_path / "short" / "metrics.jsonl").unlink()

    def last(a: str, b: str) -> str:
        return flatout("runs", "--compare", tmp_path / a, tmp_path / b).out.splitlines()[-1]

    assert "B has no evaluation; --eval-every" in last("many", "none")
    assert "A has one evaluation; --eval-every" in last("one", "many")
    assert "A has one evaluation and B has no evaluation" in last("one", "none")
    assert "Neither run has an evaluation; --eval-every" in last("none", "none")
    assert last("many", "many").startswith("at 300 steps")
    assert last("one", "one").startswith("at 300 steps"), "both are in the table"
    assert "has not made its first step" in last("many", "short")
    folder(tmp_path / "quiet", [1.0, 2.0, 3.0], quiet=True, log_every=7)
    same = flatout("runs", "--compare", tmp_path / "none", tmp_path / "quiet").out
    assert "SETTINGS  the same" in same, "what is shown and written is no difference"
    folder(tmp_path / "other", [1.0, 2.0, 3.0], seed=673228719, n_steps=4096)
    shown = flatout("runs", "--compare", tmp_path / "none", tmp_path / "other").out
    assert " 673228719" in shown, "a setting is shown as a flag takes it"
    assert " 4096" in shown


@settings(max_examples=25, deadline=None)
@given(st.tuples(runs_of_a_group, runs_of_a_group), st.sampled_from([100, 300]))
def test_a_sweep_and_a_report_on_its_folder_agree(
    groups: Sequence[list[tuple[float, float | None]]], every: int
) -> None:
    """Whatever the scores, and whether runs ended early."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for rate, members in zip(RATES, groups, strict=True):
            for seed, (trained, value) in enumerate(members):
                folder(root / f"{rate}-{seed}", [0.0, trained], every if seed else 100,
                       "return" if seed else "steps", () if value is None else (value,),
                       learning_rate=rate, seed=seed)  # fmt: skip
        ours, theirs = by_sweep(root).tables, of_folders([root]).tables
        for one, other in zip(ours, theirs, strict=True):
            assert (one.score, one.what) == (other.score, other.what)
            assert {line.name: line.iqm for line in one.lines} == {
                line.name: line.iqm for line in other.lines
            }
            scores = [line.iqm.value for line in one.lines]
            assert scores == sorted(scores, reverse=True)


# --- Too few runs -------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [1, 2, 3, 4])
def test_too_few_runs_have_no_interval_and_no_profile(
    flatout: Cli, tmp_path: Path, seeds: int
) -> None:
    """Two runs against two gave "1.00 [1.00, 1.00]", next to "too few to be told apart"."""
    root = opposite(tmp_path / "runs", seeds)
    page = tmp_path / "page.html"
    shown = flatout("report", root, "--out", page).out
    told = re.findall(r"^ *\d  .*", shown, re.MULTILINE)
    assert ("[1.00, 1.00]" in shown) == (seeds == 4)
    assert ("1.00 (too few runs)" in told[1]) == (seeds < 4)
    assert all(("[" in line) == (seeds >= 3) for line in told)
    assert ("share of runs above it" in page.read_text()) == (seeds >= 3)
    assert ("too few runs to be told apart" in shown) == (seeds in (2, 3))
    curves = flatout("report", "--curves", *sorted(root.iterdir())).out
    bands = picture(readable(sorted(root.iterdir())))._repr_svg_().count("<polygon")
    assert bands == (2 if seeds >= 3 else 0)
    assert ("[too few runs]" in curves, "[one run]" in curves) == (seeds == 2, seeds == 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=3))
def test_an_interval_is_there_where_a_verdict_can_be(sizes: list[tuple[int, int]]) -> None:
    ours, theirs = (
        [np.arange(pair[side], dtype=float) + 10 * side for pair in sizes] for side in (0, 1)
    )
    found = compared(theirs, ours)
    assert (found.value, found.low is not None) == (1.0, comparable(theirs, ours))
    if any(n == m == 2 for n, m in sizes) and len(sizes) == 1:
        assert found.low is None
    (estimate,) = estimates([scores[None] for scores in ours], (iqm,))[0]
    assert (estimate.low is not None) == enough(ours)
    assert enough(ours) >= (max(n for n, _ in sizes) >= 3)
