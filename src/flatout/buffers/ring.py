"""A ring of replayed experience: each frame once, stacks and n-step returns made when sampling.

Rows are numbered from the run's start; row g of N environments lies at position ``g % L``.
The functions here only read, so that one text serves NumPy (host memory) and JAX (device memory).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout.types import Array, Batch, ObservationSpec, Trajectory

MAX_AGE = 255
NEXT_AGE = np.minimum(np.arange(MAX_AGE + 1) + 1, MAX_AGE).astype(np.uint8)
"""The age after each age; looking it up takes one operation where computing it takes three."""


class Ring(NamedTuple):
    """Arrays with one leading axis of L * N entries, but for `finals` ``[F, ...]``.

    Attributes:
        frames: the newest frame of each observation, the row after the newest step included.
        actions, rewards, terminated, truncated: of the step from there.
        age: uint8, steps since the episode's first observation (at most 255).
        slot: int32, which final observation a truncated step has (counted from the run's start).
        finals: frames with which truncated episodes ended; the k-th lies at ``k % F``.
    """

    frames: Array
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    age: Array
    slot: Array
    finals: Array


class Piece(NamedTuple):
    """A trajectory as a ring ingests it: T rows of N environments.

    `frames` and `age` are of the observations before and after the steps, ``[T + 1, N, ...]``.
    """

    frames: Array
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    age: Array
    slot: Array


@dataclass(frozen=True)
class Geometry:
    """The sizes of a ring.

    Attributes:
        spec: one observation.
        num_envs: N.
        rows: R, steps of each environment that can be sampled.
        n_step: steps that a sample spans.
    """

    spec: ObservationSpec
    num_envs: int
    rows: int
    n_step: int

    @property
    def length(self) -> int:
        """L: rows, older frames for their stacks, and the observation after the newest."""
        return self.rows + self.spec.stack

    @property
    def frame(self) -> tuple[int, ...]:
        """One frame's shape."""
        shape = self.spec.shape
        return (*shape[:-1], shape[-1] // self.spec.stack)

    def window(self, head: Any) -> tuple[Any, Any]:
        """First row that can be sampled, and how many, once `head` rows were ever ingested."""
        count = (
            np.minimum(head, self.rows) if isinstance(head, int) else jnp.minimum(head, self.rows)
        )
        return head - count, count

    def newest(self, obs: Array) -> Array:
        """The newest frames of observations ``[..., H, W, S * c]``."""
        return obs[..., obs.shape[-1] - self.frame[-1] :]


def ring_shapes(geometry: Geometry, trajectory: Trajectory, finals: int) -> Ring:
    """The shapes of a ring for such trajectories."""
    entries = geometry.length * geometry.num_envs

    def flat(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((entries, *shape), np.dtype(dtype))

    frame, dtype = geometry.frame, geometry.spec.dtype
    return Ring(
        frames=flat(frame, dtype),
        actions=flat(trajectory.actions.shape[2:], trajectory.actions.dtype),
        rewards=flat((), np.float32),
        terminated=flat((), np.bool_),
        truncated=flat((), np.bool_),
        age=flat((), np.uint8),
        slot=flat((), np.int32),
        finals=jax.ShapeDtypeStruct((finals, *frame), np.dtype(dtype)),
    )


def ring_bytes(ring: Any) -> int:
    """Bytes of a ring's arrays or shapes."""
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in ring)


def next_age(xp: Any, age: Array, ended: Array) -> Array:
    """The ages ``[N]`` of the observations after a step: 0 where an episode begins.

    Args:
        xp: `numpy` or `jax.numpy`.
        age: uint8 ``[N]``, of the observations before it.
        ended: bool ``[N]``, whether the step ended the episode.
    """
    return xp.where(ended, np.uint8(0), xp.asarray(NEXT_AGE)[age])


def slots(xp: Any, finals: Any, truncated: Array) -> Array:
    """The numbers of truncated steps' final observations ``[T, N]``, counted in the order of the
    steps; without meaning elsewhere.

    Args:
        xp: `numpy` or `jax.numpy`.
        finals: how many were ingested before.
        truncated: bool ``[T, N]``.
    """
    counted = finals + xp.cumsum(truncated.reshape(-1)) - 1
    return counted.astype(np.int32).reshape(truncated.shape)


class Gathered(NamedTuple):
    """Transitions as a ring gives them; `merge` makes a batch of them.

    Attributes:
        frames: ``[..., W, *frame]``: the first S are the observation's, the last S the next one's.
            A single step's two observations share all but one of theirs, so that W is S + 1.
        actions: ``[...]`` or ``[..., A]``.
        rewards: ``[..., n]``; those of the first `steps` count.
        steps: int32 ``[...]``, how many steps were taken, 1 to n.
        terminated: bool ``[...]``, whether the last of them was terminal.
        weights: ``[...]``, ones.
    """

    frames: Array
    actions: Array
    rewards: Array
    steps: Array
    terminated: Array
    weights: Array


def gather(xp: Any, geometry: Geometry, ring: Ring, head: Any, row: Array, env: Array) -> Gathered:
    """Transitions that start at given rows.

    Args:
        xp: `numpy` or `jax.numpy`.
        geometry: sizes.
        ring: the arrays.
        head: rows ever ingested.
        row: ``[...]`` row numbers, within `Geometry.window`.
        env: ``[...]`` environments.
    """
    num_envs, length = geometry.num_envs, geometry.length

    def place(number: Array) -> Array:
        return number % length * num_envs + env

    def at(array: Array, places: Array) -> Array:
        return xp.take(array, places, axis=0, mode="clip")

    here = place(row)
    rewards, steps = [at(ring.rewards, here)], xp.ones(row.shape, np.int32)
    terminated, truncated = at(ring.terminated, here), at(ring.truncated, here)
    going = ~(terminated | truncated)
    for k in range(1, geometry.n_step):
        later = place(row + k)
        rewards.append(at(ring.rewards, later))
        going = going & (row + k < head)
        steps = steps + going
        terminated = xp.where(going, at(ring.terminated, later), terminated)
        truncated = xp.where(going, at(ring.truncated, later), truncated)
        going = going & ~(terminated | truncated)
    depth = geometry.spec.stack
    frames = _frames(xp, geometry, ring, row + steps - 1, env, range(1 - depth, 2))
    frames = _ended(xp, geometry, ring, frames, row + steps - 1, env, truncated)
    if geometry.n_step > 1:
        first = _frames(xp, geometry, ring, row, env, range(1 - depth, 1))
        axis = row.ndim
        frames = xp.concatenate([first, _slice(frames, axis, 1, None)], axis=axis)
    return Gathered(
        frames=frames,
        actions=at(ring.actions, here),
        rewards=xp.stack(rewards, axis=-1),
        steps=steps,
        terminated=terminated,
        weights=xp.ones(row.shape, np.float32),
    )


def merge(geometry: Geometry, gathered: Gathered, gamma: jax.Array) -> Batch:
    """A batch ``[B]`` as algorithms take it: rewards discounted and summed, frames stacked.

    Done within the compiled update, and with looked-up factors, so that no rounding depends on
    where the transitions were gathered.
    """
    n = geometry.n_step
    powers = jnp.cumprod(jnp.full(n, gamma))  # gamma, its square, ...
    factors = jnp.tril(jnp.broadcast_to(jnp.append(1.0, powers[:-1]), (n, n)))
    rewards = (gathered.rewards * factors[gathered.steps - 1]).sum(-1)
    ahead = jnp.append(powers, 0.0)
    discounts = ahead[jnp.where(gathered.terminated, n, gathered.steps - 1)]

    depth, shape = geometry.spec.stack, (len(rewards), *geometry.spec.shape)
    frames = gathered.frames

    def stacked(frames: jax.Array) -> jax.Array:
        return frames[:, 0] if depth == 1 else jnp.moveaxis(frames, 1, 3).reshape(shape)

    return Batch(
        stacked(frames[:, :depth]), gathered.actions, rewards, stacked(frames[:, -depth:]),
        discounts, gathered.weights,
    )  # fmt: skip


def _ended(
    xp: Any, geometry: Geometry, ring: Ring, frames: Array, row: Array, env: Array,
    truncated: Array,
) -> Array:  # fmt: skip
    """Frames up to the ones after rows; of truncated episodes, up to that which they ended with."""
    if xp is np and not truncated.any():
        return frames
    slot = xp.take(ring.slot, row % geometry.length * geometry.num_envs + env, axis=0, mode="clip")
    if xp is np:
        frames[truncated, -1] = ring.finals[slot[truncated] % len(ring.finals)]
        return frames
    axis = row.ndim
    final = xp.expand_dims(xp.take(ring.finals, slot % len(ring.finals), axis=0, mode="clip"), axis)
    truncate = truncated.reshape(truncated.shape + (1,) * (frames.ndim - axis))
    last = xp.where(truncate, final, _slice(frames, axis, -1, None))
    return xp.concatenate([_slice(frames, axis, None, -1), last], axis=axis)


def _slice(array: Array, axis: int, start: int | None, stop: int | None) -> Array:
    return array[(slice(None),) * axis + (slice(start, stop),)]


def _frames(
    xp: Any, geometry: Geometry, ring: Ring, row: Array, env: Array, offsets: range
) -> Array:
    """The frames ``[..., len(offsets), *frame]`` so many rows after given ones.

    Where an episode began later than that, its first frame again, or zeros (`stack_pad`).
    """
    num_envs, length = geometry.num_envs, geometry.length
    ahead = np.asarray(offsets, np.int32)
    if geometry.spec.stack == 1:
        number = (row[..., None] + ahead) % length * num_envs + env[..., None]
        return xp.take(ring.frames, number, axis=0, mode="clip")
    age = xp.take(ring.age, row % length * num_envs + env, axis=0, mode="clip").astype(np.int32)
    start = -age[..., None]
    number = (row[..., None] + xp.maximum(ahead, start)) % length * num_envs + env[..., None]
    frames = xp.take(ring.frames, number, axis=0, mode="clip")
    if geometry.spec.stack_pad == "zeros":
        there = ahead >= start
        if xp is np:
            frames[~there] = 0  # few: most samples are far from a start
            return frames
        there = there.reshape(there.shape + (1,) * (frames.ndim - there.ndim))
        frames = xp.where(there, frames, np.zeros((), frames.dtype))
    return frames
