"""A ring of replayed experience: each frame once, stacks and n-step returns made when sampling.

Rows are numbered from the run's start; row g of N lanes (environments) lies at position ``g % L``.
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
    """A trajectory as a ring takes it in: T rows of N lanes.

    `frames` and `age` are of the observations after the steps, ``[T, N, ...]``: those before are
    there already.
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
        lanes: N.
        rows: R, steps of each lane that can be sampled.
        n_step: steps that a sample spans.
        gamma: discount per step.
    """

    spec: ObservationSpec
    lanes: int
    rows: int
    n_step: int
    gamma: float

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
        """First row that can be sampled, and how many, once `head` rows were ever taken in."""
        count = (
            np.minimum(head, self.rows) if isinstance(head, int) else jnp.minimum(head, self.rows)
        )
        return head - count, count

    def newest(self, obs: Array) -> Array:
        """The newest frames of observations ``[..., H, W, S * c]``."""
        return obs[..., obs.shape[-1] - self.frame[-1] :]


def ring_shapes(geometry: Geometry, trajectory: Trajectory, finals: int) -> Ring:
    """The shapes of a ring for such trajectories."""
    entries = geometry.length * geometry.lanes

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


def gather(xp: Any, geometry: Geometry, ring: Ring, head: Any, row: Array, lane: Array) -> Batch:
    """Transitions that start at given rows.

    Args:
        xp: `numpy` or `jax.numpy`.
        geometry: sizes.
        ring: the arrays.
        head: rows ever taken in.
        row: ``[...]`` row numbers, within `Geometry.window`.
        lane: ``[...]`` lanes.

    Returns:
        A batch whose observations are stacks of frames ``[..., S, H, W, c]`` (S > 1; see `merge`)
        or plain; weights are ones.
    """
    lanes, length = geometry.lanes, geometry.length

    def at(array: Array, number: Array) -> Array:
        return xp.take(array, number % length * lanes + lane, axis=0, mode="clip")

    rewards, end = at(ring.rewards, row), row
    terminated, truncated = at(ring.terminated, row), at(ring.truncated, row)
    going = ~(terminated | truncated)
    discount = np.float32(geometry.gamma)
    discounts = xp.full(rewards.shape, discount, np.float32)
    for k in range(1, geometry.n_step):
        going = going & (row + k < head)
        rewards = rewards + xp.where(going, discount * at(ring.rewards, row + k), 0.0)
        discount = np.float32(geometry.gamma ** (k + 1))
        discounts = xp.where(going, discount, discounts)
        end = xp.where(going, row + k, end)
        terminated = xp.where(going, at(ring.terminated, row + k), terminated)
        truncated = xp.where(going, at(ring.truncated, row + k), truncated)
        going = going & ~(terminated | truncated)
    final = xp.take(ring.finals, at(ring.slot, end) % len(ring.finals), axis=0, mode="clip")
    if geometry.spec.stack == 1:
        obs = at(ring.frames, row)
        next_obs = at(ring.frames, end + 1)
        cut = truncated.reshape(truncated.shape + (1,) * (next_obs.ndim - truncated.ndim))
        next_obs = xp.where(cut, final, next_obs)
    else:
        obs = _stack(xp, geometry, ring, row, lane)
        # The stack that a truncated episode ended with: its last frames, then the final one.
        older = _stack(xp, geometry, ring, end, lane)
        cut = truncated.reshape(truncated.shape + (1,) * (older.ndim - truncated.ndim))
        axis = row.ndim
        last = xp.concatenate(
            [_slice(older, axis, 1, None), xp.expand_dims(final, axis)], axis=axis
        )
        next_obs = xp.where(cut, last, _stack(xp, geometry, ring, end + 1, lane))
    return Batch(
        obs=obs,
        actions=at(ring.actions, row),
        rewards=rewards.astype(np.float32),
        next_obs=next_obs,
        discounts=xp.where(terminated, 0.0, discounts).astype(np.float32),
        weights=xp.ones(rewards.shape, np.float32),
    )


def _slice(array: Array, axis: int, start: int | None, stop: int | None) -> Array:
    return array[(slice(None),) * axis + (slice(start, stop),)]


def _stack(xp: Any, geometry: Geometry, ring: Ring, row: Array, lane: Array) -> Array:
    """The S frames ``[..., S, H, W, c]`` of observations, oldest first."""
    lanes, length, depth = geometry.lanes, geometry.length, geometry.spec.stack
    age = xp.take(ring.age, row % length * lanes + lane, axis=0, mode="clip").astype(np.int32)
    back = xp.arange(depth - 1, -1, -1, dtype=np.int32)
    reach = xp.minimum(back, age[..., None])
    number = (row[..., None] - reach) % length * lanes + lane[..., None]
    frames = xp.take(ring.frames, number, axis=0, mode="clip")
    if geometry.spec.stack_pad == "zeros":
        there = back <= age[..., None]
        if xp is np and there.all():  # nearly always: most samples are far from a start
            return frames
        there = there.reshape(there.shape + (1,) * (frames.ndim - there.ndim))
        frames = xp.where(there, frames, np.zeros((), frames.dtype))
    return frames


def merge(geometry: Geometry, obs: jax.Array) -> jax.Array:
    """Stacks ``[B, S, H, W, c]`` as observations ``[B, H, W, S * c]``; others as they are."""
    if geometry.spec.stack == 1:
        return obs
    return jnp.moveaxis(obs, 1, 3).reshape(obs.shape[0], *geometry.spec.shape)
