"""The parts that the on-policy algorithms A2C and PPO share: acting and advantages."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flatout import tree
from flatout.algorithms.base import Acted, Algorithm, BuildSpec, State, Updated, shapes_of
from flatout.algorithms.common.actor_critic import (
    Actor,
    Memory,
    Networks,
    actor_outputs,
    build_networks,
    policy,
    value,
)
from flatout.algorithms.common.diagnostics import diagnostic_names, diagnostics, rows
from flatout.algorithms.common.distributions import distribution, parameter_mask
from flatout.algorithms.common.memory import (
    Remembered,
    by_sequence,
    in_blocks,
    remember_trajectory,
)
from flatout.algorithms.common.on_policy_state import (
    OnPolicyActorParams,
    OnPolicyCounters,
    OnPolicyParams,
    forget_episode,
)
from flatout.algorithms.common.optimiser import Optimiser
from flatout.algorithms.common.returns import (
    discounted_returns,
    explained_variance,
    generalised_advantages,
    initial_moments,
    initial_obs_moments,
    nothing_seen,
    update_moments,
    update_obs_moments,
    values_around,
)
from flatout.algorithms.common.rollout_batch import RolloutBatch
from flatout.algorithms.hp import hyper_parameters
from flatout.config.hyper import A2CConfig, PPOConfig
from flatout.errors import UsageError
from flatout.networks.memory import Cell
from flatout.types import Obs, Trajectory

UNKNOWN = np.float32(3e38)
"""The log probability of an action that was chosen before there were statistics to normalise its
observation. Learning normalises that observation, and computes the probability from the result:
PPO's and A2C's ratios then begin at 1, and do not measure what the normalisation changed. (A NaN
could not be saved: `storage.checkpoint` refuses it.)"""


Advantages = Callable[[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array, Any], jax.Array]
"""A function like `generalised_advantages`; the value targets are advantages + values."""


class OnPolicy:
    """The networks, acting, and the preparation of a trajectory for gradient steps.

    Args:
        config: hyper-parameters.
        spec: the task and the run; a trajectory of one shard has N / S environments.
        masked: whether trajectories hold padding, which `Trajectory.valid` marks.
        advantages: the estimator of advantages.
        length: L, the steps of the sequences from which recurrent networks learn.

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
        length: int = 1,
    ) -> None:
        self._config, self._length = config, length
        if config.recurrent is not None and (spec.micro_batch or length) % length:
            raise UsageError(
                f"micro_batch = {spec.micro_batch} must be a multiple of {length}, the steps of a "
                "sequence of the recurrent policy."
            )
        self.encoder, self._actions = spec.encoder, spec.action_spec
        self._num_envs, self._total_steps = spec.num_envs, spec.total_steps
        self._masked = masked
        self._shards = shards = spec.shards
        self.dist = distribution(spec.action_spec)

        def build(rng: np.random.Generator | None, log_std: Any = 0.0) -> Networks:
            return build_networks(rng, spec, self.dist, log_std, config)

        self._build = build
        parts: tuple[Networks, Networks] = eqx.partition(build(None), eqx.is_array)
        self.arrays: Networks = parts[0]
        self.static: Networks = parts[1]

        def values(arrays: Networks, x: Obs) -> jax.Array:
            networks = eqx.combine(arrays, self.static)
            of_part = functools.partial(value, self.encoder, networks)
            return in_blocks(self.encoder, of_part, x)

        def remembered(arrays: Networks, *given: Any) -> Remembered:
            networks = eqx.combine(arrays, self.static)
            return remember_trajectory(self.encoder, networks, *given, length=length)

        self._values = shards.one_by_one(values)
        self._remembered = shards.one_by_one(remembered)
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
            cell, carry = networks.critic.cell, None
            if cell is not None:
                carry = jax.tree.map(np.array, cell.initial(self._num_envs))
            counters = OnPolicyCounters(zero, zero.copy(), returns, carry)
            return State(params, optimiser.init(), counters)

        def init(key: np.ndarray, hp: Any) -> State:
            return initial(self._build(np.random.default_rng(key), hp.log_std_init))

        cell, critic_cell = self._cells
        remembers = config.normalize_reward or critic_cell is not None
        return Algorithm(
            name, hyper_parameters(config, self._total_steps), init, self.act, update,
            (*metrics, *self._diagnostic_names), horizon, self.dist.noise, self.actor,
            episodes=getattr(config, "rollout_episodes", None), shards=self._shards,
            shapes=shapes_of(initial(self.arrays)),  # large orthogonal weights take seconds to draw
            initial_carry=(lambda n: ()) if cell is None else cell.initial,
            forget=forget_episode if remembers else None,
        )  # fmt: skip

    @property
    def _cells(self) -> tuple[Cell | None, Cell | None]:
        """The cells of the actor and of the critic, with arrays of zeros."""
        return self.arrays.actor.cell, self.arrays.critic.cell

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
        x = self.encoder.prepare(obs, params.moments)
        x, carry = policy(self.encoder, actor, x, mask, carry)
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
        critic_carry, memory = state.counters.critic_carry, None
        if self._cells[0] is None:
            values = self._values(networks, x)
        else:
            carries = (trajectory.carry, jax.tree.map(shards.local, critic_carry))
            values, memory, critic_carry = self._remembered(
                networks, x, carries, done, trajectory.finals.index
            )
            critic_carry = jax.tree.map(shards.gather, critic_carry)
        v_t, v_tp1 = values_around(values, trajectory)
        x = flat_obs if x is seen else tree.take(x, slice(shape[0] * shape[1]))
        if masked:  # the arrays are reused, so padding holds numbers of earlier trajectories
            rewards = jnp.where(trajectory.valid, rewards, 0.0)
            v_t = jnp.where(trajectory.valid, v_t, 0.0)
            v_tp1 = jnp.where(trajectory.valid, v_tp1, 0.0)
        advantages = self._advantages(rewards, v_t, v_tp1, trajectory.terminated, done, hp)
        sample = rows(trajectory.extras.get("sample", trajectory.actions))
        log_prob = trajectory.extras["log_prob"].reshape(-1)

        def arranged(leaf: jax.Array) -> jax.Array:
            return leaf if memory is None else by_sequence(leaf, shape[1], self._length)

        x, mask, sample, log_prob, weight = jax.tree.map(
            arranged, (x, mask, sample, log_prob, weight)
        )
        if obs_moments is not None:
            log_prob = self._known(networks.actor, log_prob, x, mask, sample, memory)
        batch = RolloutBatch(
            obs=x,
            mask=mask,
            sample=sample,
            log_prob=log_prob,
            value=arranged(v_t.reshape(-1)),
            advantage=arranged(advantages.reshape(-1)),
            target=arranged((advantages + v_t).reshape(-1)),
            weight=weight,
            memory=memory,
        )
        counted = shape[0] * shape[1] * shards.count
        if masked:  # count only the newest trajectory, which has the first columns
            newest = trajectory.valid[:, : self._num_envs // shards.count]
            counted = shards.sum(newest.sum().astype(jnp.int32))
        counters = OnPolicyCounters(
            state.counters.step + counted, state.counters.updates + 1, returns, critic_carry
        )
        params = state.params._replace(obs_moments=after, reward_moments=reward_moments)
        return state._replace(params=params, counters=counters), batch

    def _known(
        self, arrays: Actor, log_prob: jax.Array, x: Obs, mask: jax.Array | None,
        sample: jax.Array, memory: Memory | None,
    ) -> jax.Array:  # fmt: skip
        """Return the log probabilities of actions, the `UNKNOWN` ones computed from observations
        that are normalised by now."""

        def compute(
            arrays: Actor, x: Obs, mask: jax.Array | None, sample: jax.Array, memory: Memory | None
        ) -> jax.Array:
            actor = eqx.combine(arrays, self.static.actor)
            outputs = actor_outputs(self.encoder, actor, x, mask, memory).head
            return self.dist.log_prob(outputs, actor.extra, sample)

        compute = self._shards.one_by_one(compute)

        def computed(known: jax.Array) -> jax.Array:
            return jnp.where(known == UNKNOWN, compute(arrays, x, mask, sample, memory), known)

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
