"""`flatout report`: which runs count, how they are grouped and ranked, and what is written."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.errors import UsageError
from flatout.installing import install
from flatout.reports.ranking import Asked, of_folders, of_groups
from tests.conftest import TINY, Result
from tests.runs_made import folder

Cli = Callable[..., Result]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two learning rates, three seeds each; the last scores are 100, 110, 120 and 50, 60, 170."""
    root = tmp_path / "runs"
    for rate, ends in ((1e-3, (100, 110, 120)), (1e-4, (50, 60, 170))):
        for seed, end in enumerate(ends):
            folder(root / f"{rate}-{seed}", [10.0, end / 2, end], learning_rate=rate, seed=seed)
    return root


def told(flatout: Cli, *argv: object) -> dict[str, Any]:
    result = flatout("report", *argv, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_groups_are_ranked_by_their_interquartile_mean(flatout: Cli, runs: Path) -> None:
    table = told(flatout, runs)["tables"][0]
    first, second = table["lines"]
    assert (first["name"], second["name"]) == ("learning_rate=0.001", "learning_rate=0.0001")
    assert first["iqm"]["value"] == pytest.approx(110)
    assert second["median"]["value"] == 60
    assert second["mean"]["value"] == pytest.approx(280 / 3)
    assert first["beaten"] is None
    assert second["beaten"]["value"] == pytest.approx(6 / 9)
    assert sorted(second["scores"]["CartPole-v1"].values()) == [50, 60, 170]
    assert "too few runs to be told apart" in table["verdict"]
    assert "after 300 steps" in table["what"]
    shown = flatout("report", *sorted(runs.iterdir())).out
    assert re.search(r"1 +learning_rate=0.001 +3 +110.0 +\[100.0, 120.0\]", shown), shown
    assert shown == flatout("report", runs).out


def test_a_clear_lead_is_called_one(runs: Path) -> None:
    for seed in range(3):
        shutil.rmtree(runs / f"0.0001-{seed}")
        folder(runs / f"0.0001-{seed}", [1.0, 2.0, 3.0 + seed], learning_rate=1e-4, seed=seed)
    few = of_folders([runs]).tables[0].verdict()
    assert "too few runs" in few, "three of three are ahead by chance in one of ten cases"
    for rate in (1e-3, 1e-4):
        folder(runs / f"{rate}-3", [1.0, 2.0, 1e5 * rate], learning_rate=rate, seed=3)
    assert "0.001 is better than learning_rate=0.0001" in of_folders([runs]).tables[0].verdict()


def test_one_run_has_no_interval(flatout: Cli, tmp_path: Path) -> None:
    folder(tmp_path / "a", [5.0], learning_rate=1.0)
    folder(tmp_path / "b", [7.0], learning_rate=2.0)
    shown = flatout("report", tmp_path).out
    assert shown.count("one run") >= 2
    assert "by chance" in shown
    line = told(flatout, tmp_path)["tables"][0]["lines"][0]
    assert line["iqm"] == {"value": 7.0, "low": None, "high": None}


def test_a_score_of_nought_is_a_score(tmp_path: Path) -> None:
    """It was taken for a missing one, and the worst runs would have been left out."""
    folder(tmp_path / "a", [0.0], seed=0)
    folder(tmp_path / "b", [2.0], seed=1)
    assert of_folders([tmp_path]).tables[0].lines[0].mean.value == 1


def test_runs_of_unequal_length_are_compared_where_all_have_been(flatout: Cli, runs: Path) -> None:
    folder(runs / "long", [10.0, 20.0, 30.0, 40.0, 500.0], learning_rate=1e-2, seed=0)
    table = told(flatout, runs)["tables"][0]
    assert "after 300 steps" in table["what"]
    assert "--at end" in table["what"]
    scores = {line["name"]: line["mean"]["value"] for line in table["lines"]}
    assert scores["learning_rate=0.01"] == 30
    ends = told(flatout, runs, "--at", "end")["tables"][0]
    assert ends["lines"][0]["mean"]["value"] == 500
    early = told(flatout, runs, "--at", "2.5e2")["tables"][0]
    assert {line["name"]: line["mean"]["value"] for line in early["lines"]}[
        "learning_rate=0.01"
    ] == 20, "the last row up to there"
    far = told(flatout, runs, "--at", "500")
    assert len(far["tables"][0]["lines"]) == 1
    assert "6 runs are left out" in far["notes"][0]
    folder(runs / "often", [10.0] * 6, every=50, learning_rate=1e-5, seed=0)
    first = told(flatout, runs, "--at", "50")["notes"][0]
    assert "(no rollout/return_mean_100 up to 50 steps)" in first, "they have one later"


def test_equal_scores_cannot_be_told_apart(tmp_path: Path) -> None:
    for seed in range(5):
        for env in ("CartPole-v1", "Acrobot-v1"):
            for rate in (1e-3, 1e-4):
                folder(
                    tmp_path / f"{env}{rate}{seed}", [1e6], env=env, learning_rate=rate, seed=seed
                )
    for table in of_folders([tmp_path]).tables:
        assert "cannot be told apart" in table.verdict()
        assert table.lines[1].beaten is not None
        assert table.lines[1].beaten.value == 0.5


def test_names_of_groups_have_no_setting_that_the_ranked_groups_share(runs: Path) -> None:
    folder(runs / "stopped", [1.0], ended="signal", learning_rate=1e-3, seed=7, n_steps=64, envs=4)
    (found,) = of_folders([runs]).tables
    names = [(line.name, line.asked) for line in found.lines]
    assert names == [("learning_rate=0.001", 3), ("learning_rate=0.0001", 3)]
    folder(runs / "done", [1.0, 2.0, 3.0], learning_rate=1e-3, seed=7, n_steps=64, envs=4)
    (found,) = of_folders([runs]).tables
    assert "learning_rate=0.001, n_steps=64, envs=4" in [line.name for line in found.lines]


def test_a_stopped_run_does_not_count(flatout: Cli, runs: Path) -> None:
    folder(runs / "stopped", [1.0], ended="signal", learning_rate=1e-3, seed=7)
    found = told(flatout, runs)
    assert "stopped (stopped)" in found["notes"][0]
    assert "after 300 steps" in found["tables"][0]["what"]
    folder(runs / "solved", [1.0, 400.0], ended="return", learning_rate=1e-2, seed=7)
    assert "solved has no more" in told(flatout, runs)["tables"][0]["what"]


def test_what_does_not_count_is_named(flatout: Cli, runs: Path) -> None:
    (runs / "0.001-0" / "config.json").write_text("{")
    (runs / "0.001-1" / "summary.json").unlink()
    (runs / "0.001-1" / ".running").write_text("{}")
    (runs / "0.001-1" / ".lock").write_text("")
    (runs / "picture.svg").write_text("")
    found = told(flatout, *sorted(runs.iterdir()), runs / "gone")
    note = found["notes"][-1]
    assert note.startswith("4 runs are left out: ")
    for words in (
        "0.001-0 (damaged",
        "0.001-1 (killed)",
        "svg (it is no folder)",
        "gone (there is",
    ):
        assert words in note
    line = next(line for line in found["tables"][0]["lines"] if line["name"].endswith("0.001"))
    assert len(line["scores"]["CartPole-v1"]) == 1
    assert line["asked"] == 2, "of the damaged one nothing is known"
    assert " 1 of 2 " in flatout("report", runs).out
    folder(runs / "long", [1.0, 2.0, 3.0, 4.0, 5.0], learning_rate=1e-4, seed=9)
    (runs / "long" / "metrics.jsonl").write_text("[" * 3000)
    assert "long (damaged" in told(flatout, runs)["notes"][-1]


def test_several_environments_are_ranked_apart_and_together(flatout: Cli, tmp_path: Path) -> None:
    for env, ends in (("CartPole-v1", (100.0, 500.0)), ("Acrobot-v1", (-500.0, -100.0))):
        for rate, end in zip((1e-4, 1e-3), ends, strict=True):
            for seed in (0, 1):
                folder(tmp_path / f"{env}{rate}{seed}", [end], env=env, learning_rate=rate,
                       seed=seed)  # fmt: skip
    folder(tmp_path / "alone", [300.0], learning_rate=7.0, seed=0)
    found = told(flatout, tmp_path)
    assert [table["env"] for table in found["tables"]] == [None, "Acrobot-v1", "CartPole-v1"]
    over = found["tables"][0]
    assert [line["mean"]["value"] for line in over["lines"]] == [1.0, 0.0]
    assert "0 (its worst run here) to 1" in over["what"]
    assert "learning_rate=7.0" in found["notes"][0], "it has no runs of the other"
    scaled = told(
        flatout, tmp_path, "--normalize", "CartPole-v1=0,1000", "--normalize", "Acrobot-v1=-500,300"
    )
    assert [line["mean"]["value"] for line in scaled["tables"][0]["lines"]] == [0.5, 0.05]
    assert found["tables"][1:] == scaled["tables"][1:], "alone scores are raw"


def test_settings_that_follow_from_the_environment_name_no_group(
    flatout: Cli, tmp_path: Path
) -> None:
    """As runs of presets: the best algorithm over both environments is ranked."""
    for env, steps in (("CartPole-v1", 500), ("Acrobot-v1", 900)):
        for number, algorithm in enumerate(("a2c", "ppo")):
            for seed in (0, 1):
                folder(tmp_path / f"{env}{algorithm}{seed}", [100.0 + number], env=env, seed=seed,
                       algorithm=algorithm, steps=steps, envs=steps + number)  # fmt: skip
    names = ["algorithm=ppo", "algorithm=a2c"]
    for table in told(flatout, tmp_path)["tables"]:
        assert [line["name"] for line in table["lines"]] == names
    failed = folder(tmp_path / "failed", [1.0], env="Acrobot-v1", steps=1, envs=901)
    (failed / "summary.json").unlink()
    found = told(flatout, tmp_path)["tables"]
    assert [table["env"] for table in found] == [None, "Acrobot-v1", "CartPole-v1"]
    for table in found:
        runs = [sum(map(len, line["scores"].values())) for line in table["lines"]]
        assert [line["name"] for line in table["lines"]] == names
        assert runs == [4 if table["env"] is None else 2] * 2
    alone = [path for path in tmp_path.iterdir() if "ppo" in path.name]
    assert {line["name"] for one in told(flatout, *alone)["tables"] for line in one["lines"]} == {
        "ppo"
    }


def test_groups_by_a_setting_and_by_name(flatout: Cli, runs: Path) -> None:
    for seed in (5, 6):
        folder(runs / f"n{seed}", [1.0, 2.0, 90.0], learning_rate=1e-3, gamma=0.9, seed=seed)
    names = [line["name"] for line in told(flatout, runs)["tables"][0]["lines"]]
    assert len(names) == 3
    by_rate = told(flatout, runs, "--group", "learning-rate")["tables"][0]["lines"]
    assert {line["name"]: sum(map(len, line["scores"].values())) for line in by_rate} == {
        "learning_rate=0.001": 5, "learning_rate=0.0001": 3,
    }  # fmt: skip
    named = of_groups({"old": [runs / "n5"], "new": [runs / "0.001-0", runs / "0.001-1"]})
    assert [(line.name, line.runs) for line in named.tables[0].lines] == [("new", 2), ("old", 1)]


def test_a_seed_twice_is_said(runs: Path) -> None:
    folder(runs / "again", [1.0, 2.0, 3.0], learning_rate=1e-3, seed=2)
    assert "learning_rate=0.001 (seed 2)" in of_folders([runs]).notes[0]
    twice = of_folders([runs, runs / "again"])
    assert sum(line.runs for line in twice.tables[0].lines) == 7, "a folder given twice is one run"


def test_by_the_last_evaluation(flatout: Cli, runs: Path) -> None:
    assert "no eval/return_mean" in flatout("report", runs, "--score", "eval").message
    path = runs / "0.001-0" / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1]["eval/return_mean"] = 77.0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = told(flatout, runs, "--score", "eval")
    assert found["tables"][0]["lines"][0]["mean"]["value"] == 77
    assert "last evaluation" in found["tables"][0]["what"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--at", "soon"], "at = 'soon' is neither"),
        (["--at", "0"], "at = 0 is neither"),
        (["--score", "best"], "score = 'best'"),
        (["--group", "lerning-rate"], "'lerning_rate'.*'learning_rate'"),
        (["--group", "env"], "a table of its own"),
        (["--normalize", "CartPole-v1"], "ENV=LOW,HIGH"),
        (["--normalize", "CartPole-v1=5,5"], "greater"),
        (["--normalize", "CartPole-v1=0,inf"], "greater"),
        (["--normalize", "CartPole-v0=0,1"], "'CartPole-v1'"),
        (["--normalize", "CartPole-v1=0,1"], "several environments"),
        (["--out", "out.txt"], "--out out.txt.*.csv"),
        (["--out", "no/such/out.html"], "existing folder"),
        (["--best"], "does not know '--best'"),
    ],
)
def test_what_cannot_be_asked(flatout: Cli, runs: Path, argv: list[str], words: str) -> None:
    result = flatout("report", runs, *argv)
    assert result.code == 2
    assert re.search(words, result.message), result.message
    assert result.out == ""


def test_nothing_to_compare(flatout: Cli, tmp_path: Path) -> None:
    assert "no finished run" in flatout("report", tmp_path).message
    assert "no such folder" in flatout("report", tmp_path / "gone").message


class Page(HTMLParser):
    """What a page loads from elsewhere, the tags that are open, and all texts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elsewhere: list[str] = []
        self.words = ""
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.elsewhere += [v or "" for k, v in attrs if k in ("src", "href", "data")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_files(flatout: Cli, runs: Path, tmp_path: Path) -> None:
    folder(runs / "evil", [1.0, 2.0, 3.0], env="<script>alert(1)</script>", seed=0)
    page, table, drawing = (tmp_path / name for name in ("r.html", "r.csv", "r.png"))
    result = flatout("report", runs, "--out", page, "--out", table, "--out", drawing)
    assert result.out.splitlines()[-3:] == [str(page), str(table), str(drawing)]
    assert result.code == 0, result.err
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["environment"] for row in rows].count("CartPole-v1") == 2
    best = next(row for row in rows if row["environment"] == "CartPole-v1")
    assert float(best["iqm"]) == pytest.approx(110)
    assert float(best["iqm_low"]) < 110 < float(best["iqm_high"])
    read = Page()
    read.feed(page.read_text())
    assert read.open == []
    assert read.elsewhere == []
    assert "script" not in read.tags
    assert read.tags.count("polyline") >= 6, "curves over steps and seconds, and profiles"
    for words in ("learning_rate=0.001", "share of runs above it", "seconds since", "env-bound"):
        assert words in read.words
    assert drawing.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_picture_is_refused_at_once(
    flatout: Cli, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = flatout("report", runs, "--out", tmp_path / "r.png")
    assert (result.code, result.out) == (2, "")
    assert install("plot") in result.message


def test_the_report_needs_no_jax(runs: Path) -> None:
    code = (
        "import sys; from flatout.__main__ import main; code = main(sys.argv[1:])\n"
        "assert code == 0 and 'jax' not in sys.modules, sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, "report", runs], check=True, capture_output=True)


def test_in_python(runs: Path, tmp_path: Path) -> None:
    import flatout

    made = flatout.report(runs, group="learning_rate", out=tmp_path / "r.json")
    assert made.tables[0].lines[0].name == "learning_rate=0.001"
    assert json.loads((tmp_path / "r.json").read_text())["tables"][0]["env"] == "CartPole-v1"
    assert str(made).startswith("CartPole-v1: ")
    assert "<svg" in made._repr_html_()
    named = flatout.report({"slow": [runs / "0.0001-0"], "fast": [runs / "0.001-0"]})
    assert [line.name for line in named.tables[0].lines] == ["fast", "slow"]
    for wrong in ((), (runs, {"a": [runs]})):
        with pytest.raises(UsageError, match="report needs"):
            flatout.report(*wrong)
    with pytest.raises(UsageError, match=r"at = 1\.5"):
        Asked(at=1.5)  # type: ignore[arg-type]
    for at in (np.int64(100), 1e2):
        assert str(flatout.report(runs, at=at)) == str(flatout.report(runs, at=100))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at = True is not a whole number"):
        flatout.report(runs, at=True)
    for pair in ((0, 1, 2), 5, (0, "x")):
        with pytest.raises(UsageError, match=r"normalize\['CartPole-v1'\] = .* not two scores"):
            flatout.report(runs, normalize={"CartPole-v1": pair})  # type: ignore[dict-item]


def test_text_of_strangers_stays_text(flatout: Cli, tmp_path: Path) -> None:
    folder(tmp_path / "a", [1.0], env="\x1b[31mred\nline", note="two\nlines")
    folder(tmp_path / "b", [2.0], env="\x1b[31mred\nline", note="other")
    shown = flatout("report", tmp_path).out
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 6


def test_of_a_real_run(flatout: Cli, tmp_path: Path) -> None:
    words = ["train", "ppo", *TINY, "--log-every", "64", "--eval-every", "128"]
    assert flatout(*words, "--eval-episodes", "1", "--run-dir", tmp_path / "run").code == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    path = str(tmp_path / "run")
    for flags, score in (
        (("--score", "return"), summary["return_mean_last"]),
        ((), summary["last_eval_return"]),
    ):
        found = told(flatout, path, *flags, "--out", tmp_path / "r.html")
        line = found["tables"][0]["lines"][0]
        assert line["name"] == "ppo"
        assert line["scores"] == {"CartPole-v1": {path: pytest.approx(score)}}
        assert line["verdict"] == summary["verdict"]
    assert (tmp_path / "r.html").read_text().count("<polyline") == 2, "one run has no profile"


def test_a_damaged_run_hides_no_other(runs: Path) -> None:
    """The fewest steps are what others are cut to; a seed may be anything."""
    before = of_folders([runs]).tables[0].lines
    for name, steps in (("below", -300), ("none", 0)):
        damaged = folder(runs / name, [1.0], seed=8)
        (damaged / "summary.json").write_text(json.dumps(
            {"steps": steps, "return_mean_last": 3.0, "ended": "steps"}))  # fmt: skip
    odd = folder(runs / "odd", [1.0, 2.0, 3.0], learning_rate=1e-2, seed={})
    found = of_folders([runs])
    assert {line.name: line.iqm for line in before}.items() <= {
        line.name: line.iqm for line in found.tables[0].lines
    }.items()
    assert sum("its summary names no steps" in note for note in found.notes) == 1
    assert odd.exists()
