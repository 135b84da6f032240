"""`flatout explain` on programs with PyTorch and Stable-Baselines3, observed for 12 seconds each.

`make test-slow` makes the environment that has them (`tools/frameworks.py`). A busy machine takes
longer for the programs that are timed in CPU seconds.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from flatout_explain.program.attach import INJECT

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks" / "explain"
PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 12

LEARNING = ("launch-bound", "compute-bound")
BY_TIMER = {
    "acting": ("acting-bound",), "env": ("env-bound",), "replay": ("replay-bound",),
    "learning": LEARNING, "input": ("input-bound",), "evaluation": ("eval-bound",),
    "communication": ("communication-bound",),
}  # fmt: skip


@pytest.fixture(scope="module")
def python() -> str:
    """The Python that has the frameworks."""
    found = runpy.run_path(str(ROOT / "tools" / "frameworks.py"))["python"]()
    if found is None:
        pytest.skip("no PyTorch: run python tools/frameworks.py, or set FLATOUT_FRAMEWORKS")
    return str(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        [PROGRAMS / "cleanrl_like_dqn.py", SECONDS],
        [PROGRAMS / "sb3_ppo.py", SECONDS],
        [PROGRAMS / "loader_with_validation.py", SECONDS],
        [PROGRAMS / "data_parallel.py", SECONDS],
        [BENCHMARKS / "misnamed" / "best_of_torch.py", "--seconds", SECONDS],
    ],
    ids=["cleanrl_like_dqn", "sb3_ppo", "loader_with_validation", "data_parallel", "best_of_torch"],
)
def test_the_first_finding_is_about_the_longest_timer(
    python: str, command: list[object], tmp_path: Path
) -> None:
    timers = tmp_path / "timers.json"
    variables = {
        "PHASES": str(timers),
        "PYTHONPATH": f"{BENCHMARKS}/ordinary:{BENCHMARKS}/examples",
    }
    said = explain(tmp_path, variables, python, *command)
    seconds = json.loads(timers.read_text())
    whole = seconds.pop("total")
    longest = max(seconds, key=lambda name: seconds[name])
    first = first_finding(said)
    assert seconds[longest] > 0.4 * whole, seconds
    named = {first, *said.get("tie", ())}  # of a tie either may come first, with an interval each
    assert named & set(BY_TIMER[longest]), (said["phases"], seconds)


@pytest.mark.slow
def test_the_readmes_example_has_the_finding_that_the_readme_shows(
    python: str, tmp_path: Path
) -> None:
    script = ROOT / "examples" / "why_slow" / "dqn.py"
    said = explain(tmp_path, {}, python, script, SECONDS)
    assert first_finding(said) == "replay-bound", said["phases"]
    assert said["phases"]["replay"] > 0.4


def explain(folder: Path, variables: dict[str, str], *command: object) -> dict:
    """Observe a command and return the report as JSON."""
    file = folder / "said.json"
    options = ["--seconds", "300", "--json", str(file)]  # programs end by themselves
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "explain", *options, "--", *map(str, command)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=400, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )  # fmt: skip
    assert file.exists(), done.stderr
    return json.loads(file.read_text())


def first_finding(said: dict) -> str:
    """The first finding that is not about other programs on this machine."""
    return next(one["id"] for one in said["findings"] if one["id"] != "contended")


TENSORS = """
import sys
sys.path.insert(0, sys.argv[1])
import _flatout_flow as flow
import torch

class Mine(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args):
        raise AssertionError("the program was called")

one = torch.ones(2)
print(*map(flow.has_gradients, (
    one, torch.ones(2, requires_grad=True), torch.nn.Parameter(one), one.as_subclass(Mine), 3)))
"""


@pytest.mark.slow
def test_tensors_of_a_programs_own_classes_are_left_alone(python: str) -> None:
    command = [python, "-c", TENSORS, str(INJECT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False True True None None\n"
