"""A trajectory's arrays by name, and room for final observations."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flatout.buffers.arrays import FINALS, arrays_of, by_env, room_for, with_arrays
from tests.worlds import VECTOR, World


@given(st.integers(0, 500), st.integers(1, 50))
def test_room_doubles_until_they_fit(count: int, room: int) -> None:
    after = room_for(count, room)
    assert after >= count
    assert after == room or after // 2 < count
    assert after % room == 0
    assert room_for(after, room) == after


def test_arrays_have_names_and_an_axis_of_environments() -> None:
    whole = World(VECTOR, 3, 0).collect(4)._replace(extras={"log_prob": np.ones((4, 3))})
    arrays = arrays_of(whole)
    assert "log_prob" in arrays
    assert "valid" not in arrays  # every step counts
    for name, array in arrays.items():
        if name not in FINALS:
            assert by_env(name, array).shape[0] == 3
    doubled = with_arrays(whole, {name: 2 * array for name, array in arrays.items()})
    np.testing.assert_array_equal(doubled.extras["log_prob"], 2.0)
    np.testing.assert_array_equal(doubled.rewards, 2 * whole.rewards)
    assert doubled.valid is None
