"""With --json a command's stdout holds its JSON alone, which any program can read."""

from __future__ import annotations

import contextlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flatout
import flatout_explain
from flatout.output import json_text
from flatout.run.loggers import JsonLines
from flatout.storage.run_folder import RunFolder
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
    words = (*TINY[:-1], "--env", "loud:Loud", "--json", "--seeds", "2", "--run-dir", "sweep")
    assert alone(folder, "sweep", "ppo", *words)["run_dir"] == "sweep"


# --- NaN and infinities ---------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def strict(text: str) -> Any:
    """Parse JSON as a parser does that knows only RFC 8259, which has no NaN."""

    def refuse(name: str) -> Any:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


def nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: nulls(each) for name, each in value.items()}
    if isinstance(value, list):
        return [nulls(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@settings(deadline=None, max_examples=50)
@given(VALUES)
def test_what_is_no_number_in_json_is_null(value: Any) -> None:
    assert strict(json_text(value)) == nulls(value)


def test_a_runs_files_are_read_by_every_json_parser(tmp_path: Path) -> None:
    with contextlib.closing(RunFolder(tmp_path / "run")) as folder:
        folder.write_json("summary.json", {"last": {"loss": math.nan}, "goals": [math.inf, 1.0]})
    summary = strict((tmp_path / "run" / "summary.json").read_text())
    assert summary == {"last": {"loss": None}, "goals": [None, 1.0]}
    lines = JsonLines(tmp_path / "metrics.jsonl")
    lines.log([{"loss": math.nan, "return": 1.5}], 7)
    lines.close()
    written = strict((tmp_path / "metrics.jsonl").read_text())
    assert written == {"step": 7, "loss": None, "return": 1.5}


EXACT = (
    "child", "config/", "envs/checking/process", "explain/settings", "reports/compare",
    "populations/members", "measurements/placement_table", "reports/runs", "sweeps/",
    "measurements/trial",
    "planning/", "run/auto", "run/callbacks", "run/card", "run/probe_process",
    "engine/workers/", "storage/", "cli/compare_devices", "cli/plan", "files/",
)  # fmt: skip
"""Modules and folders that write JSON for Flatout itself: state that is restored to the bit, signed
settings, messages between its processes, keys of caches. All other JSON is for any program."""


def test_json_for_other_programs_is_written_in_one_place() -> None:
    found = [
        name
        for root in (Path(one.__file__).parent for one in (flatout, flatout_explain))
        for path in root.rglob("*.py")
        if not (name := path.relative_to(root).as_posix()).startswith(("output.py", *EXACT))
        and "/inject/" not in name
        and re.search(r"json\.dumps?\(", path.read_text())
    ]
    assert found == [], "use flatout.output.json_text"
