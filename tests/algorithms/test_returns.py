"""Advantages against their definition, and running statistics against NumPy's."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.algorithms.common.returns import (
    RunningMoments,
    discounted_returns,
    generalised_advantages,
    initial_moments,
    update_moments,
)
from flatout.networks.encoder import normalise

T, N = 12, 3  # one shape for all examples: one compilation
property_test = settings(deadline=None, max_examples=40)
seeds = st.integers(0, 2**32 - 1)
Discounts = namedtuple("Discounts", ("gamma", "gae_lambda"))
advantages = jax.jit(generalised_advantages)
update = jax.jit(update_moments)
discounted = jax.jit(discounted_returns)
normalised = jax.jit(normalise)


@pytest.fixture(scope="module", autouse=True)
def on_cpu() -> Iterator[None]:
    """Run on a CPU: the tolerances are those of its float32 arithmetic."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def rollout(seed: int, ends: float = 0.2) -> dict[str, np.ndarray]:
    """Return random rewards, values and ends, ``[T, N]``; no step both terminates and truncates."""
    rng = np.random.default_rng(seed)
    r, v, v_next = rng.normal(size=(3, T, N)).astype(np.float32)
    kind = rng.random((T, N))
    return {
        "r_t": r,
        "v_t": v,
        "v_tp1": v_next,
        "terminated": kind < ends / 2,
        "truncated": (kind >= ends / 2) & (kind < ends),
    }


def flatout_advantages(x: dict[str, np.ndarray], gamma: float, lam: float) -> np.ndarray:
    done = x["terminated"] | x["truncated"]
    found = advantages(x["r_t"], x["v_t"], x["v_tp1"], x["terminated"], done, Discounts(gamma, lam))
    return np.asarray(found, np.float64)


def defined_advantages(x: dict[str, np.ndarray], gamma: float, lam: float) -> np.ndarray:
    """Return A_t = sum over k of (gamma lam)^k delta_{t+k}, within the episode.

    In Schulman et al. (2016), delta_t = r_t + gamma V(s_{t+1}) - V(s_t) and V(terminal) = 0.
    """
    result = np.zeros((T, N))
    for env in range(N):
        for t in range(T):
            for k in range(T - t):
                now = t + k
                after = 0.0 if x["terminated"][now, env] else float(x["v_tp1"][now, env])
                delta = float(x["r_t"][now, env]) + gamma * after - float(x["v_t"][now, env])
                result[t, env] += (gamma * lam) ** k * delta
                if x["terminated"][now, env] or x["truncated"][now, env]:
                    break
    return result


@property_test
@given(seeds, st.floats(0, 1), st.floats(0, 1), st.sampled_from([0.0, 0.2, 0.8]))
def test_advantages_match_their_definition(
    seed: int, gamma: float, lam: float, ends: float
) -> None:
    x = rollout(seed, ends)
    np.testing.assert_allclose(
        flatout_advantages(x, gamma, lam), defined_advantages(x, gamma, lam), rtol=2e-5, atol=2e-5
    )


@property_test
@given(seeds, st.floats(0.5, 1))
def test_lambda_0_is_the_temporal_difference(seed: int, gamma: float) -> None:
    x = rollout(seed)
    after = np.where(x["terminated"], 0.0, x["v_tp1"])
    np.testing.assert_allclose(
        flatout_advantages(x, gamma, 0.0), x["r_t"] + gamma * after - x["v_t"], atol=1e-6
    )


@property_test
@given(seeds, st.floats(0.5, 1))
def test_lambda_1_is_the_bootstrapped_return_minus_the_value(seed: int, gamma: float) -> None:
    x = rollout(seed)
    x["v_tp1"][:-1] = x["v_t"][1:]  # consistent values, except after truncations
    x["v_tp1"] += np.where(x["truncated"], 5.0, 0.0).astype(np.float32)
    returns = np.zeros((T, N))
    for env in range(N):
        g = float(x["v_tp1"][-1, env])
        for t in reversed(range(T)):
            if x["terminated"][t, env]:
                g = 0.0
            elif x["truncated"][t, env]:
                g = float(x["v_tp1"][t, env])
            g = x["r_t"][t, env] + gamma * g
            returns[t, env] = g
    np.testing.assert_allclose(flatout_advantages(x, gamma, 1.0), returns - x["v_t"], atol=5e-5)


def test_truncation_bootstraps_and_termination_does_not() -> None:
    x = rollout(3, ends=0.0)
    x["truncated"][5, 1] = True
    truncated = flatout_advantages(x, 0.9, 0.8)
    x["truncated"][5, 1], x["terminated"][5, 1] = False, True
    terminated = flatout_advantages(x, 0.9, 0.8)
    change = truncated - terminated
    for t in range(6):  # the bootstrap fades backwards from the end
        wanted = 0.9 * x["v_tp1"][5, 1] * (0.9 * 0.8) ** (5 - t)
        assert change[t, 1] == pytest.approx(wanted, abs=1e-5)
    assert not change[6:].any()  # the next episode
    assert not change[:, [0, 2]].any()  # the other environments


def test_nothing_leaks_backwards_over_an_episodes_end() -> None:
    x = rollout(4, ends=0.0)
    for kind in ("terminated", "truncated"):
        one = {name: value.copy() for name, value in x.items()}
        one[kind][5, 0] = True
        before = flatout_advantages(one, 0.99, 0.95)
        one["r_t"][6:, 0] += 1000.0
        assert np.array_equal(flatout_advantages(one, 0.99, 0.95)[:6, 0], before[:6, 0])


def merged(batches: list[np.ndarray]) -> RunningMoments:
    moments = initial_moments(batches[0].shape[1:])
    for batch in batches:
        moments = update(moments, batch)
    return jax.device_get(moments)


@property_test
@given(seeds, st.sampled_from([[], [8], [4, 8], [8, 12], [4, 8, 12]]), st.sampled_from([(), (2,)]))
def test_moments_are_those_of_all_batches_in_any_split(
    seed: int, cuts: list[int], shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(rng.normal() * 3, rng.uniform(0.1, 4), (16, *shape)).astype(np.float32)
    moments = merged(np.split(x, cuts))
    np.testing.assert_allclose(moments.mean, x.mean(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(moments.var, x.var(0), rtol=1e-3, atol=1e-3)
    assert float(moments.total) == pytest.approx(16, abs=1e-3)


@property_test
@given(seeds, st.sampled_from([0.0, 1e3, 1e5]), st.booleans())
def test_the_first_values_replace_the_initial_moments(
    seed: int, centre: float, empty: bool
) -> None:
    """When the initial moments counted as 1e-4 values, a variance of 1 became 489 here."""
    rng = np.random.default_rng(seed)
    x = (centre + rng.normal(size=(16, 2))).astype(np.float32)
    moments = initial_moments((2,))
    if empty:  # first a batch of which no row counts
        moments = jax.device_get(update(moments, np.ones_like(x), np.zeros(16, np.float32)))
        assert moments.mean.tolist() == [0.0, 0.0]
        assert moments.var.tolist() == [1.0, 1.0]
    moments = update(moments, x, np.ones(16, np.float32))
    np.testing.assert_allclose(moments.var, x.astype(np.float64).var(0), rtol=0.02)
    np.testing.assert_allclose(moments.mean, x.astype(np.float64).mean(0), rtol=1e-6, atol=1e-6)


@property_test
@given(seeds, st.lists(st.booleans(), min_size=16, max_size=16))
def test_rows_of_no_weight_do_not_count(seed: int, counts: list[bool]) -> None:
    rng = np.random.default_rng(seed)
    first, x = rng.normal(2.0, 3.0, (2, 16, 2)).astype(np.float32)
    weight = np.asarray(counts, np.float32)
    garbage = np.where(weight[:, None] > 0, x, 1e3 * x).astype(np.float32)
    moments = update(merged([first]), garbage, weight)
    rows = np.concatenate([first, x[weight > 0]])
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(moments.var, rows.var(0), rtol=1e-3, atol=1e-3)
    assert float(moments.total) == pytest.approx(len(rows), abs=1e-3)


def test_the_variance_does_not_grow_with_the_number_of_batches() -> None:
    """From 2**24 on, float32 cannot count further in steps of 1."""
    values = np.random.default_rng(0).normal(size=(2**16, 1, 1)).astype(np.float32)
    start = RunningMoments(np.zeros(1, np.float32), np.ones(1, np.float32), np.float32(2**24))
    after, _ = jax.lax.scan(lambda before, x: (update_moments(before, x), None), start, values)
    np.testing.assert_allclose(after.var, 1.0, atol=1.5e-3)


def test_merging_stays_precise_at_a_large_mean() -> None:
    x = (1000 + np.random.default_rng(0).normal(size=(64, 2))).astype(np.float32)
    moments = merged(list(x.reshape(4, 16, 2)))
    direct = merged([x])
    assert moments.var == pytest.approx(direct.var, rel=1e-2)


@property_test
@given(seeds)
def test_normalised_values_have_mean_0_and_deviation_1(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal([-5, 0.5], [0.5, 20], (64, 2)).astype(np.float32)
    y = np.asarray(normalised(x, merged([x])))
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-3)
    np.testing.assert_allclose(y.std(0), 1, atol=1e-3)
    np.testing.assert_allclose(y, (x - x.mean(0)) / x.std(0), atol=1e-2)


def test_normalised_values_are_clipped_and_constants_do_no_harm() -> None:
    moments = RunningMoments(np.float32(1), np.float32(4), np.float32(10))
    x = np.float32([1.0, 3.0, -1.0, 1e6, -1e6])
    np.testing.assert_allclose(normalised(x, moments), [0, 1, -1, 10, -10], rtol=1e-6)
    constant = RunningMoments(np.float32(3), np.float32(0), np.float32(10))
    assert normalised(np.float32([3, 4, 3, 3, 3]), constant).tolist() == [0, 10, 0, 0, 0]


@property_test
@given(seeds, st.floats(0, 1))
def test_discounted_returns_sum_forwards_and_restart(seed: int, gamma: float) -> None:
    rng = np.random.default_rng(seed)
    r = rng.normal(size=(T, N)).astype(np.float32)
    done = rng.random((T, N)) < 0.3
    carried = rng.normal(size=N).astype(np.float32)
    expected = np.zeros((T, N))
    for env in range(N):
        g = float(carried[env])
        for t in range(T):
            g = gamma * g + r[t, env]
            expected[t, env] = g
            g = 0.0 if done[t, env] else g
    last, each = discounted(carried, r, done, gamma)
    np.testing.assert_allclose(each, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(last, np.where(done[-1], 0, expected[-1]), rtol=1e-5, atol=1e-5)
    # Two trajectories give the same as one if the sums are carried over.
    cut = T // 2
    middle, first = jax.device_get(discounted(carried, r[:cut], done[:cut], gamma))
    end, second = discounted(middle, r[cut:], done[cut:], gamma)
    np.testing.assert_allclose(np.concatenate([first, second]), each, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(end, last, rtol=1e-5, atol=1e-5)
