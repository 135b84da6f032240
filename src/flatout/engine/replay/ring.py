"""The layout of a replay ring: which entry is where, and how a batch is gathered from it.

Host replay and device replay call it. Each frame is stored once; frame stacks and n-step returns
are made when sampling. Rows are numbered from the run's start; row g of N environments is at
position ``g % L``. The functions only read, so that the same code serves NumPy (host memory) and
JAX (device memory).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout import tree
from flatout.frames import NEXT_AGE, frame_spec, join_stack, most_frames, newest
from flatout.types import Array, Batch, Obs, ObservationSpec, ObsSpec, Trajectory


class Ring(NamedTuple):
    """The arrays of a ring. All but `finals` have one leading axis of L * N entries.

    Attributes:
        frames: each observation's newest frame, a tree. The newest row's step is still to come.
        actions, rewards, terminated, truncated: the step taken from that observation.
        age: uint8, steps since the episode's first observation (at most 255).
        final_id: int32, the number of a truncated step's final observation; see
            `RingCounters.finals`.
        finals: ``[F, *frame]``, the last frames of truncated episodes; number k is at ``k % F``.
    """

    frames: Obs
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    age: Array
    final_id: Array
    finals: Obs


STEP = ("actions", "rewards", "terminated", "truncated")
"""The fields of a trajectory that a ring stores as they are."""


class RolloutRows(NamedTuple):
    """The rows of one trajectory, as a ring stores them: arrays ``[T, N, ...]``.

    `frames` and `age` are ``[T + 1, N, ...]``: they include the observations after the last step.
    """

    frames: Obs
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    age: Array
    final_id: Array


@dataclass(frozen=True)
class RingLayout:
    """The sizes of a ring.

    Attributes:
        spec: one observation.
        num_envs: N.
        rows: R, the number of newest steps of each environment that can be sampled.
        n_step: n, the number of steps of a sampled transition.
    """

    spec: ObsSpec
    num_envs: int
    rows: int
    n_step: int

    @property
    def depth(self) -> int:
        """S, the most frames that are stacked in an array of an observation."""
        return most_frames(self.spec)

    @property
    def length(self) -> int:
        """L, the rows of the arrays: R rows, S - 1 older ones for stacks of S frames, and one for
        the observations after the newest step."""
        return self.rows + self.depth

    @property
    def frames(self) -> Obs:
        """The shapes of one frame, as a tree of `jax.ShapeDtypeStruct`."""
        return tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.dtype(leaf.dtype)),
            frame_spec(self.spec),
        )

    def window(self, rows_written: Any) -> tuple[Any, Any]:
        """Return the first row that can be sampled, and how many can, after `rows_written` rows."""
        count = (
            np.minimum(rows_written, self.rows)
            if isinstance(rows_written, int)
            else jnp.minimum(rows_written, self.rows)
        )
        return rows_written - count, count

    def newest(self, obs: Obs) -> Obs:
        """Return the newest frames of observations; see `flatout.frames.newest`."""
        return newest(self.spec, obs)


def ring_shapes(layout: RingLayout, trajectory: Trajectory, finals: int) -> Ring:
    """Return the shapes of a ring's arrays.

    Args:
        layout: the ring's sizes.
        trajectory: the shapes of trajectories.
        finals: F, the capacity for final observations.
    """
    entries = layout.length * layout.num_envs
    steps = {name: getattr(trajectory, name) for name in STEP}

    def flat(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((entries, *shape), np.dtype(dtype))

    return Ring(
        frames=tree.map(lambda frame: flat(frame.shape, frame.dtype), layout.frames),
        **{name: flat(leaf.shape[2:], leaf.dtype) for name, leaf in steps.items()},
        age=flat((), np.uint8),
        final_id=flat((), np.int32),
        finals=tree.map(
            lambda frame: jax.ShapeDtypeStruct((finals, *frame.shape), frame.dtype), layout.frames
        ),
    )


def ring_bytes(ring: Any) -> int:
    """Return the bytes of a ring's arrays, or of arrays with these shapes."""
    leaves = jax.tree.leaves(ring)
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def next_age(xp: Any, age: Array, ended: Array) -> Array:
    """Return the ages ``[N]`` of the observations after a step: 0 where an episode begins.

    Args:
        xp: `numpy` or `jax.numpy`.
        age: uint8 ``[N]``, the ages of the observations before the step.
        ended: bool ``[N]``, whether the step ended the episode.
    """
    return xp.where(ended, np.uint8(0), xp.asarray(NEXT_AGE)[age])


def final_ids(xp: Any, finals: Any, truncated: Array) -> Array:
    """Return the numbers of truncated steps' final observations, in the order of the steps: int32
    ``[T, N]``. The entries of other steps are meaningless.

    Args:
        xp: `numpy` or `jax.numpy`.
        finals: the number of the first final observation.
        truncated: bool ``[T, N]``.
    """
    counted = finals + xp.cumsum(truncated.reshape(-1)) - 1
    return counted.astype(np.int32).reshape(truncated.shape)


class Gathered(NamedTuple):
    """Transitions as `gather` returns them; `merge` makes a batch of them.

    Attributes:
        frames: a tree of ``[..., W, *frame]``: the first S frames are the observation, the last S
            the next one. For n = 1 the two observations share S - 1 frames, so that W is S + 1.
        actions: ``[...]`` or ``[..., A]``.
        rewards: ``[..., n]``; only the first `steps` of them count.
        steps: int32 ``[...]``, the number of steps that the transition spans, 1 to n.
        terminated: bool ``[...]``, whether the last of these steps was terminal.
        weights: float32 ``[...]``, ones. With priorities, the caller then sets importance weights.
    """

    frames: Obs
    actions: Array
    rewards: Array
    steps: Array
    terminated: Array
    weights: Array


def gather(
    xp: Any, layout: RingLayout, ring: Ring, rows_written: Any, row: Array, env: Array
) -> Gathered:
    """Gather the transitions that start at given rows.

    Args:
        xp: `numpy` or `jax.numpy`.
        layout: the ring's sizes.
        ring: the ring's arrays.
        rows_written: the number of rows ever stored. No transition goes beyond the newest one.
        row: ``[...]`` row numbers, within `RingLayout.window`.
        env: ``[...]`` numbers of environments.
    """
    num_envs, length = layout.num_envs, layout.length

    def place(number: Array) -> Array:
        return number % length * num_envs + env

    def at(array: Array, places: Array) -> Array:
        return xp.take(array, places, axis=0, mode="clip")

    here = place(row)
    rewards, steps = [at(ring.rewards, here)], xp.ones(row.shape, np.int32)
    terminated, truncated = at(ring.terminated, here), at(ring.truncated, here)
    going = ~(terminated | truncated)
    for k in range(1, layout.n_step):
        later = place(row + k)
        rewards.append(at(ring.rewards, later))
        going = going & (row + k < rows_written)
        steps = steps + going
        terminated = xp.where(going, at(ring.terminated, later), terminated)
        truncated = xp.where(going, at(ring.truncated, later), truncated)
        going = going & ~(terminated | truncated)
    last = row + steps - 1
    final_id = None
    if xp is not np or truncated.any():
        final_id = at(ring.final_id, place(last))

    def frames_of(spec: ObservationSpec, stored: Array, finals: Array) -> Array:
        ahead = range(1 - spec.stack, 2)
        frames = _frames(xp, layout, spec, ring.age, stored, last, env, ahead)
        if final_id is not None:
            frames = _with_finals(xp, frames, finals, final_id, truncated)
        if layout.n_step > 1:
            ahead = range(1 - spec.stack, 1)
            first = _frames(xp, layout, spec, ring.age, stored, row, env, ahead)
            axis = row.ndim
            frames = xp.concatenate([first, _slice(frames, axis, 1, None)], axis=axis)
        return frames

    return Gathered(
        frames=tree.map(frames_of, layout.spec, ring.frames, ring.finals),
        actions=at(ring.actions, here),
        rewards=xp.stack(rewards, axis=-1),
        steps=steps,
        terminated=terminated,
        weights=xp.ones(row.shape, np.float32),
    )


def merge(layout: RingLayout, gathered: Gathered, gamma: jax.Array) -> Batch:
    """Make a batch ``[B]`` for an algorithm: discount and sum rewards, stack frames.

    It runs inside the compiled update, with discount factors from a table, so that rounding does
    not depend on where the transitions were gathered.
    """
    n = layout.n_step
    powers = jnp.cumprod(jnp.full(n, gamma))  # gamma, its square, ...
    factors = jnp.tril(jnp.broadcast_to(jnp.append(1.0, powers[:-1]), (n, n)))
    rewards = (gathered.rewards * factors[gathered.steps - 1]).sum(-1)
    table = jnp.append(powers, 0.0)  # entry n: no bootstrap after a terminal step
    discounts = table[jnp.where(gathered.terminated, n, gathered.steps - 1)]

    def stacked(spec: ObservationSpec, frames: jax.Array) -> jax.Array:
        return frames[:, 0] if spec.stack == 1 else join_stack(jnp, frames, 1)

    spec, frames = layout.spec, gathered.frames
    obs = tree.map(lambda leaf, seen: stacked(leaf, seen[:, : leaf.stack]), spec, frames)
    after = tree.map(lambda leaf, seen: stacked(leaf, seen[:, -leaf.stack :]), spec, frames)
    return Batch(obs, gathered.actions, rewards, after, discounts, gathered.weights)


def _with_finals(xp: Any, frames: Array, finals: Array, final_id: Array, truncated: Array) -> Array:
    """Replace the last frame of truncated transitions by the final frame (NumPy: in place)."""
    if xp is np:
        frames[truncated, -1] = finals[final_id[truncated] % len(finals)]
        return frames
    axis = truncated.ndim
    final = xp.expand_dims(xp.take(finals, final_id % len(finals), axis=0, mode="clip"), axis)
    truncate = truncated.reshape(truncated.shape + (1,) * (frames.ndim - axis))
    last = xp.where(truncate, final, _slice(frames, axis, -1, None))
    return xp.concatenate([_slice(frames, axis, None, -1), last], axis=axis)


def _slice(array: Array, axis: int, start: int | None, stop: int | None) -> Array:
    return array[(slice(None),) * axis + (slice(start, stop),)]


def _frames(
    xp: Any, layout: RingLayout, spec: ObservationSpec, ages: Array, stored: Array, row: Array,
    env: Array, offsets: range,
) -> Array:  # fmt: skip
    """Return the frames ``[..., len(offsets), *frame]`` of the rows ``row + offsets``. Rows before
    the episode's start give its first frame, or zeros (`ObservationSpec.stack_pad`).

    Args:
        spec: the array of an observation.
        ages: `Ring.age`.
        stored: the array of `Ring.frames`.
    """
    num_envs, length = layout.num_envs, layout.length
    ahead = np.asarray(offsets, np.int32)
    if spec.stack == 1:
        number = (row[..., None] + ahead) % length * num_envs + env[..., None]
        return xp.take(stored, number, axis=0, mode="clip")
    age = xp.take(ages, row % length * num_envs + env, axis=0, mode="clip").astype(np.int32)
    start = -age[..., None]
    number = (row[..., None] + xp.maximum(ahead, start)) % length * num_envs + env[..., None]
    frames = xp.take(stored, number, axis=0, mode="clip")
    if spec.stack_pad == "zeros":
        there = ahead >= start
        if xp is np:
            frames[~there] = 0  # few entries: most samples are far from an episode's start
            return frames
        there = there.reshape(there.shape + (1,) * (frames.ndim - there.ndim))
        frames = xp.where(there, frames, np.zeros((), frames.dtype))
    return frames
