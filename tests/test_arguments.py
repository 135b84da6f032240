"""Arguments of wrong types, and attributes that may not be set, are refused in one sentence."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import flatout
from flatout import PPO, CheckpointError, Population, UsageError
from flatout.errors import FlatoutError, short
from tests import tiny

pytestmark = pytest.mark.usefixtures("shared_programs")


def new(**settings: Any) -> PPO:
    return PPO("CartPole-v1", **tiny.python("ppo") | settings)


@pytest.fixture(scope="module")
def agent() -> PPO:
    """Trained once; not to be trained further."""
    return new().learn(tiny.ITERATION)


def takes(call: Callable[[PPO, Any], Any], name: str, *values: Any) -> list[Any]:
    """Cases of `test_arguments_of_wrong_types`."""
    return [pytest.param(call, value, name, id=f"{name}-{str(value)[:9]!r}") for value in values]


NO_PATHS = (3, b"x", ["a"], True, "\0", "x" * 300)
NO_NUMBERS = ("3", 1.5, True, [1], math.nan)


@pytest.mark.parametrize(
    ("call", "value", "name"),
    [
        *takes(lambda _, value: PPO.load(value), "path", None, *NO_PATHS),
        *takes(lambda agent, value: agent.save(value), "path", None, *NO_PATHS),
        *takes(lambda agent, value: agent.record(value), "path", None, 3),
        *takes(lambda agent, value: agent.export(value), "path", None, 3),
        *takes(lambda agent, value: agent.plot(value), "out", 3),
        *takes(lambda _, value: flatout.plot("runs", group=value), "group", 3),
        *takes(lambda _, value: flatout.report({"one": value}), "runs", 3),
        *takes(lambda _, value: new().learn(64, run_dir=value), "run_dir", *NO_PATHS),
        *takes(lambda _, value: new().learn(value), "total_timesteps", 0, *NO_NUMBERS),
        *takes(lambda _, value: new().learn(64, reset=value), "reset", 1, "no", None),
        *takes(lambda _, value: new().learn(64, progress_bar=value), "progress_bar", 1, "no"),
        *takes(lambda _, v: new().learn(64, reset_num_timesteps=v), "reset_num_timesteps", 1),
        *takes(lambda _, value: PPO.load("agent", trust=value), "trust", 1, "no", None),
        *takes(lambda agent, value: agent.evaluate(value), "episodes", None, *NO_NUMBERS),
        *takes(lambda agent, value: agent.evaluate(1, seed=value), "seed", -1, *NO_NUMBERS),
        *takes(lambda agent, value: agent.record("x.gif", seed=value), "seed", -1, "3"),
        *takes(lambda agent, value: agent.record("x.gif", episodes=value), "episodes", 0, "3"),
        *takes(lambda _, value: new(verbose=value), "verbose", None, "1"),
        *takes(lambda _, value: new(preset=value), "preset", 3),
        *takes(lambda _, value: flatout.evaluate_policy(value), "agent", 3),
        *takes(
            lambda agent, value: flatout.evaluate_policy(agent, n_eval_episodes=value),
            "n_eval_episodes", "3",
        ),
        *takes(lambda _, value: Population(value, "CartPole-v1"), "algorithm", 3),
        *takes(lambda _, value: Population("ppo", "CartPole-v1", seeds=value), "seeds", "3", 0),
        *takes(lambda _, v: Population("ppo", "CartPole-v1", seeds=2, strategy=v), "strategy", 3),
        *takes(lambda _, value: Population("ppo", "CartPole-v1", run_dir=value), "run_dir", 3),
        *takes(
            lambda _, value: Population("ppo", "CartPole-v1", population=value),
            "population", 3, ["gamma"],
        ),
        *takes(
            lambda _, value: Population("ppo", "CartPole-v1", population={"gamma": value}),
            "population: gamma", 0.9, "0.9",
        ),
    ],
)  # fmt: skip
def test_arguments_of_wrong_types(
    agent: PPO, call: Any, value: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as raised:
        call(agent, value)
    message = str(raised.value)
    assert message.startswith(f"{name} = {short(value)} is ")
    assert message.endswith(".")
    assert "\n" not in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda agent: PPO.load(""), "path"), (lambda agent: agent.save(""), "path"),
        (lambda agent: agent.plot(""), "out"), (lambda agent: flatout.plot(""), "runs"),
        (lambda agent: agent.learn(64, run_dir=""), "run_dir"),
        (lambda agent: new(run_dir=""), "run_dir"),
        (lambda agent: Population("ppo", "CartPole-v1", run_dir=""), "run_dir"),
    ],
)  # fmt: skip
def test_an_empty_path_is_refused(agent: PPO, call: Any, name: str) -> None:
    with pytest.raises(UsageError, match=rf"^{name} is empty: give a path\.$"):
        call(agent)


def test_an_agent_is_not_saved_over_a_folder(agent: PPO, tmp_path: Path) -> None:
    with pytest.raises(FlatoutError, match=rf"^{tmp_path} is a folder; name a file, such as "):
        agent.save(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ((name for name in ["CartPole-v1"]), "not generator"),
        ((lambda: (yield)), "made generator"),
    ],
)
def test_what_makes_no_environment(env: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        PPO(env)


def test_one_width_for_actor_and_critic() -> None:
    agent = new(policy_kwargs={"net_arch": {"pi": 8, "vf": (8,)}})
    assert agent.config.flat()["hidden"] == (8,)


def test_loading_with_other_spaces(agent: PPO, tmp_path: Path) -> None:
    path = agent.save(tmp_path / "agent")
    with pytest.raises(CheckpointError, match=r"other spaces than CartPole-v1, in which"):
        PPO.load(path, env="Acrobot-v1")


METHODS = [
    name for name, found in inspect.getmembers_static(PPO)
    if not name.startswith("_") and isinstance(found, property | classmethod | FunctionType)
]  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", [PPO, type("Mine", (PPO,), {})])
def test_methods_and_properties_cannot_be_set(name: str, kind: type[PPO]) -> None:
    agent = kind("CartPole-v1")
    before = inspect.getattr_static(agent, name)
    words = rf"^agent\.{name} = 1 is impossible: {name} is a (method|property) of every agent"
    with pytest.raises(AttributeError, match=words) as raised:
        setattr(agent, name, 1)
    assert isinstance(raised.value, UsageError)
    assert inspect.getattr_static(agent, name) is before
