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
from tests.kills import run_script

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def said(path: Path) -> list[str]:
    """Return the lines that an example prints, according to its docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return re.findall(r"^    (\S.*)$", text.partition("t prints")[2], re.M)


def shape(line: str) -> str:
    """Return a line with each number replaced by one mark."""
    return re.sub(r"-?\d[\d,]*(\.\d+)?", "N", line)


def test_every_example_says_what_it_prints() -> None:
    assert [path.name for path in EXAMPLES if not said(path)] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    done = run_script(path, tmp_path)
    assert done.code == 0, done.err
    printed = done.out.splitlines()[-len(said(path)) :]
    assert list(map(shape, printed)) == list(map(shape, said(path)))
    assert not list(tmp_path.iterdir()), "an agent without a run folder writes nothing"


def test_the_sweep_has_the_trials_that_it_says() -> None:
    file = EXAMPLES[0].parent / "4_sweep.toml"
    assert file.read_text().startswith("# Five configurations of PPO with five seeds each:")
    assert len(tiny.sweep([str(file)]).trials) == 25


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
