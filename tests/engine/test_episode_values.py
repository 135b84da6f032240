"""Episodes' mean action values are the same on the host and in a compiled program."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from flatout.engine.episodes import EpisodeValues
from flatout.engine.rollout import _after, _mean, _valued


def test_an_episode_in_which_the_network_never_ran_has_the_mean_of_the_one_before() -> None:
    values = EpisodeValues(2)
    nan = math.nan
    rows = np.array([[nan, 4.0], [nan, 2.0], [nan, nan], [5.0, nan], [7.0, nan]])
    means = values.collect(rows, [(0, 0), (1, 1), (2, 1), (4, 0)])
    assert math.isnan(means[0]), "it has never run"
    assert means[1:] == [3.0, 3.0, 6.0]
    values.commit()
    state = values.state()
    again = EpisodeValues(2)
    again.restore(state)
    rows = np.array([[nan, 1.0], [nan, nan]])
    for one in (values, again):
        assert one.collect(rows, [(0, 0), (0, 1), (1, 1), (1, 0)]) == [6.0, 1.0, 1.0, 6.0]


def test_host_and_program_agree() -> None:
    rng = np.random.default_rng(0)
    steps, envs = 60, 3
    rows = np.where(rng.random((steps, envs)) < 0.2, rng.random((steps, envs)), np.nan)
    done = rng.random((steps, envs)) < 0.3

    def step(values: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        q_max, over = now
        values = _valued(values, q_max, jnp.ones(envs, bool))
        return jnp.where(over[:, None], _after(values), values), _mean(values)

    given = rows.astype(np.float32), done
    means = np.asarray(jax.jit(lambda: jax.lax.scan(step, jnp.zeros((envs, 2)), given)[1])())
    ends = [(int(row), int(env)) for row, env in zip(*done.nonzero(), strict=True)]
    host = EpisodeValues(envs).collect(rows, ends)
    np.testing.assert_allclose([means[end] for end in ends], host, rtol=1e-5)
    assert np.isnan(host).sum() < len(host) / 4
