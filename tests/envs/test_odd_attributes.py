"""Environments whose attributes differ from Gymnasium's: they train, or one sentence explains why
not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from flatout import PPO, UsageError
from flatout.config.schema import EnvConfig
from flatout.envs.task import open_task
from flatout.errors import EnvironmentFailure, FlatoutError, InvalidReturn
from flatout.run.evaluate import _rate
from flatout.run.video import writer
from flatout.types import DiscreteSpec
from tests.bad_envs import Good


class Raising(Good):
    """An environment whose ``__getattr__`` raises a KeyError instead of an AttributeError."""

    def __getattr__(self, name: str) -> Any:
        return {}[name]


class OwnSpec(Good):
    def __init__(self) -> None:
        super().__init__()
        self.spec = {"layers": 3}  # type: ignore[assignment]


class NoInner(Good):
    @property
    def unwrapped(self) -> Any:
        raise RuntimeError("no")


@pytest.mark.parametrize("kind", [Raising, OwnSpec, NoInner])
def test_odd_attributes_do_not_matter(kind: type[Good]) -> None:
    task = open_task(EnvConfig(env="mine"), kind)
    assert (task.limit, task.single) == (None, False)
    task.open(2, seed=0).close()


def test_a_time_limit_that_is_no_number_is_named() -> None:
    class Limited(Good):
        spec = EnvSpec("mine-v0", max_episode_steps="many")  # type: ignore[arg-type]

    with pytest.raises(UsageError, match=r"max_episode_steps, is 'many'"):
        PPO(Limited)


def test_a_reset_without_arguments_is_refused() -> None:
    class Unseeded(Good):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    with pytest.raises(InvalidReturn, match=r"reset of .* has to take seed= and options="):
        PPO(Unseeded)


def test_a_complex_reward_is_refused() -> None:
    class Complex(Good):
        def reward(self) -> Any:
            return np.complex64(1j)

    with pytest.raises(EnvironmentFailure, match="returned reward"):
        PPO(Complex)


@pytest.mark.parametrize("start", [0, 3, 2**31 - 2, 2**40, -5])
def test_discrete_actions_begin_at_any_number(start: int) -> None:
    space = spaces.Discrete(3, start=start)
    taken = DiscreteSpec(3, start).separate(np.arange(3, dtype=np.int32))
    assert taken == [start, start + 1, start + 2]
    assert all(space.contains(action) for action in taken)


@pytest.mark.parametrize("fps", ["fast", float("nan"), -5, None, 0, [30]])
def test_an_invalid_frame_rate_is_ignored(fps: Any) -> None:
    env = Good()
    env.metadata = {"render_fps": fps}
    assert _rate(env) == 0.0


def test_pictures_of_an_mp4_have_one_size(tmp_path: Any) -> None:
    pytest.importorskip("imageio_ffmpeg")
    frames = (np.zeros((8 * size, 8, 3), np.uint8) for size in (1, 2))
    path = tmp_path / "a.mp4"
    with pytest.raises(FlatoutError, match="change their size from 8x8 to 8x16"):
        writer(path)(path, frames, 30.0)


def test_an_unfinished_episode_has_its_own_info() -> None:
    """It must not have the info of the last finished episode, of another environment."""

    class Judged(Good):
        def step(self, action: Any) -> Any:
            *values, _ = super().step(action)
            return *values, {"is_success": self.t == self.length}

    lengths = iter([2, 50])
    envs = open_task(EnvConfig(env="mine"), lambda: Judged(next(lengths))).open(2, seed=0)
    found: list[Any] = []
    obs = np.zeros((2, 4), np.float32)
    envs.reset_all(obs)
    for _ in range(2):
        envs.step(
            np.zeros(2, np.int32), obs, np.zeros(2), lambda e, *_: found.append(envs.finished(e))
        )
    found.append(envs.finished(1))
    envs.close()
    assert [episode.info for episode in found] == [{"is_success": 1.0}, {"is_success": 0.0}]
