"""The table of placements: every cell trained, what is not here named, the fastest chosen."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flatout.config.settings import load_preset
from flatout.fleet import placement_table
from flatout.fleet.placement_table import HERE_NOT, MODES, Cell, Mode, Row, settings
from tests.conftest import Result

Cli = Callable[..., Result]


@pytest.mark.slow
def test_every_placement_of_this_machine_is_trained_and_planned(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = MODES[1::2]  # those with settings beside their preset's
    monkeypatch.setattr(placement_table, "MODES", modes)
    file = tmp_path / "table.csv"
    words = ("--share", "0.02", "--hidden", "16", "--csv", file, "--json")
    result = flatout("bench", "placement", *words)
    assert result.code == 0, result.err
    rows = json.loads(result.out)["rows"]
    assert [row["mode"] for row in rows] == [mode.name for mode in modes]
    for row in rows:
        cpu = row["cells"][0]
        assert cpu["placement"] == "cpu"
        assert cpu["seconds"] > 0.0
        assert 0.0 < cpu["cpu"] <= 1.0
        assert row["planned"]
        assert not row["planned"].startswith("none")
    with file.open() as lines:
        table = list(csv.DictReader(lines))
    assert len(table) == 3 * len(rows)
    assert all(line["winner"] for line in table)


def test_the_fastest_is_the_one_that_was_done_first_not_the_one_that_never_was() -> None:
    never = Cell("gpu", None, None, 0.5, 0.1)
    row = Row("64", "PPO", (Cell("cpu", 3.0, 2.0, 0.9, None), never, None), "cpu")
    assert row.winner == "cpu"
    assert Row("64", "PPO", (never, None, None), "cpu").winner == ""


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_cell_differs_from_its_preset_only_where_the_table_says(mode: Mode) -> None:
    preset, values = load_preset(mode.preset), settings(mode, (32,), mode.episodes // 2)
    changed = {name for name in values if values[name] != preset.get(name)}
    assert changed == {"hidden", "steps", "threshold", *mode.changes}
    assert values["steps"] == preset["steps"] // 2, "as many as so many episodes may take"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["else"], "no benchmark 'else'"),
        (["placement", "--share", "2"], "--share 2"),
        (["placement", "--hidden", "64,x"], "--hidden 64,x"),
        (["placement", "--fast"], "knows no --fast"),
    ],
)
def test_what_cannot_be_asked_is_refused(words: list[str], said: str, flatout: Cli) -> None:
    result = flatout("bench", *words)
    assert result.code == 2
    assert said in result.err
    assert HERE_NOT not in result.out
