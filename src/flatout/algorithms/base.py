"""The contract of algorithms (`Algorithm`), and the specifications from which they are built.

The learner, the buffers and the samplers call an algorithm's pure functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout import tree
from flatout.algorithms.shards import UNSHARDED, Gradient, Loss, Shards, gradient
from flatout.config.hyper import ReplayConfig
from flatout.config.schema import NetworkConfig
from flatout.errors import FlatoutError, UsageError, with_full_stop
from flatout.frames import frame_spec
from flatout.networks.encoder import Encoder
from flatout.networks.torsos import OwnNetwork
from flatout.packing import OutputLayout
from flatout.types import ActionSpec, Array, Finals, ObsSpec, Trajectory

Params = Any
HyperParameters = Any
Acted = tuple[jax.Array, Any, dict[str, jax.Array]]
"""The results of `act`: actions ``[B, ...]``, the carry, and extras ``[B, ...]`` by name."""


class State(NamedTuple):
    """The learning state: everything that updates change, as pytrees of arrays.

    Attributes:
        params: the agent: networks, target networks and normalisers.
        opt: the optimisers' states.
        counters: counts of this run; a run that starts from another run's `params` counts from 0.
            The field `step` counts environment steps (int32).
    """

    params: Any
    opt: Any
    counters: Any


class Counters(NamedTuple):
    """Counts of environment steps, and of gradient steps or trajectories, both int32."""

    step: Array
    updates: Array


Updated = tuple[State, dict[str, jax.Array], Any]
"""The state, metrics by name, and with replay each row's absolute error ``[B]``, else None."""


def no_noise(key: jax.Array, env: jax.Array, step: jax.Array) -> jax.Array:
    """Return 0, the noise of an algorithm whose actions need none."""
    return jnp.zeros(())


@dataclass(frozen=True, eq=False)  # arrays have no hash
class Algorithm:
    """An algorithm: pure functions and the data that they need, without devices or environments.

    Attributes:
        name: the algorithm's name.
        hp: the hyper-parameters: a named tuple (or another pytree) of float32 NumPy arrays. They
            are arguments of the compiled programs, so a new value needs no new program.
        init: ``(raw key uint32[2], hp) -> state``, in NumPy arrays. It draws on the host, so that
            the state is the same on every device.
        act: ``(params, obs[B, ...], carry, noise[B, ...] | None) -> action[B, ...], carry,
            extras``. Without noise it acts greedily. `params` are what `actor` returns.
        update: ``(state, data, key, hp) -> state, metrics, priorities | None``. On-policy, the data
            is a `Trajectory`, and the update makes all gradient steps that it pays for. With
            `replay`, the data is a `Batch`, and the update makes one gradient step and returns each
            row's absolute error ``[B]``. The key is the same every time (the learning stream's);
            the update folds a counter of the state into it.
        metrics: the names of the scalars that `update` returns. On-policy, ``updates`` is one of
            them: the number of gradient steps made.
        horizon: T, steps per environment in a fresh trajectory.
        noise: ``(key, env, step) -> noise``, the random numbers of one step of one environment. It
            is a pure function of (seed, environment, step), so that any process may compute it,
            also in blocks, with the same result.
        actor: ``(state, hp) -> params``, only what `act` needs, normaliser statistics included. It
            reads only `params` and `counters` of the state.
        by_env: whether each leaf of `params` has one entry per environment. `act` finds the entry
            by its noise, which is the environment's number.
        episodes: whole episodes per environment and trajectory (padded to T), or None.
        replay: the algorithm's requirements for replay, or None if it learns from fresh
            trajectories.
        advance: ``(state, steps, hp) -> state, scalars``, needed with `replay`. It counts new
            environment steps before the updates that they pay for, and returns scalars by name
            (epsilon, for example).
        advanced: the names of those scalars.
        shards: the logical shards of an update.
        initial_carry: ``(n) -> carry[n, ...]``, a pytree of arrays: what `act` gets for n
            environments whose episodes begin. After that `act` gets what it returned for the step
            before. It is () for feed-forward networks. An update gets the carry before a
            trajectory's first step as `Trajectory.carry`; within the trajectory it has to reset the
            carry after each step that is terminated or truncated.
        forget: ``(state, env) -> state``, in NumPy arrays: drop what the state remembers of an
            environment's current episode. It is called when the episode was cut between two
            trajectories, so that none of them shows its end. None if the state remembers nothing.
        shapes: the state's shapes and dtypes; by default those of the state that `init` draws.
    """

    name: str
    hp: HyperParameters
    init: Callable[[np.ndarray, HyperParameters], State]
    act: Callable[[Params, jax.Array, Any, Any], Acted]
    update: Callable[[State, Any, jax.Array, HyperParameters], Updated]
    metrics: tuple[str, ...]
    horizon: int
    noise: Callable[[jax.Array, jax.Array, jax.Array], Any] = no_noise
    actor: Callable[[State, HyperParameters], Params] = lambda state, hp: state.params
    by_env: bool = False
    episodes: int | None = None
    replay: ReplaySpec | None = None
    advance: (
        Callable[[State, jax.Array, HyperParameters], tuple[State, dict[str, jax.Array]]] | None
    ) = None
    advanced: tuple[str, ...] = ()
    shards: Shards = UNSHARDED
    initial_carry: Callable[[int], Any] = lambda n: ()
    forget: Callable[[State, int], State] | None = None
    shapes: Any = None

    def __post_init__(self) -> None:
        if self.shapes is None:
            object.__setattr__(self, "shapes", self._drawn_shapes())

    @functools.cached_property
    def recurrent(self) -> bool:
        """Whether acting has a carry."""
        return bool(jax.tree.leaves(jax.eval_shape(lambda: self.initial_carry(1))))

    def carry_shapes(self, count: int) -> Any:
        """Return the shapes of the carry of `count` environments."""
        return jax.eval_shape(lambda: self.initial_carry(count))

    def reset_carry(self, carry: Any, begun: Array) -> Any:
        """Return the carry with that of the environments in the mask ``begun [n]`` replaced by the
        initial one."""

        def reset(first: jax.Array, now: jax.Array) -> jax.Array:
            mask = begun.reshape(begun.shape + (1,) * (now.ndim - begun.ndim))
            return jnp.where(mask, first, now)

        return jax.tree.map(reset, self.initial_carry(len(begun)), carry)

    def _drawn_shapes(self) -> Any:
        """Return the shapes of the state that `init` draws.

        Raises:
            UsageError: `init` fails, or a leaf is not an array.
        """
        state = guarded(self.name, "init", self.init, np.zeros(2, np.uint32), self.hp)
        for path, leaf in named_leaves(state):
            if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
                raise UsageError(
                    f"{self.name}: init returns {path} as a Python {type(leaf).__name__}; the "
                    "state's leaves must be NumPy arrays, np.int32(0) for example."
                )
        return shapes_of(state)

    @functools.cached_property
    def actor_shapes(self) -> Params:
        """The shapes and dtypes of the parameters that `actor` returns."""
        return jax.eval_shape(self.actor, self.shapes, self.hp)


@dataclass(frozen=True)
class BuildSpec:
    """The task and the run for which an algorithm is built; hyper-parameters are passed separately.

    Attributes:
        network_config: settings of torsos and hidden layers.
        obs_spec, action_spec: the spaces of one environment.
        num_envs: N.
        total_steps: environment steps of the whole run, over which schedules run.
        horizon: T, steps per environment in a trajectory; 0 if the algorithm chooses T itself.
        network: a custom torso, or several by path, or None for the configured ones.
        shards: the logical shards of each update.
        micro_batch: rows of a shard whose gradient is computed at once; None for all.
    """

    network_config: NetworkConfig
    obs_spec: ObsSpec
    action_spec: ActionSpec
    num_envs: int
    total_steps: int
    horizon: int = 0
    network: OwnNetwork | None = None
    shards: Shards = UNSHARDED
    micro_batch: int | None = None

    @functools.cached_property
    def encoder(self) -> Encoder:
        """How observations become features."""
        return Encoder(self.obs_spec, self.network_config, self.network)

    def gradient(self, loss: Loss, rows: int) -> Gradient:
        """Return the gradient of a loss for batches of `rows` rows.

        See `flatout.algorithms.shards.gradient`.
        """
        return gradient(loss, rows, self.micro_batch, self.shards)


@dataclass(frozen=True)
class ReplaySpec:
    """An algorithm's requirements for replay.

    Attributes:
        batch_size: B, transitions per update.
        train_freq, gradient_steps: `gradient_steps` updates are due for every `train_freq`
            environment steps, which are counted over all environments.
        learning_starts: environment steps before the first update.
        buffer_size: transitions to keep.
        n_step: rewards summed before the bootstrap, discounted by ``hp.gamma``.
        prioritized: sample by priority, with the exponents ``hp.priority_alpha`` and
            ``hp.priority_beta``, ``(start, end)``; else uniformly.
        total_steps: environment steps of the run, over which ``hp.priority_beta`` moves.
        hindsight: of every `hindsight` + 1 sampled transitions, `hindsight` get a goal that their
            episode achieved later (`flatout.engine.replay.hindsight`).
        shards: S, if these are the requirements of one of S shards. `batch_size` and `buffer_size`
            are then those of the shard; `train_freq`, `learning_starts` and updates still count
            the steps of all shards.
    """

    batch_size: int
    train_freq: int
    gradient_steps: int
    learning_starts: int
    buffer_size: int
    n_step: int = 1
    prioritized: bool = False
    total_steps: int = 1
    hindsight: int = 0
    shards: int = 1

    def shard(self, count: int) -> ReplaySpec:
        """Return the requirements of one of `count` shards."""
        return replace(
            self, batch_size=self.batch_size // count, buffer_size=self.buffer_size // count,
            shards=count,
        )  # fmt: skip

    def whole(self) -> ReplaySpec:
        """Return the requirements of all shards together."""
        return replace(
            self, batch_size=self.batch_size * self.shards,
            buffer_size=self.buffer_size * self.shards, shards=1,
        )  # fmt: skip

    def horizon(self, num_envs: int) -> int:
        """Return T, the steps per environment that are collected before updates are due."""
        return -(-self.train_freq // (num_envs * self.shards))

    def updates_due(self, steps: Any) -> Any:
        """Return how many updates are due after `steps`, an int or int32.

        `steps` counts the environment steps of one shard (of the run, if `shards` is 1).
        """
        after = steps * self.shards - self.learning_starts
        after = max(after, 0) if isinstance(after, int) else jnp.maximum(after, 0)
        times, rest = after // self.train_freq, after % self.train_freq
        return times * self.gradient_steps + rest * self.gradient_steps // self.train_freq

    def most(self, num_envs: int, rows: int = 0) -> int:
        """Return the largest number of updates that one trajectory of `rows` steps per environment
        makes due; by default those of `horizon`."""
        steps = (rows or self.horizon(num_envs)) * num_envs * self.shards
        return -(-steps * self.gradient_steps // self.train_freq)


def replay_spec(config: ReplayConfig, total_steps: int) -> ReplaySpec:
    """Return the requirements for replay of these settings."""
    own = {one.name for one in fields(ReplaySpec)} & {one.name for one in fields(config)}
    return ReplaySpec(**{name: getattr(config, name) for name in own}, total_steps=total_steps)


@dataclass(frozen=True)
class RolloutSpec:
    """The requirements of a run's algorithm and data flow for its sampler.

    Attributes:
        horizon: T.
        episodes: whole episodes per environment and trajectory, or None.
        truncations: truncated episodes per environment for which a trajectory has room at first;
            a trajectory with more of them gets more room (`flatout.engine.finals`).
        replayed: whether trajectories hold the steps that ended an episode (`Trajectory.ended`).
        slots: trajectories in use at the same time.
        frames: whether trajectories store each frame of a stack once (`Trajectory.age`).
        terminal: whether terminated steps are marked as truncated, too, so that the observations
            after them are kept.
    """

    horizon: int
    episodes: int | None
    truncations: int
    replayed: bool
    slots: int = 1
    frames: bool = False
    terminal: bool = False

    def holds(self, name: str) -> bool:
        """Return whether trajectories have the field `name`; otherwise it is None."""
        needs = TRAJECTORY_FIELDS[name].needs
        return not needs or bool(getattr(self, needs))

    def stored(self, spec: ObsSpec) -> ObsSpec:
        """Return the spec of one entry of the arrays of observations."""
        return frame_spec(spec) if self.frames else spec

    def obs_rows(self, spec: ObsSpec) -> dict[str, int] | int:
        """Return the number of rows of each array of observations before `Trajectory.last_obs`."""
        return tree.map(lambda leaf: self.horizon + self.frames * (leaf.stack - 1), spec)


Entry = Literal["obs", "action", "extras", "carry", "float32", "int32", "uint8", "bool"]
"""One entry of a field: an observation, an output or all other outputs of `act`, the carry, or a
number of this dtype."""

WrittenBy = Literal["envs", "sampler", "act"]
"""The writer of a field: what steps the environments, what acts for them, or the policy."""


class TrajectoryField(NamedTuple):
    """A row of `TRAJECTORY_FIELDS`.

    Attributes:
        axes: the axes before those of an entry: T steps, R rows of observations (T + 1), N
            environments, C final observations.
        entry: one entry of its array or arrays.
        writer: what writes it.
        needs: the attribute of `RolloutSpec` without which trajectories lack the field.
    """

    axes: str
    entry: Entry
    writer: WrittenBy
    needs: str = ""


TRAJECTORY_FIELDS = {
    "obs": TrajectoryField("TN", "obs", "envs"),
    "actions": TrajectoryField("TN", "action", "act"),
    "rewards": TrajectoryField("TN", "float32", "envs"),
    "terminated": TrajectoryField("TN", "bool", "sampler"),
    "truncated": TrajectoryField("TN", "bool", "sampler"),
    "last_obs": TrajectoryField("N", "obs", "envs"),
    "final_obs": TrajectoryField("C", "obs", "sampler"),
    "final_index": TrajectoryField("C", "int32", "sampler"),
    "extras": TrajectoryField("TN", "extras", "act"),
    "valid": TrajectoryField("TN", "bool", "sampler", needs="episodes"),
    "ended": TrajectoryField("TN", "bool", "sampler", needs="replayed"),
    "carry": TrajectoryField("N", "carry", "act"),
    "age": TrajectoryField("RN", "uint8", "sampler", needs="frames"),
}
"""The fields of `Trajectory`, with the two arrays of `finals` in its place.

Shapes, allocation, shared memory, shards and the names of saved arrays follow from this table;
`trajectory_shapes` and `flatout.engine.trajectory` have the functions.
"""


def trajectory_shapes(
    rollout: RolloutSpec, num_envs: int, spec: ObsSpec, layout: OutputLayout, carry: Any = ()
) -> Trajectory:
    """Return the shapes and dtypes of a trajectory of N environments, without allocating it.

    Args:
        layout: that of `act`'s outputs, for any number of environments.
        carry: the shapes of the carry of N environments.
    """
    horizon, most = rollout.horizon, rollout.truncations * num_envs
    sizes = {"T": horizon, "R": horizon + 1, "N": num_envs, "C": most}
    outputs = {
        name: jax.ShapeDtypeStruct(shape[1:], dtype)
        for name, (_, _, shape, dtype) in layout.fields.items()
    }
    numbers = ("float32", "int32", "uint8", "bool")
    entries: dict[str, Any] = {name: jax.ShapeDtypeStruct((), np.dtype(name)) for name in numbers}
    entries |= {"obs": rollout.stored(spec), "action": outputs.pop("action"), "extras": outputs}

    def shapes(field: TrajectoryField) -> Any:
        if field.entry == "carry":
            return carry
        return spec_shapes(entries[field.entry], *(sizes[axis] for axis in field.axes))

    found = {
        name: shapes(field) for name, field in TRAJECTORY_FIELDS.items() if rollout.holds(name)
    }
    found["obs"] = tree.map(
        lambda rows, leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype),
        rollout.obs_rows(spec), found["obs"],
    )  # fmt: skip
    finals = Finals(found.pop("final_obs"), found.pop("final_index"))
    return Trajectory(**found, finals=finals)


def spec_shapes(spec: ObsSpec, *size: int) -> Any:
    """Return the shapes of entries ``[*size, ...]``, observations for example, as a tree of
    `jax.ShapeDtypeStruct`."""
    return tree.map(
        lambda leaf: jax.ShapeDtypeStruct((*size, *leaf.shape), np.dtype(leaf.dtype)), spec
    )


def guarded(name: str, function: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function and return its result, or raise its exception as one sentence.

    Raises:
        UsageError: the function raised an exception that is not a `FlatoutError`.
    """
    try:
        return call(*arguments)
    except FlatoutError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise UsageError(
            f"{name}: {function} failed: {type(error).__name__}: {with_full_stop(error)}"
        ) from error


def named_leaves(state: Any) -> Iterator[tuple[str, Any]]:
    """Yield each leaf of a learning state with its path, ``state.params['w']`` for example."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        yield f"state{jax.tree_util.keystr(path)}", leaf


def shapes_of(tree: Any) -> Any:
    """Return the same pytree with `jax.ShapeDtypeStruct` leaves."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
