"""Vector environments as users write them, in every autoreset mode, and with one fault each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space


class Countdowns(VectorEnv[Any, Any, Any]):
    """Environments that count down from a random number; at 0 the episode ends, with reward 1. The
    observation is the number and a random one, which the action does not change.

    Args:
        num_envs: the number of environments.
        mode: the autoreset mode.
        masked: whether `reset` obeys ``options["reset_mask"]``.
        seeded: whether `reset` takes a seed for each environment.
        together: the steps, in all, before which episodes begin that end at the same time.
        fault: what is wrong.
    """

    def __init__(
        self, num_envs: int = 3, mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        masked: bool = False, seeded: bool = False, together: int = 0, fault: str = "",
    ) -> None:  # fmt: skip
        self.num_envs, self.mode, self.fault = num_envs, AutoresetMode(mode), fault
        self.metadata = {} if fault == "no mode" else {"autoreset_mode": self.mode}
        self.masked, self.seeded, self.together = masked, seeded, together
        self.single_observation_space = gym.spaces.Box(-9.0, 9.0, (2,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.rngs = [np.random.default_rng(env) for env in range(num_envs)]
        self.obs = np.zeros((num_envs, 2), np.float32)
        self.over = np.zeros(num_envs, np.bool_)
        self.steps = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if isinstance(seed, list) and not self.seeded:
            raise TypeError("seed has to be an integer")
        seeds = seed if isinstance(seed, list) else [seed] * self.num_envs
        mask = (options or {}).get("reset_mask") if self.masked else None
        for env in range(self.num_envs) if mask is None else np.flatnonzero(mask):
            if seeds[env] is not None:
                own = (seeds[env], 0 if self.seeded else int(env))
                self.rngs[env] = np.random.default_rng(own)
            over = self.over[env]
            self.begin(int(env))
            self.over[env] = over and self.fault == "pending" and not np.all(mask)
        return self.given(), {}

    def begin(self, env: int) -> None:
        length = 4 if self.steps < self.together else self.rngs[env].integers(2, 6)
        self.obs[env] = length, self.rngs[env].random()
        self.over[env] = False

    def step(self, actions: Any) -> Any:
        self.steps += 1
        rewards, terminated = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, np.bool_)
        info: dict[str, Any] = {}
        for env in range(self.num_envs):
            if self.over[env]:
                assert self.mode == AutoresetMode.NEXT_STEP, "the episode has ended: reset it"
                self.begin(env)
                continue
            self.obs[env, 0] -= 1.0
            if self.obs[env, 0] == 0.0:
                terminated[env] = self.over[env] = True
                rewards[env] = 1.0
        if self.mode == AutoresetMode.SAME_STEP or self.fault in ("hidden", "silent"):
            if terminated.any() and self.fault not in ("no finals", "silent"):
                info["final_obs"] = (
                    self.obs[:, :-1] if self.fault == "final size" else self.obs.copy()
                )
                info["_final_obs"] = terminated & (self.fault != "no final row")
            for env in np.flatnonzero(terminated):
                self.begin(int(env))
        if self.fault == "size":
            rewards = rewards[:-1]
        if self.fault == "large":
            rewards = np.array([1.0, -1e300, 1.0])
        if self.fault == "flags":
            terminated = terminated + 3
        if self.fault == "mask":
            info["action_mask"] = np.ones((self.num_envs, 2))
        truncated = np.zeros(self.num_envs, np.bool_)
        return self.given(), rewards, terminated, truncated, info

    def given(self) -> Any:
        if self.fault == "view":
            return self.obs
        if self.fault == "one":
            return np.broadcast_to(self.obs[:1].copy(), self.obs.shape)
        return self.obs[:-1].copy() if self.fault == "rows" else self.obs.copy()


class Walks(VectorEnv[Any, Any, Any]):
    """Environments in which actions move a position down or up, reset by a mask and with a seed for
    each. `hidden` says that the step that ends an episode also begins the next one.

    Args:
        kind: the world, an entry of `WORLDS`; each makes ends and beginnings look alike in some
            way, except the first two.
    """

    WORLDS = (
        "starts",  # many first positions, episodes of 6 steps
        "corridor",  # always the same one, episodes of 6 steps
        "ring",  # the same; an episode ends where it began
        "pair",  # two first positions, in which episodes also end
        "bandit",  # each step ends an episode, and shows a new random number
        "noise",  # observations are random numbers
        "constant",  # all observations are equal
        "reset-free",  # an episode begins where the last one ended
    )

    def __init__(self, num_envs: int, mode: AutoresetMode, kind: str, hidden: bool = False) -> None:
        self.num_envs, self.kind, self.hidden = num_envs, kind, hidden
        self.mode, self.metadata = mode, {"autoreset_mode": mode}
        self.single_observation_space = gym.spaces.Box(-99.0, 99.0, (1,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.rngs = [np.random.default_rng(env) for env in range(num_envs)]
        self.at, self.steps = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self.over = np.zeros(num_envs, np.bool_)

    def begin(self, env: int) -> None:
        self.steps[env], self.over[env] = 0, False
        if self.kind in ("starts", "bandit", "noise"):
            self.at[env] = self.rngs[env].random()
        elif self.kind == "pair":
            self.at[env] = self.rngs[env].integers(2)
        elif self.kind != "reset-free":
            self.at[env] = 0.0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        mask = (options or {}).get("reset_mask")
        for env in range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist():
            if seed is not None and seed[env] is not None:
                self.rngs[env] = np.random.default_rng(seed[env])
                self.at[env] = 0.0
            self.begin(env)
        return self.seen(), {}

    def step(self, actions: Any) -> Any:
        ended = np.zeros(self.num_envs, np.bool_)
        for env in range(self.num_envs):
            if self.over[env]:
                assert self.mode == AutoresetMode.NEXT_STEP, "the episode has ended: reset it"
                self.begin(env)
                continue
            self.steps[env] += 1
            if self.kind in ("bandit", "noise"):
                self.at[env] = self.rngs[env].random()
            elif self.kind != "constant":
                self.at[env] = (self.at[env] + 2 * actions[env] - 1) % 8
            ended[env] = self.over[env] = {
                "ring": self.at[env] == 0.0, "pair": self.at[env] < 2, "bandit": True,
            }.get(self.kind, self.steps[env] == 6)  # fmt: skip
            if ended[env] and self.hidden:
                self.begin(env)
        return self.seen(), np.zeros(self.num_envs), ended, np.zeros(self.num_envs, np.bool_), {}

    def seen(self) -> np.ndarray:
        return self.at[:, None].astype(np.float32)


class Pictures(gym.Env[Any, Any]):
    """Random pictures of random episodes, which the action does not change."""

    observation_space = gym.spaces.Box(0, 255, (20, 24, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 7))
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return self.seen(), 1.0, False, not self.left, {}

    def seen(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (20, 24, 3)).astype(np.uint8)


def as_vector(
    make: Callable[[], gym.Env[Any, Any]], mode: AutoresetMode, num_envs: int
) -> VectorEnv[Any, Any, Any]:
    """Make environments that step as a vector, not one by one as those of a bare SyncVectorEnv."""
    return VectorWrapper(SyncVectorEnv([make] * num_envs, autoreset_mode=mode))


def cartpole() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1")


def short_cartpole(render_mode: str | None = None) -> gym.Env[Any, Any]:
    """Make a CartPole of which videos are short."""
    return gym.make("CartPole-v1", render_mode=render_mode, max_episode_steps=3)


def cartpoles(num_envs: int, mode: str = "NextStep") -> Any:
    """Make CartPoles that step together in one process."""
    return SyncVectorEnv([cartpole] * num_envs, autoreset_mode=AutoresetMode(mode))


def cartpole_processes(num_envs: int) -> Any:
    """Make CartPoles each of which steps in a process of its own."""
    return AsyncVectorEnv([cartpole] * num_envs, context="spawn")


def two_cartpoles() -> Any:
    """Make two CartPoles, never another number of them."""
    return cartpoles(2)
