"""Step 4 of the data flow, fused: T steps of N device environments inside a compiled program. Pure.

An episode's first state comes from a pool that is drawn ahead: under `vmap` a reset that depends on
a flag is computed for every environment at every step. The k-th episode's start is a function of
(key, k), whenever the pool is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import Algorithm, RolloutSpec, wrap_key
from flatout.envs.device.base import DeviceEnv
from flatout.envs.device.check import select
from flatout.hashes import hashes
from flatout.networks.layers import by_inputs
from flatout.samplers.rollout_rows import Rows, Writer, coded
from flatout.samplers.rollout_state import Ends, Pool, RolloutState
from flatout.types import Array, Trajectory

FEW = 64
"""Environments up to which counting all pairs is faster than a running sum."""

LEAST_POOL = 64
"""First states that are drawn at once, at least."""

NARROWED, LEAST_LEFT = 4, 64
"""Whole episodes go on among themselves once a fraction of them is left, of at least so many."""

NOISE_AHEAD = 1 << 20
"""Most draws that are made before a trajectory begins; more are made step by step."""

RESETS = np.uint32(2**32 - 1)
"""The step with which episodes' first states are drawn: no environment makes so many."""


@dataclass(frozen=True, eq=False)
class Rollout:
    """T steps of N environments.

    Args:
        env: one of them.
        algorithm: acts.
        spec: T, whole episodes, and what trajectories hold.
        num_envs: N.
        sign: keep only the sign of rewards.
        shared: makes a flag one for all members that are mapped together; see `flatout.fleet`.
    """

    env: DeviceEnv
    algorithm: Algorithm
    spec: RolloutSpec
    num_envs: int
    sign: bool = False
    shared: Callable[[jax.Array], jax.Array] = lambda flag: flag

    @cached_property
    def _writer(self) -> Writer:
        return Writer(self.env, self.algorithm, self.spec, self.num_envs, self.sign)

    @property
    def size(self) -> int:
        """P of the pool."""
        return max(2 * self.num_envs, LEAST_POOL)

    def start(self, key: Array, first: Array) -> RolloutState:
        """All environments at the start of their first episodes."""
        zero = jnp.zeros((), jnp.int32)
        pool = self._drawn(key, zero)
        n = self.num_envs
        env, obs = jax.tree.map(lambda leaf: leaf[:n], (pool.env, pool.obs))
        return RolloutState(
            key=jnp.asarray(key), first=jnp.asarray(first, jnp.int32), env=env, obs=obs,
            length=jnp.zeros(n, jnp.int32), total=jnp.zeros(n, jnp.float32), step=zero,
            pool=pool._replace(taken=jnp.asarray(n, jnp.int32)),
            values=jnp.zeros((n, 2), jnp.float32) if self._valued(obs) else None,
        )  # fmt: skip

    def _valued(self, obs: Any) -> bool:
        """Whether acting tells of action values."""
        zero = jnp.zeros((), jnp.int32)
        draws = jax.vmap(
            lambda env: self.algorithm.noise(wrap_key(np.zeros(2, np.uint32)), env, zero)
        )
        draw = jax.eval_shape(draws, jnp.arange(self.num_envs))
        params = self.algorithm.actor_shapes
        return "q_max" in jax.eval_shape(self.algorithm.act, params, obs, (), draw)[2]

    def _drawn(self, key: Array, number: jax.Array) -> Pool:
        """The first states of the episodes from `number` on."""
        keys = _keys(key, number + jnp.arange(self.size), RESETS)
        env, obs = jax.vmap(self.env.reset)(keys)
        return Pool(env, obs, number, number)

    def _short(self, pool: Pool) -> jax.Array:
        """Whether all environments together might need more states than are left."""
        return self.shared(pool.taken - pool.base + self.num_envs > self.size)

    def _filled(self, state: RolloutState) -> RolloutState:
        pool = jax.lax.cond(
            self._short(state.pool), lambda: self._drawn(state.key, state.pool.taken),
            lambda: state.pool,
        )  # fmt: skip
        return state._replace(pool=pool)

    def __call__(
        self, params: Any, state: RolloutState, key: Array
    ) -> tuple[Trajectory, Ends, RolloutState]:
        """Play T steps, or until all whole episodes have ended.

        Args:
            params: what `Algorithm.actor` returns.
            key: raw key of the acting stream.
        """
        horizon, whole = self.spec.horizon, self.spec.episodes or 0
        if whole:
            state = self._begun(state)
        noise = self._noise(key, state)
        left = jnp.full(self.num_envs, whole) if whole else None
        carry = _Carry(state, self._writer.empty(state, params, noise(0)), left)
        sizes = [self.num_envs]
        while whole and sizes[-1] >= NARROWED * LEAST_LEFT:
            sizes.append(sizes[-1] // NARROWED)
        loop = self._played(params, noise, (jnp.zeros((), jnp.int32), carry), sizes)
        state = loop[1].state._replace(step=state.step + horizon)
        layout = self._writer.layout(state, params, noise(0))
        return *self._writer.read(loop[1].rows, layout, state), state

    def _played(
        self, params: Any, noise: Callable[[Any], Any], loop: _Loop, sizes: list[int],
        ids: Array | None = None,
    ) -> _Loop:  # fmt: skip
        """Steps until the end; of whole episodes those that still run are moved together each time
        that only so few are left, or all would step until the longest ends.

        Args:
            ids: which environments these are; None for all.
            sizes: their number, and those to come.
        """
        horizon, below = self.spec.horizon, sizes[1] if len(sizes) > 1 else 0
        weights = by_inputs(params, sizes[0])

        def going(loop: _Loop) -> jax.Array:
            t, carry = loop
            more = t < horizon
            if carry.left is None:
                return more
            return more & self.shared((carry.left > 0).sum() > below)

        def enough(loop: _Loop) -> jax.Array:
            return going(loop) & ~self._short(loop[1].state.pool)

        def drawn(t: jax.Array) -> Any:
            if ids is None:
                return noise(t)
            if self.algorithm.by_env:  # the parameters are those of these environments
                return jnp.arange(sizes[0])
            return jax.tree.map(lambda leaf: leaf[ids], noise(t))

        def step(loop: _Loop) -> _Loop:
            t, carry = loop
            return t + 1, self._step(weights, t, carry, drawn(t), ids)

        def play(loop: _Loop) -> _Loop:
            t, carry = loop
            carry = carry._replace(state=self._filled(carry.state))
            return jax.lax.while_loop(enough, step, (t, carry))

        # Drawing is not within the inner loop, whose steps only read the pool.
        t, carry = jax.lax.while_loop(going, play, loop)
        if not below:
            return t, carry
        assert carry.left is not None
        some = jnp.argsort(carry.left <= 0)[:below]  # stable: those that run, then others
        if self.algorithm.by_env:
            members = some if ids is not None else noise(0)[some]
            params = jax.tree.map(lambda leaf: leaf[members], params)
        ids = some if ids is None else ids[some]
        t, few = self._played(params, noise, (t, _some(carry, some)), sizes[1:], ids)
        return t, _with_some(carry, few, some)

    # --- One step -----------------------------------------------------------------------------

    def _step(
        self, params: Any, t: jax.Array, carry: _Carry, draw: Any, ids: Array | None
    ) -> _Carry:
        state, rows, left = carry
        obs, n = state.obs, len(state.obs)
        envs = jnp.arange(n) if ids is None else ids
        active = jnp.ones(n, bool) if left is None else left > 0
        action, _, extras = self.algorithm.act(params, obs, (), draw)
        keys = _keys(state.key, state.first + envs, state.step + t)
        env, after, reward, terminated, truncated = jax.vmap(self.env.step)(state.env, action, keys)
        length = state.length + active
        total = state.total + jnp.where(active, reward, 0.0)
        if self.env.limit:
            truncated |= length >= self.env.limit
        terminated, truncated = active & terminated, active & truncated & ~terminated
        done = terminated | truncated
        values: Any = state.values
        if values is not None:
            values = _valued(values, extras["q_max"], active)
        code = coded(terminated, truncated, active, length)
        record = {"action": action, **extras, "code": code, "reward": reward, "total": total}
        if values is not None:
            record["q_mean"] = _mean(values)
        record |= self._writer.told(env)
        rows = self._writer.written(rows, t, obs, after, truncated, record, ids)
        kept = active & ~done
        pool = state.pool
        place = pool.taken - pool.base + _before(done)

        def chosen(fresh: Any, new: jax.Array, old: jax.Array) -> jax.Array:
            begun = jnp.take(fresh, place, axis=0, mode="clip")
            if not self.spec.episodes:
                return select(done, begun, new)
            return select(done, begun, select(kept, new, old))

        env, obs = jax.tree.map(chosen, (pool.env, pool.obs), (env, after), (state.env, obs))
        state = state._replace(
            env=env, obs=obs, length=jnp.where(done, 0, length), total=jnp.where(done, 0.0, total),
            pool=pool._replace(taken=pool.taken + done.sum(dtype=jnp.int32)),
            values=None if values is None else jnp.where(done[:, None], _after(values), values),
        )  # fmt: skip
        return _Carry(state, rows, None if left is None else left - done)

    def _noise(self, key: Array, state: RolloutState) -> Callable[[Any], Any]:
        """What acting draws in step t of the trajectory."""
        stream = wrap_key(key)
        over_envs = jax.vmap(self.algorithm.noise, (None, 0, None))
        envs = state.first + jnp.arange(self.num_envs)

        def at(t: Any) -> Any:
            return over_envs(stream, envs, state.step + t)

        shapes = jax.eval_shape(at, 0)
        each = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
        if each * self.spec.horizon > NOISE_AHEAD:
            return at
        steps = state.step + jnp.arange(self.spec.horizon)
        block = jax.vmap(over_envs, (None, None, 0))(stream, envs, steps)
        return lambda t: jax.tree.map(lambda leaf: leaf[t], block)

    def _begun(self, state: RolloutState) -> RolloutState:
        """Every environment at an episode's start: whole ones begin with the trajectory."""
        begun = state.length > 0
        state = self._filled(state)
        pool = state.pool
        place = pool.taken - pool.base + _before(begun)

        def fresh(drawn: jax.Array, now: jax.Array) -> jax.Array:
            return select(begun, jnp.take(drawn, place, axis=0, mode="clip"), now)

        env, obs = jax.tree.map(fresh, (pool.env, pool.obs), (state.env, state.obs))
        return state._replace(
            env=env, obs=obs, length=jnp.zeros_like(state.length),
            total=jnp.zeros_like(state.total),
            values=None if state.values is None else jnp.zeros_like(state.values),
            pool=pool._replace(taken=pool.taken + begun.sum(dtype=jnp.int32)),
        )  # fmt: skip


class _Carry(NamedTuple):
    """What a step hands to the next; `left` are whole episodes still to play ``[N]``, or None."""

    state: RolloutState
    rows: Rows
    left: Array | None


_Loop = tuple[jax.Array, _Carry]
"""Step t of the trajectory, and what it begins with."""


def _parts(carry: _Carry) -> tuple[Any, Any]:
    """What a carry has of each environment: ``[N, ...]``, and ``[C, N, ...]``."""
    state, rows = carry.state, carry.rows
    each = (state.env, state.obs, state.length, state.total, state.values, carry.left, rows.cut)
    return each, (rows.finals, rows.places)


def _joined(carry: _Carry, each: Any, finals: Any) -> _Carry:
    """The carry with other such parts."""
    env, obs, length, total, values, left, cut = each
    state = carry.state._replace(env=env, obs=obs, length=length, total=total, values=values)
    rows = carry.rows._replace(finals=finals[0], places=finals[1], cut=cut)
    return _Carry(state, rows, left)


def _some(carry: _Carry, which: jax.Array) -> _Carry:
    """The carry of some of its environments."""
    each, finals = _parts(carry)
    finals = jax.tree.map(lambda leaf: leaf[:, which], finals)
    return _joined(carry, jax.tree.map(lambda leaf: leaf[which], each), finals)


def _with_some(carry: _Carry, few: _Carry, which: jax.Array) -> _Carry:
    """The carry of all of them, once some have gone on."""
    (each, finals), (new, news) = _parts(carry), _parts(few)
    each = jax.tree.map(lambda leaf, some: leaf.at[which].set(some), each, new)
    finals = jax.tree.map(lambda leaf, some: leaf.at[:, which].set(some), finals, news)
    return _joined(few, each, finals)


def _keys(key: Array, numbers: jax.Array, step: Any) -> jax.Array:
    """Typed keys ``[n]``, a function of (raw key, number, step) each."""
    first = numbers.astype(jnp.uint32)
    words = hashes(key, first, jnp.broadcast_to(jnp.asarray(step, jnp.uint32), first.shape))
    return wrap_key(jnp.stack(words, -1))


def _valued(values: jax.Array, q_max: jax.Array, active: jax.Array) -> jax.Array:
    """Sums and counts with this step's largest action values, where the network ran."""
    there = active & ~jnp.isnan(q_max)
    before = jnp.where(values[:, 1:] < 0, 0.0, values)
    added = before + jnp.stack([jnp.where(there, q_max, 0.0), there * 1.0], -1)
    return jnp.where(there[:, None], added, values)


def _after(values: jax.Array) -> jax.Array:
    """Sums and counts after an episode's end: its mean and -1, or zeros where it has none."""
    mean = _mean(values)
    carried = jnp.stack([mean, jnp.full_like(mean, -1.0)], -1)
    return jnp.where(jnp.isnan(mean)[:, None], 0.0, carried)


def _before(flags: jax.Array) -> jax.Array:
    """How many flags are set before each ``[N]``: a product where that is one small operation."""
    if len(flags) > FEW:
        return jnp.cumsum(flags) - flags
    return (flags & np.tri(len(flags), k=-1, dtype=bool)).sum(1, dtype=jnp.int32)


def _mean(values: jax.Array) -> jax.Array:
    """The episodes' means; of one at none of whose steps the network ran, that of the one before it
    (`EpisodeValues`), and NaN where it has never run."""
    return jnp.where(values[:, 1] < 0, values[:, 0], values[:, 0] / values[:, 1])
