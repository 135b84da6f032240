"""Trajectories inside a compiled program: N device environments that act and step there. Pure.

An episode's first state comes from a pool that is drawn ahead: under `vmap` a reset that depends on
a flag is computed for every environment at every step. The k-th episode's start is a function of
(key, k), whenever the pool is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import Algorithm, RolloutSpec, wrap_key
from flatout.algorithms.common.randomness import hashes
from flatout.algorithms.parallel.packing import OutputLayout
from flatout.envs.device.base import DeviceEnv
from flatout.envs.device.check import select
from flatout.samplers.rollout_state import Ends, Pool, RolloutState, least_truncation
from flatout.types import Array, Trajectory

FEW = 64
"""Environments up to which counting all pairs is faster than a running sum."""

LEAST_POOL = 64
"""First states that are drawn at once, at least."""

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
        carry = _Carry(state, self._rows(state, params, noise(0)), left)

        def going(loop: tuple[jax.Array, _Carry]) -> jax.Array:
            t, carry = loop
            more = t < horizon
            return more if carry.left is None else more & self.shared((carry.left > 0).any())

        def enough(loop: tuple[jax.Array, _Carry]) -> jax.Array:
            return going(loop) & ~self._short(loop[1].state.pool)

        def step(loop: tuple[jax.Array, _Carry]) -> tuple[jax.Array, _Carry]:
            t, carry = loop
            return t + 1, self._step(params, t, carry, noise(t))

        def play(loop: tuple[jax.Array, _Carry]) -> tuple[jax.Array, _Carry]:
            t, carry = loop
            carry = carry._replace(state=self._filled(carry.state))
            return jax.lax.while_loop(enough, step, (t, carry))

        # Drawing is not within the inner loop, whose steps only read the pool.
        _, carry = jax.lax.while_loop(going, play, (jnp.zeros((), jnp.int32), carry))
        state = carry.state._replace(step=state.step + horizon)
        layout = self._layout(state, params, noise(0))
        return *self._read(carry.rows, layout, state), state

    # --- One step -----------------------------------------------------------------------------

    def _step(self, params: Any, t: jax.Array, carry: _Carry, draw: Any) -> _Carry:
        state, rows, left = carry
        obs, n = state.obs, self.num_envs
        active = jnp.ones(n, bool) if left is None else left > 0
        action, _, extras = self.algorithm.act(params, obs, (), draw)
        keys = _keys(state.key, state.first + jnp.arange(n), state.step + t)
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
        code = terminated * TERMINATED + truncated * TRUNCATED + active * VALID + length * COUNTED
        record = {"action": action, **extras, "code": code, "reward": reward, "total": total}
        if values is not None:
            record["q_mean"] = _mean(values)
        record |= self._told(env)
        rows = self._written(rows, t, obs, after, truncated, record)
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
            values=None if values is None else jnp.where(done[:, None], 0.0, values),
        )  # fmt: skip
        return _Carry(state, rows, None if left is None else left - done)

    def _told(self, env: Any) -> dict[str, jax.Array]:
        """What the environments would say if their episodes ended here, float32 ``[N]`` each."""
        told = {} if self.env.info is None else jax.vmap(self.env.info)(env)
        return {INFO + name: jnp.asarray(value, jnp.float32) for name, value in told.items()}

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

    # --- What is written down -----------------------------------------------------------------

    def _rows(self, state: RolloutState, params: Any, draw: Any) -> _Rows:
        """Empty arrays for T steps."""
        steps, n, chunks = self.spec.horizon, self.num_envs, self.spec.chunks
        words = self._layout(state, params, draw).words
        small = (
            None if _in_words(state.obs) else jnp.zeros((steps, *state.obs.shape), state.obs.dtype)
        )
        finals = jnp.zeros((chunks, *state.obs.shape), state.obs.dtype)
        places = jnp.full((chunks, n), steps * n, jnp.int32)
        cut = jnp.zeros(n, jnp.int32) if chunks > 1 else None
        return _Rows(jnp.zeros((steps, words), jnp.uint32), small, finals, places, cut)

    def _layout(self, state: RolloutState, params: Any, draw: Any) -> OutputLayout:
        """How one step's record reads."""
        action, _, extras = jax.eval_shape(self.algorithm.act, params, state.obs, (), draw)
        obs = {"obs": state.obs} if _in_words(state.obs) else {}
        counts, totals = state.length, state.total
        mean = {"q_mean": totals} if "q_max" in extras else {}
        told = jax.eval_shape(self._told, state.env)
        record = {"code": counts, "reward": totals, "total": totals, **mean, **told, **obs}
        return OutputLayout({"action": action, **extras} | record)

    def _written(
        self, rows: _Rows, t: jax.Array, obs: jax.Array, after: jax.Array, truncated: jax.Array,
        record: dict[str, jax.Array],
    ) -> _Rows:  # fmt: skip
        """The rows with step t's: one array, for each write costs as much as some arithmetic."""

        def put(array: jax.Array, row: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_index_in_dim(array, row, t, 0)

        small = None if rows.small is None else put(rows.small, obs)
        if rows.small is None:
            record = record | {"obs": obs}
        rows = rows._replace(words=put(rows.words, OutputLayout.pack(record)), small=small)
        if not least_truncation(self.env):
            return rows
        finals, places, cut = rows.finals, rows.places, rows.cut
        envs = jnp.arange(self.num_envs)
        at = t * self.num_envs + envs
        if len(finals) > 2:  # most are not written
            assert cut is not None
            slot = jnp.where(truncated, cut, len(finals))
            finals = finals.at[slot, envs].set(after, mode="drop")
            places = places.at[slot, envs].set(at, mode="drop")
        else:
            chosen: Any = truncated[None]
            if cut is not None:
                chosen &= cut == jnp.arange(len(finals))[:, None]
            finals, places = select(chosen, after[None], finals), jnp.where(chosen, at, places)
        cut = None if cut is None else cut + truncated
        return rows._replace(finals=finals, places=places, cut=cut)

    def _read(
        self, rows: _Rows, layout: OutputLayout, state: RolloutState
    ) -> tuple[Trajectory, Ends]:
        """What was written."""
        read = layout.unpack(rows.words)
        code, rewards, total = (read.pop(name) for name in ("code", "reward", "total"))
        obs = read.pop("obs") if rows.small is None else rows.small
        mean = read.pop("q_mean", jnp.full((1, 1), jnp.nan))
        told = {n.removeprefix(INFO): read.pop(n) for n in list(read) if n.startswith(INFO)}
        terminated, truncated = (code & TERMINATED) > 0, (code & TRUNCATED) > 0
        ended, valid = terminated | truncated, (code & VALID) > 0
        finite = jnp.isfinite(jnp.where(valid, rewards, 0.0)).all()
        for seen in (obs, state.obs, rows.finals):
            if jnp.issubdtype(seen.dtype, jnp.floating):
                finite &= jnp.isfinite(seen).all()
        trajectory = Trajectory(
            obs=obs, actions=read.pop("action"),
            rewards=jnp.sign(rewards) if self.sign else rewards,
            terminated=terminated, truncated=truncated, last_obs=state.obs,
            final_obs=rows.finals.reshape(-1, *rows.finals.shape[2:]),
            final_index=rows.places.reshape(-1), extras=read,
            valid=valid if self.spec.episodes else None,
            ended=ended if self.spec.replayed else None,
        )  # fmt: skip
        ends = Ends(jnp.where(ended, code // COUNTED, 0), total, mean, finite, told)
        return trajectory, ends


TERMINATED, TRUNCATED, VALID, COUNTED = 1, 2, 4, 8
"""Flags of a step, and the unit in which its episode's length is counted beside them."""

INFO = "info/"
"""Before the names of what environments say, beside what `act` returns."""


def _in_words(obs: Any) -> bool:
    """Whether observations are of 32 bits."""
    return obs.dtype.itemsize == 4


class _Rows(NamedTuple):
    """A trajectory being written: one packed record a step ``[T, W]``, observations ``[T, N, ...]``
    that are not of 32 bits, and final observations ``[C, N, ...]`` with their places; `cut` counts
    those of each environment, where there may be several."""

    words: Array
    small: Array | None
    finals: Array
    places: Array
    cut: Array | None


class _Carry(NamedTuple):
    """What a step hands to the next; `left` are whole episodes still to play ``[N]``, or None."""

    state: RolloutState
    rows: _Rows
    left: Array | None


def _keys(key: Array, numbers: jax.Array, step: Any) -> jax.Array:
    """Typed keys ``[n]``, a function of (raw key, number, step) each."""
    first = numbers.astype(jnp.uint32)
    words = hashes(key, first, jnp.broadcast_to(jnp.asarray(step, jnp.uint32), first.shape))
    return wrap_key(jnp.stack(words, -1))


def _valued(values: jax.Array, q_max: jax.Array, active: jax.Array) -> jax.Array:
    """Sums and counts with this step's largest action values, where the network ran."""
    there = active & ~jnp.isnan(q_max)
    return values + jnp.stack([jnp.where(there, q_max, 0.0), there * 1.0], -1)


def _before(flags: jax.Array) -> jax.Array:
    """How many flags are set before each ``[N]``: a product where that is one small operation."""
    if len(flags) > FEW:
        return jnp.cumsum(flags) - flags
    return (flags & np.tri(len(flags), k=-1, dtype=bool)).sum(1, dtype=jnp.int32)


def _mean(values: jax.Array) -> jax.Array:
    return values[:, 0] / values[:, 1]  # NaN where the network never ran
