"""The last step of the data flow: proximal policy optimisation (Schulman et al., 2017) learns from
one trajectory. `flatout.engine.learn` calls it.

Its epochs of minibatches are one scan, so that the learner dispatches once. Minibatches follow a
pseudo-random permutation without sorting: on a CPU, sorting random bits takes 20 % of the time of a
small network's update, and 20 % of its compile time. A Feistel network is a bijection of
fixed-width integers for any round function (Luby and Rackoff, 1988), and is computed element by
element.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import Algorithm, BuildSpec, State, Updated
from flatout.algorithms.common.actor_critic import Networks, evaluate
from flatout.algorithms.common.distributions import Distribution
from flatout.algorithms.common.on_policy import OnPolicy
from flatout.algorithms.common.optimiser import Optimiser, schedule
from flatout.algorithms.common.returns import balanced, centre, mean
from flatout.algorithms.common.rollout_batch import RolloutBatch
from flatout.algorithms.shards import Losses, Shards
from flatout.config.hyper import PPOConfig
from flatout.errors import UsageError
from flatout.networks.encoder import Encoder
from flatout.randomness import mix
from flatout.types import Trajectory

AVERAGED = (
    "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm",
)  # fmt: skip
METRICS = (*AVERAGED, "learning_rate", "clip_range", "updates")


def loss(
    encoder: Encoder,
    static: Networks,
    dist: Distribution,
    networks: Networks,
    batch: RolloutBatch,
    clip: jax.Array,
    hp: Any,
) -> Losses:
    """Return the clipped surrogate with value loss and entropy bonus (equations 7 and 9).

    Args:
        encoder: how observations become features.
        static: the networks without their arrays, from `equinox.partition`.
        dist: the distribution of actions.
        clip: the current clip range, epsilon of the paper.
    """
    networks = eqx.combine(networks, static)
    average = functools.partial(mean, weight=batch.weight)
    x, v = evaluate(encoder, networks, batch.obs, batch.mask, batch.memory)
    log_ratio = dist.log_prob(x, networks.actor.extra, batch.sample) - batch.log_prob
    if batch.weight is not None:  # an infinite ratio in padding would give NaN, despite weight 0
        log_ratio = jnp.where(batch.weight > 0, log_ratio, 0.0)
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    policy_loss = -average(jnp.minimum(ratio * batch.advantage, clipped * batch.advantage))
    errors = jnp.square(batch.target - v)
    if hp.clip_range_vf is not None:
        clipped_v = batch.value + jnp.clip(v - batch.value, -hp.clip_range_vf, hp.clip_range_vf)
        # The maximum, because the clipped error alone has no gradient outside the clip range.
        errors = jnp.maximum(errors, jnp.square(batch.target - clipped_v))
    value_loss = average(errors)
    entropy = average(dist.entropy(x, networks.actor.extra))
    total = policy_loss + hp.vf_coef * value_loss - hp.ent_coef * entropy
    scalars = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": average(ratio - 1 - log_ratio),
        "clip_fraction": average((jnp.abs(ratio - 1) > clip).astype(jnp.float32)),
    }
    return total, (scalars, None)


def ppo(config: PPOConfig, spec: BuildSpec) -> Algorithm:
    """Build PPO's pure functions.

    Raises:
        UsageError: the network does not fit the spaces, or settings exclude each other.
    """
    _check(config, spec)
    masked = config.rollout_episodes is not None or config.replay_trajectories > 1
    length = _sequence_length(config, spec)
    size = config.batch_size // spec.shards.count // length
    base, shards = OnPolicy(config, spec, masked=masked, length=length), spec.shards
    optimiser = Optimiser(base.arrays)
    losses = functools.partial(loss, base.encoder, base.static, base.dist)
    grad = spec.gradient(losses, config.batch_size)

    def update(state: State, trajectory: Trajectory, key: jax.Array, hp: Any) -> Updated:
        state, batch = base.prepare(state, trajectory, hp)
        # Schedules have their values after this trajectory, as in Stable-Baselines3.
        rate = schedule(hp.learning_rate, state.counters.step, hp.total_steps)
        clip = schedule(hp.clip_range, state.counters.step, hp.total_steps)
        factors = None  # of the learning rate, for each leaf
        if hp.critic_learning_rate is not None:
            ratio = hp.critic_learning_rate / hp.learning_rate[0]
            actor, critic = base.arrays
            factors = Networks(
                jax.tree.map(lambda _: 1.0, actor), jax.tree.map(lambda _: ratio, critic)
            )

        def minibatch(carry: Any, part: RolloutBatch) -> tuple[Any, dict[str, jax.Array]]:
            networks, opt = carry
            part = part.steps()
            if config.normalize_advantage:
                centred = centre(part.advantage, part.weight, shards.each_step)
                part = part._replace(advantage=centred)
            if part.weight is not None:
                part = part._replace(weight=balanced(part.weight, shards.each_step))
            grads, metrics, _ = grad(networks, part, clip, hp)
            networks, opt, norm = optimiser.step(
                networks, grads, opt, rate, hp.max_grad_norm, factors, eps=hp.adam_eps
            )
            return (networks, opt), metrics | {"grad_norm": norm}

        proceed = None
        if hp.target_kl is not None:
            proceed = lambda metrics: metrics["approx_kl"] <= 1.5 * hp.target_kl  # noqa: E731
        (networks, opt), metrics = epochs(
            minibatch, (state.params.networks, state.opt), batch.sequences(),
            metrics=AVERAGED, count=config.n_epochs, size=size,
            shards=shards, key=key, iteration=state.counters.updates, proceed=proceed,
        )  # fmt: skip
        metrics |= base.diagnostics(trajectory, batch, metrics["policy_loss"])
        metrics |= {"learning_rate": rate, "clip_range": clip}
        params = state.params._replace(networks=networks)
        return state._replace(params=params, opt=opt), metrics, None

    return base.algorithm("ppo", optimiser, update, METRICS, spec.horizon)


def _check(config: PPOConfig, spec: BuildSpec) -> None:
    replayed = config.replay_trajectories > 1
    if config.recurrent is not None and (replayed or config.rollout_episodes is not None):
        raise UsageError(
            f"recurrent = {config.recurrent} cannot be combined with "
            f"{'replay_trajectories' if replayed else 'rollout_episodes'}: a recurrent policy "
            "learns from the sequences of its newest n_steps steps."
        )
    if config.target_kl is not None and spec.shards.every > 1:
        raise UsageError(
            "target_kl cannot be combined with --sync every:K: the shards would stop at different "
            "updates."
        )
    if (replayed or config.rollout_episodes is not None) and spec.micro_batch is not None:
        raise UsageError(
            "micro_batch cannot be combined with rollout_episodes or replay_trajectories: padding "
            "would make some micro-batches count more than others."
        )
    if replayed and (config.normalize_observation or config.normalize_reward):
        raise UsageError(
            "replay_trajectories cannot be combined with normalize_observation or "
            "normalize_reward: their statistics would count each step several times."
        )


def _sequence_length(config: PPOConfig, spec: BuildSpec) -> int:
    """Return L, the steps of each sequence in a minibatch of a recurrent policy; 1 for others.

    Raises:
        UsageError: minibatches do not consist of whole sequences.
    """
    if config.recurrent is None:
        return 1
    horizon, rows = spec.horizon, config.batch_size // spec.shards.count
    of_shard = f" of a shard ({rows} steps)" if spec.shards.count > 1 else ""
    length = config.sequence_length
    if length is None:
        length = horizon if rows % horizon == 0 else rows
        if horizon % length:
            raise UsageError(
                f"with recurrent = {config.recurrent} minibatches consist of whole sequences of "
                f"steps: batch_size {config.batch_size}{of_shard} must be a multiple or a divisor "
                f"of n_steps {horizon}, or give sequence_length, a divisor of both."
            )
    if horizon % length or rows % length:
        raise UsageError(
            f"sequence_length = {length} must divide n_steps {horizon} and batch_size "
            f"{config.batch_size}{of_shard}; {math.gcd(horizon, rows)} is the longest that does."
        )
    return length


# --- Epochs of minibatches ----------------------------------------------------------------------

ROUNDS = 8
SMALL = 256
"""Below this number of elements, a Feistel network is visibly uneven, and sorting is cheap."""


def permutations(key: jax.Array, counter: jax.Array, count: int, size: int) -> jax.Array:
    """Return `count` permutations of ``0 .. size - 1``, which depend only on `key` and `counter`.

    Args:
        key: a typed key of two words.
        counter: int32 scalar; each value gives other permutations.
        count: the number of permutations.
        size: the number of elements of each.

    Returns:
        int32 ``[count, size]``.
    """
    if size < SMALL:
        drawn = jax.random.bits(jax.random.fold_in(key, counter), (count, size))
        return jnp.argsort(drawn, axis=-1).astype(jnp.int32)
    words = jax.random.key_data(key)
    bits = (size - 1).bit_length()
    low = bits // 2
    low_mask, high_mask = np.uint32((1 << low) - 1), np.uint32((1 << (bits - low)) - 1)
    start = mix(mix(words[0] ^ counter.astype(jnp.uint32)) ^ words[1])
    keys = mix(start ^ jnp.arange(count * ROUNDS, dtype=jnp.uint32)).reshape(count, ROUNDS)

    def encrypt(x: jax.Array) -> jax.Array:
        left, right = x >> low, x & low_mask
        for turn in range(ROUNDS):
            turn_key = keys[:, turn : turn + 1]
            if turn % 2:
                left = left ^ (mix(right ^ turn_key) & high_mask)
            else:
                right = right ^ (mix(left ^ turn_key) & low_mask)
        return (left << low) | right

    order = encrypt(jnp.broadcast_to(jnp.arange(size, dtype=jnp.uint32), (count, size)))
    if size != 1 << bits:  # encrypt values outside the range again until they are in it
        order = jax.lax.while_loop(
            lambda x: (x >= size).any(), lambda x: jnp.where(x >= size, encrypt(x), x), order
        )
    return order.astype(jnp.int32)


Minibatch = Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]]
"""``(carry, minibatch) -> carry, metrics``: one gradient step."""


def epochs(
    minibatch: Minibatch,
    carry: Any,
    batch: Any,
    *,
    metrics: tuple[str, ...],
    count: int,
    size: int,
    shards: Shards,
    key: jax.Array,
    iteration: jax.Array,
    proceed: Callable[[dict[str, jax.Array]], jax.Array] | None = None,
) -> tuple[Any, dict[str, jax.Array]]:
    """Pass `count` times over a batch's rows in random order, `size` rows at a time.

    Args:
        minibatch: makes one gradient step. With local SGD (`Shards.every` above 1) the shards' new
            carries are averaged when due.
        carry: parameters and the optimiser's state.
        batch: this shard's rows ``[R, ...]``; rows whose `weight` is 0 are padding.
        metrics: the names of the metrics that `minibatch` returns.
        count: the number of epochs.
        size: the number of this shard's rows in a minibatch.
        shards: the shards of the update.
        key: the key of the learning stream.
        iteration: the number of trajectories learned from, including this one, int32.
        proceed: ``metrics of a step -> bool``; False discards this step and all later ones.

    Returns:
        The carry, and each metric's mean over the steps made; ``updates`` is their number.
    """
    rows = batch.advantage.shape[0]
    order, not_padding = _order(batch.weight, rows, count, size, shards, key, iteration)
    steps = count * rows // size
    update_numbers = None  # since the run's start, counted from 1
    if shards.every > 1:
        update_numbers = (iteration - 1) * steps + 1 + jnp.arange(steps)

    def step(carry: Any, xs: tuple[Any, Any, Any]) -> tuple[Any, jax.Array]:
        (learned, going), (rows, number, not_padding) = carry, xs
        part = (
            batch if rows is None else jax.tree.map(functools.partial(take_rows, rows=rows), batch)
        )
        stepped, values = minibatch(learned, part)
        stepped = shards.sync(stepped, number)
        record = jnp.stack([*(values[name] for name in metrics), jnp.ones(())])
        if proceed is None and not_padding is None:
            return (stepped, going), record
        if proceed is not None:
            going = going & proceed(values)
        apply = going if not_padding is None else going & not_padding
        learned = jax.tree.map(lambda new, old: jnp.where(apply, new, old), stepped, learned)
        return (learned, going), jnp.where(apply, record, 0.0)

    (carry, _), history = jax.lax.scan(
        step, (carry, jnp.asarray(True)), (order, update_numbers, not_padding), length=steps
    )
    *totals, updates = history.sum(0)
    means = {
        name: total / jnp.maximum(updates, 1.0) for name, total in zip(metrics, totals, strict=True)
    }
    return carry, means | {"updates": updates}


def take_rows(leaf: jax.Array, rows: jax.Array) -> jax.Array:
    """Return the rows ``[B, ...]`` of ``[R, ...]`` with the numbers `rows`.

    Rows are flattened first, because a CPU copies rows of several dimensions element by element.
    """
    flat = leaf.reshape(len(leaf), -1).at[rows].get(mode="promise_in_bounds")
    return flat.reshape(len(rows), *leaf.shape[1:])


def _order(
    weight: jax.Array | None, rows: int, count: int, size: int, shards: Shards, key: jax.Array,
    iteration: jax.Array,
) -> tuple[jax.Array | None, jax.Array | None]:  # fmt: skip
    """Return the numbers of each minibatch's rows ``[steps, size]``, and flags ``[steps]``: whether
    a minibatch has rows that are not padding.

    The numbers are None if the whole batch is one minibatch, whose mean needs no order. The flags
    are None if there is no padding.
    """
    stream = shards.key(key)
    if rows == size:
        order = None
    elif weight is None:
        order = permutations(stream, iteration, count, rows).reshape(-1, size)
    else:  # padding sorts last, so minibatches of padding alone come at the end and are skipped
        drawing = jax.random.fold_in(stream, iteration)
        bits = jax.random.bits(drawing, (count, rows)) >> 1
        bits = jnp.where(weight > 0, bits, jnp.uint32(2**32 - 1))
        order = jnp.argsort(bits, axis=-1).reshape(-1, size)
    if weight is None:
        return order, None
    counted = weight[None] if order is None else weight[order]
    not_padding = shards.sum(counted.sum(-1)) > 0
    return order, jnp.broadcast_to(not_padding, count * rows // size)
