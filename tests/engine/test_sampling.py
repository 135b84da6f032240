"""Draws of rows, uniform and by priority, have the frequencies and weights of the paper."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.engine.replay.ring import RingLayout
from flatout.engine.replay.sampling import (
    EPSILON,
    Drawn,
    Priorities,
    draw,
    empty_priorities,
    insert_priorities,
    leaf_count,
    leaves,
    restored,
    saved,
    set_priorities,
)
from flatout.randomness import raw_key
from flatout.types import ObservationSpec

SPEC = ObservationSpec((2, 2, 3), "uint8", 255, 3)
KEY = raw_key(7, 3)
ALPHA = 0.6
BATCH = 16
BLOCK = 500


def layout(num_envs: int, rows: int) -> RingLayout:
    """Return the sizes of a ring of R + 3 rows: two older ones for stacks, and the next one."""
    return RingLayout(SPEC, num_envs, rows, 1)


@functools.cache
def drawing(sizes: RingLayout, batch: int) -> Any:
    """Compile ``(updates, rows_written, key, priorities, beta) -> Drawn [updates, batch]``."""

    def run(updates: Any, rows_written: Any, key: Any, priorities: Any, beta: Any) -> Drawn:
        def one(update: jax.Array) -> Drawn:
            return draw(sizes, key, update, rows_written, batch, priorities, beta)

        return jax.vmap(one)(updates)

    return jax.jit(run)


def drawn(
    sizes: RingLayout, rows_written: int, updates: int, priorities: Priorities | None = None,
    beta: float = 1.0, batch: int = BATCH, first: int = 0, key: np.ndarray = KEY,
) -> Drawn:  # fmt: skip
    """Return the draws of many updates, as NumPy arrays; a program draws a block of them."""
    blocks = [
        drawing(sizes, batch)(
            np.arange(start, start + BLOCK, dtype=np.int32), np.int32(rows_written), key,
            priorities, np.float32(beta),
        )
        for start in range(first, first + updates, BLOCK)
    ]  # fmt: skip
    return Drawn(*(np.concatenate(part)[:updates] for part in zip(*blocks, strict=True)))


def assert_frequencies(
    found: np.ndarray, probabilities: np.ndarray, stratified: bool = False
) -> None:
    """Check that Pearson's chi-square is within six standard deviations of its mean.

    The mean is the degrees of freedom. Stratified counts vary less than independent draws do.
    """
    expected = found.sum() * probabilities
    assert expected.min() > 20, "too few draws to say anything"
    square = (np.square(found - expected) / expected).sum()
    freedom = len(found) - 1
    assert square - freedom < 6 * np.sqrt(2 * freedom), (square, freedom)
    assert stratified or freedom - square < 6 * np.sqrt(2 * freedom), (square, freedom)


@pytest.mark.parametrize("num_envs", [1, 2, 5])
@pytest.mark.parametrize("rows_written", [1, 6, 20, 21, 1003, 2**31 - 1])
def test_every_stored_step_is_equally_likely(num_envs: int, rows_written: int) -> None:
    """That holds before the ring is full and after, for any position of the newest row."""
    sizes = layout(num_envs, 20)
    found = drawn(sizes, rows_written, 4000)
    first, count = sizes.window(rows_written)
    assert found.row.min() == first
    assert found.row.max() == rows_written - 1
    assert set(np.unique(found.env)) == set(range(num_envs))
    assert (found.weight == 1).all()
    cell = (found.row - first) * num_envs + found.env
    counts = np.bincount(cell.reshape(-1), minlength=count * num_envs)
    if len(counts) > 1:
        assert_frequencies(counts, np.full(count * num_envs, 1 / (count * num_envs)))


def test_places_in_a_batch_and_updates_are_independent() -> None:
    row = drawn(layout(1, 20), 20, 8000).row // 5  # the row's quarter of the ring
    for one, other in (
        (row[:, 0], row[:, 1]),
        (row[:-1, 3], row[1:, 3]),
        (row[:-1, 0], row[1:, 1]),
    ):
        assert_frequencies(np.bincount(one * 4 + other, minlength=16), np.full(16, 1 / 16))


def test_a_draw_is_a_pure_function_of_key_and_update() -> None:
    sizes = layout(2, 20)
    many = drawn(sizes, 70, 64)
    later = drawn(sizes, 70, 64, first=32)
    np.testing.assert_array_equal(many.row[32:], later.row[:32])
    np.testing.assert_array_equal(many.env[32:], later.env[:32])
    assert len({row.tobytes() for row in many.row}) == 64
    other = drawn(sizes, 70, 64, key=raw_key(8, 3))
    assert (other.row == many.row).mean() < 0.1
    fewer = drawn(sizes, 70, 64, batch=4)
    np.testing.assert_array_equal(fewer.row, many.row[:, :4])

    def body(update: jax.Array, rows: jax.Array) -> jax.Array:
        return rows.at[update].set(draw(sizes, KEY, update, 70, BATCH, None, jnp.ones(())).row)

    looped = jax.jit(lambda: jax.lax.fori_loop(0, 64, body, jnp.zeros((64, BATCH), jnp.int32)))()
    np.testing.assert_array_equal(looped, many.row)


class Naive:
    """Priorities as a mapping from (row, lane), in plain Python."""

    def __init__(self, sizes: RingLayout) -> None:
        self.sizes = sizes
        self.rows_written = 0
        self.own: dict[tuple[int, int], float] = {}
        self.largest = np.float32(1)

    def insert_priorities(self, rows: int) -> None:
        """Insert new rows and drop old ones."""
        for row in range(self.rows_written, self.rows_written + rows):
            for lane in range(self.sizes.num_envs):
                self.own[row, lane] = float(self.largest)
        self.rows_written += rows
        self.own = {
            at: p for at, p in self.own.items() if at[0] >= self.rows_written - self.sizes.rows
        }

    def set_priorities(self, row: np.ndarray, lane: np.ndarray, error: np.ndarray) -> None:
        """Set the priorities of sampled rows to those of their errors."""
        value = (error + np.float32(EPSILON)) ** np.float32(ALPHA)
        for r, n, p in zip(row.tolist(), lane.tolist(), value.tolist(), strict=True):
            self.own[r, n] = p
        self.largest = max(self.largest, value.max())

    def leaves(self) -> np.ndarray:
        """Return the priorities in the order of the ring's positions."""
        length, num_envs = self.sizes.length, self.sizes.num_envs
        out = np.zeros(length * num_envs, np.float32)
        for (row, lane), priority in self.own.items():
            out[row % length * num_envs + lane] = priority
        return out


@functools.cache
def arriving(sizes: RingLayout, rows: int) -> Any:
    return jax.jit(
        lambda priorities, rows_written: insert_priorities(sizes, priorities, rows_written, rows)
    )


@functools.cache
def giving(sizes: RingLayout) -> Any:
    run = jax.jit(functools.partial(set_priorities, sizes))
    return lambda *given: run(*given, np.float32(ALPHA))


def assert_sums(sizes: RingLayout, priorities: Priorities) -> None:
    """Check that every entry of the tree is exactly the float32 sum of its two children."""
    tree = np.asarray(priorities.tree)
    assert tree.dtype == np.float32
    np.testing.assert_array_equal(tree[1 : len(tree) // 2], tree[2::2] + tree[3::2])
    again = restored(sizes, saved(sizes, priorities), 0, 0)
    np.testing.assert_array_equal(again.tree[1:], tree[1:])
    assert again.largest == priorities.largest


TREES = [layout(1, 5), layout(3, 11)]
"""Rings of 8 and 42 positions: a power of two, and not a power of two."""


@pytest.mark.parametrize(
    "sizes",
    [pytest.param(TREES[0], id="8", marks=pytest.mark.slow), pytest.param(TREES[1], id="42")],
)
@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2**32 - 1)), min_size=1, max_size=25))
def test_the_tree_holds_exactly_the_priorities(
    sizes: RingLayout, operations: list[tuple[bool, int]]
) -> None:
    """That holds after any sequence of new rows and errors, also if a row is drawn twice."""
    naive, priorities = Naive(sizes), empty_priorities(sizes)
    for adds, seed in [(True, 0), *operations]:
        rng = np.random.default_rng(seed)
        if adds:
            rows = int(rng.choice([1, 4]))
            priorities = arriving(sizes, rows)(priorities, np.int32(naive.rows_written))
            naive.insert_priorities(rows)
        else:
            first, count = sizes.window(naive.rows_written)
            row = (first + rng.integers(0, count, BATCH)).astype(np.int32)
            lane = rng.integers(0, sizes.num_envs, BATCH).astype(np.int32)
            scale = rng.choice([0.0, 1e-3, 1.0, 1e5], size=sizes.length * sizes.num_envs)
            error = (scale[row % sizes.length * sizes.num_envs + lane] + lane).astype(np.float32)
            priorities = giving(sizes)(priorities, row, lane, error)
            naive.set_priorities(row, lane, error)
        assert_sums(sizes, priorities)
        own = leaves(sizes, priorities)
        np.testing.assert_allclose(own, naive.leaves(), rtol=1e-6)
        np.testing.assert_array_equal(own > 0, naive.leaves() > 0)
        assert priorities.largest == pytest.approx(naive.largest, rel=1e-6)
        assert not np.asarray(priorities.tree)[leaf_count(sizes) + len(own) :].any()
        found = drawn(sizes, naive.rows_written, 8, priorities)
        pairs = np.stack([found.row.reshape(-1), found.env.reshape(-1)], -1)
        assert set(map(tuple, pairs.tolist())) <= naive.own.keys()  # all can be sampled


def given_priorities(sizes: RingLayout, rows_written: int, errors: np.ndarray) -> Priorities:
    """Return the priorities of rows 0 .. head - 1, of which those that can be sampled have
    `errors` ``[rows, num_envs]``."""
    priorities = empty_priorities(sizes)
    for row in range(rows_written):
        priorities = arriving(sizes, 1)(priorities, np.int32(row))
    first, count = sizes.window(rows_written)
    row, lane = np.meshgrid(range(first, rows_written), range(sizes.num_envs), indexing="ij")
    assert errors.shape == row.shape == (count, sizes.num_envs)
    # Always the same number, so that one program serves; repeated rows have the same error.
    row, lane, errors = (np.resize(x, sizes.rows * sizes.num_envs) for x in (row, lane, errors))
    return giving(sizes)(
        priorities, row.astype(np.int32), lane.astype(np.int32), errors.astype(np.float32)
    )


@pytest.mark.parametrize("rows_written", [6, 11, 41])
def test_rows_are_drawn_as_often_as_their_priorities_say(rows_written: int) -> None:
    sizes = TREES[1]
    first, count = sizes.window(rows_written)
    errors = np.random.default_rng(rows_written).exponential(size=(count, 3)) + 0.05
    found = drawn(sizes, rows_written, 6000, given_priorities(sizes, rows_written, errors))
    chances = errors.reshape(-1) ** ALPHA
    cell = ((found.row - first) * 3 + found.env).reshape(-1)
    counts = np.bincount(cell, minlength=count * 3)
    assert_frequencies(counts, chances / chances.sum(), stratified=True)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("rows_written", [5, 30])
def test_weights_are_those_of_the_paper(beta: float, rows_written: int) -> None:
    """P(i) = p_i^alpha / sum; w_i = (1 / (M P(i)))^beta, divided by the batch's largest weight."""
    sizes = TREES[1]
    first, count = sizes.window(rows_written)
    errors = np.random.default_rng(1).exponential(size=(count, 3)) * 3
    found = drawn(sizes, rows_written, 50, given_priorities(sizes, rows_written, errors), beta)
    p = (errors + EPSILON) ** ALPHA
    chance = p / p.sum()
    weight = (1 / (count * 3 * chance[found.row - first, found.env])) ** beta
    weight /= weight.max(-1, keepdims=True)
    np.testing.assert_allclose(found.weight, weight, rtol=2e-5)
    np.testing.assert_allclose(found.weight.max(-1), 1, rtol=1e-6)


def test_a_batch_takes_one_from_each_equal_part_of_the_sum() -> None:
    sizes = TREES[1]
    errors = np.random.default_rng(3).exponential(size=(11, 3))
    priorities = given_priorities(sizes, 25, errors)
    own = leaves(sizes, priorities).astype(np.float64)
    found = drawn(sizes, 25, 500, priorities)
    place = found.row % sizes.length * 3 + found.env
    upper = np.cumsum(own)[place] / own.sum() * BATCH
    lower = upper - own[place] / own.sum() * BATCH
    part = np.arange(BATCH)
    assert (lower <= part + 1 + 1e-4).all()
    assert (upper >= part - 1e-4).all()


def test_one_overwhelming_priority_is_drawn_and_the_smallest_are_not_lost() -> None:
    """With priorities from 1e-4 to 1e4, rounding never leads to a row outside the window."""
    sizes = TREES[1]
    rng = np.random.default_rng(0)
    errors = 10.0 ** rng.uniform(-6.5, 6.5, (11, 3))
    priorities = given_priorities(sizes, 100, errors)
    found = drawn(sizes, 100, 3000, priorities)
    assert found.row.min() >= 89
    assert found.row.max() <= 99
    r, n = np.unravel_index(errors.argmax(), errors.shape)
    share = ((found.row == 89 + r) & (found.env == n)).mean()
    p = (errors + EPSILON) ** ALPHA
    assert share == pytest.approx(p.max() / p.sum(), rel=0.02)
    assert np.isfinite(found.weight).all()
    assert (found.weight > 0).all()


def test_new_rows_get_the_largest_priority_ever_given() -> None:
    sizes = layout(1, 4)
    priorities = arriving(sizes, 1)(empty_priorities(sizes), np.int32(0))
    assert leaves(sizes, priorities).tolist() == [1, 0, 0, 0, 0, 0, 0]
    row = np.zeros(1, np.int32)
    priorities = giving(sizes)(priorities, row, row, np.float32([32.0]))
    largest = float(np.float32(32) ** np.float32(ALPHA))
    priorities = giving(sizes)(priorities, row, row, np.float32([0.5]))
    for rows_written in range(1, 6):  # the row that was the largest has long gone
        priorities = arriving(sizes, 1)(priorities, np.int32(rows_written))
        assert leaves(sizes, priorities)[rows_written] == pytest.approx(largest, rel=1e-6)
    assert np.count_nonzero(leaves(sizes, priorities)) == 4


def test_a_row_that_was_drawn_twice_gets_one_of_its_errors() -> None:
    """An algorithm's noise can make these errors differ. The tree's sums are exact nevertheless."""
    sizes = layout(1, 4)
    priorities = arriving(sizes, 4)(empty_priorities(sizes), np.int32(0))
    row = np.int32([2, 2, 1, 2])
    errors = np.float32([1, 2, 3, 4])
    priorities = giving(sizes)(priorities, row, np.zeros(4, np.int32), errors)
    own = leaves(sizes, priorities)
    values = (errors + np.float32(EPSILON)) ** np.float32(ALPHA)
    assert np.isclose(own[2], values[[0, 1, 3]], rtol=1e-6).any()
    assert own[1] == pytest.approx(values[2], rel=1e-6)
    assert own[[0, 3]].tolist() == [1, 1]
    assert_sums(sizes, priorities)
