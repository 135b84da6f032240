"""Step 4 of the data flow, fused: T steps of N device environments inside a compiled program. Pure.

An episode's first state comes from a pool that is drawn in advance, because under `vmap` a reset
that depends on a flag is computed for every environment at every step. The k-th episode's first
state is a function of (key, k): it does not depend on when the pool is drawn.
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

from flatout.algorithms.base import Algorithm, RolloutSpec
from flatout.engine.rollout_state import (
    Ends,
    Pool,
    RolloutState,
    Rows,
    Writer,
    named_extras,
    pack_flags,
)
from flatout.envs.device.base import DeviceEnv, select
from flatout.networks.layers import by_inputs
from flatout.randomness import hashes, wrap_key
from flatout.types import Array, Trajectory

FEW = 64
"""Up to this many environments, counting all pairs is faster than a running sum."""

LEAST_POOL = 64
"""The least number of first states that are drawn at once."""

NARROWED, LEAST_LEFT = 4, 64
"""With whole episodes, the unfinished environments are compacted when ``1 / NARROWED`` of them are
left, if that is at least `LEAST_LEFT`."""

NOISE_AHEAD = 1 << 20
"""A trajectory's noise is drawn before it begins, unless it has more numbers than this; then it is
drawn step by step."""

RESETS = np.uint32(2**32 - 1)
"""The step number in the keys that draw first states. No environment ever reaches this step."""


@dataclass(frozen=True, eq=False)
class Rollout:
    """A pure function that plays T steps of N environments.

    Args:
        env: the environment, whose functions are for a single one.
        algorithm: the algorithm that acts.
        spec: T, whole episodes, and the contents of trajectories.
        num_envs: N.
        sign: keep only the sign of rewards.
        shared: makes a flag equal for all members of a population that are mapped together; see
            `flatout.engine.loop.for_all`.
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
        """P, the number of first states in the pool."""
        return max(2 * self.num_envs, LEAST_POOL)

    def start(self, key: Array, first: Array) -> RolloutState:
        """Return the state of all environments at the start of their first episodes.

        Args:
            key: raw key of resets and steps, uint32 ``[2]``.
            first: the number of the first environment in the run.
        """
        zero = jnp.zeros((), jnp.int32)
        pool = self._draw_pool(key, zero)
        n = self.num_envs
        env, obs = jax.tree.map(lambda leaf: leaf[:n], (pool.env, pool.obs))
        return RolloutState(
            key=jnp.asarray(key), first=jnp.asarray(first, jnp.int32), env=env, obs=obs,
            length=jnp.zeros(n, jnp.int32), total=jnp.zeros(n, jnp.float32), step=zero,
            pool=pool._replace(taken=jnp.asarray(n, jnp.int32)),
            values=jnp.zeros((n, 2), jnp.float32) if self._valued(obs) else None,
            carry=self.algorithm.initial_carry(n),
        )  # fmt: skip

    def _valued(self, obs: Any) -> bool:
        """Return whether acting returns action values (``q_max``)."""
        zero = jnp.zeros((), jnp.int32)
        draws = jax.vmap(
            lambda env: self.algorithm.noise(wrap_key(np.zeros(2, np.uint32)), env, zero)
        )
        draw = jax.eval_shape(draws, jnp.arange(self.num_envs))
        params, carry = self.algorithm.actor_shapes, self.algorithm.carry_shapes(self.num_envs)
        return "q_max" in jax.eval_shape(self.algorithm.act, params, obs, carry, draw)[2]

    def _draw_pool(self, key: Array, number: jax.Array) -> Pool:
        """Draw the first states of the P episodes from `number` on."""
        keys = _keys(key, number + jnp.arange(self.size), RESETS)
        env, obs = jax.vmap(self.env.reset)(keys)
        return Pool(env, obs, number, number)

    def _pool_is_short(self, pool: Pool) -> jax.Array:
        """Return whether one step of all environments may need more first states than are left."""
        return self.shared(pool.taken - pool.base + self.num_envs > self.size)

    def _refill_pool(self, state: RolloutState) -> RolloutState:
        pool = jax.lax.cond(
            self._pool_is_short(state.pool), lambda: self._draw_pool(state.key, state.pool.taken),
            lambda: state.pool,
        )  # fmt: skip
        return state._replace(pool=pool)

    def __call__(
        self, params: Any, state: RolloutState, key: Array
    ) -> tuple[Trajectory, Ends, RolloutState]:
        """Play T steps, or until all whole episodes have ended.

        Args:
            params: the actor's parameters, as `Algorithm.actor` returns them.
            state: the environments before the first step.
            key: raw key of the acting stream.

        Returns:
            The trajectory, the episodes' ends, and the environments after the last step.
        """
        horizon, whole = self.spec.horizon, self.spec.episodes or 0
        if whole:
            state = self._restart_unfinished(state)
        begin = state
        noise = self._noise(key, state)
        left = jnp.full(self.num_envs, whole) if whole else None
        carry = _Carry(state, self._writer.empty(state, params, noise(0)), left)
        sizes = [self.num_envs]
        while whole and sizes[-1] >= NARROWED * LEAST_LEFT:
            sizes.append(sizes[-1] // NARROWED)
        loop = self._play(params, noise, (jnp.zeros((), jnp.int32), carry), sizes)
        state = loop[1].state._replace(step=state.step + horizon)
        layout = self._writer.layout(state, params, noise(0))
        trajectory, ends = self._writer.read(loop[1].rows, layout, state)
        return trajectory._replace(carry=begin.carry), ends, state

    def _play(
        self, params: Any, noise: Callable[[Any], Any], loop: _Loop, sizes: list[int],
        ids: Array | None = None,
    ) -> _Loop:  # fmt: skip
        """Play until the end. With whole episodes, compact the unfinished environments whenever
        their number falls to the next size; otherwise all would step until the longest ends.

        Args:
            loop: the step and the carry to begin with.
            sizes: the number of these environments, then the sizes of later compactions.
            ids: the indices of these environments; None for all.
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
            return going(loop) & ~self._pool_is_short(loop[1].state.pool)

        def drawn(t: jax.Array) -> Any:
            if ids is None:
                return noise(t)
            if self.algorithm.by_env:  # `params` are already those of these environments
                return jnp.arange(sizes[0])
            return jax.tree.map(lambda leaf: leaf[ids], noise(t))

        def step(loop: _Loop) -> _Loop:
            t, carry = loop
            return t + 1, self._step(weights, t, carry, drawn(t), ids)

        def play(loop: _Loop) -> _Loop:
            t, carry = loop
            carry = carry._replace(state=self._refill_pool(carry.state))
            return jax.lax.while_loop(enough, step, (t, carry))

        # The pool is drawn outside of the inner loop, whose steps only read it.
        t, carry = jax.lax.while_loop(going, play, loop)
        if not below:
            return t, carry
        assert carry.left is not None
        some = jnp.argsort(carry.left <= 0)[:below]  # stable: unfinished ones first
        if self.algorithm.by_env:
            members = some if ids is not None else noise(0)[some]
            params = jax.tree.map(lambda leaf: leaf[members], params)
        ids = some if ids is None else ids[some]
        t, few = self._play(params, noise, (t, _select_envs(carry, some)), sizes[1:], ids)
        return t, _put_envs_back(carry, few, some)

    # --- One step -----------------------------------------------------------------------------

    def _step(
        self, params: Any, t: jax.Array, carry: _Carry, draw: Any, ids: Array | None
    ) -> _Carry:
        state, rows, left = carry
        obs, n = state.obs, len(state.length)
        envs = jnp.arange(n) if ids is None else ids
        active = jnp.ones(n, bool) if left is None else left > 0
        action, memory, extras = self.algorithm.act(params, obs, state.carry, draw)
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
        code = pack_flags(terminated, truncated, active, length)
        record = {"action": action, "code": code, "reward": reward, "total": total}
        record |= named_extras(extras)
        if values is not None:
            record["q_mean"] = _mean(values)
        record |= self._writer.info_scalars(env)
        rows = self._writer.written(rows, t, obs, after, truncated, record, ids)
        kept = active & ~done
        pool = state.pool
        place = pool.taken - pool.base + _count_before(done)

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
            carry=self.algorithm.reset_carry(memory, done | ~active),
        )  # fmt: skip
        return _Carry(state, rows, None if left is None else left - done)

    def _noise(self, key: Array, state: RolloutState) -> Callable[[Any], Any]:
        """Return a function from the trajectory's step t to the noise of acting in it."""
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

    def _restart_unfinished(self, state: RolloutState) -> RolloutState:
        """Restart environments whose episode has begun: a trajectory must hold whole episodes."""
        begun = state.length > 0
        state = self._refill_pool(state)
        pool = state.pool
        place = pool.taken - pool.base + _count_before(begun)

        def fresh(drawn: jax.Array, now: jax.Array) -> jax.Array:
            return select(begun, jnp.take(drawn, place, axis=0, mode="clip"), now)

        env, obs = jax.tree.map(fresh, (pool.env, pool.obs), (state.env, state.obs))
        return state._replace(
            env=env, obs=obs, length=jnp.zeros_like(state.length),
            total=jnp.zeros_like(state.total),
            values=None if state.values is None else jnp.zeros_like(state.values),
            pool=pool._replace(taken=pool.taken + begun.sum(dtype=jnp.int32)),
            carry=self.algorithm.reset_carry(state.carry, begun),
        )  # fmt: skip


class _Carry(NamedTuple):
    """The loop's state between two steps; `left` counts whole episodes still to play ``[N]``, or is
    None."""

    state: RolloutState
    rows: Rows
    left: Array | None


_Loop = tuple[jax.Array, _Carry]
"""Step t of the trajectory, and the carry before it."""


def _env_arrays(carry: _Carry) -> tuple[Any, Any]:
    """Return a carry's arrays with an axis of environments: ``[N, ...]``, and ``[C, N, ...]``."""
    state, rows = carry.state, carry.rows
    each = (
        state.env, state.obs, state.length, state.total, state.values, state.carry, carry.left,
        rows.cut,
    )  # fmt: skip
    return each, (rows.finals, rows.places)


def _with_env_arrays(carry: _Carry, each: Any, finals: Any) -> _Carry:
    """Replace the arrays that `_env_arrays` returns."""
    env, obs, length, total, values, memory, left, cut = each
    state = carry.state._replace(
        env=env, obs=obs, length=length, total=total, values=values, carry=memory
    )
    rows = carry.rows._replace(finals=finals[0], places=finals[1], cut=cut)
    return _Carry(state, rows, left)


def _select_envs(carry: _Carry, which: jax.Array) -> _Carry:
    """Return the carry of the environments with these indices."""
    each, finals = _env_arrays(carry)
    finals = jax.tree.map(lambda leaf: leaf[:, which], finals)
    return _with_env_arrays(carry, jax.tree.map(lambda leaf: leaf[which], each), finals)


def _put_envs_back(carry: _Carry, few: _Carry, which: jax.Array) -> _Carry:
    """Return the carry of all environments, with `few` for those with these indices."""
    (each, finals), (new, news) = _env_arrays(carry), _env_arrays(few)
    each = jax.tree.map(lambda leaf, some: leaf.at[which].set(some), each, new)
    finals = jax.tree.map(lambda leaf, some: leaf.at[:, which].set(some), finals, news)
    return _with_env_arrays(few, each, finals)


def _keys(key: Array, numbers: jax.Array, step: Any) -> jax.Array:
    """Return typed keys ``[n]``, each a function of (raw key, number, step)."""
    first = numbers.astype(jnp.uint32)
    words = hashes(key, first, jnp.broadcast_to(jnp.asarray(step, jnp.uint32), first.shape))
    return wrap_key(jnp.stack(words, -1))


def _valued(values: jax.Array, q_max: jax.Array, active: jax.Array) -> jax.Array:
    """Add a step's largest action values to sums and counts ``[N, 2]`` where the network ran."""
    there = active & ~jnp.isnan(q_max)
    before = jnp.where(values[:, 1:] < 0, 0.0, values)
    added = before + jnp.stack([jnp.where(there, q_max, 0.0), there * 1.0], -1)
    return jnp.where(there[:, None], added, values)


def _after(values: jax.Array) -> jax.Array:
    """Return sums and counts after an episode's end: its mean and -1, or zeros if it has none."""
    mean = _mean(values)
    carried = jnp.stack([mean, jnp.full_like(mean, -1.0)], -1)
    return jnp.where(jnp.isnan(mean)[:, None], 0.0, carried)


def _count_before(flags: jax.Array) -> jax.Array:
    """Count the flags that are set before each flag ``[N]``; up to `FEW` flags by one masked
    sum."""
    if len(flags) > FEW:
        return jnp.cumsum(flags) - flags
    return (flags & np.tri(len(flags), k=-1, dtype=bool)).sum(1, dtype=jnp.int32)


def _mean(values: jax.Array) -> jax.Array:
    """Return the episodes' means. If the network ran at no step of an episode, this is the mean of
    the episode before it (see `EpisodeValues`); NaN if it has never run."""
    return jnp.where(values[:, 1] < 0, values[:, 0], values[:, 0] / values[:, 1])
