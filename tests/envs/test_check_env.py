"""`flatout check` names the fault of each faulty environment, and finds none in good ones."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout import Finding, UsageError, check_env
from flatout.envs.checking import process
from flatout.envs.checking.check_env import inspect_here, requested
from tests import bad_envs, faulty_envs, goal_envs, hostile_envs, masked_envs
from tests.conftest import Result
from tests.dict_envs import corner

pytestmark = pytest.mark.usefixtures("small_heap")

STEPS = 120


def checked(env: Any, steps: int = STEPS, **settings: Any) -> list[Finding]:
    """Return the findings of a check in this process, which costs less than a child process."""
    return inspect_here(requested(env, steps, **settings)).ordered()


def faults(env: Any, **settings: Any) -> list[str]:
    """The errors and warnings as lines."""
    return [str(finding) for finding in checked(env, **settings) if finding.kind != "note"]


def bad(name: str, **kwargs: Any) -> Any:
    made = getattr(bad_envs, name)
    return functools.partial(made, **kwargs) if kwargs else made


def faulty(name: str) -> Any:
    return getattr(faulty_envs, name)


def acts(kind: str, *values: Any) -> Any:
    return functools.partial(hostile_envs.Acts, kind, *values)


def masked(**kwargs: Any) -> Any:
    return functools.partial(masked_envs.Picky, **kwargs)


def goals(name: str) -> Any:
    return getattr(goal_envs, name)


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
    "masks with an argument": (
        hostile_envs.NeedsArgument, r"error: .*action_masks has to take no arguments: .*'number'"
    ),
    "many actions": (acts("Discrete", 2**40), "error: .*a Discrete space of 1,099,511,627,776"),
    "many components": (acts("MultiDiscrete", [2**40, 3]), "error: .*a MultiDiscrete space of 1"),
    "large actions": (acts("Discrete", 200_000), "warning: Discrete actions have 200,000 values"),
    "far actions": (acts("Box", 0.0, 255.0), "warning: actions range from 0 to 255, but .*Rescale"),
    "closed output": (hostile_envs.ClosesStdout, "error: reset or step closes sys.stdout"),
    "alarm": (hostile_envs.Alarm, "error: .*raised UnexpectedAlarm in step: SIGALRM arrived"),
    "late alarm": (hostile_envs.LateAlarm, "warning: the step uses SIGALRM"),
    "shared space": (
        hostile_envs.SharedSpace, "error: next to a second .* share tests.hostile_envs.SPACE"
    ),
    "shared space at reset": (
        hostile_envs.SharedAtReset, "warning: it draws from tests.hostile_envs.SPACE, which all"
    ),
    "goals one by one": (goals("OneByOne"), "warning: compute_reward of .* for 2 pairs of goals"),
    "other rewards": (goals("OtherRewards"), "warning: compute_reward returns -1 .* the reward -2"),
    "no rewards of goals": (goals("Rewardless"), "warning: it has goals, but no method compute_"),
    "a generator of the module": (
        hostile_envs.ModuleNumbers, "error: .*it draws from tests.hostile_envs.NUMBERS, outside"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTY)
def test_the_fault_is_named(name: str) -> None:
    env, words = FAULTY[name]
    found = faults(env)
    assert any(re.match(words, line) for line in found), found


def test_equal_rewards_that_are_not_numbers_are_no_chance() -> None:
    class Undefined(bad_envs.Good):
        def reward(self) -> float:
            return float("nan")

    found = faults(Undefined)
    assert [line for line in found if line.startswith("error")] == [
        "error: the reward of step 1 is nan: look at what step computes."
    ]


def test_a_step_that_never_returns_is_named() -> None:
    found = faults(faulty_envs.Hangs, patience=3.0)
    assert len(found) == 1
    assert "did not finish its step within 3 s" in found[0]


HOOKS, DEEDS = hostile_envs.HOOKS, hostile_envs.DEEDS
HARMLESS = {("close", "nonsense"), ("getattr", "nonsense"), ("contains", "nonsense"),
            ("info", "nonsense"), ("sample", "nonsense")}  # fmt: skip
"""Nonsense that nothing reads, or that is true."""
RAISE = ("raises", "SystemExit", "nonsense")
QUICK = {
    ("step", "ends"), ("close", "ends"), ("sample", "ends"), ("reset", "dies"), ("step", "hangs"),
    ("close", "hangs"), ("constructor", "KeyboardInterrupt"), ("close", "forks"),
    ("array", "forks"), ("eq", "ends"), ("masks", "hangs"),
}  # fmt: skip
CELLS = [(hook, deed) for hook in HOOKS for deed in DEEDS if deed not in RAISE]


def names_hook(hook: str, found: list[Finding]) -> bool:
    return any(one.kind == "error" and re.search(HOOKS[hook], one.text) for one in found)


@pytest.mark.parametrize("hook", HOOKS)
def test_an_exception_of_any_method_is_a_finding_that_names_it(hook: str) -> None:
    for deed in RAISE:
        if (hook, deed) not in HARMLESS:
            found = checked(functools.partial(hostile_envs.make, hook, deed), 30)
            assert names_hook(hook, found), (deed, found)


@pytest.mark.parametrize(
    ("hook", "deed"),
    [pytest.param(*cell, marks=() if cell in QUICK else pytest.mark.slow) for cell in CELLS],
)
def test_a_method_that_ends_or_blocks_the_process_is_a_finding_that_names_it(
    hook: str, deed: str
) -> None:
    kwargs = {"hook": hook, "deed": deed}
    patience = 5.0 if deed == "hangs" else 60.0  # it also imports the module
    found = check_env("tests.hostile_envs:make", steps=30, env_kwargs=kwargs, patience=patience)
    assert names_hook(hook, found), found


def test_an_import_that_ends_the_process_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends_at_once.py").write_text("import os\nos._exit(0)\n")
    monkeypatch.chdir(tmp_path)
    (found,) = check_env("ends_at_once:make")
    assert "ended the process with exit code 0 in the import of its module" in found.text


def test_closed_files_are_a_finding() -> None:
    (found,) = check_env(hostile_envs.ClosesFiles, steps=30)
    assert "closed descriptors in the step that it did not open" in found.text
    found = check_env(functools.partial(hostile_envs.ClosesFiles, first=1), steps=30)
    texts = [str(one) for one in found if one.kind == "error"]
    assert "error: the step closed or replaced standard output (descriptor 1)" in texts[0]
    assert "standard error" in texts[1]
    assert len(texts) == 2


def test_an_environment_that_multiplies_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MOST_PROCESSES", 3)
    (found,) = check_env(hostile_envs.StartsProcesses, steps=30)
    assert "started more than 3 processes by its constructor, and was ended" in found.text


def test_an_alarm_that_ends_the_process_is_the_environments_fault() -> None:
    found = check_env(hostile_envs.Alarm, steps=30)
    assert "was ended by SIGALRM in the step" in found[0].text


@pytest.mark.parametrize("why", ["a lock", "a module that only this process knows"])
def test_a_function_that_cannot_travel_is_checked_here(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = threading.Lock()

    def make() -> Any:
        with lock:
            return bad_envs.Good(ends="truncated")

    if why != "a lock":  # as pytest's importlib mode loads tests
        module = types.ModuleType("only_here")
        monkeypatch.setitem(sys.modules, "only_here", module)
        source = "from tests import bad_envs\ndef make(): return bad_envs.Good(ends='truncated')"
        exec(source, vars(module))
        make = vars(module)["make"]
    found = check_env(make, steps=30)
    assert {one.kind for one in found} == {"note"}
    assert "cannot travel to another process" in found[-1].text


GOOD = [
    "CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0", "Pendulum-v1", "Taxi-v4",
    "FrozenLake-v1", "Blackjack-v1", "flatout/Snake-v0",
    pytest.param("ALE/Breakout-v5", marks=pytest.mark.slow),
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
    notes = [finding.text for finding in checked(module.make, 50)]
    assert any("observation['action_mask']; masks are obeyed" in text for text in notes)


@pytest.mark.slow
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


@pytest.mark.parametrize(
    "source", [corner, pytest.param(masked_envs.picky_device, marks=pytest.mark.slow)]
)
def test_a_device_environment_is_checked_as_one(source: Any) -> None:
    assert faults(source) == []


def test_the_notes_say_what_training_would_do() -> None:
    notes = {finding.topic: finding.text for finding in checked("CartPole-v1")}
    assert notes["encoder"] == "observation: 4 float32, dense layers."
    assert notes["actions"] == "Discrete actions: ppo, a2c, dqn, genetic."
    assert "a time limit of 500 steps" in notes["episodes"]
    assert "continues exactly" in notes["resume"]
    assert "--env-backend device" in notes["samplers"]


def test_an_environment_that_truncates_itself_has_a_time_limit() -> None:
    """It was called one without a time limit."""
    notes = {one.topic: one.text for one in checked(bad("Good", length=20, ends="truncated"))}
    assert notes["episodes"].startswith(
        "the environment itself truncated 6 of 6 episodes, after 20"
    )
    assert "no time limit" not in notes["episodes"].replace("declares no time limit", "")
    notes = {one.topic: one.text for one in checked(bad("Good", length=20))}
    assert notes["episodes"].startswith("no time limit is declared; of the episodes")


def test_looks_are_notes() -> None:
    """Both flags at once, and episodes that are all the same, may be meant like this."""
    notes = [str(one) for one in checked(bad("Good", ends="both"))]
    assert "note: 6 of 6 episodes were terminated and truncated at once" in "".join(notes)
    notes = [str(one) for one in checked(faulty("Constant"))]
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
