"""The parts that the on-policy algorithms A2C and PPO share: acting and advantages."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flatout import tree
from flatout.algorithms.base import Acted, Algorithm, BuildSpec, State, Updated, shapes_of
from flatout.algorithms.common.actor_critic import Actor, Networks, build_networks, policy, value
from flatout.algorithms.common.diagnostics import diagnostic_names, diagnostics, rows
from flatout.algorithms.common.distributions import distribution, parameter_mask
from flatout.algorithms.common.optimiser import Optimiser
from flatout.algorithms.common.returns import (
    Moments,
    RunningMoments,
    discounted_returns,
    explained_variance,
    generalised_advantages,
    initial_moments,
    initial_obs_moments,
    nothing_seen,
    update_moments,
    update_obs_moments,
)
from flatout.algorithms.hp import hyper_parameters
from flatout.config.hyper import A2CConfig, PPOConfig
from flatout.errors import UsageError
from flatout.types import Array, Obs, Trajectory

BLOCK = 1024
"""Boards whose values are computed at once on a CPU. One-hot encoding makes a board larger (16
times for Snake), and larger blocks would not fit in the cache."""


UNKNOWN = np.float32(3e38)
"""The log probability of an action that was chosen before there were statistics to normalise its
observation. Learning normalises that observation, and computes the probability from the result:
PPO's and A2C's ratios then begin at 1, and do not measure what the normalisation changed. (A NaN
could not be saved: `storage.checkpoint` refuses it.)"""


class OnPolicyActorParams(NamedTuple):
    """The parameters for acting: the actor's arrays, and the observation statistics with which it
    was published."""

    actor: Actor
    moments: Moments


class OnPolicyParams(NamedTuple):
    """The networks, and the statistics by which raw observations and rewards are normalised."""

    networks: Networks
    obs_moments: Moments
    reward_moments: RunningMoments | None


class OnPolicyCounters(NamedTuple):
    """Environment steps learned from, trajectories learned from (`updates`), and each environment's
    discounted return so far (None if rewards are not normalised)."""

    step: Array
    updates: Array
    returns: Array | None


Advantages = Callable[[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array, Any], jax.Array]
"""A function like `generalised_advantages`; the value targets are advantages + values."""


class RolloutBatch(NamedTuple):
    """The steps of a trajectory, flattened to rows ``[T * N, ...]``.

    `sample` is the action as it was sampled, before clipping. `mask` ``[T * N, P]`` says which
    outputs of the actor are allowed; it is None without action masks. `weight` is 0 for a row of
    padding and 1 for the others; it is None if there is no padding.
    """

    obs: Obs
    mask: jax.Array | None
    sample: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    weight: jax.Array | None


class OnPolicy:
    """The networks, acting, and the preparation of a trajectory for gradient steps.

    Args:
        config: hyper-parameters.
        spec: the task and the run; a trajectory of one shard has N / S environments.
        masked: whether trajectories hold padding, which `Trajectory.valid` marks.
        advantages: the estimator of advantages.

    Attributes:
        dist: the distribution over actions.
        encoder: how observations become features.
        arrays: the networks' arrays, filled with zeros.
        static: the networks without their arrays.

    Raises:
        UsageError: the network does not fit the spaces.
    """

    def __init__(
        self,
        config: PPOConfig | A2CConfig,
        spec: BuildSpec,
        *,
        masked: bool = False,
        advantages: Advantages = generalised_advantages,
    ) -> None:
        self._config = config
        self.encoder, self._actions = spec.encoder, spec.action_spec
        self._num_envs, self._total_steps = spec.num_envs, spec.total_steps
        self._masked = masked
        self._shards = shards = spec.shards
        self.dist = distribution(spec.action_spec)

        def build(rng: np.random.Generator | None, log_std: Any = 0.0) -> Networks:
            return build_networks(rng, spec, self.dist, log_std, config.critic_hidden)

        self._build = build
        parts: tuple[Networks, Networks] = eqx.partition(build(None), eqx.is_array)
        self.arrays: Networks = parts[0]
        self.static: Networks = parts[1]

        def values(arrays: Networks, x: Obs) -> jax.Array:
            networks = eqx.combine(arrays, self.static)
            if not self.encoder.has_cells or len(tree.first(x)) <= 2 * BLOCK:
                return value(self.encoder, networks, x)
            of_part = functools.partial(value, self.encoder, networks)
            return jax.lax.platform_dependent(
                x, cpu=lambda x: apply_in_blocks(of_part, x), default=lambda x: of_part(x)
            )

        self._values = shards.one_by_one(values)
        self._returns = shards.one_by_one(discounted_returns)
        self._advantages = shards.one_by_one(advantages)
        if config.normalize_observation and not self.encoder.normalised:
            cells = self.encoder.has_cells
            raise UsageError(
                "normalize_observation = true cannot be combined with "
                f"{'boards of one-hot cells' if cells else 'observations of categories alone'}; "
                f"turn it off{', or use network = mlp' if cells else ''}."
            )

    def algorithm(
        self, name: str, optimiser: Optimiser, update: Callable[..., Updated],
        metrics: tuple[str, ...], horizon: int,
    ) -> Algorithm:  # fmt: skip
        """Build the `Algorithm`; its states begin with fresh networks and a fresh optimiser."""
        config = self._config

        def initial(networks: Networks) -> State:
            params = OnPolicyParams(
                jax.tree.map(np.asarray, eqx.filter(networks, eqx.is_array)),
                initial_obs_moments(self.encoder) if config.normalize_observation else None,
                initial_moments(()) if config.normalize_reward else None,
            )
            returns = np.zeros(self._num_envs, np.float32) if config.normalize_reward else None
            zero = np.zeros((), np.int32)
            return State(params, optimiser.init(), OnPolicyCounters(zero, zero.copy(), returns))

        def init(key: np.ndarray, hp: Any) -> State:
            return initial(self._build(np.random.default_rng(key), hp.log_std_init))

        return Algorithm(
            name, hyper_parameters(config, self._total_steps), init, self.act, update,
            (*metrics, *self._diagnostic_names), horizon, self.dist.noise, self.actor,
            episodes=getattr(config, "rollout_episodes", None), shards=self._shards,
            shapes=shapes_of(initial(self.arrays)),  # large orthogonal weights take seconds to draw
            forget=_forget_return if config.normalize_reward else None,
        )  # fmt: skip

    @property
    def _diagnostic_names(self) -> tuple[str, ...]:
        """The names of the metrics that `diagnostics` returns."""
        names = diagnostic_names(self.encoder, self._config.normalize_observation)
        return ("explained_variance", *names)

    def act(
        self, params: OnPolicyActorParams, obs: Obs, carry: Any, draw: jax.Array | None
    ) -> Acted:
        """Choose actions; see `Algorithm.act`."""
        actor = eqx.combine(params.actor, self.static.actor)
        obs, mask = self._allowed(obs)
        x, _ = policy(self.encoder, actor, self.encoder.prepare(obs, params.moments), mask)
        sample = self.dist.sample(x, actor.extra, draw)
        log_prob = self.dist.log_prob(x, actor.extra, sample)
        if params.moments is not None:
            log_prob = jnp.where(nothing_seen(params.moments), UNKNOWN, log_prob)
        extras = {"log_prob": log_prob}
        if self.dist.deviations:
            extras["sample"] = sample  # unclipped; only the environment's action is clipped
        return self.dist.to_environment(sample), carry, extras

    def _allowed(self, obs: Obs) -> tuple[Obs, jax.Array | None]:
        """Return observations without their mask, and the mask of the actor's outputs."""
        obs, mask = self.encoder.allowed(obs)
        return obs, parameter_mask(self._actions, mask)

    @staticmethod
    def actor(state: State, hp: Any) -> OnPolicyActorParams:
        """Return the parameters for acting; see `Algorithm.actor`."""
        return OnPolicyActorParams(state.params.networks.actor, state.params.obs_moments)

    def prepare(self, state: State, trajectory: Trajectory, hp: Any) -> tuple[State, RolloutBatch]:
        """Compute advantages and value targets for a trajectory.

        Returns:
            The state with updated counters and statistics, and the flattened transitions. The first
            trajectory is normalised by its own statistics, a later one by those of the trajectories
            before.
        """
        masked, shards = self._masked, self._shards
        networks, obs_moments, reward_moments = state.params
        shape = trajectory.rewards.shape
        done = jnp.logical_or(trajectory.terminated, trajectory.truncated)
        weight = None
        if masked:
            assert trajectory.valid is not None
            done = jnp.logical_or(done, ~trajectory.valid)
            weight = trajectory.valid.astype(jnp.float32).reshape(-1)
        rewards = trajectory.rewards
        returns = state.counters.returns
        if reward_moments is not None:
            returns, after = self._returns(shards.local(returns), rewards, done, hp.gamma)
            returns = shards.gather(returns)
            reward_moments = update_moments(reward_moments, after.reshape(-1), weight, shards)
            scale = jax.lax.rsqrt(reward_moments.var + 1e-8)
            rewards = jnp.clip(rewards * scale, -10.0, 10.0)
        flat_obs, mask = self._allowed(rows(trajectory.obs))
        after = obs_moments
        if obs_moments is not None:
            after = update_obs_moments(self.encoder, obs_moments, flat_obs, weight, shards)
            # Later ones are learned from with the statistics with which they were collected.
            obs_moments = jax.tree.map(
                functools.partial(jnp.where, nothing_seen(obs_moments)), after, obs_moments
            )
        later = (trajectory.last_obs, trajectory.finals.obs)
        seen = tree.map(
            lambda *parts: jnp.concatenate(parts), flat_obs,
            *(self.encoder.split(obs)[0] for obs in later),
        )  # fmt: skip
        x = self.encoder.prepare(seen, obs_moments)
        v_t, v_tp1 = values_around(self._values(networks, x), trajectory)
        x = flat_obs if x is seen else tree.take(x, slice(shape[0] * shape[1]))
        if masked:  # the arrays are reused, so padding holds numbers of earlier trajectories
            rewards = jnp.where(trajectory.valid, rewards, 0.0)
            v_t = jnp.where(trajectory.valid, v_t, 0.0)
            v_tp1 = jnp.where(trajectory.valid, v_tp1, 0.0)
        advantages = self._advantages(rewards, v_t, v_tp1, trajectory.terminated, done, hp)
        sample = rows(trajectory.extras.get("sample", trajectory.actions))
        log_prob = trajectory.extras["log_prob"].reshape(-1)
        if obs_moments is not None:
            log_prob = self._known(networks.actor, log_prob, x, mask, sample)
        batch = RolloutBatch(
            obs=x,
            mask=mask,
            sample=sample,
            log_prob=log_prob,
            value=v_t.reshape(-1),
            advantage=advantages.reshape(-1),
            target=(advantages + v_t).reshape(-1),
            weight=weight,
        )
        counted = shape[0] * shape[1] * shards.count
        if masked:  # count only the newest trajectory, which has the first columns
            newest = trajectory.valid[:, : self._num_envs // shards.count]
            counted = shards.sum(newest.sum().astype(jnp.int32))
        counters = OnPolicyCounters(
            state.counters.step + counted, state.counters.updates + 1, returns
        )
        params = state.params._replace(obs_moments=after, reward_moments=reward_moments)
        return state._replace(params=params, counters=counters), batch

    def _known(
        self, arrays: Actor, log_prob: jax.Array, x: Obs, mask: jax.Array | None, sample: jax.Array
    ) -> jax.Array:
        """Return the log probabilities of actions, the `UNKNOWN` ones computed from observations
        that are normalised by now."""

        def compute(arrays: Actor, x: Obs, mask: jax.Array | None, sample: jax.Array) -> jax.Array:
            actor = eqx.combine(arrays, self.static.actor)
            outputs, _ = policy(self.encoder, actor, x, mask)
            return self.dist.log_prob(outputs, actor.extra, sample)

        compute = self._shards.one_by_one(compute)

        def computed(known: jax.Array) -> jax.Array:
            return jnp.where(known == UNKNOWN, compute(arrays, x, mask, sample), known)

        # A loop of at most one turn: unlike `lax.cond`, it costs the members of one program nothing
        # once all of them have statistics.
        return jax.lax.while_loop(lambda known: (known == UNKNOWN).any(), computed, log_prob)

    def diagnostics(
        self, trajectory: Trajectory, batch: RolloutBatch, done: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """Return `diagnostics.diagnostics` over all shards, and the share of the targets' variance
        that the values explained.

        Args:
            trajectory: the trajectory that was learned from.
            batch: its transitions, from `prepare`.
            done: a result of the gradient steps. The sums over shards here start only after it is
                computed; see `Shards.after`.
        """
        shards = self._shards.after(done)
        normalised = batch.obs if self._config.normalize_observation else None
        found = shards.mean(diagnostics(self.encoder, trajectory, normalised, batch.weight))
        explained = explained_variance(batch.value, batch.target, batch.weight, shards)
        return found | {"explained_variance": explained}


def _forget_return(state: State, env: int) -> State:
    """Return the state with an environment's discounted return set to 0; see `Algorithm.forget`."""
    returns = np.array(state.counters.returns)
    returns[env] = 0.0
    return state._replace(counters=state.counters._replace(returns=returns))


def apply_in_blocks(function: Callable[[Obs], jax.Array], rows: Obs) -> jax.Array:
    """Compute ``function(rows)``, BLOCK rows at a time, so that activations stay in the cache."""
    size = len(tree.first(rows))
    count = -(-size // BLOCK)

    def parted(leaf: jax.Array) -> jax.Array:
        padding = [(0, count * BLOCK - size), *((0, 0),) * (leaf.ndim - 1)]
        return jnp.pad(leaf, padding).reshape(count, BLOCK, *leaf.shape[1:])

    found = jax.lax.map(function, tree.map(parted, rows))
    return found.reshape(-1, *found.shape[2:])[:size]


def values_around(values: jax.Array, trajectory: Trajectory) -> tuple[jax.Array, jax.Array]:
    """Return the values ``[T, N]`` before and after each step.

    After a truncation, the value is that of the episode's final observation.

    Args:
        values: the values ``[T * N + N + C]`` of the trajectory's `obs`, its `last_obs` and its
            `finals`, in this order.
        trajectory: holds the positions of the final observations.
    """
    shape = trajectory.rewards.shape
    steps = shape[0] * shape[1]
    v_t = values[:steps].reshape(shape)
    v_tp1 = values[shape[1] : steps + shape[1]]
    finals = values[steps + shape[1] :]
    v_tp1 = v_tp1.at[trajectory.finals.index].set(finals, mode="drop")
    return v_t, v_tp1.reshape(shape)
