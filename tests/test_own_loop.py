"""Training loops that users write learn what a run with the same settings learns."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flatout
from flatout.errors import UsageError
from flatout.storage.checkpoint import PREFIX, named_leaves
from tests import tiny
from tests.conftest import furthest
from tests.engine.test_fused import parts, settings

EXAMPLE = Path(__file__).parent.parent / "examples" / "10_own_loop.py"


def own(algorithm: str, **more: Any) -> Any:
    return flatout.engine.make(algorithm, **settings(algorithm, **more))


def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the example as a module, with the tiny settings."""
    spec = importlib.util.spec_from_file_location("own_loop_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module, made = importlib.util.module_from_spec(spec), own("ppo")
    with monkeypatch.context() as patch:
        patch.setattr(flatout.engine, "make", lambda *_, **__: made, raising=False)
        spec.loader.exec_module(module)
    return module


def compare(states: Any, metrics: Any, algorithm: str, seed: int, iterations: int) -> None:
    """Compare a state and metrics with those of a run."""
    mine = named_leaves(jax.device_get(states.learned), PREFIX)
    with parts(algorithm, seed=seed) as made:
        rows = list(made.schedule.advance(iterations))
        assert furthest(mine, made.schedule.learned()) < 1e-4
    assert metrics["episodes"].tolist() == [len(row.episodes.env) for row in rows]
    assert metrics["updates"].tolist() == [row.updates for row in rows]
    assert metrics["healthy"].all()
    for found, row in zip(metrics["return_mean"], rows, strict=True):
        returns = np.asarray(row.episodes.episode_return)
        np.testing.assert_allclose(found, returns.mean() if len(returns) else np.nan, rtol=1e-5)
    for name in metrics.keys() & rows[-1].values.keys():
        value = rows[-1].values[name]
        np.testing.assert_allclose(metrics[name][-1], value, rtol=1e-3, atol=1e-4, err_msg=name)


def test_the_example_learns_for_each_seed_what_a_run_learns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, seeds, iterations = example(monkeypatch), (0, 7), 3
    assert module.shaped is not None
    monkeypatch.setattr(module, "shaped", lambda trajectory: trajectory)
    monkeypatch.setattr(module, "ITERATIONS", iterations)
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    states, metrics = jax.jit(jax.vmap(module.train))(keys)
    metrics = jax.device_get(metrics)
    for member, seed in enumerate(seeds):
        state, mine = (
            jax.tree.map(lambda leaf: leaf[member], tree)  # noqa: B023
            for tree in (states, metrics)
        )
        compare(state, mine, "ppo", seed, iterations)
    before = shapes(jax.tree.map(lambda leaf: leaf[0], states))
    after, repeated = jax.eval_shape(lambda state: module.loop(state, 5), before)
    assert shapes(after) == before
    assert {leaf.shape for leaf in repeated.values()} == {(5,)}


def shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "sac", "genetic"])
def test_loops_of_all_kinds_of_algorithms_learn_what_a_run_learns(algorithm: str) -> None:
    init, _, _, loop = own(algorithm)
    state, metrics = jax.jit(lambda key: loop(init(key), 8))(jax.random.key(3))
    compare(state, jax.device_get(metrics), algorithm, 3, 8)


def test_hyper_parameters_are_part_of_the_state() -> None:
    init, collect, *_ = own("ppo")
    key = jax.random.key(0)
    hp = init(key).hp
    rates = jnp.asarray([[1e-3, 0.0], [1e-4, 1e-4]])
    hps = jax.vmap(lambda rate: hp._replace(learning_rate=rate))(rates)
    states = jax.vmap(init, (None, 0))(key, hps)
    np.testing.assert_array_equal(states.hp.learning_rate, rates)
    for leaf in jax.tree.leaves(states.learned):
        np.testing.assert_array_equal(leaf[0], leaf[1])
    wrong = init(key)._replace(hp=hp._replace(learning_rate=1e-3))
    with pytest.raises(UsageError, match=r"hp\.learning_rate has the shape \(\), .*needs \(2,\)"):
        collect(wrong)
    with pytest.raises(UsageError, match="give a hyper-parameter that is None there a value"):
        init(key, hp._replace(clip_range_vf=0.2))


@pytest.mark.parametrize("key", [7, np.zeros((3, 2), np.uint32)])
def test_init_takes_one_key(key: Any) -> None:
    with pytest.raises(UsageError, match=r"init takes one random key.*jax\.vmap\(init\)"):
        own("ppo")[0](key)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"env": "tests.tiny_envs:Bandit"}, "device environment"),
        ({"env_backend": "host"}, r"works in one program on one device, not with .*env_backend"),
        ({"placement": "act=cpu sampler=device"}, r"leave out env_backend, placement"),
        ({"shards": 2}, "shards=2: leave out"),
        ({"n_stepz": 2}, "Did you mean 'n_steps'"),
    ],
)
def test_settings_that_have_no_pure_functions_are_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        flatout.engine.make("ppo", **tiny.settings("ppo", **more))
