"""A genetic algorithm over networks: all members play, the best stay, and noisy copies of them
replace the others.

`flatout.algorithms.registry` builds it. It follows Such et al. (2017), without crossover. Each
member of the population has an environment, and its fitness is the mean return of its episodes.
Acting adds no noise: members differ only in their parameters.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flatout import tree
from flatout.algorithms.base import (
    Acted,
    Algorithm,
    BuildSpec,
    Counters,
    State,
    Updated,
    shapes_of,
)
from flatout.algorithms.common.actor_critic import Actor, build_networks, policy
from flatout.algorithms.common.distributions import distribution, parameter_mask
from flatout.algorithms.common.optimiser import schedule
from flatout.algorithms.hp import hyper_parameters
from flatout.config.hyper import GeneticConfig
from flatout.errors import UsageError
from flatout.packing import Packing
from flatout.randomness import normals
from flatout.types import Obs, Trajectory

METRICS = ("fitness_mean", "fitness_max", "fitness_elite", "noise", "updates")


def genetic(config: GeneticConfig, spec: BuildSpec) -> Algorithm:
    """Build the genetic algorithm's pure functions.

    Raises:
        UsageError: the network does not fit, or there are not fewer elites than members.
    """
    num_envs, shards = spec.num_envs, spec.shards
    if config.elites >= num_envs:
        raise UsageError(
            f"elites = {config.elites} of a population of --envs {num_envs} leaves no room for new "
            "members; each environment has one member."
        )
    dist = distribution(spec.action_spec)

    def build(rng: np.random.Generator | None) -> Actor:
        return build_networks(rng, spec, dist).actor

    arrays, static = eqx.partition(build(None), eqx.is_array)
    packing = Packing(arrays)

    def counters() -> Counters:
        return Counters(np.zeros((), np.int32), np.zeros((), np.int32))

    # From one network, because the members take long to draw.
    population = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((num_envs, *leaf.shape), leaf.dtype), arrays
    )
    shapes = State(population, (), shapes_of(counters()))

    def init(key: np.ndarray, hp: Any) -> State:
        """Draw the members: actors' arrays with a leading axis P. After each update the elites come
        first, the best of them at index 0."""
        rng = np.random.default_rng(key)
        members = [eqx.filter(build(rng), eqx.is_array) for _ in range(num_envs)]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *members)
        return State(stacked, (), counters())

    def one(member: Actor, obs: Obs) -> jax.Array:
        actor = eqx.combine(member, static)
        obs, mask = spec.encoder.allowed(obs)
        mask = parameter_mask(spec.action_spec, mask)
        x, _ = policy(spec.encoder, actor, spec.encoder.prepare(obs), mask)
        return dist.to_environment(dist.sample(x, actor.extra, None))

    def act(params: Actor, obs: Obs, carry: Any, draw: jax.Array | None) -> Acted:
        count = len(tree.first(obs))
        if draw is None or count > num_envs:  # the best member plays in all environments
            return one(jax.tree.map(lambda leaf: leaf[0], params), obs), carry, {}
        # A group has consecutive environments, hence consecutive members.
        mine = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, draw[0], count), params)

        def alone(member: Actor, row: Obs) -> jax.Array:
            return one(member, tree.take(row, None))[0]

        return jax.vmap(alone)(mine, obs), carry, {}

    def update(state: State, trajectory: Trajectory, key: jax.Array, hp: Any) -> Updated:
        assert trajectory.valid is not None
        valid = trajectory.valid
        ended = jnp.logical_or(trajectory.terminated, trajectory.truncated)
        total_return = jnp.where(valid, trajectory.rewards, 0.0).sum(0)
        episodes = (valid & ended).sum(0) + (valid[-1] & ~ended[-1])  # includes the unfinished one
        # Gathered, so that all shards select the same members.
        fitness = shards.gather(total_return / jnp.maximum(episodes, 1))
        counters = state.counters
        step = counters.step + shards.sum(trajectory.valid.sum().astype(jnp.int32))
        std = schedule(hp.noise, step, hp.total_steps)
        elites = jnp.argsort(-fitness)[: config.elites]
        # Each child is a noisy copy of an elite; the elites take turns as parents.
        children = num_envs - config.elites
        parents = jnp.concatenate([elites, elites[jnp.arange(children) % config.elites]])
        kicks = normals(key, jnp.zeros((), jnp.int32), counters.updates, children * packing.size)
        kicks = jnp.concatenate(
            [jnp.zeros((config.elites, packing.size)), std * kicks.reshape(children, -1)]
        )
        moved = jax.vmap(packing.unpack)(kicks)
        members = jax.tree.map(lambda leaf, kick: leaf[parents] + kick, state.params, moved)
        metrics = {
            "fitness_mean": fitness.mean(),
            "fitness_max": fitness.max(),
            "fitness_elite": fitness[elites].mean(),
            "noise": std,
            "updates": jnp.ones(()),
        }
        return State(members, (), Counters(step, counters.updates + 1)), metrics, None

    return Algorithm(
        name="genetic",
        hp=hyper_parameters(config, spec.total_steps),
        init=init,
        act=act,
        update=update,
        metrics=METRICS,
        horizon=spec.horizon,
        noise=lambda key, env, step: jnp.asarray(env, jnp.int32),
        by_env=True,
        episodes=config.rollout_episodes,
        shards=shards,
        shapes=shapes,
    )
