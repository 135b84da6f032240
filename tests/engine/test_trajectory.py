"""A trajectory's arrays have names, and those of environments an axis of environments."""

from __future__ import annotations

import numpy as np

from flatout.engine.trajectory import arrays_of, by_env, env_axis, with_arrays
from tests.worlds import VECTOR, World


def test_arrays_have_names_and_an_axis_of_environments() -> None:
    whole = World(VECTOR, 3, 0).collect(4)._replace(extras={"log_prob": np.ones((4, 3))})
    arrays = arrays_of(whole)
    assert "log_prob" in arrays
    assert "valid" not in arrays  # every step counts
    for name, array in arrays.items():
        if env_axis(name) is not None:
            assert by_env(name, array).shape[0] == 3
    doubled = with_arrays(whole, {name: 2 * array for name, array in arrays.items()})
    np.testing.assert_array_equal(doubled.extras["log_prob"], 2.0)
    np.testing.assert_array_equal(doubled.rewards, 2 * whole.rewards)
    assert doubled.valid is None
