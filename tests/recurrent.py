"""A small recurrent algorithm of a user's own, and an environment that needs memory.

Acting keeps a running sum of the observations since the episode began. The update computes the same
sums again from the carry before the trajectory, and its metric `wrong` counts the steps at which
the action that was taken does not follow from them: a carry that is stale, lost or not reset is
seen.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from flatout import Algorithm, BuildSpec, Counters, DeviceEnv, State
from flatout.types import DiscreteSpec, ObservationSpec, Trajectory

LENGTH = 7
"""Steps of an episode of `Signs`, unless it ends by chance."""


class Signs(gym.Env[Any, Any]):
    """It shows a random number at each step; the sign of their sum is the right action."""

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-9.0, 9.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.sum, self.time = 0.0, 0
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right = float(int(action) == int(self.sum > 0))
        self.time += 1
        fell = bool(self.np_random.uniform() < 0.1)
        return self._show(), right, fell, self.time >= LENGTH and not fell, {}

    def _show(self) -> np.ndarray:
        shown = np.float32(self.np_random.integers(-4, 5) + 0.25)
        self.sum += float(shown)
        return np.full(1, shown)


class Killed(Signs):
    """It kills its process at the 30th step, once: then a file says so."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self.steps = Path(path), 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 30 and not self.path.exists():
            self.path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def device_signs() -> DeviceEnv:
    """Make the same game as a device environment."""

    def reset(key: Any) -> tuple[Any, Any]:
        shown = jax.random.randint(key, (1,), -4, 5) + 0.25
        return shown[0], shown

    def step(total: Any, action: Any, key: Any) -> tuple[Any, ...]:
        right = (action == (total > 0)).astype(jnp.float32)
        first, second = jax.random.split(key)
        shown = jax.random.randint(first, (1,), -4, 5) + 0.25
        fell = jax.random.uniform(second) < 0.1
        return total + shown[0], shown, right, fell, jnp.asarray(False)

    return DeviceEnv(
        "signs", ObservationSpec((1,), "float32"), DiscreteSpec(2), LENGTH, reset, step
    )


def memory(spec: BuildSpec) -> Algorithm:
    """Make an algorithm whose policy is the sign of the sum, times a learned weight."""

    def init(key: np.ndarray, hp: Any) -> State:
        zero = np.zeros((), np.int32)
        return State({"weight": np.ones((), np.float32)}, (), Counters(zero, zero.copy()))

    def act(params: Any, obs: Any, carry: Any, noise: Any) -> Any:
        total = carry["sum"] + obs[:, 0]
        action = (params["weight"] * total > 0).astype(jnp.int32)
        return action, {"sum": total, "steps": carry["steps"] + 1}, {"seen": total}

    def update(state: State, data: Trajectory, key: Any, hp: Any) -> Any:
        def forward(total: Any, at: Any) -> Any:
            obs, done = at
            total = total + obs[:, 0]
            return jnp.where(done, 0.0, total), total

        done = data.terminated | data.truncated
        _, sums = jax.lax.scan(forward, data.carry["sum"], (data.obs, done))
        valid = jnp.ones_like(done) if data.valid is None else data.valid
        wrong = (valid & ((sums != data.extras["seen"]) | ((sums > 0) != data.actions))).sum()
        moved = {"weight": state.params["weight"] + 1e-3 * data.rewards.mean()}
        steps = jnp.int32(data.rewards.size)
        counters = Counters(state.counters.step + steps, state.counters.updates + 1)
        metrics = {
            "wrong": wrong.astype(jnp.float32), "updates": jnp.ones(()),
            "oldest": data.carry["steps"].max().astype(jnp.float32),
        }  # fmt: skip
        return State(moved, (), counters), metrics, None

    def initial_carry(n: int) -> Any:
        return {"sum": jnp.zeros(n), "steps": jnp.zeros(n, jnp.int32)}

    return Algorithm(
        "memory", (), init, act, update, ("wrong", "updates", "oldest"), 16,
        initial_carry=initial_carry,
    )  # fmt: skip
