"""The table of placements: every cell trained, what is not here named, the fastest chosen."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout.cli import plan_table
from flatout.config.settings import load_preset
from flatout.measurements import placement_table
from flatout.measurements.placement_table import HERE_NOT, MODES, Cell, Mode, Row, settings
from tests.conftest import Result

Cli = Callable[..., Result]


@pytest.mark.slow
def test_every_placement_of_this_machine_is_trained_and_planned(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = MODES[1::2]  # those with settings beside their preset's
    monkeypatch.setattr(placement_table, "MODES", modes)
    monkeypatch.setattr(plan_table, "PLANNING_S", 1.0)
    file = tmp_path / "table.csv"
    words = ("--share", "0.02", "--hidden", "16", "--out", file, "--json")
    result = flatout("plan", "--table", *words)
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


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modes that are trained, without training them; the third stops the command."""
    done: list[str] = []

    def measured(mode: Mode, hidden: Any, episodes: int, placement: str) -> Cell:
        done.append(mode.name)
        if len(done) == 3:
            raise KeyboardInterrupt
        return Cell(placement, 1.5 + len(done), None, 0.5, None)

    monkeypatch.setattr(placement_table, "measured", measured)
    monkeypatch.setattr(placement_table, "planned", lambda *given: "none (a, b)")
    return done


NAMES = [mode.name for mode in MODES]
TABLE = ("plan", "--table", "--share", "0.02", "--hidden", "16", "--out")


def test_a_table_that_was_stopped_continues_where_it_was(
    flatout: Cli, trained: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "table.csv"
    assert flatout(*TABLE, file).code == 130
    with file.open() as lines:
        assert [line["mode"] for line in csv.DictReader(lines)] == [NAMES[0]] * 3 + [NAMES[1]] * 3
    with file.open("a") as torn:
        torn.write(f"16,{NAMES[2]},cpu,1.")
    result = flatout(*TABLE, file, "--json")
    assert result.code == 0, result.err
    assert trained == [*NAMES[:3], *NAMES[2:]], "what is finished is not trained again"
    rows = json.loads(result.out)["rows"]
    assert [row["mode"] for row in rows] == NAMES
    assert [row["cells"][0]["seconds"] for row in rows] == [2.5, 3.5, 5.5, 6.5]
    assert {(row["cells"][1], row["planned"]) for row in rows} == {(None, "none (a, b)")}
    text = file.read_text()
    again = flatout(*TABLE, file)
    assert "4 of 4 rows are finished" in again.out
    assert (len(trained), file.read_text()) == (5, text)


def test_a_row_that_was_stopped_keeps_the_cells_that_were_measured(
    flatout: Cli, trained: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell takes minutes, and planning comes after all cells of a row."""

    def stopped(*given: Any) -> str:
        raise KeyboardInterrupt

    planned = placement_table.planned
    monkeypatch.setattr(placement_table, "planned", stopped)
    file = tmp_path / "table.csv"
    result = flatout(*TABLE, file)
    assert result.code == 130
    assert f"{NAMES[0]}, hidden 16, on cpu: 2.5 s" in result.out
    with file.open() as lines:
        written = list(csv.DictReader(lines))
    assert [line["seconds"] for line in written] == ["2.500", HERE_NOT, HERE_NOT]
    assert {(line["winner"], line["planned"]) for line in written} == {("", "")}
    monkeypatch.setattr(placement_table, "planned", planned)
    assert flatout(*TABLE, file).code == 130
    assert trained == NAMES[:3], "a cell that was measured is not trained again"
    with file.open() as lines:
        assert [line["winner"] for line in csv.DictReader(lines)] == ["cpu"] * 6


def test_a_file_of_other_settings_is_refused_and_left_alone(
    flatout: Cli, trained: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "table.csv"
    trained += ["", "", ""]
    assert flatout(*TABLE, file).code == 0
    text, count = file.read_text(), len(trained)

    def refused(content: str, *words: str) -> str:
        file.write_text(content)
        result = flatout("plan", "--table", *words, "--out", file)
        assert result.code == 2, result.err
        assert file.read_text() == content
        return result.message

    same = ("--share", "0.02", "--hidden", "16")
    assert "share 0.02, and this table has share 0.5" in refused(text, "--share", "0.5", *same[2:])
    assert "PPO, on-policy, hidden 16" in refused(text, *same[:2], "--hidden", "8")
    assert "machine" in refused(text.replace(" cores", " cores or so"), *same)
    damaged = [text.replace(",5.500,", by) for by in (",", ",nan,", ",-1,", ",soon,", ',"5.5,')]
    assert text not in damaged
    for other in (*damaged, "my notes", "a,b\n1,2\n", "\0" * 99, "hidden" + "x" * (1 << 20)):
        assert "is no table" in (said := refused(other, *same)) or "cannot be read" in said
    assert len(trained) == count, "nothing was trained"
    missing = flatout(*TABLE, tmp_path / "none" / "table.csv")
    assert "is no file in an existing folder" in missing.message
    assert len(trained) == count


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["else"], "else"),
        (["--share", "2"], "share = 2.0"),
        (["--hidden", "64,x"], "--hidden: 'x' is not a whole number"),
        (["--fast"], "does not know '--fast'"),
    ],
)
def test_what_cannot_be_asked_is_refused(words: list[str], said: str, flatout: Cli) -> None:
    result = flatout("plan", "--table", *words)
    assert result.code == 2
    assert said in result.err
    assert HERE_NOT not in result.out
