"""Small environments that mask their actions, and fail when they get a forbidden one."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from flatout import DeviceEnv
from flatout.types import DiscreteSpec, ObservationSpec
from tests.bad_envs import VECTOR, Good

LENGTH = 12
"""Steps after which an episode ends: every other one is truncated."""

ACTIONS = 5


class Picky(gym.Env[Any, Any]):
    """Some of five actions are allowed in each step, and higher ones are better.

    Args:
        kind: where masks are: "info", "method" or "entry" of the observation.
        counts: the values of each choice; one choice is Discrete, several are MultiDiscrete.
        broken: what is wrong, see `mask`.
        at: the step in which it is wrong.
    """

    def __init__(
        self, kind: str = "info", counts: tuple[int, ...] = (ACTIONS,), broken: str = "",
        at: int = 3, render_mode: str | None = None,
    ) -> None:  # fmt: skip
        self.render_mode, self.kind, self.counts = render_mode, kind, tuple(counts)
        self.broken, self.at = broken, at
        box = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.observation_space: gym.Space[Any] = box
        self.action_space: gym.Space[Any] = spaces.Discrete(self.counts[0])
        if len(self.counts) > 1:
            self.action_space = spaces.MultiDiscrete(self.counts)
        if kind == "entry":
            mask = spaces.Box(0, 1, (sum(self.counts),), np.int8)
            self.observation_space = spaces.Dict({"observation": box, "action_mask": mask})
        if "method" in kind:
            self.action_masks = self._shown
        self.episodes = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.episodes = 0, self.episodes + 1
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen = np.atleast_1d(action)
        start = 0
        for value, count in zip(chosen, self.counts, strict=True):
            if not self.allowed[start + value] and self.broken != "late":
                raise RuntimeError(f"action {action} is forbidden in step {self.time}")
            start += count
        self.time += 1
        over, lucky = self.time >= LENGTH, bool(self.np_random.random() < 0.5)
        obs, info = self._seen()
        return obs, float(chosen[0]), over and lucky, over and not lucky, info

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        """Draw what is allowed next; return the observation and the info."""
        parts: list[np.ndarray] = []
        for count in self.counts:
            part = self.np_random.random(count) < 0.4
            part[self.np_random.integers(count)] = True
            parts.append(part)
        self.allowed = np.concatenate(parts)
        obs: Any = self.np_random.uniform(-1, 1, 4).astype(np.float32)
        shown = self._shown()
        if self.kind == "entry":
            obs = {"observation": obs, "action_mask": shown}
        return obs, {} if shown is None or "info" not in self.kind else {"action_mask": shown}

    def _shown(self) -> Any:
        """The mask as the environment gives it."""
        mask = self.allowed.astype(np.int8)
        late = self.time >= self.at
        if self.broken == "late":
            return mask if late else None
        if not late or not self.broken:
            return mask
        wrong: dict[str, Any] = {
            "short": mask[1:], "half": mask * 0.5, "text": "all", "none": np.zeros_like(mask),
            "missing": None, "seven": mask * 7,
        }  # fmt: skip
        return wrong[self.broken]


class Contrary(Picky):
    """An environment whose info and whose method say different things from step `at` on."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.action_masks = self._other

    def _other(self) -> Any:
        mask = self.allowed.astype(np.int8)
        if self.time >= self.at:
            mask[2] = 1 - mask[2]
        return mask


class Driving(Picky):
    """An environment with a box of actions and masks in its infos, which nothing can obey."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Mixed(Picky):
    """An environment whose actions are a choice and a box; the mask is for the choice."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        throttle = spaces.Box(0.0, 1.0, (2,), np.float32)
        gears = spaces.Tuple([spaces.Discrete(ACTIONS), throttle])
        self.action_space = spaces.Dict({"first": throttle, "gears": gears})

    def step(self, action: Any) -> Any:
        return super().step(action["gears"][0])


def picky_device(stuck: int = 0) -> DeviceEnv:
    """Make `Picky` on a device. A forbidden action gives a reward of NaN, which ends the run.

    Args:
        stuck: the step from which on nothing is allowed; 0 for never.
    """

    def seen(key: Any, t: Any) -> tuple[Any, Any]:
        drawn = jax.random.uniform(key, (2 * ACTIONS,))
        mask = drawn[:ACTIONS] < 0.4
        mask = mask.at[jnp.floor(drawn[ACTIONS] * ACTIONS).astype(jnp.int32)].set(True)
        mask &= (t < stuck) if stuck else True
        return mask, {"features": drawn[-4:], "action_mask": mask.astype(jnp.uint8)}

    def reset(key: Any) -> Any:
        mask, obs = seen(key, jnp.int32(0))
        return (mask, jnp.int32(0)), obs

    def step(state: Any, action: Any, key: Any) -> Any:
        mask, t = state
        reward = jnp.where(mask[action], action.astype(jnp.float32), jnp.nan)
        new, obs = seen(key, t + 1)
        over = t + 1 >= LENGTH
        lucky = obs["features"][0] < 0.5
        return (new, t + 1), obs, reward, over & lucky, over & ~lucky

    specs = {
        "features": ObservationSpec((4,), "float32"),
        "action_mask": ObservationSpec((ACTIONS,), "uint8"),
    }
    return DeviceEnv("picky", specs, DiscreteSpec(ACTIONS), None, reset, step, patience=LENGTH)


class Observed(Good):
    """An environment with a mask in its Dict observation, next to another entry."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        mask = spaces.Box(0, 1, (2,), np.int8)
        entries = {"observation": VECTOR, "goal": VECTOR, "action_mask": mask}
        self.observation_space = spaces.Dict(entries)

    def observe(self, action: float) -> Any:
        seen = super().observe(action)
        return {"observation": seen, "goal": seen, "action_mask": np.ones(2, np.int8)}
