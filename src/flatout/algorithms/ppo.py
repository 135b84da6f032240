"""Proximal policy optimisation (Schulman et al., 2017), one trajectory at a time.

All epochs and minibatches of a trajectory are one scan, so that the learner dispatches once.
"""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from flatout.algorithms.base import Algorithm, BuildSpec, Updated, shapes_of
from flatout.algorithms.common.actor_critic import Networks, policy, value
from flatout.algorithms.common.on_policy import Batch, OnPolicy, State
from flatout.algorithms.common.optimiser import Optimiser
from flatout.algorithms.common.returns import balanced, centre, mean
from flatout.algorithms.common.shuffle import permutations
from flatout.algorithms.parallel.accumulate import Losses, pieces_of, value_and_grad
from flatout.config.hyper import PPOConfig, linear
from flatout.errors import UsageError
from flatout.types import Trajectory

AVERAGED = (
    "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm", "updates",
)  # fmt: skip
METRICS = (*AVERAGED[:-1], "explained_variance", "learning_rate", "clip_range", "updates")


def ppo(config: PPOConfig, spec: BuildSpec) -> Algorithm:
    """Build PPO's pure functions.

    Raises:
        UsageError: a network that does not fit the spaces.
    """
    replayed = config.replay_trajectories > 1
    masked = config.rollout_episodes is not None or replayed
    base = OnPolicy(config, spec, masked=masked)
    arrays, static, dist = base.arrays, base.static, base.dist
    shards, alone = spec.shards, spec.shards.each_step
    learning_rate = linear("learning_rate", config.learning_rate)
    clip_range = linear("clip_range", config.clip_range)
    critic_ratio = (config.critic_learning_rate or learning_rate[0]) / learning_rate[0]
    factors = None
    if critic_ratio != 1.0:
        factors = Networks(
            jax.tree.map(lambda _: 1.0, arrays.actor),
            jax.tree.map(lambda _: critic_ratio, arrays.critic),
        )
    adam = optax.scale_by_adam(eps=config.adam_eps)
    steps = Optimiser(arrays, adam, config.max_grad_norm, factors)
    if config.target_kl is not None and shards.every > 1:
        raise UsageError(
            "target_kl does not go with --sync every:K: the shards would stop at different updates."
        )
    if masked and spec.micro_batch is not None:
        raise UsageError(
            "micro_batch does not go with rollout_episodes or replay_trajectories: padding would "
            "make some pieces count more than others."
        )
    if replayed and (config.normalize_observation or config.normalize_reward):
        raise UsageError(
            "replay_trajectories does not go with normalize_observation or normalize_reward: "
            "their statistics would count each step several times."
        )

    def loss(networks: Networks, batch: Batch, clip: jax.Array) -> Losses:
        networks = eqx.combine(networks, static)
        x, hidden = policy(networks.actor, batch.obs)
        v = value(networks, batch.obs, hidden)
        average = functools.partial(mean, weight=batch.weight)
        advantage = batch.advantage
        log_ratio = dist.log_prob(x, networks.actor.extra, batch.sample) - batch.log_prob
        if batch.weight is not None:  # padding must not overflow: 0 x infinity is not 0
            log_ratio = jnp.where(batch.weight > 0, log_ratio, 0.0)
        ratio = jnp.exp(log_ratio)
        clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
        policy_loss = -average(jnp.minimum(ratio * advantage, clipped * advantage))
        if config.clip_range_vf is not None:
            reach = config.clip_range_vf
            v = batch.value + jnp.clip(v - batch.value, -reach, reach)
        value_loss = average(jnp.square(batch.target - v))
        entropy = average(dist.entropy(x, networks.actor.extra))
        total = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
        scalars = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": average(ratio - 1 - log_ratio),
            "clip_fraction": average((jnp.abs(ratio - 1) > clip).astype(jnp.float32)),
        }
        return total, (scalars, None)

    pieces = pieces_of(config.batch_size // shards.count, spec.micro_batch)
    gradient = value_and_grad(loss, pieces, shards)

    def update(state: State, trajectory: Trajectory, key: jax.Array) -> Updated:
        state, batch = base.prepare(state, trajectory)
        # Rows are all transitions; counted after this trajectory, as Stable-Baselines3 does.
        done = jnp.minimum(state.step / spec.total_steps, 1.0)
        rate = learning_rate[0] + (learning_rate[1] - learning_rate[0]) * done
        clip = clip_range[0] + (clip_range[1] - clip_range[0]) * done
        rows, size = batch.advantage.shape[0], config.batch_size // shards.count
        stream = shards.key(key)

        def stack(metrics: dict[str, jax.Array]) -> jax.Array:
            return jnp.stack([metrics[name] for name in AVERAGED])

        def minibatch(carry: Any, given: tuple[Any, Any, Any]) -> tuple[Any, jax.Array]:
            (networks, optimiser, going), (rows, number, some) = carry, given
            part = batch if rows is None else jax.tree.map(lambda leaf: leaf[rows], batch)
            if config.normalize_advantage:
                centred = centre(part.advantage, part.weight, alone)
                part = part._replace(advantage=centred)
            if part.weight is not None:
                part = part._replace(weight=balanced(part.weight, alone))
            (_, (metrics, _)), grads = gradient(networks, part, clip)
            grads, metrics = alone.mean((grads, metrics))
            stepped, moved, norm = steps.step(networks, grads, optimiser, rate)
            stepped, moved = shards.sync((stepped, moved), number)
            metrics["grad_norm"] = norm
            if config.target_kl is None and not masked:
                metrics["updates"] = jnp.ones(())
                return (stepped, moved, going), stack(metrics)
            if config.target_kl is not None:
                going = going & (metrics["approx_kl"] <= 1.5 * config.target_kl)
            apply = going
            if some is not None:
                apply = going & some
            keep = lambda new, old: jnp.where(apply, new, old)  # noqa: E731
            networks = jax.tree.map(keep, stepped, networks)
            optimiser = jax.tree.map(keep, moved, optimiser)
            metrics["updates"] = jnp.ones(())
            return (networks, optimiser, going), jnp.where(apply, stack(metrics), 0.0)

        if rows == size:  # a mean does not ask for an order
            order = None
        elif batch.weight is None:
            order = permutations(stream, state.iteration, config.n_epochs, rows)
        else:  # padding sorts last: minibatches of nothing else come at the end and are skipped
            drawing = jax.random.fold_in(stream, state.iteration)
            bits = jax.random.bits(drawing, (config.n_epochs, rows)) >> 1
            bits = jnp.where(batch.weight > 0, bits, jnp.uint32(2**32 - 1))
            order = jnp.argsort(bits, axis=-1)
        if order is not None:
            order = order.reshape(-1, size)
        count, some = config.n_epochs * rows // size, None
        if batch.weight is not None:
            counted = batch.weight[None] if order is None else batch.weight[order]
            some = jnp.broadcast_to(shards.sum(counted.sum(-1)) > 0, count)
        carry = (state.networks, state.optimiser, jnp.asarray(True))
        numbers = None
        if shards.every > 1:
            numbers = (state.iteration - 1) * count + 1 + jnp.arange(count)
        (networks, optimiser, _), history = jax.lax.scan(
            minibatch, carry, (order, numbers, some), length=count
        )
        totals = history.sum(0)
        made = totals[-1]
        state, explained = base.conclude(state, trajectory, batch, totals[0])
        metrics = dict(zip(AVERAGED, totals / jnp.maximum(made, 1.0), strict=True))
        metrics |= {
            "explained_variance": explained,
            "learning_rate": rate,
            "clip_range": clip,
            "updates": made,
        }
        return state._replace(networks=networks, optimiser=optimiser), metrics, None

    return Algorithm(
        name="ppo",
        init=base.initial(steps.init),
        shapes=shapes_of(base.fresh(arrays, steps.init())),
        noise=dist.noise,
        act=base.act,
        update=update,
        actor=base.actor,
        horizon=spec.horizon,
        episodes=config.rollout_episodes,
        metrics=METRICS,
        shards=shards,
    )
