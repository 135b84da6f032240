"""Ring counters count the updates that are due; the exponent of importance weights follows it."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.algorithms.base import ReplaySpec
from flatout.engine.replay.base import weights_exponent
from flatout.engine.replay.counters import RingCounters
from flatout.engine.replay.ring import RingLayout
from tests.worlds import NEEDS, VECTOR, World


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
