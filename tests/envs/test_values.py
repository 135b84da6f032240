"""Values of environments that no run can use, and types that Flatout stores as another type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from flatout import DQN, PPO, SAC, TD3, FlatoutError
from tests import tiny
from tests.cli.test_bad_input import Cli

pytestmark = pytest.mark.usefixtures("shared_programs")


class Broken(BaseException):
    """A BaseException that is no Exception, like the interrupts of some libraries."""


class Shows(gym.Env[np.ndarray, np.int64]):
    """An environment that observes zeros; its 36th step returns the result of `late`."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, dtype: Any, late: Callable[[], tuple[Any, float]]) -> None:
        self.observation_space = gym.spaces.Box(0, 1, (2,), dtype)
        self._late, self._steps = late, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(2, self.observation_space.dtype), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        obs, reward = self._late() if self._steps == 36 else (np.zeros(2), 0.0)
        return obs, reward, False, False, {}


def learn(dtype: Any, late: Callable[[], tuple[Any, float]], **settings: Any) -> PPO:
    given = tiny.python("ppo", **tiny.ONE, placement="cpu", tensorboard=False, **settings)
    return PPO(lambda: Shows(dtype, late), **given).learn(64)


@pytest.mark.parametrize(
    ("dtype", "value"), [(np.bool_, 2.0), pytest.param(np.float16, 1e6, marks=pytest.mark.slow)]
)
def test_small_types_are_stored_as_float32_with_and_without_wrappers(
    dtype: Any, value: float
) -> None:
    for settings in ({}, {"frame_stack": 2}):
        assert (
            learn(dtype, lambda: (np.array([value, 0.0]), 0.0), **settings).summary["steps"] == 64
        )


def _raise() -> Any:
    raise Broken("base")


@pytest.mark.parametrize(
    ("late", "said"),
    [
        (lambda: (np.zeros(2), 1e300), r"returned reward 1e\+300 from step, which float32"),
        (_raise, r"raised Broken in step: base \(.*test_values\.py:\d+\)"),
    ],
)
def test_an_unusable_step_is_reported_in_one_sentence(late: Any, said: str) -> None:
    with pytest.raises(FlatoutError, match=said):
        learn(np.float32, late)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DQN("Pendulum-v1"), "dqn needs Discrete actions"),
        (lambda: TD3("CartPole-v1"), "td3 needs Box actions"),
        (lambda: SAC("CartPole-v1"), "sac needs Box actions"),
    ],
)
def test_actions_that_an_algorithm_cannot_choose_are_refused_at_once(make: Any, said: str) -> None:
    with pytest.raises(FlatoutError, match=said):
        make()


def test_an_agent_predicts_nothing_from_nan() -> None:
    agent = PPO("CartPole-v1", **tiny.python("ppo"))
    for value in (np.nan, np.inf):
        with pytest.raises(FlatoutError, match="NaN or infinity"):
            agent.predict(np.full(4, value), deterministic=True)


@pytest.mark.parametrize("text", ["[]", '"x"', "null", "3"])
def test_a_settings_file_that_is_no_table_is_refused(
    flatout: Cli, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "s.json"
    file.write_text(text)
    result = flatout("train", "ppo", "--env", "CartPole-v1", "--config", file)
    assert result.code == 2
    assert "no table of settings" in result.message
