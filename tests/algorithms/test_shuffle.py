"""The orders of minibatches are permutations, and look random."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from flatout.algorithms.ppo import permutations
from flatout.randomness import wrap_key


@partial(jax.jit, static_argnums=(2, 3))
def _drawn(raw: jax.Array, counter: jax.Array, count: int, size: int) -> jax.Array:
    return permutations(wrap_key(raw), counter, count, size)


def drawn(seed: int, counter: int, count: int, size: int) -> np.ndarray:
    raw = np.random.default_rng(seed).integers(0, 2**32, 2, np.uint32)
    return np.asarray(_drawn(raw, np.int32(counter), count, size))


def slow(size: int) -> Any:
    return pytest.param(size, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "size", [1, 2, 3, slow(64), 255, 256, 257, 300, slow(1000), 1024, slow(2048), 4097]
)
def test_each_is_a_permutation(size: int) -> None:
    order = drawn(0, 3, 10, size)
    assert (np.sort(order, -1) == np.arange(size)).all()


@given(st.integers(0, 2**31 - 2), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_keys_counters_and_epochs_give_different_permutations(counter: int, seed: int) -> None:
    one = drawn(seed, counter, 10, 256)
    assert np.array_equal(one, drawn(seed, counter, 10, 256))
    assert len({row.tobytes() for row in one}) == 10
    for other in (drawn(seed, counter + 1, 10, 256), drawn(seed + 1, counter, 10, 256)):
        assert not {row.tobytes() for row in one} & {row.tobytes() for row in other}


@pytest.mark.parametrize("size", [256, 300, 1024])
def test_places_and_neighbours_are_uniform(size: int) -> None:
    """Over 4,000 permutations, places of elements and distances of neighbours are uniform."""
    orders = np.concatenate([drawn(1, counter, 10, size) for counter in range(400)])
    bins = 16
    for place in (0, 1, size // 2, size - 1):
        counts = np.bincount(orders[:, place] * bins // size, minlength=bins)
        width = np.bincount(np.arange(size) * bins // size, minlength=bins) / size
        assert stats.chisquare(counts, width * len(orders)).pvalue > 1e-4
    for place in (0, size // 2, size - 2):
        distance = (orders[:, place + 1] - orders[:, place]) % size
        counts = np.bincount(distance * bins // size, minlength=bins)
        reach = np.bincount(np.arange(1, size) * bins // size, minlength=bins) / (size - 1)
        assert stats.chisquare(counts, reach * len(orders)).pvalue > 1e-4
    inversions = (orders[:, : size // 2] > orders[:, size // 2 :][:, : size // 2]).mean()
    assert abs(inversions - 0.5) < 0.005
