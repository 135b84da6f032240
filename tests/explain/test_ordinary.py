"""Ordinary programs as they were once recorded: the first finding is what their own timers say.

`benchmarks/explain/run_ordinary.py` records them, `tools/record_evidence.py` puts them here.
"""

from __future__ import annotations

import gzip
import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flatout_explain.diagnosis import Diagnosis
from flatout_explain.program.diagnose import diagnose
from flatout_explain.program.evidence import from_json

RECORDED = sorted((Path(__file__).parent / "evidence").glob("*.json.gz"))
PROGRAMS = Path(__file__).parents[2] / "benchmarks" / "explain"
FURTHER = {
    "acrobot_torch", "actor_critic_torch", "awr_torch", "bigram_torch", "bootstrap_pool",
    "deep_mixer_torch", "diary", "digits_torch", "dqn_deque_torch", "dqn_jax", "es_pool",
    "greedy_games_torch", "line_server", "noisy_images_torch", "player_torch",
    "ppo_minibatch_torch", "rainfall_torch", "reinforce_jax", "shards_torch", "stories_torch",
    "trainer_torch",
}  # fmt: skip
"""Recordings that run with the slow tests: their diagnosis takes longest, and the quick ones have
two others, or one, with most of their findings."""
EACH = pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=name, marks=pytest.mark.slow if name in FURTHER else ())
        for path in RECORDED
        for name in (path.name.split(".")[0],)
    ],
)


def expected() -> dict[str, dict[str, Any]]:
    """The programs' tables by name."""
    tables: dict[str, dict[str, Any]] = {}
    for file in sorted(PROGRAMS.glob("*/*.toml")):
        if file.stem == file.parent.name:
            tables |= tomllib.loads(file.read_text())
    return tables


@cache
def diagnosed(path: Path) -> Diagnosis:
    return diagnose(from_json(json.loads(gzip.decompress(path.read_bytes())), path))


@EACH
def test_the_first_finding_of_an_ordinary_program_is_right(path: Path) -> None:
    found = diagnosed(path)
    first = next(one for one in found.findings if one.id != "contended")
    name = path.name.split(".")[0]
    assert first.id in expected()[name]["causes"], found.phases
    assert sum(found.phases.values()) == pytest.approx(1.0)


@EACH
def test_each_large_row_of_the_table_names_a_line_of_the_program(path: Path) -> None:
    found = diagnosed(path)
    name = path.name.split(".")[0]
    rows = {phase: found.lines[phase] for phase, share in found.phases.items() if share > 0.1}
    assert rows
    own = (f"{name}.py:", "phases.py:")  # and that of its timers
    assert all(words.startswith(own) for words in rows.values()), rows


@pytest.mark.slow
def test_recordings_have_no_paths_of_the_machine_that_made_them() -> None:
    for path in sorted((Path(__file__).parent / "evidence").rglob("*.json.gz")):
        values = json.loads(gzip.decompress(path.read_bytes()))
        rows = [row for process in values["processes"] for row in process]
        files = {row["file"] for row in rows if row["k"] == "code"} | set(values["command"])
        absolute = {file for file in files if file.startswith("/")}
        assert all(file.startswith(("/home/me/", "/usr/")) for file in absolute), path.name
