"""The check of environments: it finds invalid return values before anything is compiled, and the
run that follows is the same as without it."""

from __future__ import annotations

import functools
import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from flatout import PPO, UsageError, tree
from flatout.config.schema import EnvConfig
from flatout.config.settings import resolve
from flatout.envs import check
from flatout.envs.base import TRAINING, episode_seed
from flatout.envs.check import refuse
from flatout.envs.task import Task, open_task
from flatout.errors import EnvironmentFailure, InvalidReturn
from flatout.run import build
from flatout.run.resolve import resolve_run
from flatout.spans import Spans
from flatout.types import UserCode
from tests import hostile_envs, tiny
from tests.bad_envs import (
    CrossEpisodeState,
    Float64Box,
    Good,
    Raises,
    Spaces,
    WrongDtype,
    WrongShape,
    WrongTuple,
    WrongValue,
)
from tests.conftest import TINY, Result
from tests.fault_envs import Faulty
from tests.forked import Child


class Returns(Good):
    """An environment that observes `value` in `reset` (`at` 0) or at step `at`."""

    def __init__(self, value: Any, at: int = 0, **settings: Any) -> None:
        super().__init__(**settings)
        self.value, self.at = value, at

    def observe(self, action: float) -> Any:
        return self.value if self.step_number == self.at else super().observe(action)


class Drawing(Good):
    """An environment that draws from the process's random numbers and changes its working
    folder."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(**settings)
        self.drawn = random.random(), np.random.random()
        os.chdir(folder)

    def observe(self, action: float) -> Any:
        return np.full(4, random.random() * np.random.random(), np.float32)


class Slow(Good):
    """An environment that never returns from `call`, which is `reset` or `step`."""

    def __init__(self, call: str) -> None:
        super().__init__()
        setattr(self, call, lambda *_, **__: time.sleep(1e6))


def opened(source: Any) -> Task:
    return open_task(EnvConfig(env="mine"), source)


WRONG = [
    (functools.partial(WrongShape, at=0), r"shape \(5,\) .* from reset; .*\(4,\) float32"),
    (functools.partial(WrongShape, at=1), r"shape \(5,\) .* from step"),
    (functools.partial(WrongDtype, at=0), r"type object from reset"),
    (functools.partial(Returns, {"position": 3.0}), r"of type dict from reset"),
    (functools.partial(Returns, [[1.0], [2.0, 3.0]], at=1), r"of type list from step"),
    (functools.partial(WrongTuple, at=0), r"did not return 2 values .* from reset"),
    (functools.partial(WrongTuple, at=1), r"did not return 5 values .* from step"),
    (functools.partial(WrongValue, at=1, what="reward=text"), r"reward 'plenty'"),
]


@pytest.mark.parametrize(("source", "words"), WRONG)
def test_wrong_returns_are_refused_by_an_agents_constructor(source: Any, words: str) -> None:
    with pytest.raises(InvalidReturn, match=words):
        PPO(source)


def test_unsupported_spaces_are_refused_by_an_agents_constructor() -> None:
    with pytest.raises(UsageError, match="a Sequence space"):
        PPO(functools.partial(Spaces, obs="Sequence"))
    with pytest.raises(UsageError, match="a Text space"):
        PPO(Spaces(act="Text"))


@pytest.mark.parametrize("fails", [functools.partial(WrongShape, at=1), Spaces])
def test_the_command_refuses_a_bad_environment_before_it_compiles(
    fails: Any, flatout: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr(build, "_compile", lambda *parts: pytest.fail("it compiles"))
    name, kwargs = ("Spaces", "obs=Graph") if fails is Spaces else ("WrongShape", "at=1")
    env = ("--env", f"tests.bad_envs:{name}", "--env-kwargs", kwargs)
    result = flatout("train", "ppo", *TINY, *env, "--run-dir", tmp_path / "run")
    assert result.code == (2 if fails is Spaces else 1)
    assert ("a Graph space" if fails is Spaces else "(5,)") in result.message


def test_a_run_never_steps_the_environment_that_was_checked() -> None:
    made = list[Good]()

    def make() -> Good:
        made.append(CrossEpisodeState())
        return made[-1]

    task = opened(make)
    refuse(task, 3, 60.0)
    envs = task.open(2, seed=3)
    try:
        checked, *used = made
        assert checked.seeds == [episode_seed(3, TRAINING, 0, 0)]
        assert len(checked.actions) == 1
        assert checked.closed == 1
        assert [(one.seeds, one.actions) for one in used] == [([], []), ([], [])]
    finally:
        envs.close()


def test_an_environment_object_is_only_reset_and_stays_open() -> None:
    env = Good()
    PPO(env, **tiny.ONE)
    assert env.seeds == [episode_seed(0, TRAINING, 0, 0)]
    assert (env.actions, env.closed) == ([], 0)


def test_random_numbers_and_working_folder_of_the_process_stay_as_they_are(tmp_path: Path) -> None:
    def now() -> Any:
        return random.getstate(), np.random.get_state()[1].tolist(), Path.cwd()  # type: ignore[index]

    before = now()
    PPO(functools.partial(Drawing, tmp_path))
    assert now() == before
    config = resolve("ppo", tiny.settings("ppo", env="mine", steps=64))
    made = list[Drawing]()

    def make() -> Drawing:
        made.append(Drawing(tmp_path))
        return made[-1]

    build.assemble(resolve_run(config, UserCode(env=make)), Spans()).close()
    assert made[0].drawn == made[1].drawn, "the run's first environment differs after the check"


@pytest.mark.parametrize("at", [0, 1])
def test_an_exception_of_the_environment_is_left_to_the_run(at: int) -> None:
    task = opened(functools.partial(Raises, at=at))
    refuse(task, 0, 60.0)
    with pytest.raises(EnvironmentFailure, match="the bridge is out"):
        _step(task)


@pytest.mark.parametrize("call", ["reset", "step"])
@pytest.mark.parametrize("placement", ["sampler=inline", "sampler=processes"])
def test_a_first_reset_or_step_that_never_ends_is_refused(call: str, placement: str) -> None:
    words = rf"did not finish its first {call} within 0.5 s.*worker_timeout"
    with pytest.raises(EnvironmentFailure, match=words):
        PPO(functools.partial(Slow, call), worker_timeout=0.5, placement=placement)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_constructor_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "STARTUP_S", 0.1)
    with pytest.raises(EnvironmentFailure, match=r"did not finish its constructor within 0\.1 s"):
        PPO(functools.partial(Faulty, "sleep", 0), worker_timeout=0.1)


@pytest.mark.fault
@pytest.mark.parametrize("sampler", ["inline", "processes"])
@pytest.mark.parametrize(
    ("fault", "at", "code", "words"),
    [
        ("exit", 0, 3, "ended while it was made: native code crashed, code called os._exit"),
        ("sleep", 1, 1, "tests.fault_envs:faulty did not finish its first step within 1 s"),
        ("exit", 1, 3, "called os._exit"),
        ("segfault", 1, -signal.SIGSEGV, "native code crashed"),
        ("mutex", 1, 1, "did not finish within 1 s; if it needs longer, raise worker_timeout"),
    ],
)
def test_a_first_step_that_ends_or_blocks_the_process_is_named(
    fault: str, at: int, code: int, words: str, sampler: str, tmp_path: Path
) -> None:
    env = (
        "--env",
        "tests.fault_envs:faulty",
        "--env-kwargs",
        f"fault={fault}",
        "--env-kwargs",
        f"at={at}",
    )
    # Only what blocks has to be late; the others' processes may have to wait for a core.
    limit = "1" if "within" in words else "60"
    argv = ("train", "ppo", *env, "--placement", f"sampler={sampler}", "--worker-timeout", limit)
    child = Child("flatout", (*argv, "--run-dir", str(tmp_path / "run")), Path(__file__).parents[2])
    assert child.wait(120) == code
    text, waited = "", time.monotonic()
    while words not in text and time.monotonic() < waited + 60:  # the witness outlives the child
        time.sleep(0.01)
        text = child.printed()[1]
    child.communicate()
    assert words in text
    assert text.splitlines()[-1].startswith("flatout: tests.fault_envs:faulty")
    if fault in ("segfault", "mutex"):
        assert re.search(r'fault_envs\.py", line \d+ in step', text)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_the_witness_prints_nothing_if_the_process_continues(
    capfd: pytest.CaptureFixture[str],
) -> None:
    PPO(Good)
    with pytest.raises(InvalidReturn):
        PPO(functools.partial(WrongShape, at=1))
    assert capfd.readouterr() == ("", "")


def test_one_environment_object_is_not_stepped_as_two() -> None:
    env = Good()
    with pytest.raises(UsageError, match="the same environment object twice"):
        opened(lambda: env).open(2, seed=0)


def test_actions_of_the_check_lie_in_the_space() -> None:
    refuse(opened(Float64Box), 0, 60.0)
    bounds = np.array([1.0, 3.0]), np.array([2.0, 4.0])
    env = Good()
    env.action_space = gym.spaces.Box(*bounds, dtype=np.float64)
    refuse(opened(lambda: env), 0, 60.0)
    np.testing.assert_array_equal(env.actions, [[1.0, 3.0]])


def test_a_saved_agent_is_loaded_without_a_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loaded agent may be used only to predict, on a machine where the simulator does not run."""
    path = PPO(Good, **tiny.python("ppo")).learn(tiny.ITERATION).save(tmp_path / "agent")
    with monkeypatch.context() as change:
        change.setattr(Good, "reset", lambda *_, **__: pytest.fail("it is reset"))
        assert PPO.load(path).predict(np.zeros(4, np.float32), deterministic=True)[0] in (0, 1)
    agent = PPO.load(path, env=functools.partial(WrongShape, at=1))
    monkeypatch.setattr(build, "_compile", lambda *parts: pytest.fail("it compiles"))
    with pytest.raises(InvalidReturn, match=r"shape \(5,\)"):
        agent.learn(tiny.ITERATION)


def _step(task: Task) -> None:
    envs = task.open(1, seed=0)
    obs = np.zeros((1, 4), np.float32)
    try:
        envs.reset_all(obs)
        envs.step(np.zeros(1, np.int32), obs, np.zeros(1), lambda *end: None)
    finally:
        envs.close()


@pytest.mark.parametrize(("hook", "call"), [("info", "reset"), ("masks", "action_masks")])
def test_whatever_raises_within_a_reset_is_named(hook: str, call: str) -> None:
    for error in ("ValueError", "SystemExit"):
        deed = "raises" if error == "ValueError" else error
        source = functools.partial(hostile_envs.make, hook, deed)
        task = open_task(EnvConfig(env="hostile"), source)
        envs = task.open(1, 0)
        with pytest.raises(
            EnvironmentFailure, match=f"raised {error} in {call} of episode 0: .*hostile_"
        ):
            envs.reset_all(tree.zeros(task.obs_spec, 1))
