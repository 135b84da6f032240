"""No truncated episode loses its final observation, however an environment's episodes end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flatout import DeviceEnv
from flatout.algorithms.base import RolloutSpec
from flatout.engine.device import DeviceSampler
from flatout.engine.rollout import Rollout
from flatout.engine.rollout_state import most_truncations
from flatout.errors import EnvironmentFailure
from flatout.spans import Spans
from flatout.types import DiscreteSpec, ObservationSpec, Trajectory
from tests.own_algorithms import good

STEPS, ENVS, SEEDS = 12, 4, 8


def arbitrary(least: int, patience: int | None) -> DeviceEnv:
    """Make an environment that terminates or truncates each episode after a random number of steps.

    An observation is the episode's random numbers and the steps that it has taken.

    Args:
        least: the least number of steps after which an episode is truncated.
        patience: the number that the environment declares.
    """

    def observe(state: Any) -> Any:
        return jnp.append(state["drawn"], state["walked"].astype(jnp.float32))

    def reset(key: Any) -> tuple[Any, Any]:
        state = {"drawn": jax.random.uniform(key, (3,)), "walked": jnp.int32(0)}
        return state, observe(state)

    def step(state: Any, action: Any, key: Any) -> tuple[Any, ...]:
        _, length, way = state["drawn"]
        state = state | {"walked": state["walked"] + 1}
        cuts = way < 0.7
        over = state["walked"] >= jnp.where(cuts, least * (1 + length**2), 9 * length)
        return state, observe(state), jnp.ones(()), over & ~cuts, over & cuts

    spec = ObservationSpec((4,), "float32")
    return DeviceEnv("arbitrary", spec, DiscreteSpec(2), None, reset, step, patience=patience)


def trajectories(env: DeviceEnv) -> Iterator[Trajectory]:
    """Collect two trajectories with each of `SEEDS` seeds, with one compiled program."""
    algorithm = good()
    spec = RolloutSpec(STEPS, None, most_truncations(env, STEPS), replayed=False)
    rollout, act = Rollout(env, algorithm, spec, ENVS), np.zeros(2, np.uint32)
    sampler = DeviceSampler(rollout, jax.devices("cpu")[0], act, act, Spans())
    sampler.compile()
    params = (np.zeros(8, np.float32),)
    for seed in range(SEEDS):
        sampler._env_keys = np.array([seed, 7], np.uint32)
        environments = sampler.start()
        for _ in range(2):
            trajectory, environments = sampler.collect(environments, params)
            yield trajectory


def assert_final_observations(trajectory: Trajectory) -> int:
    """Compare final observations with those that follow from the steps before; return their
    number."""
    step, env = np.nonzero(trajectory.truncated)
    used = trajectory.final_index < STEPS * ENVS
    np.testing.assert_array_equal(trajectory.final_index[used], step * ENVS + env)
    expected = trajectory.obs[step, env] + np.array([0, 0, 0, 1], np.float32)
    np.testing.assert_array_equal(trajectory.final_obs[used], expected)
    return len(step)


@pytest.mark.parametrize("patience", [None, 6, 12])
def test_final_observations_follow_from_the_steps_before(patience: int | None) -> None:
    found = [assert_final_observations(t) for t in trajectories(arbitrary(patience or 1, patience))]
    assert sum(found) > 2 * SEEDS


@pytest.mark.parametrize("patience", [6, 12])
def test_a_wrong_patience_ends_the_run_before_a_final_observation_is_lost(patience: int) -> None:
    collected = trajectories(arbitrary(3, patience))
    with pytest.raises(EnvironmentFailure, match=rf"DeviceEnv\.patience is {patience}: final"):
        sum(map(assert_final_observations, collected))
