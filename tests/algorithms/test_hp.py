"""Hyper-parameters are data: each real-valued setting is a leaf, and new values compile nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import jax
import numpy as np
import pytest

from flatout.algorithms.base import Algorithm
from flatout.algorithms.hp import hyper_parameters
from flatout.config.hyper import HYPER
from flatout.randomness import wrap_key
from tests.algorithms import test_continuous, test_dqn, test_ppo
from tests.algorithms.test_ppo import KEY


@pytest.fixture(scope="module", autouse=True)
def on_cpu() -> Iterator[None]:
    """Run these programs on a CPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def may_be_real(hint: Any) -> bool:
    return hint is float or any(map(may_be_real, get_args(hint)))


@pytest.mark.parametrize("name", HYPER)
def test_every_real_valued_setting_is_a_leaf(name: str) -> None:
    config = HYPER[name]()
    hints = get_type_hints(HYPER[name])
    real = [spec.name for spec in fields(config) if may_be_real(hints[spec.name])]
    found = hyper_parameters(config, 5000)
    assert real
    assert list(found._fields) == [*real, "total_steps"]
    assert found.total_steps == 5000
    for setting, leaf in zip(real, found, strict=False):
        value = getattr(config, setting)
        if value is None:
            assert leaf is None
            continue
        assert isinstance(leaf, np.ndarray)
        assert leaf.dtype == np.float32
        if setting == "ent_coef" and name in ("sac", "tqc"):
            assert leaf == 1.0  # where the learned weight starts
        elif str in get_args(hints[setting]):  # a schedule
            assert leaf.shape == (2,)
        else:
            assert leaf == np.float32(value)


def test_leaves_hold_a_schedules_ends_and_an_entropy_weights_start() -> None:
    found = hyper_parameters(HYPER["sac"](learning_rate="lin_0.5_0.25", ent_coef="auto_0.125"), 1)
    assert found.learning_rate.tolist() == [0.5, 0.25]
    assert found.ent_coef == 0.125
    assert hyper_parameters(HYPER["sac"](ent_coef=0.75), 1).ent_coef == 0.75


def test_two_configurations_have_the_same_structure() -> None:
    one, other = (hyper_parameters(HYPER["td3"](tau=tau), 1) for tau in (0.1, 0.2))
    assert jax.tree.structure(one) == jax.tree.structure(other)


def built(name: str, **hyper: Any) -> tuple[Algorithm, Any, Any]:
    """Return a small algorithm, its state half-way through a run, and the data of one update."""
    if name == "ppo":
        algorithm = test_ppo.agent(n_epochs=2, **hyper)
        trajectory = test_ppo.rollout(test_ppo.agent(), off_policy=0.3)
        return algorithm, test_ppo.start(algorithm), trajectory
    if name == "dqn":
        algorithm = test_dqn.agent(**hyper)
        return algorithm, test_dqn.start(algorithm), test_dqn.sample(0)
    algorithm = test_continuous.agent(name, **hyper)
    return algorithm, test_continuous.start(algorithm), test_continuous.sample(0)


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("name", "leaf", "value"),
    [
        slow("ppo", "gae_lambda", 0.5),
        ("ppo", "clip_range", "lin_0.1_0.01"),
        ("ppo", "total_steps", 5),  # a run's length, too
        ("dqn", "learning_rate", 0.005),
        ("dqn", "max_grad_norm", 0.01),
        slow("sac", "critic_learning_rate", 0.03),
        ("sac", "tau", 0.5),
        slow("td3", "learning_rate", 0.005),
        ("td3", "target_policy_noise", 0.7),
    ],
)
def test_another_value_needs_no_new_program(name: str, leaf: str, value: float | str) -> None:
    usual: dict[str, Any] = {
        "critic_learning_rate": {"critic_learning_rate": 0.02},
        "total_steps": {"learning_rate": "lin_0.01"},
    }.get(leaf, {})
    algorithm, state, data = built(name, **usual)
    other, _, _ = built(name, **usual | {leaf: value})
    assert jax.tree.structure(other.hp) == jax.tree.structure(algorithm.hp)
    changed = algorithm.hp._replace(**{leaf: getattr(other.hp, leaf)})
    jax.tree.map(np.testing.assert_array_equal, changed, other.hp)

    def update(*given: Any) -> Any:  # not `algorithm.update`, which other tests compile too
        return algorithm.update(*given)

    update, key = jax.jit(update), wrap_key(KEY)
    before, after = (update(state, data, key, hp) for hp in (algorithm.hp, changed))
    assert update._cache_size() == 1  # type: ignore[attr-defined]
    pairs = zip(jax.tree.leaves(before[0]), jax.tree.leaves(after[0]), strict=True)
    assert any(not np.array_equal(a, b) for a, b in pairs)
    wanted = jax.jit(other.update)(state, data, key, other.hp)
    jax.tree.map(np.testing.assert_array_equal, after, wanted)  # as if built with this value
