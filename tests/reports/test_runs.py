"""Many run folders: the table, two side by side, and their curves."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.cells import cell_len

from flatout.reports.compare import told
from flatout.reports.curves import Run, View, curves, picture, readable, text
from flatout.run.curve import VALUES, points
from flatout.run.metric_rows import ROWS, WHOLE, sampled
from flatout.run.progress import Track
from tests.conftest import TINY, Result
from tests.runs_made import folder

Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three runs, two of which differ in nothing but their seeds."""
    from flatout.__main__ import main

    root = tmp_path_factory.mktemp("runs")
    for name, flags in (
        ("a0", ("--seed", "0")), ("a1", ("--seed", "1")),
        ("group/b0", ("--seed", "0", "--learning-rate", "0.01")),
    ):  # fmt: skip
        words = ["train", "ppo", *TINY, "--log-every", "64", *flags]
        assert main([*words, "--run-dir", str(root / name)]) == 0
    return root


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(made, tmp_path / "runs"))


def table(flatout: Cli, *argv: object) -> dict[str, dict[str, object]]:
    result = flatout("runs", *argv, "--json")
    assert result.code == 0, result.err
    return {row["run"]: row for row in json.loads(result.out)}


def test_a_row_says_what_its_summary_says(flatout: Cli, made: Path) -> None:
    rows = table(flatout, made)
    assert list(rows) == ["a0", "a1", "group/b0"]
    summary = json.loads((made / "a1" / "summary.json").read_text())
    row = rows["a1"]
    assert row["return"] == summary["return_mean_last"]
    assert (row["algorithm"], row["env"], row["state"]) == ("ppo", "CartPole-v1", "done")
    for name in ("steps", "steps_per_s", "verdict"):
        assert row[name] == summary[name]
    shown = flatout("runs", made).out.splitlines()
    assert shown[0].split()[:3] == ["run", "algorithm", "env"]
    assert len(shown) == 4
    assert list(table(flatout, made / "a0")) == ["."]


def test_rows_are_chosen_and_sorted(flatout: Cli, made: Path) -> None:
    assert list(table(flatout, made, "--where", "learning_rate=1e-2")) == ["group/b0"]
    words = [f"--where={word}" for word in ("seed=0", "env=CartPole-v1", "algorithm=ppo")]
    assert list(table(flatout, made, *words)) == ["a0", "group/b0"]
    assert "no run fulfils" in flatout("runs", made, "--where", "seed=7").out
    found = table(flatout, made, "--sort", "return")
    returns = [row["return"] for row in found.values()]
    assert returns == sorted(returns, reverse=True)  # type: ignore[type-var]
    assert next(iter(table(flatout, made, "--sort", "learning-rate"))) == "group/b0"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--sort", "retrun"], "retrun.*'return'"),
        (["--where", "sed=1"], "--where sed: .*'seed'"),
        (["--where", "seed"], "KEY=VALUE"),
        (["--sorted", "x"], "--sorted"),
        (["no/such"], "no/such is no folder"),
    ],
)
def test_what_cannot_be_chosen(flatout: Cli, made: Path, argv: list[str], words: str) -> None:
    folder = [] if argv[0] == "no/such" else [made]
    result = flatout("runs", *folder, *argv)
    assert result.code == 2
    assert re.search(words, result.message), result.message


def test_a_damaged_folder_is_one_row_that_says_so(flatout: Cli, runs: Path) -> None:
    (runs / "a0" / "config.json").write_text("{")
    (runs / "a1" / "summary.json").write_text("[" * 100_000)
    secret = runs.parent / "secret.json"
    (runs / "group" / "b0" / "config.json").rename(secret)
    (runs / "group" / "b0" / "config.json").symlink_to(secret)
    (runs / "lost").mkdir()
    (runs / "lost" / "metrics.jsonl").write_text("{}\n")
    (runs / "away").symlink_to(runs / "a1")
    rows = table(flatout, runs)
    assert list(rows) == ["a0", "a1", "group/b0", "lost"], "and links are not followed"
    for row in rows.values():
        assert re.match(r"damaged: (config\.json|summary\.json|there is)", str(row["state"]))
    assert "symbolic link" in str(rows["group/b0"]["state"])
    assert rows["group/b0"]["env"] is None
    assert "config.json" in str(rows["lost"]["state"])
    assert flatout("runs", runs).code == 0


def test_the_checkpoints_of_a_populations_group_are_no_run(flatout: Cli, runs: Path) -> None:
    (runs / "group" / "population.json").write_text("{}")
    (runs / "group" / "groups" / "0" / "checkpoints").mkdir(parents=True)
    assert list(table(flatout, runs)) == ["a0", "a1", "group/b0"]


def test_states(flatout: Cli, runs: Path) -> None:
    (runs / "a0" / "summary.json").unlink()
    for name in ("a0", "a1"):
        (runs / name / ".running").write_text("{}")
    with (runs / "a0" / ".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = table(flatout, runs)
    assert (rows["a0"]["state"], rows["a1"]["state"]) == ("running", "killed")
    last = json.loads((runs / "a0" / "metrics.jsonl").read_text().splitlines()[-1])
    assert rows["a0"]["steps"] == last["step"], "a run that has not ended is told by its last row"
    assert rows["a0"]["return"] == last["rollout/return_mean_100"]


def test_a_run_that_has_not_ended_has_its_evaluation_also_many_rows_later(
    flatout: Cli, tmp_path: Path
) -> None:
    run = folder(tmp_path / "a", [float(n) for n in range(2000)])
    (run / "summary.json").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[50] = json.dumps(json.loads(lines[50]) | {"eval/return_mean": 77.0})
    (run / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 2000']))  # it was killed
    assert table(flatout, tmp_path)["a"]["evaluation"] == 77.0


def test_text_of_strangers_stays_text(flatout: Cli, runs: Path) -> None:
    config = json.loads((runs / "a0" / "config.json").read_text())
    config["settings"]["env"], config["parent"] = "\x1b[31mred\nline", "runs/older"
    (runs / "a0" / "config.json").write_text(json.dumps(config))
    shown = flatout("runs", runs).out
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 4
    assert "runs/older" in shown


def test_columns_of_wide_characters_stay_in_line(flatout: Cli, tmp_path: Path) -> None:
    for name in ("a", "日本語", "é"):
        folder(tmp_path / name, [1.0])
    lines = flatout("runs", tmp_path).out.splitlines()
    assert len({cell_len(line.partition("CartPole")[0]) for line in lines[1:]}) == 1


def test_the_table_needs_neither_jax_nor_numpy(made: Path) -> None:
    code = (
        "import sys; sys.modules['jax'] = sys.modules['numpy'] = None\n"
        "from flatout.__main__ import main; sys.exit(main(['runs', sys.argv[1]]))"
    )
    done = subprocess.run([sys.executable, "-c", code, made], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_two_runs_side_by_side(flatout: Cli, made: Path) -> None:
    result = flatout("runs", "--compare", made / "a0", made / "group" / "b0", "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["settings"] == {"learning_rate": [0.0003, 0.01]}
    ends = [
        json.loads((made / name / "metrics.jsonl").read_text().splitlines()[-1])
        for name in ("a0", "group/b0")
    ]
    assert found["at_steps"] == 256
    assert found["return_at_steps"] == [row["rollout/return_mean_100"] for row in ends]
    assert found["summary"]["steps"] == [256, 256]
    assert all(0 <= share <= 1 for pair in found["phases"].values() for share in pair)
    found["phases"] |= {"other": [0.25, 0.5]}
    assert "the rest" in told(found), "of the steady state, which has no start-up"
    assert "start-up, imports and the rest" not in told(found)
    assert "start-up, imports and the rest" in told(found | {"steady": False})
    shown = flatout("runs", "--compare", made / "a0", made / "a1").out
    for words in ("SETTINGS", "seed", "RESULTS", "TIME", "CURVES"):
        assert words in shown
    assert "  A\n" in shown, "each run has a curve of its own"
    assert "  B\n" in shown
    same = flatout("runs", "--compare", made / "a0", made / "a0").out
    assert "SETTINGS  the same" in same


def test_a_comparison_of_what_is_no_run(flatout: Cli, runs: Path) -> None:
    assert "two run folders" in flatout("runs", "--compare", runs / "a0").message
    assert "not a run folder" in flatout("runs", "--compare", runs / "a0", runs).message
    (runs / "a1" / "summary.json").unlink()
    (runs / "a1" / "metrics.jsonl").write_text("")
    result = flatout("runs", "--compare", runs / "a0", runs / "a1")  # it has not got far
    assert result.code == 0
    assert "CURVES" not in result.out


def test_curves_are_drawn_without_a_library(flatout: Cli, made: Path, tmp_path: Path) -> None:
    file = tmp_path / "curves.svg"
    words = ("--group", "learning-rate", "--by", "seconds", "--smooth", 0.1, "--out", file)
    result = flatout("report", "--curves", made / "a0", made / "a1", made / "group/b0", *words)
    assert result.code == 0, result.err
    root = ElementTree.fromstring(file.read_text())
    shown = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "learning_rate=0.0003 (2 runs)" in shown
    assert "learning_rate=0.01" in shown
    assert "seconds since the run's start" in shown
    assert "mean return of the last 100 training episodes, smoothed over 0.1 of x" in shown
    assert not list(root.iter("{http://www.w3.org/2000/svg}polygon")), "two runs have no band"
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--by", "hours"], "'hours'.*steps.*seconds"),
        (["--smooth", "2"], "smooth = 2"),
        (["--smooth", "much"], "not a number"),
        (["--group", "sed"], "'sed'.*'seed'"),
        (["--out", "curves.jpg"], "jpg.*svg"),
        (["--output", "x"], "--output"),
    ],
)
def test_plots_that_cannot_be(flatout: Cli, made: Path, argv: list[str], words: str) -> None:
    result = flatout("report", "--curves", made / "a0", *argv)
    assert result.code == 2
    assert re.search(words, result.message), result.message


def test_a_plot_of_nothing(flatout: Cli, runs: Path) -> None:
    (runs / "a0" / "metrics.jsonl").write_text("")
    assert "no episode has ended" in flatout("report", "--curves", runs / "a0").message
    result = flatout("report", "--curves", runs / "a0", runs / "a1")
    assert result.code == 0, "the others are shown"
    assert "a0 has no mean return" in result.message
    assert "[one run]" in result.out, "no interval where there are no seeds"


def test_smoothing_is_a_mean_over_what_came_before() -> None:
    ramp = Run("r", np.arange(200.0), np.arange(200.0), {"env": "X"}, np.arange(200.0) * 2)
    plain, smooth = (curves([ramp], View(smooth=share))[0] for share in (0.0, 0.05))
    assert np.allclose(plain.mean, np.arange(200.0))
    assert np.allclose(smooth.mean[9:], np.arange(200.0)[9:] - 4.5)
    assert smooth.mean[0] == 0
    assert curves([ramp], View(by="seconds"))[0].x[-1] == 398
    assert len(text([plain]).splitlines()) == 1


def test_a_large_file_is_read_in_parts(tmp_path: Path) -> None:
    path, filler = tmp_path / "metrics.jsonl", "x" * 200
    with path.open("w") as file:
        for step in range(60_000):
            row = {"step": step, "time/wall_s": 1.0, "rollout/return_mean_100": step, "f": filler}
            file.write(json.dumps(row) + "\n")
    assert os.stat(path).st_size > WHOLE
    (steps, _, values), _ = points(sampled(path, VALUES))
    assert ROWS / 2 < len(steps) <= ROWS + 1
    assert (steps[0], steps[-1]) == (0, 59_999)
    assert np.diff(steps).max() < 3 * 60_000 / ROWS
    assert np.array_equal(steps, values)


def test_rows_without_sense_make_no_point() -> None:
    good = {"step": 1, "time/wall_s": 1.0, "rollout/return_mean_100": 2.0}
    bad: list[dict[str, object]] = [{}, good | {"step": None}, good | {"step": "3"}]
    bad += [good | {"rollout/return_mean_100": value} for value in (float("nan"), None, [1], True)]
    (steps, _, values), _ = points([*bad, good])
    assert (steps.tolist(), values.tolist()) == ([1.0], [2.0])


def test_a_long_run_keeps_evenly_spread_points() -> None:
    track = Track()
    for step in range(50_000):
        track.add(step, {"time/wall_s": 0.0, "rollout/return_mean_100": 1.0})
    steps = track.points[0]
    assert ROWS / 2 < len(steps) <= 2 * ROWS
    assert len(set(np.diff(steps))) == 1


def test_a_sweeps_folder_is_plotted_by_all_of_its_trials(flatout: Cli, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    for rate in (1e-3, 1e-4):
        for seed in (0, 1):
            path = sweep / f"learning_rate={rate}_seed={seed}"
            folder(path, [1.0, 2.0, 3.0], learning_rate=rate, seed=seed)
    members = sweep / "population-1" / "members"
    folder(members / "seed=2", [1.0, 5.0, 9.0], learning_rate=1e-4, seed=2)
    (sweep / "fleet.json").write_text("{}")
    drawn = picture(readable([sweep]))
    assert [curve.name for curve in drawn.curves] == [
        "learning_rate=0.0001 (3 runs)", "learning_rate=0.001 (2 runs)",
    ]  # fmt: skip
    assert "learning_rate=0.0001 (3 runs)" in flatout("report", "--curves", sweep).out
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "is not a run folder" in flatout("report", "--curves", empty).message


def test_a_group_of_fast_and_slow_runs_has_a_curve_over_seconds(tmp_path: Path) -> None:
    """It was left out where no second belonged to all of its runs."""
    for seed, slow in enumerate((1.0, 100.0, 10.0)):
        path = folder(tmp_path / str(seed), [1.0, 2.0, 3.0], seed=seed)
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for row in rows:
            row["time/wall_s"] *= slow
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (curve,) = picture(readable(sorted(tmp_path.iterdir())), View("seconds")).curves
    assert (curve.runs, list(curve.mean[[0, -1]])) == (3, [1.0, 3.0])
    assert list(curve.x[[0, -1]]) == pytest.approx([111 / 6, 111 / 2])
    assert (np.diff(curve.x) > 0).all()


def test_runs_that_ended_before_the_others_are_named_in_the_legend(tmp_path: Path) -> None:
    folder(tmp_path / "0", [1.0, 2.0, 3.0], every=1, seed=0)
    for seed in (1, 2):
        folder(tmp_path / str(seed), [1.0, 2.0, 3.0], seed=seed)
    (curve,) = picture(readable(sorted(tmp_path.iterdir()))).curves
    assert curve.name == ("mean (without 1 that ended before the others had a value) (2 runs)")
    assert list(curve.x[[0, -1]]) == [100.0, 300.0]
