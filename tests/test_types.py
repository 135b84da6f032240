"""Action spaces: the form that algorithms choose, and the form that environments take."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.actions import MultiDiscreteSpec, multi_binary
from flatout.types import ActionSpec, ContinuousSpec, DiscreteSpec

INFINITE = (-math.inf, math.inf)
SPACES: list[ActionSpec] = [
    DiscreteSpec(2), DiscreteSpec(5, start=-3), ContinuousSpec((), (0.5,), (2.0,)),
    ContinuousSpec((2, 2), (-1.0, 0.0, -2.0, -3.0), (1.0, 3.0, -1.0, 5.0)),
    ContinuousSpec((2,), (0.0, -4.0), (9.0, 4.0), "int32"),
    MultiDiscreteSpec((3, 2, 4), (1, 0, -2), (3,)), MultiDiscreteSpec((3, 2), (0, 0), (1, 2)),
    multi_binary((2, 2)),
]  # fmt: skip


@pytest.mark.parametrize("spec", SPACES, ids=str)
def test_any_choice_is_an_action_of_the_environment_and_back(spec: ActionSpec) -> None:
    space = spec.to_gym()
    choices = spec.random(np.random.default_rng(0), 64)
    assert choices.shape == (64, *spec.choice_shape)
    assert choices.dtype == spec.choice_dtype
    actions = spec.to_env(choices)
    assert len(spec.separate(choices)) == 64
    for choice, action, one in zip(choices, actions, spec.separate(choices), strict=True):
        np.testing.assert_array_equal(one, action)
        assert space.contains(np.asarray(one, space.dtype).reshape(space.shape))
        if np.dtype(getattr(spec, "dtype", "int32")).kind == "f" or spec.choice_dtype == "int32":
            np.testing.assert_array_equal(spec.from_env(one), choice)
    assert spec.to_env(choices[:0]).shape == (0, *actions.shape[1:])


@pytest.mark.parametrize("spec", SPACES, ids=str)
def test_an_idle_action_is_valid(spec: ActionSpec) -> None:
    idle = spec.idle()
    assert (idle.shape, idle.dtype) == (spec.choice_shape, spec.choice_dtype)
    (action,) = spec.separate(idle[None])
    assert spec.to_gym().contains(np.asarray(action, spec.to_gym().dtype))


@settings(deadline=None)
@given(st.integers(1, 1000), st.floats(0, 1, exclude_max=True, width=32))
def test_a_uniform_draw_never_becomes_an_action_beyond_the_last(n: int, draw: float) -> None:
    draws = np.float32([[draw]])
    (chosen,) = DiscreteSpec(n).from_uniform(np, draws)
    assert 0 <= chosen < n
    assert chosen == DiscreteSpec(n).from_uniform(jnp, draws)[0]


def test_missing_bounds_are_minus_one_and_one_for_random_actions() -> None:
    low, high = INFINITE
    spec = ContinuousSpec((3,), (low, low, 0.5), (high, 0.0, high))
    least, most = spec.finite_bounds()
    np.testing.assert_array_equal(least, np.float32([-1, -1, 0.5]))
    np.testing.assert_array_equal(most, np.float32([1, 0, 1]))


BOUND = st.floats(-1e9, 1e9, width=32)


@settings(deadline=None)
@given(BOUND, BOUND, st.booleans(), st.booleans(), st.floats(0, 1, exclude_max=True, width=32))
def test_random_actions_are_within_their_box(
    one: float, other: float, no_low: bool, no_high: bool, draw: float
) -> None:
    low, high = min(one, other), max(one, other)
    spec = ContinuousSpec((1,), (-np.inf if no_low else low,), (np.inf if no_high else high,))
    (action,) = spec.from_uniform(np, np.float32([[draw]]))
    assert spec.low[0] <= action[0] <= spec.high[0]
    least, most = spec.finite_bounds()
    assert least <= most
    assert least < most or low == high


@pytest.mark.parametrize(("low", "high"), [(0.7, 1.0), (1000.1, 1000.2), (-1e308, 1e308)])
def test_random_and_idle_actions_are_within_bounds_that_float32_cannot_hold(
    low: float, high: float
) -> None:
    spec = ContinuousSpec((1,), (low,), (high,), "float64")
    draws = np.linspace(0, 1, 4096, endpoint=False, dtype=np.float32)[:, None]
    for action in spec.to_env(np.concatenate([spec.from_uniform(np, draws), spec.idle()[None]])):
        assert low <= action[0] <= high
