"""Final observations of truncated episodes: their capacity, and how they move between layouts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flatout.engine.finals import (
    append_final,
    capacity,
    join_finals,
    pack_finals,
    sort_finals,
    split_finals,
    used_finals,
)
from flatout.types import Finals


def of_positions(positions: list[int], size: int, least: int) -> Finals:
    """Return final observations whose values are their positions."""
    index = np.array(positions, np.int32)
    return pack_finals(index, np.stack([index, -index], 1), size, least)


def assert_sound(finals: Finals, positions: set[int], size: int) -> None:
    """Check that these positions are used, in order and each with its observation, and no other."""
    index, obs = used_finals(finals, size)
    assert index.tolist() == sorted(positions)
    np.testing.assert_array_equal(obs[:, 0], index)
    np.testing.assert_array_equal(obs[:, 1], -index)
    assert (finals.index[len(positions) :] == size).all()


@given(st.integers(0, 500), st.integers(1, 50))
def test_the_capacity_doubles_until_they_fit(count: int, least: int) -> None:
    room = capacity(count, least)
    assert room >= count
    assert room == least or room // 2 < count
    assert room % least == 0


def test_a_capacity_of_0_grows() -> None:
    """A damaged checkpoint may have it."""
    assert [capacity(count, 0) for count in (0, 1, 5)] == [0, 1, 8]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.data())
def test_shards_hold_the_final_observations_of_their_environments(
    steps: int, each: int, shards: int, data: st.DataObject
) -> None:
    num_envs = each * shards
    size = steps * num_envs
    positions = data.draw(st.sets(st.integers(0, size - 1)))
    shuffled = data.draw(st.permutations(sorted(positions)))
    finals = of_positions(shuffled, size, num_envs)
    assert_sound(finals, positions, size)
    parts = split_finals(finals, steps, num_envs, shards)
    assert len({len(part.index) for part in parts}) == 1
    for number, part in enumerate(parts):
        index, obs = used_finals(part, steps * each)
        row, env = np.divmod(index, each)
        np.testing.assert_array_equal(row * num_envs + number * each + env, obs[:, 0])
    stacked = Finals(np.stack([p.obs for p in parts]), np.stack([p.index for p in parts]))
    assert_sound(sort_finals(join_finals(stacked, steps, each)), positions, size)


@given(st.integers(1, 5), st.data())
def test_a_final_observation_of_the_last_step_is_appended(
    num_envs: int, data: st.DataObject
) -> None:
    size = 4 * num_envs
    positions = data.draw(st.sets(st.integers(0, size - 2)))
    finals = of_positions(sorted(positions), size, num_envs)
    more = append_final(finals, size - 1, np.array([size - 1, 1 - size], np.int32), size)
    assert_sound(more, positions | {size - 1}, size)
    assert len(more.index) in (len(finals.index), 2 * len(finals.index))
