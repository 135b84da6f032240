"""A2C: its update against the definition, its other targets, and learning."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout import A2C
from flatout.algorithms.a2c import a2c
from flatout.algorithms.base import Algorithm, BuildSpec
from flatout.algorithms.common.returns import next_reward_advantages
from flatout.config.hyper import A2CConfig
from flatout.config.schema import NetworkConfig
from flatout.types import Trajectory
from tests.algorithms.test_ppo import (
    MOVES,
    OBS,
    N,
    T,
    assert_close,
    critic_values,
    forward,
    learn,
    on_cpu,
    plain,
    rollout,
    start,
)

_ = on_cpu


@functools.cache
def agent(**hyper: Any) -> Algorithm:
    config = A2CConfig(**{"n_steps": T, "learning_rate": 0.01} | hyper)
    return a2c(config, BuildSpec(NetworkConfig(hidden=(8,)), OBS, MOVES, N, 10_000))


def returns(params: Any, x: Trajectory, gamma: float) -> np.ndarray:
    """Return discounted rewards up to the episode's end, with a bootstrap where it is cut."""
    found = np.zeros((T, N))
    for env in range(N):
        after = critic_values(params, x.last_obs[env])
        for t in reversed(range(T)):
            if x.truncated[t, env]:
                final = x.final_obs[list(x.final_index).index(t * N + env)]
                after = critic_values(params, final)
            after = 0.0 if x.terminated[t, env] else after
            after = found[t, env] = x.rewards[t, env] + gamma * after
    return found


@pytest.mark.parametrize("lag", [0.0, 0.7])
@pytest.mark.parametrize("hyper", [{}, {"normalize_advantage": True, "ent_coef": 0.1}])
def test_an_update_matches_its_definition(hyper: dict[str, Any], lag: float) -> None:
    algorithm = agent(gamma=0.9, **hyper)
    state, x = start(algorithm), rollout(agent(), off_policy=lag)
    params = plain(state)
    target = returns(params, x, 0.9)
    advantage = target - critic_values(params, x.obs)
    if hyper:
        advantage = (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-8)

    def loss(params: Any, x: Trajectory, advantage: jax.Array, target: jax.Array) -> jax.Array:
        log_p = jax.nn.log_softmax(forward(params["actor"], x.obs))
        log_prob = jnp.take_along_axis(log_p, x.actions[..., None], -1)[..., 0]
        weight = jnp.minimum(jnp.exp(jax.lax.stop_gradient(log_prob) - x.extras["log_prob"]), 1)
        value = forward(params["critic"], x.obs)[..., 0]
        entropy = -(jnp.exp(log_p) * log_p).sum(-1).mean()
        total = -(weight * advantage * log_prob).mean() + 0.5 * jnp.square(target - value).mean()
        return total - hyper.get("ent_coef", 0.0) * entropy

    grads = jax.device_get(jax.jit(jax.grad(loss))(params, x, advantage, target))
    norm = np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: g * min(1.0, 0.5 / (norm + 1e-6)), grads)
    step = jax.tree.map(lambda g: 0.01 * g / (np.sqrt(0.01 * g * g) + 1e-5), grads)
    expected = jax.tree.map(np.subtract, params, step)
    found, metrics = learn(algorithm, state, x)
    assert_close(plain(found), expected, atol=2e-5)
    assert metrics["updates"] == 1.0


def by_hand(
    rewards: np.ndarray, after: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
) -> np.ndarray:
    """For each step, read the later steps until one decides the target."""
    targets = np.zeros(rewards.shape)
    for t, env in np.ndindex(rewards.shape):
        for s in range(t, len(rewards)):
            if rewards[s, env] > 0:
                targets[t, env] = 1.0
            elif terminated[s, env]:
                targets[t, env] = 0.0
            elif truncated[s, env] or s == len(rewards) - 1:
                targets[t, env] = min(max(after[s, env], 0.0), 1.0)
            else:
                continue
            break
    return targets


advantages = jax.jit(lambda *given: next_reward_advantages(*given, None))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from((1, 9)), st.floats(0, 0.5))  # each is compiled
def test_next_reward_targets_say_whether_a_reward_follows(
    seed: int, steps: int, often: float
) -> None:
    rng = np.random.default_rng(seed)
    rewards = (rng.random((steps, 3)) < often).astype(np.float32)
    terminated = rng.random((steps, 3)) < 0.2
    truncated = (rng.random((steps, 3)) < 0.2) & ~terminated
    after = rng.normal(0.5, 0.5, (steps, 3)).astype(np.float32)
    zeros, done = np.zeros_like(after), terminated | truncated
    found = advantages(rewards, zeros, after, terminated, done)
    np.testing.assert_allclose(found, by_hand(rewards, after, terminated, truncated), atol=1e-6)


class Pick(gym.Env[np.ndarray, np.int64]):
    """An environment whose first action decides whether the 5th step of the episode pays 1."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(3)
        self._step, self._right = 0, False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._step, self._right = 0, False
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._right |= self._step == 0 and int(action) == 2
        self._step += 1
        obs = np.array([self._step / 5, self._right], np.float32)
        return obs, float(self._right and self._step == 5), self._step == 5, False, {}


@pytest.mark.slow
@pytest.mark.parametrize("targets", ["returns", "next_reward"])
def test_actions_with_a_delayed_reward_are_learned(targets: str) -> None:
    agent = A2C(Pick, envs=8, n_steps=10, learning_rate=0.003, targets=targets, seed=1).learn(
        16_000
    )
    assert agent.evaluate(5).return_mean == 1.0
