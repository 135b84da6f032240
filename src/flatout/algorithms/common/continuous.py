"""The parts that DDPG, TD3, SAC and TQC share: bounded actions, trunks, critics and the warm-up.

Networks use actions in -1..1 per component; `Bounds` scales them to the environment's bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import Acted, Algorithm, BuildSpec, State, replay_spec
from flatout.algorithms.common.optimiser import schedule
from flatout.algorithms.hp import hyper_parameters
from flatout.algorithms.shards import Losses
from flatout.casts import inwards
from flatout.config.actions import refuse_actions
from flatout.config.hyper import DDPGConfig, SACConfig
from flatout.networks.encoder import Encoder
from flatout.networks.layers import MLP, Draw, FanIn, Linear
from flatout.networks.torsos import Torso
from flatout.randomness import uniforms
from flatout.types import ActionSpec, Array, Batch, ContinuousSpec, Obs

Tree = TypeVar("Tree")


class Bounds:
    """An action box, and the scaling between it and -1..1.

    Args:
        spec: the environment's actions.
        algorithm: the algorithm's name, for messages.

    Raises:
        UsageError: the actions are not a bounded box.
    """

    def __init__(self, spec: ActionSpec, algorithm: str) -> None:
        refuse_actions(algorithm, spec)
        assert isinstance(spec, ContinuousSpec)
        low, high = np.asarray(spec.low, np.float64), np.asarray(spec.high, np.float64)
        self.size = spec.size
        self.middle = ((low + high) / 2).astype(np.float32)
        self.half = ((high - low) / 2).astype(np.float32)
        self.low, self.high = inwards(spec.low, spec.high)

    def to_environment(self, action: jax.Array) -> jax.Array:
        """Scale actions from -1..1 to the box."""
        return jnp.clip(self.middle + self.half * action, self.low, self.high)

    def from_environment(self, action: jax.Array) -> jax.Array:
        """Scale actions from the box to -1..1."""
        return (action - self.middle) / self.half

    def scaled(self, batch: Batch, encoder: Encoder) -> Batch:
        """Return a batch with prepared observations and actions in -1..1."""
        return batch._replace(
            obs=encoder.prepare(batch.obs), next_obs=encoder.prepare(batch.next_obs),
            actions=self.from_environment(batch.actions),
        )  # fmt: skip


class ContinuousActorParams(NamedTuple):
    """The parameters for acting: the actor, the probability of a random action (1 in the warm-up,
    then 0), and the standard deviation of the noise on actions, or None."""

    actor: Any
    epsilon: Array
    noise: Array | None = None


class Noise(NamedTuple):
    """One step's noise: a uniform action in -1..1 ``[A]`` and standard normals ``[A]``."""

    uniform: Array
    normal: Array


def box_algorithm(
    config: DDPGConfig | SACConfig, spec: BuildSpec, bounds: Bounds,
    greedy: Callable[[Any, Obs], jax.Array],
    explore: Callable[[ContinuousActorParams, Obs, jax.Array], jax.Array], **functions: Any,
) -> Algorithm:  # fmt: skip
    """Build an algorithm that acts uniformly at random in the warm-up and by its actor afterwards.

    Args:
        config: hyper-parameters.
        spec: the task and the run.
        bounds: the bounds of the actions.
        greedy: ``(actor, x[B, ...]) -> action[B, A]`` in -1..1; x are prepared observations.
        explore: ``(params, x[B, ...], standard normals[B, A]) -> action[B, A]`` in -1..1.
        functions: the remaining fields of `Algorithm`.
    """

    def act(params: ContinuousActorParams, obs: Obs, carry: Any, draw: Noise | None) -> Acted:
        x = spec.encoder.prepare(obs)
        if draw is None:
            return bounds.to_environment(greedy(params.actor, x)), carry, {}

        def run(_: Any) -> jax.Array:
            return explore(params, x, draw.normal)

        action = jax.lax.cond(params.epsilon > 0, lambda _: draw.uniform, run, None)
        return bounds.to_environment(action), carry, {}

    def noise(key: jax.Array, env: jax.Array, step: jax.Array) -> Noise:
        drawn = 2.0 * uniforms(key, env, step, 2 * bounds.size) - 1.0
        return Noise(drawn[: bounds.size], math.sqrt(2.0) * jax.lax.erf_inv(drawn[bounds.size :]))

    def actor(state: State, hp: Any) -> ContinuousActorParams:
        epsilon = (state.counters.step < config.learning_starts).astype(jnp.float32)
        return ContinuousActorParams(state.params.actor, epsilon, getattr(hp, "action_noise", None))

    def advance(state: State, steps: jax.Array, hp: Any) -> tuple[State, dict[str, jax.Array]]:
        counters = state.counters  # `update` moves the target networks
        return state._replace(counters=counters._replace(step=counters.step + steps)), {}

    replay = replay_spec(config, spec.total_steps)
    return Algorithm(
        hp=hyper_parameters(config, spec.total_steps), act=act, noise=noise, actor=actor,
        advance=advance, replay=replay, horizon=replay.horizon(spec.num_envs),
        shards=spec.shards, **functions,
    )  # fmt: skip


def rates(hp: Any, step: jax.Array) -> tuple[jax.Array, jax.Array | float]:
    """Return the actor's current learning rate, and the ratio of the critics' rate to it."""
    ratio = 1.0
    if hp.critic_learning_rate is not None:
        ratio = hp.critic_learning_rate / hp.learning_rate[0]
    return schedule(hp.learning_rate, step, hp.total_steps), ratio


def every(interval: int, updates: jax.Array, function: Callable[[Tree], Tree], value: Tree) -> Tree:
    """Return ``function(value)`` at every `interval`-th update, else the value."""
    if interval == 1:
        return function(value)
    return jax.lax.cond(updates % interval == 0, function, lambda same: same, value)


class Trunk(eqx.Module):
    """Dense layers over a torso's features (the flattened observation without a torso), and actions
    if given."""

    torso: Torso | None
    dense: MLP
    head: Linear

    def __call__(self, hidden: jax.Array, action: jax.Array | None = None) -> jax.Array:
        """Return the outputs for features ``[B, F]`` and actions ``[B, A]``."""
        if action is not None:
            hidden = jnp.concatenate([hidden, action], -1)
        return self.head(self.dense(hidden))


def make_trunk(
    draw: Draw, spec: BuildSpec, actions: int, outputs: int, hidden: tuple[int, ...] | None = None
) -> Trunk:
    """Build a trunk that also reads `actions` action components (0 for an actor).

    Args:
        hidden: widths of the dense layers; None for those of the network's settings.
    """
    encoder, config = spec.encoder, spec.network_config
    hidden = config.hidden if hidden is None else hidden
    torso = None if encoder.plain else encoder.build(draw, dense=False)
    width = encoder.width(torso)
    dense = MLP(draw, width + actions, hidden, config.activation)
    last = hidden[-1] if hidden else width + actions
    return Trunk(torso, dense, Linear(draw, last, outputs, 1.0))


class ActorCritics:
    """An actor and its critics. It keeps their static parts; learning states hold their arrays.

    Args:
        spec: the task and the run.
        actions: A.
        outputs: the number of the actor's outputs.
        critics: the number of critics.
        critic_hidden: widths of the critics' hidden layers; None for those of the actor.
        atoms: the number of each critic's outputs, if it estimates a distribution of returns.

    Attributes:
        shapes: the arrays of the actor and of the critics, all zeros.
    """

    def __init__(
        self,
        spec: BuildSpec,
        actions: int,
        outputs: int,
        critics: int,
        critic_hidden: tuple[int, ...] | None = None,
        atoms: int = 1,
    ) -> None:
        self._spec, self._actions, self._outputs, self._count = spec, actions, outputs, critics
        self._critic_hidden, self._atoms = critic_hidden, atoms
        actor, critic = self._build(FanIn(None))
        actor_arrays, self._actor = eqx.partition(actor, eqx.is_array)
        critic_arrays, self._critics = eqx.partition(critic, eqx.is_array)
        self.shapes: tuple[Any, Any] = actor_arrays, critic_arrays

    def _build(self, draw: Draw) -> tuple[Trunk, tuple[Trunk, ...]]:
        actor = make_trunk(draw, self._spec, 0, self._outputs)
        critics = tuple(
            make_trunk(draw, self._spec, self._actions, self._atoms, self._critic_hidden)
            for _ in range(self._count)
        )
        return actor, critics

    def draw(self, key: np.ndarray) -> tuple[Any, Any]:
        """Return initial arrays of the actor and of the critics, for a raw key."""
        actor, critics = self._build(FanIn(np.random.default_rng(key)))
        return eqx.filter(actor, eqx.is_array), eqx.filter(critics, eqx.is_array)

    def _features(self, trunk: Trunk, x: Obs) -> jax.Array:
        return self._spec.encoder.features(trunk.torso, x)

    def outputs(self, actor: Any, x: Obs) -> jax.Array:
        """Return the actor's outputs for prepared observations ``[B, ...]``."""
        trunk = eqx.combine(actor, self._actor)
        return trunk(self._features(trunk, x))

    def bounded(self, actor: Any, x: Obs) -> jax.Array:
        """Return the actor's outputs as actions ``[B, A]`` in -1..1."""
        return jnp.tanh(self.outputs(actor, x))

    def values(self, critics: Any, x: Obs, action: jax.Array) -> tuple[jax.Array, ...]:
        """Return each critic's values ``[B]`` of prepared observations and actions ``[B, A]``."""
        return tuple(found[:, 0] for found in self.atoms(critics, x, action))

    def atoms(self, critics: Any, x: Obs, action: jax.Array) -> tuple[jax.Array, ...]:
        """Return each critic's outputs ``[B, M]``; see `values`."""
        trunks = eqx.combine(critics, self._critics)
        return tuple(trunk(self._features(trunk, x), action) for trunk in trunks)


def smallest(values: tuple[jax.Array, ...]) -> jax.Array:
    """Return the smallest of one or two critics' values, ``[B]``."""
    return values[0] if len(values) == 1 else jnp.minimum(values[0], values[1])


def squared_errors(estimates: tuple[jax.Array, ...], target: jax.Array, batch: Batch) -> Losses:
    """Return the sum of the critics' weighted mean squared errors against a target ``[B]``."""
    losses = [(batch.weights * jnp.square(q - target)).mean() for q in estimates]
    error = jnp.abs(jnp.stack(estimates) - target).mean(0)
    scalars = {"td_error": error.mean(), "q_mean": estimates[0].mean()}
    return sum(losses, jnp.zeros(())), (scalars, error)
