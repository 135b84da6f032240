"""Training loops that users write learn what a run with the same settings learns."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flatout
from flatout import Algorithm, BuildSpec
from flatout.errors import UsageError
from flatout.storage.checkpoint import PREFIX, named_leaves
from tests import own_algorithms, tiny
from tests.conftest import furthest
from tests.engine.test_fused import parts, settings

EXAMPLE = Path(__file__).parent.parent / "examples" / "8_own_loop.py"


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


def compare(
    states: Any, metrics: Any, algorithm: str, seed: int, iterations: int, most: float = 1e-4
) -> None:
    """Compare a state and metrics with those of a run; `most` is the largest difference."""
    mine = named_leaves(jax.device_get(states.learned), PREFIX)
    with parts(algorithm, seed=seed) as made:
        rows = list(made.schedule.advance(iterations))
        assert furthest(mine, made.schedule.learned()) <= most
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
        mine = {name: values[member] for name, values in metrics.items()}
        compare(member_of(states, member), mine, "ppo", seed, iterations)
    before = shapes(member_of(states, 0))
    after, repeated = jax.eval_shape(lambda state: module.loop(state, 5), before)
    assert shapes(after) == before
    assert {leaf.shape for leaf in repeated.values()} == {(5,)}


@jax.jit
def member_of(states: Any, member: int) -> Any:
    """Return one of several states."""
    return jax.tree.map(lambda leaf: leaf[member], states)


def shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


@pytest.mark.bits
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "sac", "genetic"])
def test_a_loop_compiled_as_a_run_learns_the_same_bits(algorithm: str) -> None:
    init, _, _, loop = own(algorithm)
    options = {"xla_cpu_prefer_vector_width": 512}
    program = jax.jit(lambda key: loop(init(key), 8), compiler_options=options)
    state, metrics = program(jax.random.key(3))
    compare(state, jax.device_get(metrics), algorithm, 3, 8, most=0.0)


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
    with pytest.raises(UsageError, match=r"hp\.learning_rate is float32\[\], .*needs float32\[2\]"):
        collect(wrong)
    with pytest.raises(UsageError, match=r"hp\.clip_range_vf has no place here.*needs a value"):
        init(key, hp._replace(clip_range_vf=0.2))


def test_states_and_trajectories_of_another_program_are_refused() -> None:
    init, collect, learn, loop = own("ppo")
    states = jax.jit(jax.vmap(init))(jax.random.split(jax.random.key(0), 3))
    state = member_of(states, 0)
    with pytest.raises(
        UsageError, match=r"state\.learned\.\S+ is float32\[3, .*jax\.vmap\(collect"
    ):
        collect(states)
    with pytest.raises(UsageError, match=r"state\.learned\.\S+ is missing"):
        collect(state._replace(learned=()))
    trajectory, _ = jax.eval_shape(collect, state)
    with pytest.raises(UsageError, match="state is a Trajectory, not a LoopState"):
        jax.eval_shape(learn, trajectory, state)
    for function, given in ((collect, (state,)), (learn, (state, trajectory))):
        infos = jax.tree.leaves(function.trace(*given).args_info)
        assert not any(info.donated for info in infos)  # the caller's state stays usable
    counted = trajectory._replace(rewards=jax.ShapeDtypeStruct((32, 2), "int32"))
    jax.eval_shape(learn, state, counted)
    for name, shape, dtype in (("rewards", (32,), "float32"), ("actions", (32, 2), "float32")):
        wrong = trajectory._replace(**{name: jax.ShapeDtypeStruct(shape, dtype)})
        with pytest.raises(UsageError, match=rf"trajectory\.{name} is {dtype}.*keep its shapes"):
            jax.eval_shape(learn, state, wrong)
    for n in (2.5, -1, None):
        with pytest.raises(UsageError, match="whole number that is known before compilation"):
            loop(state, n)


@pytest.mark.parametrize("key", [7, np.zeros((3, 2), np.uint32)])
def test_init_takes_one_key(key: Any) -> None:
    with pytest.raises(UsageError, match=r"init takes one random key.*jax\.vmap\(init\)"):
        own("ppo")[0](key)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"env": "tests.tiny_envs:Bandit"}, "device environment"),
        ({"env_backend": "host"}, "one program on one device, without env_backend='host', which"),
        ({"placement": "act=cpu sampler=device"}, "without placement='act=cpu sampler=device'"),
        ({"shards": 2, "devices": 2}, "without devices=2, shards=2, which only"),
        ({"eval_every": 64, "stop_at_return": 9}, "eval_every, stop_at_return would do nothing"),
        ({"eval_freq": 64, "eval_env": "X"}, "eval_env, eval_freq would do nothing"),
        ({"random_seed": 3}, "seed is no setting here"),
        ({"seed": 3}, r"the key decides, init\(jax\.random\.key\(seed\)\)"),
        ({"n_stepz": 2}, "Did you mean 'n_steps'"),
    ],
)
def test_settings_that_have_no_pure_functions_are_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        flatout.engine.make("ppo", **tiny.settings("ppo", **more))


def test_an_agents_class_is_no_algorithm() -> None:
    with pytest.raises(UsageError, match=r"a name, such as 'ppo', .*not the class PPO"):
        flatout.engine.make(flatout.PPO, "CartPole-v1")  # type: ignore[arg-type]


def test_an_algorithms_metric_replaces_none_of_the_loops() -> None:
    def named(spec: BuildSpec) -> Algorithm:
        algorithm = own_algorithms.good(spec)

        def update(*given: Any) -> Any:
            state, metrics, _ = algorithm.update(*given)
            return state, {"healthy": metrics["top"], "updates": metrics["updates"]}, None

        return replace(algorithm, update=update, metrics=("healthy", "updates"))

    with pytest.raises(UsageError, match="metric 'healthy' has a name that learn uses itself"):
        flatout.engine.make(named, env="CartPole-v1", envs=2)
