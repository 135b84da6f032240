"""Actions of several components: their specs, their distributions, and training with them."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from scipy.special import softmax

from flatout import DQN, PPO, SAC, UsageError
from flatout.actions import CompositeSpec, MultiDiscreteSpec
from flatout.algorithms.common.distributions import Product, distribution
from flatout.config.actions import unsuited_range
from flatout.config.settings import resolve
from flatout.envs.spaces import action_spec
from flatout.run.opening import open_environment
from flatout.types import ContinuousSpec, UserCode
from tests import tiny
from tests.dict_envs import ACTIONS, Acted
from tests.hostile_envs import Acts

COMPOSITE = ("parts", "pair")


@pytest.mark.parametrize("kind", COMPOSITE)
def test_parts_are_actions_of_the_environment_and_back(kind: str) -> None:
    spec, space = action_spec(ACTIONS[kind], "x"), ACTIONS[kind]
    assert isinstance(spec, CompositeSpec)
    choices = spec.random(np.random.default_rng(0), 32)
    assert (choices.shape, choices.dtype) == ((32, *spec.choice_shape), spec.choice_dtype)
    for choice, action in zip(choices, spec.separate(choices), strict=True):
        assert space.contains(action)
        np.testing.assert_allclose(spec.from_env(action), choice)
    assert space.contains(spec.first(spec.idle()[None]))
    assert action_spec(spec.to_gym(), "x") == spec


def test_a_product_of_choices_is_a_distribution() -> None:
    counts = (3, 2, 4)
    dist = distribution(MultiDiscreteSpec(counts, (0, 0, 0), (3,)))
    assert (dist.parameters, dist.deviations) == (9, 0)
    x = np.random.default_rng(0).normal(size=(1, 9)).astype(np.float32)
    every = np.array(list(itertools.product(*map(range, counts))), np.int32)
    none = np.zeros(0, np.float32)

    @jax.jit
    def found(x: jax.Array) -> Any:
        log_p = dist.log_prob(jnp.repeat(x, len(every), 0), none, every)
        return log_p, dist.entropy(x, none), dist.sample(x, none, None)

    log_p, entropy, sample = jax.device_get(found(x))
    assert np.exp(log_p).sum() == pytest.approx(1, abs=1e-5)
    assert entropy[0] == pytest.approx(-(np.exp(log_p) * log_p).sum(), abs=1e-5)
    assert sample[0].tolist() == every[np.argmax(log_p)].tolist()


def test_samples_have_the_probabilities_of_the_logits() -> None:
    spec = action_spec(ACTIONS["parts"], "x")
    dist = distribution(spec)
    assert isinstance(dist, Product)
    x = np.random.default_rng(1).normal(size=dist.parameters).astype(np.float32)
    extra = np.float32([0.3, -0.2])

    def draw(env: jax.Array) -> jax.Array:
        noise = dist.noise(jax.random.key(0, impl="threefry2x32"), env, jnp.int32(5))
        return dist.sample(x[None], extra, noise[None])[0]

    drawn = np.asarray(jax.jit(jax.vmap(draw))(np.arange(20_000, dtype=np.int32)))
    # In the order of the keys: deep (three switches and a choice), move, tool.
    tool = np.bincount(drawn[:, -1].astype(int), minlength=3) / len(drawn)
    np.testing.assert_allclose(tool, softmax(x[-3:]), atol=0.02)
    np.testing.assert_allclose(drawn[:, 4:6].mean(0), x[8:10], atol=0.03)
    np.testing.assert_allclose(drawn[:, 4:6].std(0), np.exp([0.3, -0.2]), atol=0.03)
    switch = drawn[:, 0].mean()
    assert switch == pytest.approx(softmax(x[:2])[1], abs=0.02)
    # Parts are independent.
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, -1])[0, 1]) < 0.03
    assert abs(np.corrcoef(drawn[:, 4], drawn[:, 5])[0, 1]) < 0.03


def test_parts_beside_each_other_have_the_sum_of_their_log_densities() -> None:
    spec = action_spec(spaces.Tuple((ACTIONS["half-bounded"], spaces.Discrete(3))), "x")
    assert isinstance(spec, CompositeSpec)
    both, (box, choice) = distribution(spec), map(distribution, spec.parts)
    x, extra = np.float32([[0.5, -1.0, 0.1, 0.2, 0.3]]), np.float32([0.1, 0.4])
    taken = np.float32([[0.7, 0.2, 2.0]])

    @jax.jit
    def found(taken: jax.Array) -> Any:
        alone = box.log_prob(x[:, :2], extra, taken[:, :2])
        alone += choice.log_prob(x[:, 2:], extra[:0], jnp.int32([2]))
        return both.log_prob(x, extra, taken), alone, both.to_environment(taken)

    together, alone, of_environment = found(taken)
    np.testing.assert_allclose(together, alone, rtol=1e-6)
    # The environment's part of the box is clipped, the choice is not.
    assert np.asarray(of_environment).tolist() == [[0.5, pytest.approx(0.2), 2.0]]


def agent(kind: str, **more: Any) -> PPO:
    return PPO(functools.partial(Acted, kind), **tiny.python("ppo", seed=2, **more))


@pytest.mark.parametrize(
    "kind",
    ["parts", *(pytest.param(n, marks=pytest.mark.slow) for n in ("choices", "half-bounded"))],
)
def test_ppo_trains_predicts_and_is_exported(kind: str, tmp_path: Path) -> None:
    trained = agent(kind).learn(128)
    obs = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)
    assert ACTIONS[kind].contains(trained.predict(obs[0], deterministic=True)[0])
    assert ACTIONS[kind].contains(trained.predict(obs[0], deterministic=False)[0])
    found = importlib.util.spec_from_file_location("policy", trained.export(tmp_path / "p.py"))
    assert found is not None
    assert found.loader is not None
    policy = importlib.util.module_from_spec(found)
    found.loader.exec_module(policy)
    assert ACTIONS[kind].contains(policy.predict(obs[0], deterministic=True)[0])
    one, other = (jax.tree.leaves(p.predict(obs, deterministic=True)[0]) for p in (trained, policy))
    for left, right in zip(one, other, strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_allclose(left, right, atol=1e-5)


@pytest.mark.bits
@pytest.mark.slow
def test_workers_and_resumed_runs_take_the_same_actions() -> None:
    """Choices are among the parts."""
    here = "sampler=inline groups=2"
    inline = agent("parts", envs=4, placement=here).learn(256)
    others = [
        agent("parts", envs=4, placement="sampler=processes workers=2x2 groups=2").learn(256),
        agent("parts", envs=4, placement=here).learn(128).learn(128),
    ]
    for other in others:
        assert other._acting.arrays is not None
        assert inline._acting.arrays is not None
        for name, array in inline._acting.arrays.items():
            if ".params" in name:
                np.testing.assert_array_equal(array, other._acting.arrays[name])


@pytest.mark.parametrize("kind", ["choices", "switches", "parts"])
def test_other_algorithms_name_those_that_take_such_actions(kind: str) -> None:
    for refusing in (DQN, SAC):
        with pytest.raises(UsageError, match="use ppo or a2c for a"):
            refusing(functools.partial(Acted, kind)).learn(64)
    with pytest.raises(UsageError, match="use ppo or a2c, or change its action_space"):
        SAC(functools.partial(Acted, "half-bounded")).learn(64)


def test_an_asymmetric_box_is_reached_to_both_ends() -> None:
    from flatout.algorithms.common.continuous import Bounds

    bounds = Bounds(ContinuousSpec((2,), (-1.0, 0.25), (3.0, 0.5)), "sac")
    ends = jnp.asarray([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0]])
    expected = [[-1, 0.25], [3, 0.5], [1, 0.375]]
    assert bounds.to_environment(ends).tolist() == expected
    np.testing.assert_allclose(bounds.from_environment(jnp.asarray(expected)), ends)
    assert math.isclose(float(bounds.half[0]), 2.0)


RANGES = [
    ((-1.0, 1.0), ""), ((-2.0, 2.0), ""), ((0.0, 1.0), ""), ((-0.4, 0.4), ""), ((-5.0, 5.0), ""),
    ((-math.inf, math.inf), ""), ((0.0, math.inf), ""), ((0.0, 0.0), ""),
    ((0.0, 255.0), "most of the range is never tried; .*RescaleAction"),
    ((-1e-3, 1e-3), "100% of them are clipped to a bound; .*RescaleAction"),
    ((3.0, 4.0), "100% of them are clipped"), ((50.0, math.inf), "clipped .*TransformAction"),
]  # fmt: skip


@pytest.mark.parametrize(("bounds", "words"), RANGES)
def test_a_range_that_the_first_actions_do_not_suit_is_explained(
    bounds: tuple[float, float], words: str
) -> None:
    low, high = bounds
    said = unsuited_range(ContinuousSpec((2,), (-1.0, low), (1.0, high)))
    assert re.search(words, said)
    assert bool(said) == bool(words)


def test_a_wider_first_deviation_suits_a_wider_range() -> None:
    assert unsuited_range(ContinuousSpec((1,), (-40.0,), (40.0,)), 10.0) == ""


def test_a_box_of_integers_is_not_to_be_rescaled_by_a_wrapper_that_refuses_it() -> None:
    pixels = ContinuousSpec((1,), (0.0,), (255.0,), "uint8")
    assert "gymnasium.wrappers.TransformAction" in unsuited_range(pixels)


@pytest.mark.parametrize(("algorithm", "count"), [("ppo", 1), ("sac", 0)])
def test_training_notes_actions_far_from_one(algorithm: str, count: int) -> None:
    def make() -> Any:
        return Acts("Dict", {"power": spaces.Box(0.0, 255.0), "turn": spaces.Box(-1.0, 1.0)})

    if algorithm == "sac":
        make = functools.partial(Acts, "Box", 0.0, 255.0)
    config = resolve(algorithm, {"env": "far(...)"})
    notes = open_environment(config, UserCode(make)).notes
    assert len(notes) == count
    assert all(note.startswith("far(...): actions range from 0 to 255, but") for note in notes)
