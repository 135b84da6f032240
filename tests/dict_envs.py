"""Small environments whose observations and actions have several parts."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from flatout import DeviceEnv
from flatout.types import DiscreteSpec, ObservationSpec

LENGTH = 12
"""Steps after which an episode is truncated; it is also terminated at random."""


class Walk(gym.Env[Any, Any]):
    """A point in the plane with a speed, pushed in four directions; it observes a vector of 4."""

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space: gym.Space[Any] = spaces.Box(-9.0, 9.0, (4,), np.float32)
        self.action_space: gym.Space[Any] = spaces.Discrete(4)

    def observe(self, vector: np.ndarray) -> Any:
        return vector

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.speed = self.np_random.uniform(-1, 1, 2), np.zeros(2)
        self.time, self.last = 0, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time, self.last = self.time + 1, int(action)
        axis, sign = divmod(self.last, 2)
        self.speed[axis] += 0.1 * (2 * sign - 1)
        self.place = np.clip(self.place + self.speed, -3, 3)
        fell = bool(self.np_random.uniform() < 0.05)
        reward = -float(np.abs(self.place).sum())
        return self._seen(), reward, fell, self.time >= LENGTH and not fell, {}

    def _seen(self) -> Any:
        return self.observe(np.concatenate([self.place, self.speed]).astype(np.float32))


class OneEntry(Walk):
    """The vector as the only entry of a Dict."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.observation_space = spaces.Dict({"vector": self.observation_space})

    def observe(self, vector: np.ndarray) -> Any:
        return {"vector": vector}


class Halves(Walk):
    """The vector as a Dict of two."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        half = spaces.Box(-9.0, 9.0, (2,), np.float32)
        self.observation_space = spaces.Dict({"place": half, "speed": half})

    def observe(self, vector: np.ndarray) -> Any:
        return {"place": vector[:2], "speed": vector[2:]}


class Nested(Walk):
    """A board, numbers, categories, switches and a text, in nested Dict and Tuple spaces."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.observation_space = spaces.Dict({
            "board": spaces.Box(0, 2, (4, 4, 1), np.uint8),
            "state": spaces.Dict({
                "vector": self.observation_space, "last": spaces.Discrete(4, start=1),
            }),
            "rest": spaces.Tuple((
                spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2), spaces.Text(20),
                spaces.Box(-9.0, 9.0, (), np.float64),
            )),
        })  # fmt: skip

    def observe(self, vector: np.ndarray) -> Any:
        board = np.zeros((4, 4, 1), np.uint8)
        row, column = np.clip((self.place + 3) / 6 * 4, 0, 3).astype(int)
        board[row, column] = 2
        rest = (
            np.array([self.time % 2, self.time % 3]), np.array([self.time % 2, 1], np.int8),
            "go north" if self.last else "go", np.float64(self.place[0]),
        )  # fmt: skip
        return {"board": board, "state": {"vector": vector, "last": self.last + 1}, "rest": rest}


ACTIONS: dict[str, gym.Space[Any]] = {
    "choices": spaces.MultiDiscrete([3, 2, 4], start=[1, 0, -2]),
    "grid": spaces.MultiDiscrete(np.array([[3, 2], [2, 2]])),
    "switches": spaces.MultiBinary((2, 2)),
    "parts": spaces.Dict({
        "move": spaces.Box(np.float32([-1, -np.inf]), np.float32([3, np.inf])),
        "tool": spaces.Discrete(3, start=-1),
        "deep": spaces.Tuple((spaces.MultiBinary(3), spaces.Discrete(2))),
    }),
    "pair": spaces.Tuple((spaces.Discrete(3), spaces.MultiDiscrete([2, 2]))),
    "half-bounded": spaces.Box(np.float32([-np.inf, 0]), np.float32([0.5, np.inf])),
}  # fmt: skip


class Acted(gym.Env[Any, Any]):
    """An environment that takes one of `ACTIONS` and refuses an action outside of it."""

    def __init__(self, kind: str = "choices") -> None:
        self.observation_space = spaces.Box(-9.0, 9.0, (3,), np.float32)
        self.action_space = ACTIONS[kind]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.place = 0, self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self.place, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), repr(action)
        flat = np.asarray(spaces.flatten(self.action_space, action), np.float64).clip(-5, 5)
        self.time += 1
        moved = self.place + 0.1 * np.resize(flat, 3)
        self.place = np.clip(moved, -9, 9).astype(np.float32)
        return self.place, float(flat.sum()), False, self.time >= LENGTH, {}


def corner() -> DeviceEnv:
    """Make a device environment of a point on a board, which observes the board and a vector."""

    def observe(place: Any) -> Any:
        board = jnp.zeros((4, 4, 1), jnp.uint8).at[place[0], place[1], 0].set(1)
        return {"board": board, "place": place.astype(jnp.float32) / 3}

    def reset(key: Any) -> tuple[Any, Any]:
        place = jax.random.randint(key, (2,), 0, 4)
        return place, observe(place)

    def step(place: Any, action: Any, key: Any) -> tuple[Any, ...]:
        moves = jnp.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
        place = jnp.clip(place + moves[action], 0, 3)
        there = (place == 0).all()
        return place, observe(place), there.astype(jnp.float32) - 0.1, there, jnp.asarray(False)

    spec = {
        "board": ObservationSpec((4, 4, 1), "uint8", 1), "place": ObservationSpec((2,), "float32"),
    }  # fmt: skip
    return DeviceEnv("corner", spec, DiscreteSpec(4), LENGTH, reset, step)


def vector(wrapped: bool = False) -> DeviceEnv:
    """Make a device environment of a point on a line, which observes a vector, or a dict of it."""

    def observe(place: Any) -> Any:
        seen = jnp.stack([place, 1.0 - place])
        return {"vector": seen} if wrapped else seen

    def reset(key: Any) -> tuple[Any, Any]:
        place = jax.random.uniform(key)
        return place, observe(place)

    def step(place: Any, action: Any, key: Any) -> tuple[Any, ...]:
        place = jnp.clip(place + 0.2 * action - 0.1, -1.0, 2.0)
        over = jax.random.uniform(key) < 0.05
        return place, observe(place), -jnp.abs(place), over, jnp.asarray(False)

    one = ObservationSpec((2,), "float32")
    spec = {"vector": one} if wrapped else one
    return DeviceEnv("line", spec, DiscreteSpec(2), LENGTH, reset, step)
