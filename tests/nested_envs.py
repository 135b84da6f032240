"""Small environments whose observations are nested: Dict and Tuple spaces of several arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from flatout import DeviceEnv
from flatout.types import DiscreteSpec, ObservationSpec


class Nested(gym.Wrapper[Any, Any, Any, Any]):
    """An environment of vectors whose observations are put into a Dict.

    Args:
        env: the environment.
        parts: the entries: for each key the components of the vector. ``{"all": slice(None)}`` is a
            Dict with one entry.
    """

    def __init__(self, env: gym.Env[Any, Any], parts: dict[str, slice]) -> None:
        super().__init__(env)
        self._parts, box = parts, env.observation_space
        assert isinstance(box, spaces.Box)
        self.observation_space = spaces.Dict(
            {
                key: spaces.Box(box.low[part], box.high[part], dtype=box.dtype.type)  # type: ignore[arg-type]
                for key, part in parts.items()
            }
        )

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**given)
        return self._cut(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, *others = self.env.step(action)
        return self._cut(obs), *others  # type: ignore[return-value]

    def _cut(self, obs: np.ndarray) -> dict[str, np.ndarray]:
        return {key: obs[part] for key, part in self._parts.items()}


def one(env: str = "CartPole-v1", **kwargs: Any) -> gym.Env[Any, Any]:
    """Make an environment whose observation is a Dict with one entry."""
    return Nested(gym.make(env, **kwargs), {"all": slice(None)})


SECOND = "a second"
"""The name of an entry of `two`, which tests change."""


def two(env: str = "CartPole-v1", **kwargs: Any) -> gym.Env[Any, Any]:
    """Make an environment whose observation is a Dict of two vectors, the second key before the
    first in the alphabet."""
    return Nested(gym.make(env, **kwargs), {"first": slice(0, 1), SECOND: slice(1, None)})


SIDE = 6
"""The rows and columns of the picture of `Walk`."""


class Walk(gym.Env[Any, Any]):
    """A point that walks on a grid to its corner: a picture, and more in nested spaces.

    The picture shows the point as the value 1, so that a small torso with convolutions reads it.
    `Discrete` and `MultiDiscrete` spaces do not begin at 0. Episodes are truncated by a patience of
    seven steps; half of the rewards are random.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Dict({
            "camera": spaces.Box(0, 3, (SIDE, SIDE, 1), np.uint8),
            "state": spaces.Dict({
                "place": spaces.Box(-1, 1, (2,), np.float64),
                "direction": spaces.Discrete(4, start=1),
            }),
            "pair": spaces.Tuple((
                spaces.MultiDiscrete([3, 2], start=[-1, 5]), spaces.MultiBinary(3),
            )),
        })  # fmt: skip
        self.action_space = spaces.Discrete(4)
        self._place, self._direction, self._time = np.zeros(2, int), 1, 0

    def _observe(self) -> dict[str, Any]:
        picture, time = np.zeros((SIDE, SIDE, 1), np.uint8), self._time
        picture[*self._place] = 1
        state = {"place": self._place / SIDE, "direction": self._direction}
        pair = (np.array([time % 3 - 1, 5 + time % 2]), np.array([1, 0, time % 2], np.int8))
        return {"camera": picture, "state": state, "pair": pair}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._time = self.np_random.integers(0, SIDE, 2), 0
        self._direction = int(self.np_random.integers(1, 5))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        move = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])[action]
        self._place = np.clip(self._place + move, 0, SIDE - 1)
        self._time, self._direction = self._time + 1, 1 + int(action)
        there = not self._place.any()
        reward = float(there) - 0.1 * float(self.np_random.random())
        return self._observe(), reward, there, self._time >= 7 and not there, {}

    def render(self) -> Any:
        return np.repeat(255 * self._observe()["camera"], 3, -1).repeat(8, 0).repeat(8, 1)


def walk(**kwargs: Any) -> gym.Env[Any, Any]:
    return Walk(**kwargs)


class Spaces(gym.Env[Any, Any]):
    """An environment of one observation space whose observations are samples of it, or what
    `change` makes of them.

    Args:
        space: the observation space.
        change: ``(observation, step) -> observation``; step 0 is the reset.
        length: steps of an episode, which is truncated.
    """

    def __init__(
        self, space: gym.Space[Any], change: Callable[[Any, int], Any] = lambda obs, _: obs,
        length: int = 9,
    ) -> None:  # fmt: skip
        self.observation_space, self.action_space = space, spaces.Discrete(2)
        self._change, self._length, self._time, self.steps = change, length, 0, 0

    def _observe(self) -> Any:
        return self._change(self.observation_space.sample(), self.steps)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._time = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time, self.steps = self._time + 1, self.steps + 1
        return self._observe(), float(action), False, self._time >= self._length, {}


WHERE = "where"
"""The name of an entry of `corner`, which tests change."""


def corner(nested: bool = True, limit: int = 9) -> DeviceEnv:
    """Make `Walk` as a device environment without its nested spaces: a picture and a vector.

    The keys are not in the order of the alphabet.

    Args:
        nested: False for the vector alone.
    """

    def observe(state: Any) -> Any:
        place = state.astype(jnp.float32) / SIDE
        if not nested:
            return place
        picture = jnp.zeros((SIDE, SIDE, 1), jnp.uint8).at[*state, 0].set(1)
        return {WHERE: place, "camera": picture}

    def reset(key: Any) -> tuple[Any, Any]:
        state = jax.random.randint(key, (2,), 0, SIDE)
        return state, observe(state)

    def step(state: Any, action: Any, key: Any) -> tuple[Any, ...]:
        move = jnp.array([[1, 0], [-1, 0], [0, 1], [0, -1]])[action]
        state = jnp.clip(state + move, 0, SIDE - 1)
        there = ~state.any()
        reward = there - 0.1 * jax.random.uniform(key)
        return state, observe(state), reward, there, jnp.asarray(False)

    vector = ObservationSpec((2,), "float32")
    camera = ObservationSpec((SIDE, SIDE, 1), "uint8", 3)
    spec = {WHERE: vector, "camera": camera} if nested else vector
    return DeviceEnv("corner", spec, DiscreteSpec(4), limit, reset, step)


def corner_one(nested: bool = True) -> DeviceEnv:
    """Make the vector of `corner` in a Dict with one entry, or alone."""
    env = corner(nested=False)
    if not nested:
        return env

    def reset(key: Any) -> tuple[Any, Any]:
        state, obs = env.reset(key)
        return state, {"where": obs}

    def step(state: Any, action: Any, key: Any) -> tuple[Any, ...]:
        state, obs, *others = env.step(state, action, key)
        return state, {"where": obs}, *others

    assert isinstance(env.obs_spec, ObservationSpec)
    spec = {"where": env.obs_spec}
    return DeviceEnv("corner_one", spec, env.action_spec, env.limit, reset, step)


def faulty(fault: str, at: int, folder: str | None = None, length: int = 1000) -> Nested:
    """Make an environment with a fault (see `fault_envs.Faulty`) whose observation is a Dict of its
    seed and its step."""
    from tests.fault_envs import Faulty

    return Nested(Faulty(fault, at, folder, length), {"seed": slice(0, 1), "at": slice(1, 2)})


def single_faulty(*given: Any) -> gym.Env[Any, Any]:
    """Make the environment of `faulty` with one array."""
    from tests.fault_envs import Faulty

    return Faulty(*given)


ODD: dict[str, Callable[[dict[str, Any]], Any]] = {
    "missing": lambda obs: {"camera": obs["camera"], "pair": obs["pair"]},
    "direction": lambda obs: obs | {"state": obs["state"] | {"direction": 9}},
    "unknown": lambda obs: obs | {"state": obs["state"] | {"place": np.full(2, np.nan)}},
}
"""Changes of an observation of `Walk` that does not fit its space afterwards."""


class Odd(Walk):
    """A `Walk` whose observations do not fit their space from a step of this object on.

    Args:
        kind: a key of `ODD`.
        at: the step; 0 for the first reset.
    """

    def __init__(self, kind: str, at: int) -> None:
        super().__init__()
        self._kind, self._left = kind, at

    def _observe(self) -> Any:
        self._left -= 1
        obs = super()._observe()
        return ODD[self._kind](obs) if self._left < 0 else obs


def odd(kind: str, at: int = 0) -> gym.Env[Any, Any]:
    return Odd(kind, at)


def empty() -> gym.Env[Any, Any]:
    """Make an environment that observes nothing."""
    return Spaces(spaces.Dict({}))
