"""A trajectory's arrays have names, and those of environments an axis of environments."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import TRAJECTORY_FIELDS, RolloutSpec
from flatout.engine.finals import used_finals
from flatout.engine.rollout import Rollout
from flatout.engine.trajectory import (
    arrays_of,
    by_env,
    env_axis,
    find_misfit,
    from_arrays,
    join,
    split,
    with_arrays,
)
from flatout.types import Finals, Trajectory
from tests.engine.test_final_observations import arbitrary
from tests.own_algorithms import good
from tests.worlds import VECTOR, Rates, World


def test_arrays_have_names_and_an_axis_of_environments() -> None:
    whole = World(VECTOR, 3, 0).collect(4)._replace(extras={"log_prob": np.ones((4, 3))})
    arrays = arrays_of(whole)
    assert "extras/log_prob" in arrays
    assert "valid" not in arrays  # every step counts
    for name, array in arrays.items():
        if env_axis(name) is not None:
            assert by_env(name, array).shape[0] == 3
    doubled = with_arrays(whole, {name: 2 * array for name, array in arrays.items()})
    np.testing.assert_array_equal(doubled.extras["log_prob"], 2.0)
    np.testing.assert_array_equal(doubled.rewards, 2 * whole.rewards)
    assert doubled.valid is None


def test_the_table_has_every_field_and_agrees_with_the_documentation() -> None:
    fields = [name for name in Trajectory._fields if name != "finals"]
    assert sorted(TRAJECTORY_FIELDS) == sorted([*fields, "final_obs", "final_index"])
    documented = dict(re.findall(r"^ +(\w+): ``\[(T, N|N)", Trajectory.__doc__ or "", re.M))
    table = {name: ", ".join(field.axes) for name, field in TRAJECTORY_FIELDS.items()}
    assert documented.items() <= table.items()
    assert len(documented) == 8


def test_outputs_of_act_may_have_the_names_of_fields() -> None:
    """An algorithm of the user's may name an output ``rewards``; shards have both arrays."""
    whole = World(VECTOR, 4, 0).collect(3)
    own = np.arange(12.0).reshape(3, 4)
    whole = whole._replace(extras={"rewards": own, "carry/0": own}, carry=np.arange(4))
    for number, part in enumerate(split(whole, 2)):
        columns = slice(2 * number, 2 * number + 2)
        np.testing.assert_array_equal(part.rewards, whole.rewards[:, columns])
        for name in whole.extras:
            np.testing.assert_array_equal(part.extras[name], own[:, columns])
        np.testing.assert_array_equal(part.carry, np.arange(4)[columns])
    found = from_arrays(arrays_of(whole))
    np.testing.assert_array_equal(found.rewards, whole.rewards)
    np.testing.assert_array_equal(found.carry[0], np.arange(4))


def test_outputs_of_act_may_have_the_names_of_a_compiled_rollouts_columns() -> None:
    """Shapes show it: a column that replaced another one would be missing in one place."""
    names = ("code", "reward", "total", "q_mean", "info/walked", "obs", "extras/top")
    algorithm = good()

    def act(*given: Any) -> Any:
        action, carry, _ = algorithm.act(*given)
        return action, carry, {name: jnp.zeros(action.shape, jnp.uint32) for name in names}

    env = replace(arbitrary(1, None), info=lambda state: {"walked": state["walked"]})
    rollout = Rollout(env, replace(algorithm, act=act), RolloutSpec(3, None, 1, False), 2)
    key = np.zeros(2, np.uint32)
    state = jax.eval_shape(rollout.start, key, np.int32(0))
    found, ends, _ = jax.eval_shape(rollout, algorithm.actor_shapes, state, key)
    assert {n: (x.shape, x.dtype) for n, x in found.extras.items()} == dict.fromkeys(
        names, ((3, 2), np.dtype("uint32"))
    )
    assert found.rewards.dtype == ends.total.dtype == ends.info["walked"].dtype == np.float32
    assert found.obs.shape == (3, 2, 4)


def test_a_trajectory_without_places_for_final_observations_does_not_fit() -> None:
    """It cannot take those of environments that are restarted, or be divided by shard."""
    whole = World(VECTOR, 2, 0).collect(3)
    most = 2 * whole.rewards.size
    for count, fits in ((0, False), (1, True), (most, True), (most + 1, False)):
        index = np.full(count, whole.rewards.size, np.int32)
        obs = np.zeros((count, *whole.finals.obs.shape[1:]), whole.finals.obs.dtype)
        other = whole._replace(finals=Finals(obs, index))
        assert (find_misfit(other, whole) is None) == fits


def test_joined_shards_are_the_trajectory_that_was_split() -> None:
    whole = World(VECTOR, 6, 0, Rates(0.1, 0.4, 0.1)).collect(5)._replace(carry=np.arange(6))
    joined = join(jax.tree.map(lambda *parts: np.stack(parts), *split(whole, 3)))
    for found, wanted in zip(*(used_finals(x.finals, 30) for x in (joined, whole)), strict=True):
        np.testing.assert_array_equal(found, wanted)
    joined, arrays = arrays_of(joined), arrays_of(whole)
    assert joined.keys() == arrays.keys()
    for name in arrays:
        if env_axis(name) is not None:
            np.testing.assert_array_equal(joined[name], arrays[name], err_msg=name)
