"""TQC's target, loss and values against NumPy; SAC's tests cover what the two share."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from flatout import UsageError
from flatout.algorithms.base import BuildSpec
from flatout.algorithms.sac import SACParams
from flatout.algorithms.tqc import (
    critic_loss,
    mean_value,
    quantile_huber,
    smallest_atoms,
    tqc,
)
from flatout.config.hyper import TQCConfig
from flatout.config.schema import NetworkConfig
from flatout.config.settings import resolve
from flatout.randomness import raw_key, wrap_key
from flatout.types import Batch
from tests.algorithms.test_continuous import ACTIONS, KEY, OBS, sample

FIRST = np.float32([[5, -1, 2], [0, 0, 1]])
SECOND = np.float32([[3, 9, -4], [7, -8, 2]])
"""The atoms of two critics for two transitions."""


def test_the_target_keeps_the_smallest_atoms_of_all_critics_together() -> None:
    """In the first transition two of the second critic's atoms remain, in the second one."""
    four, all_six = jax.jit(lambda: [smallest_atoms((FIRST, SECOND), count) for count in (4, 6)])()
    np.testing.assert_array_equal(four, [[-4, -1, 2, 3], [-8, 0, 0, 1]])
    np.testing.assert_array_equal(all_six[0], [-4, -1, 2, 3, 5, 9])


def by_definition(estimates: np.ndarray, target: np.ndarray) -> float:
    """Compute the loss of one transition as equations (3) and (12) of the paper say."""
    count, total = len(estimates), 0.0
    for m, estimate in enumerate(estimates):
        fraction = (2 * m + 1) / (2 * count)
        for atom in target:
            error = atom - estimate
            huber = error**2 / 2 if abs(error) <= 1 else abs(error) - 0.5
            total += abs(fraction - (error < 0)) * huber
    return total / (count * len(target))


def test_the_loss_is_the_quantile_huber_loss() -> None:
    rng = np.random.default_rng(0)
    estimates, target = 2 * rng.normal(size=(5, 4)), 2 * rng.normal(size=(5, 7))
    target[0, :4] = estimates[0]  # errors of 0
    wanted = [by_definition(*pair) for pair in zip(estimates, target, strict=True)]
    found = jax.jit(quantile_huber)(np.float32(estimates), np.float32(target))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_critics_learn_the_truncated_soft_target() -> None:
    """Two transitions, the second of which is terminal, with unequal weights."""
    estimates = (np.float32([[0, 1, 2], [1, 1, 1]]), np.float32([[2, 2, 3], [0, -1, -2]]))
    after = (FIRST, SECOND)
    nets: Any = SimpleNamespace(
        outputs=lambda actor, obs: np.zeros((2, 2), np.float32),  # mean 0, deviation 1
        atoms=lambda critics, obs, action: after if critics == "targets" else estimates,
    )
    params = SACParams("actor", "critics", "targets", np.float32(math.log(0.5)))
    none = np.zeros((2, 1), np.float32)
    batch = Batch(
        none, none, np.float32([1, -1]), none, np.float32([0.9, 0]), np.float32([1, 0.25])
    )

    @jax.jit
    def learned(batch: Batch) -> Any:
        loss = critic_loss(4, nets, "critics", (batch, none), params, None)
        return loss, mean_value(nets, "critics", none, none)

    (loss, (metrics, errors)), value = learned(batch)
    entropy = 0.5 * math.log(2 * math.pi)  # minus the log density of action 0
    target = [1 + 0.9 * (np.array([-4, -1, 2, 3]) + 0.5 * entropy), np.full(4, -1.0)]
    each = [[by_definition(one[i], target[i]) for i in range(2)] for one in estimates]
    assert float(loss) == pytest.approx(sum((a + 0.25 * b) / 2 for a, b in each), rel=1e-5)
    means = np.stack(estimates).mean(-1)
    wanted = np.abs(means - np.mean(target, -1)).mean(0)
    np.testing.assert_allclose(errors, wanted, rtol=1e-5)
    assert float(metrics["td_error"]) == pytest.approx(wanted.mean(), rel=1e-5)
    assert float(metrics["q_mean"]) == pytest.approx(1.0)
    np.testing.assert_allclose(value, means.mean(0), rtol=1e-6)


def test_the_critics_have_the_configured_sizes() -> None:
    config = TQCConfig(n_critics=3, n_quantiles=7)
    algorithm = tqc(config, BuildSpec(NetworkConfig(hidden=(5,)), OBS, ACTIONS, 2, 1000))
    state = algorithm.init(raw_key(0, 0), algorithm.hp)
    assert [one.head.weight.shape for one in state.params.critics] == [(7, 5)] * 3
    shapes = functools.partial(jax.tree.map, lambda leaf: (leaf.shape, leaf.dtype))
    after, metrics, errors = jax.eval_shape(
        algorithm.update, state, sample(0), wrap_key(KEY), algorithm.hp
    )
    assert shapes(after) == shapes(algorithm.shapes)
    assert metrics.keys() == {*algorithm.metrics}
    assert errors.shape == sample(0).rewards.shape


@pytest.mark.parametrize("dropped", [25, 26])
def test_dropping_every_atom_is_refused(dropped: int) -> None:
    with pytest.raises(UsageError, match=f"per_net = {dropped} is impossible: below n_quantiles"):
        resolve("tqc", {"env": "Pendulum-v1", "top_quantiles_to_drop_per_net": dropped})
