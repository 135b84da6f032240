"""The number of steps before which a device environment truncates no episode."""

from __future__ import annotations

import jax
import pytest

from flatout.engine.rollout_state import least_truncation
from flatout.envs.device.make import device_env


@pytest.mark.parametrize(("name", "steps"), [("CartPole-v1", 500), ("Pendulum-v1", 200)])
def test_its_first_call_may_be_within_a_traced_function(name: str, steps: int) -> None:
    env = device_env(name)
    least_truncation.cache_clear()
    assert int(jax.jit(lambda x: x + least_truncation(env))(0)) == steps
    assert least_truncation(env) == steps
