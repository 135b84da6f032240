"""Ring counters count the updates that are due; the exponent of importance weights follows it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.algorithms.base import ReplaySpec
from flatout.engine.replay.base import weights_exponent
from flatout.engine.replay.counters import RingCounters
from flatout.engine.replay.ring import RingLayout, gather
from flatout.engine.replay.sampling import leaves, restored
from tests.worlds import NEEDS, VECTOR, Store, World, grid, image


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 5), st.integers(1, 9), st.integers(1, 7), st.integers(0, 60), st.integers(1, 30)
)
def test_the_steps_make_the_right_number_of_updates_due(
    num_envs: int, train_freq: int, gradient_steps: int, learning_starts: int, rounds: int
) -> None:
    """K updates are due for every M steps after `learning_starts`; remainders are carried over."""
    needs = ReplaySpec(
        **vars(NEEDS) | {
            "train_freq": train_freq, "gradient_steps": gradient_steps,
            "learning_starts": learning_starts,
        }
    )  # fmt: skip
    rows = needs.horizon(num_envs)
    assert rows * num_envs >= train_freq > (rows - 1) * num_envs
    ring_counters = RingCounters(RingLayout(VECTOR, num_envs, max(rows, 4), 1), needs)
    world, total, steps = World(VECTOR, num_envs, 0), 0, 0
    for _ in range(rounds):
        ring_counters.ingest(world.collect(rows))
        steps += rows * num_envs
        total += ring_counters.updates_due
        assert 0 <= ring_counters.updates_due <= needs.most(num_envs)
        assert total == ring_counters.updates_done
        assert total == max(steps - learning_starts, 0) * gradient_steps // train_freq


def test_beta_moves_over_the_run() -> None:
    sizes, ends = RingLayout(VECTOR, 2, 4, 1), np.float32([0.4, 1.0])
    ring_counters, world, seen = RingCounters(sizes, NEEDS), World(VECTOR, 2, 0), list[float]()
    exponent = jax.jit(lambda rows_written: weights_exponent(NEEDS, sizes, rows_written, ends))
    for _ in range(301):
        seen.append(float(exponent(np.int32(ring_counters.rows_written))))
        ring_counters.ingest(world.collect(2))
    assert seen[:3] == pytest.approx([0.4, 0.4 + 0.6 * 0.004, 0.4 + 0.6 * 0.008])
    assert seen[250:] == [1.0] * 51


@pytest.mark.parametrize("collected", [3, 12])
@pytest.mark.parametrize("spec", [VECTOR, image(3), image(3, "zeros")])
def test_a_larger_ring_samples_only_what_a_smaller_one_held(spec: Any, collected: int) -> None:
    """A run with more --buffer-size that began with another run's replay learned from zeros in the
    places of rows that this replay had dropped."""
    small, large = RingLayout(spec, 2, 8, 1), RingLayout(spec, 2, 20, 1)
    world, before, after = World(spec, 2, 0), Store(small), Store(large)
    for _ in range(collected):
        before.take(world.collect(2))
    ring, head = before.ring, 2 * collected
    arrays, data, rows = before.ring_counters.saved(ring)
    after.ring = after.ring_counters.restore(after.ring, arrays, data, rows)
    _, count = large.window(after.ring_counters.rows_written)
    assert count == min(head, 8)
    row, lane = grid(large, after.ring_counters.rows_written)
    dropped = head - after.ring_counters.rows_written
    found = gather(np, large, after.ring, after.ring_counters.rows_written, row, lane)
    wanted = gather(np, small, ring, head, row + dropped, lane)
    whole = (row >= 2) | (dropped == 0)  # the older frames of the first stacks are gone
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one[whole], other[whole])
    np.testing.assert_array_equal(found.rewards, wanted.rewards)
    for _ in range(20):  # goes on, also beyond the end of the arrays
        trajectory = world.collect(2)
        before.take(trajectory)
        after.take(trajectory)
    row, lane = grid(small, before.ring_counters.rows_written)
    found = gather(np, large, after.ring, after.ring_counters.rows_written, row - dropped, lane)
    wanted = gather(np, small, before.ring, before.ring_counters.rows_written, row, lane)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.mark.parametrize("dropped", [0, 5])
def test_a_larger_ring_keeps_the_priorities_of_a_smaller_one(dropped: int) -> None:
    small, large = RingLayout(VECTOR, 2, 4, 1), RingLayout(VECTOR, 2, 9, 1)
    rows_written = 4
    end = rows_written + dropped
    given = np.zeros((small.length, 2), np.float32)
    given[np.arange(dropped, end) % small.length] = np.arange(1, 9).reshape(4, 2)
    arrays = {"priorities": given, "largest": np.float32(8)}
    found = leaves(large, restored(large, arrays, end, rows_written)).reshape(-1, 2)
    np.testing.assert_array_equal(found[:4], np.arange(1, 9).reshape(4, 2))
    assert not found[4:].any()
