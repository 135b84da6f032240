"""Replay's ring against a list of all steps: frame stacks, n-step returns, episodes' ends."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.engine.replay.ring import (
    Gathered,
    RingLayout,
    gather,
    merge,
    ring_bytes,
    ring_shapes,
)
from flatout.types import ObservationSpec
from tests.worlds import VECTOR, Rates, Store, World, assert_right, compare, grid, image, plain

specs = st.just(VECTOR) | st.builds(
    image, st.integers(1, 4), st.sampled_from(["first", "zeros"]), st.integers(1, 2)
)
rates = st.sampled_from(
    [Rates(), Rates(0, 0, 0), Rates(0, 1, 0), Rates(0.5, 0.5, 0), Rates(0, 0.3, 0.6)]
)
geometries = st.builds(RingLayout, specs, st.integers(1, 3), st.integers(3, 12), st.integers(1, 5))
gammas = st.sampled_from([1.0, 0.9, 0.0])


@settings(deadline=None, max_examples=150)
@given(geometries, gammas, rates, st.integers(0, 2**32 - 1), st.data())
def test_every_transition_agrees_with_the_list_of_steps(
    layout: RingLayout, gamma: float, chances: Rates, seed: int, data: st.DataObject
) -> None:
    """The ring wraps around many times. Trajectories have any length, and episodes are lost."""
    world, store = World(layout.spec, layout.num_envs, seed, chances), Store(layout)
    for _ in range(data.draw(st.integers(1, 12))):
        for lane in range(layout.num_envs):
            if data.draw(st.integers(0, 9)) == 9:
                store.cut(world, lane)
        world.rates = data.draw(rates)
        store.take(world.collect(data.draw(st.integers(1, layout.rows))))
        assert store.ring_counters.rows_written == len(world.steps[0])
        assert_right(world, layout, store.ring, store.ring_counters.rows_written, gamma)


CASES = [
    (RingLayout(VECTOR, 2, 7, 3), 0.9),
    (RingLayout(image(4), 2, 7, 1), 0.99),
    (RingLayout(image(3, "zeros", 2), 1, 9, 4), 0.97),
    (RingLayout(image(1), 3, 5, 2), 0.9),
]


@pytest.mark.bits
@pytest.mark.parametrize(
    ("layout", "gamma"),
    [
        *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES[:2]),
        CASES[2],
        pytest.param(*CASES[3], marks=pytest.mark.slow),
    ],
    ids=["vector", "stack", "zeros", "image"],
)
def test_jax_gathers_the_same_bits(layout: RingLayout, gamma: float) -> None:
    store, world = Store(layout), World(layout.spec, layout.num_envs, 5, Rates(0.1, 0.2, 0.1))
    compiled = jax.jit(functools.partial(gather, jnp, layout))
    merging = jax.jit(functools.partial(merge, layout))
    for _ in range(12):
        store.take(world.collect(2))
        rows_written = store.ring_counters.rows_written
        row, lane = (
            np.resize(x, layout.rows * layout.num_envs) for x in grid(layout, rows_written)
        )
        own = gather(np, layout, store.ring, rows_written, row, lane)
        other = jax.device_get(compiled(store.ring, np.int32(rows_written), row, lane))
        for name, a, b in zip(Gathered._fields, own, other, strict=True):
            assert a.dtype == b.dtype, name
            assert a.tobytes() == b.tobytes(), name
        merged = merging(other, np.float32(gamma))
        for a, b in zip(merged, plain(layout, own, gamma), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
        compare(world, layout, plain(layout, own, gamma), rows_written, row, lane, gamma)


def test_a_batch_may_have_any_shape() -> None:
    layout = RingLayout(image(3), 2, 6, 2)
    store = Store(layout)
    store.take(World(layout.spec, 2, 0).collect(6))
    row, lane = grid(layout, 6)
    flat = gather(np, layout, store.ring, 6, row, lane)
    square = gather(np, layout, store.ring, 6, row.reshape(3, 4), lane.reshape(3, 4))
    for a, b in zip(flat, square, strict=True):
        np.testing.assert_array_equal(a.reshape(3, 4, *a.shape[1:]), b)


@pytest.mark.parametrize("stack", [1, 2, 4])
def test_each_frame_is_stored_once(stack: int) -> None:
    layout = RingLayout(image(stack), 2, 40, 1)
    world, store = World(layout.spec, 2, 3, Rates(0.1, 0, 0)), Store(layout)
    for _ in range(20):
        store.take(world.collect(8))
    frames = store.ring.frames.reshape(len(store.ring.frames), -1)
    assert len(np.unique(frames, axis=0)) == len(frames) == (40 + stack) * 2
    pixels = replace(layout, spec=image(stack, side=200), rows=1000)
    like = World(pixels.spec, 2, 0).collect(1)
    taken = ring_bytes(ring_shapes(pixels, like, pixels.num_envs))
    assert taken < 1.05 * 1000 * 2 * (200 * 3)


@pytest.mark.parametrize("pad", ["first", "zeros"])
def test_long_episodes_are_stacked_to_their_end(pad: str) -> None:
    """The episode is longer than the largest age, 255."""
    layout = RingLayout(image(4, pad), 1, 300, 1)
    world, store = World(layout.spec, 1, 3, Rates(0, 0, 0)), Store(layout)
    store.take(world.collect(300))
    store.take(world.collect(230))
    assert_right(world, layout, store.ring, 530)


@pytest.mark.parametrize("spec", [VECTOR, image(3)], ids=["vector", "image"])
def test_the_array_of_final_observations_grows(spec: ObservationSpec) -> None:
    """The rate of truncations goes from 0 to 1 and back. No final observation is lost too early."""
    layout = RingLayout(spec, 2, 16, 3)
    world, store, room = World(spec, 2, 1), Store(layout), []
    for truncated in (0, 0.1, 0.3, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0.5, 0.5, 1, 1):
        world.rates = Rates(0, truncated, 0)
        store.take(world.collect(4))
        assert_right(world, layout, store.ring, store.ring_counters.rows_written)
        room.append(len(store.ring.finals))
    assert room == sorted(room)
    assert room[-1] == 16 * 2  # as many as can be sampled, and no more


def test_nothing_is_kept_for_terminated_episodes() -> None:
    layout = RingLayout(VECTOR, 2, 16, 1)
    world, store = World(VECTOR, 2, 1, Rates(1, 0, 0)), Store(layout)
    for _ in range(10):
        store.take(world.collect(16))
    assert len(store.ring.finals) == 2
