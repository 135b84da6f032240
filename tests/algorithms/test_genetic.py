"""The genetic algorithm: which member acts where, selection, and learning."""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

from flatout import Genetic, UsageError
from flatout.algorithms.base import Algorithm, BuildSpec
from flatout.algorithms.genetic import genetic
from flatout.config.hyper import GeneticConfig
from flatout.config.schema import NetworkConfig
from flatout.config.settings import resolve
from flatout.randomness import raw_key, wrap_key
from flatout.run.build import assemble
from flatout.run.resolve import resolve_run
from flatout.spans import Spans
from flatout.types import (
    ContinuousSpec,
    DiscreteSpec,
    Finals,
    ObservationSpec,
    Snapshot,
    Trajectory,
)

P, T, OBS = 6, 5, ObservationSpec((3,), "float32")


@functools.cache
def agent(action: Any = DiscreteSpec(4), **hyper: Any) -> Algorithm:  # noqa: B008 - frozen
    config = GeneticConfig(**{"elites": 2, "noise": 0.1} | hyper)
    network = NetworkConfig(hidden=(8,))
    return genetic(config, BuildSpec(network, OBS, action, P, 600, T))


def played(fitness: list[float]) -> Trajectory:
    """Return a trajectory of two episodes of one step each; environment p gains ``fitness[p]`` in
    the first."""
    rewards = np.full((T, P), 100.0, np.float32)  # invalid steps must not count
    valid, flags = np.zeros((T, P), np.bool_), np.zeros((T, P), np.bool_)
    over = flags.copy()
    valid[:2] = over[:2] = True
    rewards[:2] = [fitness, [0.0] * P]
    return Trajectory(
        obs=np.zeros((T, P, 3), np.float32), actions=np.zeros((T, P), np.int32), rewards=rewards,
        terminated=over, truncated=flags, last_obs=np.zeros((P, 3), np.float32),
        finals=Finals(np.zeros((P, 3), np.float32), np.full((P,), T * P, np.int32)),
        extras={}, valid=valid,
    )  # fmt: skip


def member(members: Any, index: int) -> list[np.ndarray]:
    return [leaf[index] for leaf in jax.tree.leaves(members)]


@functools.cache
def compiled(algorithm: Algorithm) -> Any:
    return jax.jit(algorithm.update)


def learn(algorithm: Algorithm, state: Any, trajectory: Trajectory) -> tuple[Any, Any]:
    """Return the state (NumPy) and the metrics after a generation."""
    key = wrap_key(raw_key(0, 1))
    after, metrics, _ = compiled(algorithm)(state, trajectory, key, algorithm.hp)
    return jax.device_get((after, metrics))


@functools.cache
def played_alone(action: Any) -> Any:
    """Return a compiled function of members, observations and noise that returns their actions.

    Actions are those of all members together, of each member by itself, of all without noise, and
    of the first member by itself.
    """
    act = agent(action).act

    def chosen(members: Any, obs: jax.Array, noise: jax.Array) -> Any:
        def alone(given: tuple[jax.Array, jax.Array]) -> jax.Array:
            index, row = given
            own = jax.tree.map(lambda leaf: leaf[index][None], members)
            return act(own, row[None], (), None)[0][0]

        zeroth = jax.tree.map(lambda leaf: leaf[:1], members)
        return (
            act(members, obs, (), noise)[0], jax.lax.map(alone, (noise, obs)),
            act(members, obs, (), None)[0], act(zeroth, obs, (), None)[0],
        )  # fmt: skip

    return jax.jit(chosen)


@pytest.mark.parametrize(
    "action", [DiscreteSpec(4), ContinuousSpec((2,), (-1.0, -2.0), (1.0, 2.0))]
)
@pytest.mark.parametrize(("first", "count"), [(0, P), (0, 3), (3, 3), (2, 1)])
def test_each_environment_is_played_by_its_member(action: Any, first: int, count: int) -> None:
    algorithm = agent(action)
    members = algorithm.init(raw_key(3, 0), algorithm.hp).params
    obs = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
    noise = np.arange(first, first + count)
    together, alone, best, zeroth = played_alone(action)(members, obs, noise)
    np.testing.assert_allclose(together, alone, rtol=1e-5)
    np.testing.assert_array_equal(best, zeroth)


def test_the_best_stay_and_the_others_become_noisy_copies_of_them() -> None:
    algorithm = agent(rollout_episodes=2)
    state = algorithm.init(raw_key(3, 0), algorithm.hp)
    fitness = [1.0, 9.0, 3.0, 8.0, 0.0, 2.0]
    after, metrics = learn(algorithm, state, played(fitness))
    for place, before in enumerate((1, 3)):
        for new, old in zip(member(after.params, place), member(state.params, before), strict=True):
            np.testing.assert_array_equal(new, old)
    kicks = []
    for place in range(2, P):
        parent = (1, 3)[place % 2]
        pairs = zip(member(after.params, place), member(state.params, parent), strict=True)
        kicks.append(np.concatenate([(new - old).ravel() for new, old in pairs]))
    assert 0.08 < np.std(kicks) < 0.12
    assert abs(np.corrcoef(kicks)[0, 1]) < 0.3, "each copy has noise of its own"
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(
        {
            "fitness_mean": 23 / 12,
            "fitness_max": 4.5,
            "fitness_elite": 4.25,
            "noise": 0.1,
            "updates": 1,
        }
    )
    assert int(after.counters.step) == 2 * P


def test_an_unfinished_episode_counts_as_one() -> None:
    """A return of 30 in two episodes is a lower fitness than 20 in an unfinished episode."""
    algorithm = agent(rollout_episodes=2, elites=1)
    trajectory = played([30.0] + [0.0] * (P - 1))
    assert trajectory.valid is not None
    trajectory.valid[:, 1], trajectory.rewards[:, 1] = True, 0.0
    trajectory.rewards[0, 1], trajectory.terminated[:, 1] = 20.0, False
    state = algorithm.init(raw_key(3, 0), algorithm.hp)
    after, metrics = learn(algorithm, state, trajectory)
    assert float(metrics["fitness_max"]) == 20.0
    for new, old in zip(member(after.params, 0), member(state.params, 1), strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(
    "placement",
    ["cpu", pytest.param("sampler=processes workers=2x2", marks=pytest.mark.slow)],
)
def test_every_generation_begins_its_own_episodes(placement: str) -> None:
    """A new member does not continue its predecessor's unfinished episode, also after a resume."""
    settings: dict[str, Any] = {
        "env": "flatout/Snake-v0", "env_kwargs": {"patience": 50}, "envs": 4, "n_steps": 9,
        "elites": 2, "network": "onehot", "hidden": [8], "placement": placement, "steps": 10_000,
        "seed": 2,
    }  # fmt: skip

    def collected(saved: Snapshot | None) -> tuple[Snapshot, np.ndarray]:
        """Return a snapshot (after two generations if None is given), and the next generation's
        first observations."""
        parts = assemble(resolve_run(resolve("genetic", settings)), Spans())
        flow: Any = parts.schedule
        try:
            if saved is None:
                flow.start()
                list(flow.advance(2))
                saved = flow.snapshot()
            else:
                assert flow.restore(saved) == []
            trajectory, _ = flow._sampler.collect(flow.state.environments, flow.params)
            return saved, np.array(trajectory.obs[0])
        finally:
            parts.close()

    saved, first = collected(None)
    unfinished = [len(saved.arrays.get(f"sampler/actions/{env}", ())) for env in range(4)]
    assert any(unfinished)
    before = saved.arrays["sampler/obs"]
    for env, actions in enumerate(unfinished):
        assert np.array_equal(before[env], first[env]) == (not actions)
        assert (first[env] > 0).sum() == 2  # a head, a fruit
    np.testing.assert_array_equal(collected(saved)[1], first)


def test_overlapped_schedules_are_refused() -> None:
    with pytest.raises(UsageError, match="genetic needs schedule=serial"):
        Genetic("CartPole-v1", placement="schedule=overlapped").learn(1000)


def test_generations_differ_and_are_reproduced() -> None:
    algorithm = agent()
    state = algorithm.init(raw_key(3, 0), algorithm.hp)
    second = state._replace(counters=state.counters._replace(updates=np.int32(1)))
    one, again, later = (
        learn(algorithm, given, played([0.0] * P))[0] for given in (state, state, second)
    )
    for place in range(P):
        assert all(map(np.array_equal, member(one.params, place), member(again.params, place)))
    assert not all(map(np.array_equal, member(one.params, 5), member(later.params, 5)))


def test_cartpole_is_learned_by_parameters_alone() -> None:
    settings: dict[str, Any] = {"envs": 16, "elites": 3, "noise": 0.3, "hidden": [8]}
    agent = Genetic("CartPole-v1", seed=1, **settings).learn(15_000)
    assert agent.evaluate(10).return_mean > 100
    # Drawing would be of the other members, most of which have played no episode yet.
    assert agent.evaluate(10, deterministic=False) == agent.evaluate(10)
    observations = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    actions, _ = agent.predict(observations)
    for observation, action in zip(observations, actions, strict=True):
        assert agent.predict(observation, deterministic=True)[0] == action


def test_members_are_drawn_once_and_their_network_is_traced_once() -> None:
    """A population of a thousand took a minute to draw, and again for each evaluation."""
    built, traced = list[int](), list[int]()

    class Counted(eqx.nn.Linear):
        def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
            traced.append(1)
            return super().__call__(x)

    def network(key: jax.Array, shape: tuple[int, ...]) -> Counted:
        built.append(1)
        return Counted(shape[0], 4, key=key)

    spec = BuildSpec(NetworkConfig(), OBS, DiscreteSpec(4), P, 600, T, network)
    algorithm = genetic(GeneticConfig(elites=2), spec)
    before = len(built)
    assert before < P, "loading one member builds no population"
    state = algorithm.init(raw_key(3, 0), algorithm.hp)
    assert len(traced) == 1
    assert jax.tree.map(np.shape, state) == jax.tree.map(np.shape, algorithm.shapes)


def test_there_must_be_room_for_new_members() -> None:
    with pytest.raises(UsageError, match="elites = 6 of a population"):
        agent(elites=P)
    with pytest.raises(UsageError, match="n_steps"):
        Genetic("flatout/Snake-v0").learn(1000)
