"""Environments with one fault each, which return valid values: only a comparison shows them. Those
of `tests.bad_envs` return invalid ones."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.bad_envs import VECTOR, Good


class OutOfBounds(Good):
    """Observes a number above the bound of its space, in an entry of a Dict."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.observation_space = spaces.Dict({"camera": VECTOR, "state": VECTOR})

    def observe(self, action: float) -> Any:
        obs = super().observe(action)
        return {"camera": obs, "state": obs + 7 * (self.t == 4)}


class Float64(Good):
    """Observes float64 where its space says float32."""

    def observe(self, action: float) -> Any:
        return super().observe(action).astype(np.float64)


class Lists(Good):
    """Observes a list."""

    def observe(self, action: float) -> Any:
        return super().observe(action).tolist()


class Ragged(Good):
    """Observes lists of different lengths."""

    def observe(self, action: float) -> Any:
        return [[1.0, 2.0], [3.0]]


class Dice(Good):
    """Observes a category that its space does not have."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.observation_space = spaces.Discrete(6)

    def observe(self, action: float) -> Any:
        return int(self.t)


class GlobalNumbers(Good):
    """Draws from NumPy's global random numbers."""

    def observe(self, action: float) -> Any:
        obs = super().observe(action)
        obs[2] = np.random.uniform(-1, 1)
        return obs


class Seeds(Good):
    """Seeds NumPy's global random numbers, and uses none of them."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        np.random.seed(seed)
        return super().reset(seed=seed)


class Shared(Good):
    """Keeps its time in its class."""

    time = 0

    def reset(self, **settings: Any) -> Any:
        Shared.time = 0
        return super().reset(**settings)

    def observe(self, action: float) -> Any:
        Shared.time += 1
        obs = super().observe(action)
        obs[0] = Shared.time / 100
        return obs


class Limited(Good):
    """Says that episodes are terminated when their time is over."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(length=20, ends="terminated", **settings)


class OldLimit(Good):
    """Says so as Gym did before version 0.26."""

    def step(self, action: Any) -> Any:
        *result, info = super().step(action)
        return *result, {"TimeLimit.truncated": True} if self.t % 7 == 0 else info

    def __init__(self, **settings: Any) -> None:
        super().__init__(length=7, **settings)


class ChangesAction(Good):
    """Clips the action in place."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.action_space = spaces.Box(-2.0, 2.0, (2,), np.float32)

    def step(self, action: Any) -> Any:
        np.clip(action, -0.5, 0.5, out=action)
        return super().step(action)


class Prints(Good):
    """Prints its time in each step."""

    def step(self, action: Any) -> Any:
        print("time", self.t)
        return super().step(action)


class Hangs(Good):
    """Never returns from its fifth step."""

    def step(self, action: Any) -> Any:
        time.sleep(1000.0 * (self.t == 4))
        return super().step(action)


class Seedless(Good):
    """Cannot be seeded."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class ClosesOnce(Good):
    """Cannot be closed twice."""

    def close(self) -> None:
        self.closed += 1
        if self.closed > 1:
            raise RuntimeError("it is closed")


class NoOptions(Good):
    """Takes no options in `reset`."""

    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


class NeedsSeed(Good):
    """Cannot be reset without a seed."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is None:
            raise ValueError("a seed is needed")
        return super().reset(seed=seed)


class Constant(Good):
    """Has the same episode with each seed."""

    def observe(self, action: float) -> Any:
        return np.array([self.t / self.length, action, 0, 0], np.float32)

    def reward(self) -> Any:
        return 1.0


class DrawnWhenMade(Good):
    """Draws a map when it is made."""

    count = 0

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        DrawnWhenMade.count += 1
        self.map = np.random.default_rng(DrawnWhenMade.count).uniform()

    def observe(self, action: float) -> Any:
        obs = super().observe(action)
        obs[0] = self.map
        return obs


ONE = Good()


def one_object() -> gym.Env[Any, Any]:
    """Give the same object at every call."""
    return ONE


_COUNT = [0]


def growing() -> gym.Env[Any, Any]:
    """Give an environment with another space at every call."""
    _COUNT[0] += 1
    env = Good(length=30, ends="truncated")
    env.observation_space = spaces.Box(-1.0, 1.0 + _COUNT[0], (4,), np.float32)
    return env


class Envs:
    """A factory that keeps what it made in this process, and may fail.

    Args:
        fails: the number of the environment that cannot be made in this process.
    """

    def __init__(self, fails: int | None = None) -> None:
        self.fails, self.made, self.process = fails, list[Good](), os.getpid()

    def __call__(self, **kwargs: Any) -> Good:
        if os.getpid() != self.process:
            return Good(**kwargs)
        if len(self.made) == self.fails:
            raise RuntimeError("no licence for so many")
        self.made.append(Good(**kwargs))
        return self.made[-1]

    @property
    def open(self) -> int:
        assert max((env.closed for env in self.made), default=0) <= 1
        return sum(not env.closed for env in self.made)
