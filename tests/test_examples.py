"""The examples run as they stand, and print what they say."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import tiny
from tests.conftest import Result
from tests.kills import finish, run_script, spawn

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES, SWEEP = sorted(FOLDER.glob("*.py")), FOLDER / "4_sweep.toml"


def said(path: Path) -> list[str]:
    """Return the lines that an example prints, according to its docstring, its comments or a
    notebook's text."""
    text = path.read_text()
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    elif path.suffix == ".toml":
        text = re.sub(r"^# ?", "", text.partition("\n\n")[0], flags=re.M)
    else:
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return re.findall(r"^ {4}(.*\S)$", text.partition("t prints")[2], re.M)


def shape(line: str) -> str:
    """Return a line with each number replaced by one mark, and the space between columns by one
    space."""
    return " ".join(re.sub(r"-?\d[\d,]*(\.\d+)?", "N", line).split())


def test_every_example_says_what_it_prints() -> None:
    every = [path for path in FOLDER.iterdir() if path.is_file()]
    assert [path.name for path in every if not said(path)] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    done = run_script(path, tmp_path)
    assert done.code == 0, done.err
    printed = done.out.splitlines()[-len(said(path)) :]
    assert list(map(shape, printed)) == list(map(shape, said(path)))
    assert not list(tmp_path.iterdir()), "an agent without a run folder writes nothing"


def test_the_sweep_has_the_trials_that_it_says() -> None:
    assert SWEEP.read_text().startswith("# Five configurations of PPO with five seeds each:")
    assert len(tiny.sweep([str(SWEEP)]).trials) == 25


@pytest.mark.slow
def test_the_sweep_prints_the_table_that_it_says(tmp_path: Path) -> None:
    """The order of its rows depends on the last bits, and its last columns on the machine."""
    done = finish(spawn("sweep", str(SWEEP), cwd=tmp_path))
    assert done.code == 0, done.err
    rows = [line.lstrip("0123456789 ") for line in done.out.splitlines()]
    for line in said(SWEEP):
        start = shape(line.lstrip("0123456789 "))
        assert any(shape(row).startswith(start) for row in rows), done.out


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=pytest.mark.slow if "device" in path.stem else ())
        for path in EXAMPLES
    ],
)
def test_commands_in_examples_run_as_they_are_written(
    path: Path,
    flatout: Callable[..., Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(path.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    commands = re.findall(r"`flatout (train [^`]+)`", path.read_text())
    for number, command in enumerate(commands):
        flags = ("--steps", 640, "--json", "--quiet", "--run-dir", tmp_path / str(number))
        done = flatout(*command.split(), *flags)
        assert done.code == 0, done.err
        assert json.loads(done.out)["updates"] > 0
