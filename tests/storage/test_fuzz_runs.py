"""Run folders damaged at random: refused in a sentence or read, and nothing outside happens."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny
from tests.conftest import TINY

ROOT = Path(__file__).parents[2]
PPO = ("--placement", "schedule=overlapped")


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run with replay, and one whose trajectories wait; not to be changed."""
    from flatout.__main__ import main

    folder = tmp_path_factory.mktemp("bases")
    flags = (*tiny.flags("dqn"), "--steps", "256", "--quiet")
    common = ("--checkpoint-every", "128", "--log-every", "64", "--run-dir")
    assert main(["train", "dqn", *flags, *common, str(folder / "dqn")]) == 0
    assert main(["train", "ppo", *TINY, *PPO, *common, str(folder / "ppo")]) == 0
    return [folder / "dqn", folder / "ppo"]


def run_fuzz(bases: list[Path], place: Path, seed: int, count: int, how: str) -> None:
    words = [sys.executable, "-W", "error", str(ROOT / "tests" / "fuzz_runs.py"), str(place)]
    words += [str(seed), str(count), how, *map(str, bases)]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr[-3000:]  # a hang ends it with a traceback
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == []
    assert min(found["kinds"].values()) > 0
    assert len(found["kinds"]) == 6
    assert min(found["outcomes"].values()) > count // 10


FEW, MANY, COMMANDS = 50, 1000, 60


def test_a_few_mutations(bases: list[Path], tmp_path: Path) -> None:
    run_fuzz(bases, tmp_path, 1, FEW, "readers")


@pytest.mark.slow
def test_many_mutations(bases: list[Path], tmp_path: Path) -> None:
    run_fuzz(bases, tmp_path, 2, MANY, "readers")


@pytest.mark.slow
def test_mutations_through_the_command(bases: list[Path], tmp_path: Path) -> None:
    run_fuzz(bases, tmp_path, 3, COMMANDS, "command")


def test_the_page_says_how_many_there_are() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    rows = re.findall(r"^\|.*?([\d,]+) mutations", page, re.MULTILINE)
    assert rows == [f"{count:,}" for count in (FEW, MANY, COMMANDS)]
