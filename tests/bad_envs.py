"""Small environments, each correct or with exactly one fault; tests name them
``tests.bad_envs:Name``."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)


class Good(gym.Env[Any, Any]):
    """A correct environment: its seed and actions reproduce it. It records how it is called.

    Observations are ``[time, last action, noise, noise]``; the reward is the first noise.

    Args:
        length: steps per episode.
        ends: how an episode ends: terminated, truncated or both at once.
        note: a setting without effect, which only appears in `made_with`.
        render_mode: rgb_array or None.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - Gymnasium's own
    made_with: dict[str, Any] = {}  # noqa: RUF012 - arguments of the newest object, for tests

    def __init__(
        self,
        length: int = 20,
        ends: str = "terminated",
        note: Any = None,
        render_mode: str | None = None,
    ) -> None:
        self.observation_space: gym.Space[Any] = VECTOR
        self.action_space: gym.Space[Any] = spaces.Discrete(2)
        self.length, self.ends, self.render_mode = length, ends, render_mode
        self.seeds: list[int | None] = []
        self.actions: list[Any] = []
        self.closed = 0
        self.step_number = 0  # since it was made, over all episodes
        self.t = 0
        type(self).made_with = {"length": length, "ends": ends, "note": note}

    def observe(self, action: float) -> Any:
        """Return the observation after an action."""
        noise = self.np_random.uniform(-1, 1, 2)
        return np.array([self.t / self.length, action, *noise], np.float32)

    def number(self, action: Any) -> float:
        """Convert an action to one number."""
        return float(np.mean(action))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.t = 0
        return self.observe(0.0), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        self.step_number += 1
        self.t += 1
        obs = self.observe(self.number(action))
        done = self.t >= self.length
        return obs, self.reward(), done and self.ends != "truncated", (
            done and self.ends != "terminated"
        ), {}  # fmt: skip

    def reward(self) -> Any:
        """Return this step's reward."""
        return float(self.np_random.uniform())

    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)

    def close(self) -> None:
        self.closed += 1


class _At(Good):
    """An environment with one fault: in ``reset``, or at step `at`.

    Args:
        at: the number of the step, counted over all episodes; 0 means reset.
        what: which fault of the subclass.
        settings: as for `Good`.
    """

    default = ""

    def __init__(self, at: int = 5, what: str = "", **settings: Any) -> None:
        super().__init__(**settings)
        self.at, self.what = at, what or self.default

    @property
    def now(self) -> bool:
        """Whether the fault is due in this call."""
        return self.step_number == self.at and (self.t > 0 or self.at == 0)


class Mute(Exception):  # noqa: N818
    """An exception whose `str` raises another exception."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Raises(_At):
    """Raises a ValueError with a message of one or several lines, SystemExit, or `Mute`."""

    def observe(self, action: float) -> Any:
        if self.now:
            if self.what == "exit":
                raise SystemExit(0)
            if self.what == "mute":
                raise Mute
            raise ValueError("the bridge\nis\nout" if self.what == "lines" else "the bridge is out")
        return super().observe(action)


class NaNs(_At):
    """Returns NaN (or with ``what=infinite`` infinity) in its observation or reward."""

    default = "obs"

    def observe(self, action: float) -> Any:
        obs = super().observe(action)
        if self.now and self.what in ("obs", "infinite"):
            obs[1] = np.nan if self.what == "obs" else np.inf
        return obs

    def reward(self) -> Any:
        return float("nan") if self.now and self.what == "reward" else super().reward()


class WrongValue(_At):
    """Returns an invalid reward, flag or info from ``step``, such as ``what=terminated=None``."""

    BAD = {"None": None, "text": "plenty", "digits": "3", "empty": "", "two": 2, "nan": np.nan,  # noqa: RUF012
           "array": np.zeros(3), "row": np.ones(1), "flags": np.array([True]), "list": [],
           "complex": 1j, "vast": 10**400}  # fmt: skip

    def step(self, action: Any) -> Any:
        names = ("obs", "reward", "terminated", "truncated", "info")
        result = dict(zip(names, super().step(action), strict=True))
        if self.now:
            name, _, kind = self.what.partition("=")
            result[name] = self.BAD[kind]
        return tuple(result.values())


class NumpyValues(Good):
    """Returns its reward and flags as NumPy scalars, as many simulators do."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, np.asarray(reward), np.bool_(terminated), np.int64(truncated), info


class WrongShape(_At):
    """Returns an observation whose shape is not that of its space."""

    def observe(self, action: float) -> Any:
        return np.zeros(5, np.float32) if self.now else super().observe(action)


class WrongDtype(_At):
    """Returns an observation of the right shape that holds objects, strings or complex numbers."""

    default = "object"

    def observe(self, action: float) -> Any:
        obs = super().observe(action)
        if not self.now:
            return obs
        if self.what == "object":
            return np.array([None] * 4, object)
        return obs.astype(str) if self.what == "text" else obs.astype(complex) + 1j


class WrongTuple(_At):
    """Returns four values from ``step``, as Gym did before version 0.26, or None from ``reset``."""

    def step(self, action: Any) -> Any:
        result = super().step(action)
        return (*result[:3], {}) if self.now else result

    def reset(self, **kwargs: Any) -> Any:
        result = super().reset(**kwargs)
        return None if self.at == 0 else result


class HugeReward(Good):
    """Returns finite rewards that are too large for the loss, or with a larger size for float32."""

    def __init__(self, size: float = 1e38, **settings: Any) -> None:
        super().__init__(**settings)
        self.size = size

    def reward(self) -> Any:
        return self.size


class Spaces(Good):
    """Has unusual spaces, most of which Flatout refuses, so that it is never stepped."""

    def __init__(self, obs: str = "", act: str = "", **settings: Any) -> None:
        super().__init__(**settings)
        known = {
            "Sequence": spaces.Sequence(VECTOR),
            "Graph": spaces.Graph(VECTOR, None),
            "nested": spaces.Dict(
                {"a": VECTOR, "inner": spaces.Tuple((spaces.Sequence(VECTOR), VECTOR))}
            ),
            "hollow": spaces.Dict({"a": VECTOR, "inner": spaces.Dict({})}),
            "numbered": spaces.Dict({3: VECTOR}),  # type: ignore[dict-item]
            "slashed": spaces.Dict({"a/b": VECTOR}),
            "MultiDiscrete": spaces.MultiDiscrete([3, 2]),
            "MultiBinary": spaces.MultiBinary(3),
            "Text": spaces.Text(5),
            "empty": spaces.Box(-1.0, 1.0, (0,), np.float32),
            "wide": spaces.Box(-np.arange(1.0, 61.0), np.arange(60.0), dtype=np.float64),
        }
        self.observation_space = known.get(obs, self.observation_space)
        self.action_space = known.get(act, self.action_space)


class NeverEnds(Good):
    """Never ends an episode; with `delay`, each step takes that many seconds."""

    def __init__(self, delay: float = 0.0, **settings: Any) -> None:
        super().__init__(length=10**9, **settings)
        self.delay = delay

    def step(self, action: Any) -> Any:
        time.sleep(self.delay)
        return super().step(action)


class DiscreteStart(Good):
    """Has three actions, which are numbered 5, 6 and 7."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.action_space = spaces.Discrete(3, start=5)

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), repr(action)
        return super().step(action)


class Float64Box(Good):
    """Takes a matrix of float64 as action; every entry has its own bounds."""

    # 0.3 and 0.1 are no float32 numbers: rounding an action to float32 must not leave the box.
    low = np.array([[-1.0, -0.3], [0.0, -3.0]])
    high = np.array([[1.0, 0.1], [0.5, 3.0]])

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.action_space = spaces.Box(self.low, self.high, dtype=np.float64)

    def step(self, action: Any) -> Any:
        assert isinstance(action, np.ndarray), repr(action)
        assert action.dtype == np.float64, action.dtype
        assert action.shape == (2, 2), action.shape
        assert (action >= self.low).all(), action
        assert (action <= self.high).all(), action
        return super().step(action.copy())


class CrossEpisodeState(Good):
    """Cannot be reproduced from one episode's seed: observations depend on earlier episodes."""

    def observe(self, action: float) -> Any:
        obs = super().observe(action)
        obs[0] = np.float32((self.step_number % 97) / 97)
        return obs


class Images(Good):
    """Observes colour images of 48 rows and columns, whose pixels depend on time and action."""

    def __init__(self, size: int = 48, **settings: Any) -> None:
        super().__init__(**settings)
        self.observation_space = spaces.Box(0, 255, (size, size, 3), np.uint8)

    def observe(self, action: float) -> Any:
        shape = self.observation_space.shape
        assert shape is not None
        picture = np.zeros(shape, np.uint8)
        picture[..., 0] = self.t
        picture[..., 1] = 100 * int(action)
        picture[: shape[0] // 2, :, 2] = 200
        return picture


class SameArray(Good):
    """Returns the same array every time, with new values, as some simulators do."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.array = np.zeros(4, np.float32)

    def observe(self, action: float) -> Any:
        self.array[:] = super().observe(action)
        return self.array


class BadClose(Spaces):
    """Raises an exception in `close`."""

    def close(self) -> None:
        raise RuntimeError("the door is stuck")


class NoSpaces(gym.Env[Any, Any]):
    """Has neither an observation space nor an action space."""


class NotAnEnv:
    """A class with the spaces of an environment that is no `gymnasium.Env`."""

    observation_space = VECTOR
    action_space = spaces.Discrete(2)


def broken() -> gym.Env[Any, Any]:
    """A factory that fails."""
    raise RuntimeError("no licence for the simulator")


NOT_CALLABLE = 7

if "bad-envs/Good-v0" not in gym.registry:
    gym.register("bad-envs/Good-v0", entry_point=Good, max_episode_steps=50)
