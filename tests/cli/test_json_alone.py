"""With --json a command's stdout holds its JSON alone, whatever user code prints, and how."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import tiny
from tests.conftest import TINY
from tests.forked import Child

LOUD = """
import atexit, ctypes, os, sys
from tests.bad_envs import Good

def shout(word):
    print("printed", word)
    print("printed", word, file=sys.__stdout__)
    os.write(1, b"written\\n")
    ctypes.CDLL(None).puts(b"by C")

class Loud(Good):
    def __init__(self, **settings):
        super().__init__(**settings)
        shout("init")
        atexit.register(shout, "exit")
    def reset(self, **settings):
        shout("reset")
        return super().reset(**settings)
    def close(self):
        shout("close")
"""
ROOT = Path(__file__).parents[2]


def alone(folder: Path, *words: str) -> dict[str, object]:
    """What the command prints as JSON, after checking that nothing else is on its stdout."""
    child = Child("flatout", tuple(tiny.latest(words)), folder)
    out, err = child.communicate(60)
    assert child.returncode == 0, err
    assert out.count("\n") == 1
    assert err.count("written") == err.count("by C")
    return json.loads(out)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "loud.py").write_text(LOUD)
    return tmp_path


def test_a_run_and_its_evaluation(folder: Path) -> None:
    words = (*TINY, "--env", "loud:Loud", "--json", "--eval-every", "128")
    summary = alone(folder, "train", "ppo", *words, "--run-dir", "run")
    assert summary["steps"] == 256
    assert alone(folder, "eval", "run", "--json", "--episodes", "2")["episodes"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [("--seeds", "2"), ("--placement", "sampler=processes workers=2x1")],
    ids=["population", "processes"],
)
def test_members_and_workers(folder: Path, words: tuple[str, ...]) -> None:
    told = alone(folder, "train", "ppo", *TINY, "--env", "loud:Loud", "--json", *words)
    assert told


@pytest.mark.slow
def test_trials(folder: Path) -> None:
    words = (*TINY[:-1], "--env", "loud:Loud", "--json", "--seeds", "2", "--run-dir", "fleet")
    assert alone(folder, "fleet", "ppo", *words)["run_dir"] == "fleet"
