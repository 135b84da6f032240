"""`flatout check` names the fault of each faulty environment, and finds none in good ones."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout import UsageError, check_env
from tests import bad_envs, faulty_envs, masked_envs
from tests.conftest import Result
from tests.dict_envs import corner

STEPS = 120


def faults(env: Any, **settings: Any) -> list[str]:
    """The errors and warnings as lines."""
    found = check_env(env, steps=STEPS, **settings)
    return [str(finding) for finding in found if finding.kind != "note"]


def bad(name: str, **kwargs: Any) -> Any:
    made = getattr(bad_envs, name)
    return functools.partial(made, **kwargs) if kwargs else made


def faulty(name: str) -> Any:
    return getattr(faulty_envs, name)


def masked(**kwargs: Any) -> Any:
    return functools.partial(masked_envs.Picky, **kwargs)


FAULTY: dict[str, tuple[Any, str]] = {
    "raises in step": (bad("Raises"), r"error: .*raised ValueError in step: the bridge is out \("),
    "raises in reset": (bad("Raises", at=0), "error: .*raised ValueError in reset"),
    "NaN observation": (bad("NaNs"), "error: the observation of step 5 holds nan"),
    "infinite observation": (bad("NaNs", what="infinite"), "error: .*step 5 holds inf"),
    "NaN reward": (bad("NaNs", what="reward"), "error: the reward of step 5 is nan"),
    "text as reward": (bad("WrongValue", what="reward=text"), "error: .*returned reward 'plenty'"),
    "no flag": (bad("WrongValue", what="terminated=None"), "error: .*returned terminated None"),
    "list as info": (bad("WrongValue", what="info=list"), "error: .*returned info"),
    "shape": (bad("WrongShape"), r"error: .*an observation of shape \(5,\)"),
    "objects": (bad("WrongDtype"), "error: .*an observation of .*object"),
    "four values": (bad("WrongTuple"), "error: .*did not return 5 values"),
    "no values": (bad("WrongTuple", at=0), "error: .*did not return 2 values"),
    "vast reward": (bad("HugeReward", size=1e39), "error: .*float32 cannot hold"),
    "endless": (bad("NeverEnds"), "warning: no episode ended within 120 random steps"),
    "memory of episodes": (bad("CrossEpisodeState"), "error: the same seeds and actions gave"),
    "reused array": (bad("SameArray"), "warning: the array of the observation is changed after"),
    "close": (bad("BadClose"), "error: the call of close raised RuntimeError: the door is stuck"),
    "no spaces": (bad("NoSpaces"), "error: .*has no observation_space"),
    "no environment": (bad("NotAnEnv"), "error: .*neither a gymnasium.Env nor"),
    "constructor": (bad("broken"), "error: making .* failed: RuntimeError: no licence"),
    "unknown space": (bad("Spaces", obs="Sequence"), "error: .*observes a Sequence space"),
    "bounds": (faulty("OutOfBounds"), "error: the observation 'state' of step 4 holds .* outside"),
    "float64": (faulty("Float64"), "warning: .* is float64, but its space says float32"),
    "ragged": (faulty("Ragged"), "error: .*an observation of type list"),
    "lists": (faulty("Lists"), "warning: .* is list, but its space says float32"),
    "categories": (faulty("Dice"), "error: the observation of step 6 is 6, which is not in"),
    "global numbers": (faulty("GlobalNumbers"), "error: .*gave another .*global random numbers"),
    "global seed": (faulty("Seeds"), "warning: it draws from .* global random numbers, or seeds"),
    "shared state": (faulty("Shared"), "error: next to a second environment of the same kind"),
    "time limit": (faulty("Limited"), "warning: all .* were terminated after 20 steps"),
    "old time limit": (faulty("OldLimit"), "error: .*its info says TimeLimit.truncated"),
    "changed action": (faulty("ChangesAction"), "warning: step 1 changes the action array"),
    "output": (faulty("Prints"), "warning: it prints while it is stepped"),
    "no seed": (faulty("Seedless"), "error: reset of .* has to take seed="),
    "no options": (faulty("NoOptions"), "warning: reset with options= raised TypeError"),
    "needs a seed": (faulty("NeedsSeed"), "warning: reset without a seed raised ValueError"),
    "drawn when made": (faulty("DrawnWhenMade"), "error: .*in another environment of the same"),
    "second close": (faulty("ClosesOnce"), "warning: the second call of close raised"),
    "one object": (faulty("one_object"), "error: .*the same environment object twice"),
    "spaces that differ": (faulty("growing"), "error: .*have a different observation_space"),
    "short mask": (masked(broken="short"), r"error: .*a mask of shape \[4\], but"),
    "empty mask": (masked(kind="method", broken="none"), "error: .*a mask that allows no action"),
    "mask at times": (masked(broken="missing"), "error: .*no mask in its info"),
    "late mask": (masked(broken="late"), "error: .*but none after its first reset"),
    "two masks": (masked_envs.Contrary, "error: .*masks that differ"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTY)
def test_the_fault_is_named(name: str) -> None:
    env, words = FAULTY[name]
    found = faults(env)
    assert any(re.match(words, line) for line in found), found


def test_a_step_that_never_returns_is_named() -> None:
    found = faults(faulty_envs.Hangs, patience=1.0)
    assert len(found) == 1
    assert "did not finish its step within 1 s" in found[0]


GOOD = [
    "CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0", "Pendulum-v1", "Taxi-v4",
    "FrozenLake-v1", "Blackjack-v1", "flatout/Snake-v0", "ALE/Breakout-v5",
]  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_said_against_good_environments(name: str) -> None:
    assert faults(name) == []


@pytest.mark.slow
def test_nothing_is_said_against_a_simulator() -> None:
    pytest.importorskip("mujoco")
    assert faults("HalfCheetah-v5") == []


EXAMPLES = Path(__file__).parents[2] / "examples"


def test_nothing_is_said_against_a_masked_game() -> None:
    pytest.importorskip("pettingzoo")
    spec = importlib.util.spec_from_file_location("game", EXAMPLES / "9_action_masks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert faults(module.make) == []
    notes = [finding.text for finding in check_env(module.make, steps=50)]
    assert any("observation['action_mask']; masks are obeyed" in text for text in notes)


@pytest.mark.parametrize("module", ["minigrid", "gymnasium_robotics"])
def test_nothing_is_said_against_other_packages(module: str) -> None:
    pytest.importorskip(module)
    name = {"minigrid": "MiniGrid-GoToDoor-5x5-v0", "gymnasium_robotics": "PointMaze_UMaze-v3"}
    assert faults(name[module]) == []


def test_an_object_is_stepped_and_stays_open() -> None:
    env = bad_envs.Good(ends="truncated")
    assert faults(env) == []
    assert not env.closed
    assert env.step_number > 100
    last = check_env(env, steps=20)[-1]
    assert "an environment object steps alone" in last.text


def test_a_device_environment_is_checked_as_one() -> None:
    assert faults(corner) == []
    assert faults(masked_envs.picky_device) == []


def test_the_notes_say_what_training_would_do() -> None:
    notes = {finding.topic: finding.text for finding in check_env("CartPole-v1", steps=STEPS)}
    assert notes["encoder"] == "observation: 4 float32, dense layers."
    assert notes["actions"] == "Discrete actions: ppo, a2c, dqn, genetic."
    assert "a time limit of 500 steps" in notes["episodes"]
    assert "continues exactly" in notes["resume"]
    assert "--env-backend device" in notes["samplers"]


def test_looks_are_notes() -> None:
    """Both flags at once, and episodes that are all the same, may be meant like this."""
    notes = [str(one) for one in check_env(bad("Good", ends="both"), steps=STEPS)]
    assert "note: 6 of 6 episodes were terminated and truncated at once" in "".join(notes)
    notes = [str(one) for one in check_env(faulty("Constant"), steps=STEPS)]
    assert "note: every episode is the same: its seed decides nothing." in notes


def test_other_values_are_refused() -> None:
    with pytest.raises(UsageError, match="name an environment"):
        check_env(None)
    with pytest.raises(UsageError, match="steps = 0 is impossible"):
        check_env("CartPole-v1", steps=0)
    given: Any = [bad_envs.Good()]
    assert "an environment is an id, module:factory" in faults(given)[0]


def test_the_command_prints_findings_and_exits_with_1(flatout: Callable[..., Result]) -> None:
    result = flatout("check", "tests.bad_envs:NaNs", "--steps", 50)
    assert result.code == 1
    assert "error   the observation of step 5 holds nan" in result.out
    assert "tests.bad_envs:NaNs: 2 errors, 0 warnings" in result.out.splitlines()[-1]
    good = flatout("check", "CartPole-v1", "--steps", 50, "--json")
    assert good.code == 0
    found = json.loads(good.out)
    assert found["error"] == found["warning"] == 0
    assert {finding["topic"] for finding in found["findings"]} > {"encoder", "speed"}
    kwargs = flatout("check", "tests.bad_envs:NaNs", "--env-kwargs", "at=5000", "--steps", 50)
    assert kwargs.code == 0
    assert flatout("check").code == 2
    assert flatout("check", "NoSuch-v0").code == 1


def test_a_check_does_not_start_jax() -> None:
    code = (
        "import sys, flatout; found = flatout.check_env('FrozenLake-v1', steps=20); "
        "print(len(found), 'jaxlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == "False", done.stdout
