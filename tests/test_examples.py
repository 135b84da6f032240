"""The examples run as they stand."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Result
from tests.kills import run_script

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    done = run_script(path, tmp_path)
    assert done.code == 0, done.err
    assert done.out.strip()
    assert not list(tmp_path.iterdir()), "an agent without a run folder writes nothing"


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
