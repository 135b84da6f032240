"""Trajectories inside a compiled program: N device environments that act and step there. Pure.

An episode's first state comes from a pool that is drawn ahead: under `vmap` a reset that depends on
a flag is computed for every environment at every step. The k-th episode's start is a function of
(key, k), whenever the pool is drawn.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import Algorithm, RolloutSpec, wrap_key
from flatout.algorithms.common.randomness import hashes
from flatout.envs.device.base import DeviceEnv
from flatout.types import Array, ContinuousSpec, Trajectory

LEAST_POOL = 64
"""First states that are drawn at once, at least."""

NOISE_AHEAD = 1 << 20
"""Most draws that are made before a trajectory begins; more are made step by step."""

RESETS = np.uint32(2**32 - 1)
"""The step with which episodes' first states are drawn: no environment makes so many."""


class Pool(NamedTuple):
    """First states ``[P, ...]`` of the episodes ``base .. base + P - 1``; those before `taken`
    have begun."""

    env: Any
    obs: Array
    base: Array
    taken: Array


class RolloutState(NamedTuple):
    """What N environments carry from one trajectory to the next.

    Attributes:
        key: raw key of these environments' resets and steps, uint32 ``[2]``.
        first: the number of the first of them in the run, int32.
        env: their states ``[N, ...]``; obs: what they show ``[N, ...]``.
        length: int32 ``[N]``, total: float32 ``[N]``, of their episodes so far.
        step: int32, steps of each since the run's start: what noise is folded with.
        pool: first states of later episodes.
        values: sums and counts ``[N, 2]`` of the largest action value in their episodes.
    """

    key: Array
    first: Array
    env: Any
    obs: Array
    length: Array
    total: Array
    step: Array
    pool: Pool
    values: Array


class Ends(NamedTuple):
    """Where episodes ended, ``[T, N]``: their lengths (int32, 0 where none ended), raw returns and
    mean largest action values (float32); and whether all that was seen is finite."""

    length: Array
    total: Array
    q_max: Array
    finite: Array


@functools.lru_cache(64)
def least_truncation(env: DeviceEnv) -> int:
    """Steps before which no episode is truncated; 0 if none ever is."""
    patience = 0 if _never_cuts(env) else env.patience or 1
    return min((steps for steps in (env.limit, patience) if steps), default=0)


def _never_cuts(env: DeviceEnv) -> bool:
    """Whether the rules truncate no episode: `step` returns False, whatever it is given."""
    key = jax.random.key(0, impl="threefry2x32")
    state, _ = jax.eval_shape(env.reset, key)
    spec = env.action_spec
    action = jax.ShapeDtypeStruct((), np.int32)
    if isinstance(spec, ContinuousSpec):
        action = jax.ShapeDtypeStruct((spec.size,), np.float32)
    program = jax.make_jaxpr(lambda *given: env.step(*given)[-1])(state, action, key).jaxpr
    needed = {id(variable) for variable in program.outvars}
    for equation in reversed(program.eqns):
        if any(id(variable) in needed for variable in equation.outvars):
            needed |= {id(variable) for variable in equation.invars}
    if any(id(variable) in needed for variable in program.invars):
        return False
    with jax.ensure_compile_time_eval():
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (state, action))
        return not env.step(*zeros, key)[-1]


def final_rows(env: DeviceEnv, horizon: int) -> int:
    """How often one environment's episodes can be truncated within T steps, at least 1."""
    least = least_truncation(env)
    return 1 if not least else (horizon - 1) // least + 1


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
            values=jnp.zeros((n, 2), jnp.float32),
        )  # fmt: skip

    def _drawn(self, key: Array, number: jax.Array) -> Pool:
        """The first states of the episodes from `number` on."""
        keys = _keys(key, number + jnp.arange(self.size), RESETS)
        return Pool(*jax.vmap(self.env.reset)(keys), number, number)

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
    ) -> tuple[Trajectory, RolloutState, Ends]:
        """Play T steps, or until all whole episodes have ended.

        Args:
            params: what `Algorithm.actor` returns.
            key: raw key of the acting stream.
        """
        horizon, whole = self.spec.horizon, self.spec.episodes or 0
        if whole:
            state = self._begun(state)
        noise = self._noise(key, state)
        carry = _Carry(state, self._rows(state, params, noise(0)), jnp.full(self.num_envs, whole))

        def going(loop: tuple[jax.Array, _Carry]) -> jax.Array:
            t, carry = loop
            more = t < horizon
            return more & self.shared((carry.left > 0).any()) if whole else more

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
        return self._trajectory(carry.rows, state), state, carry.rows.ends

    # --- One step -----------------------------------------------------------------------------

    def _step(self, params: Any, t: jax.Array, carry: _Carry, draw: Any) -> _Carry:
        state, rows, left = carry
        obs, n = state.obs, self.num_envs
        active = left > 0 if self.spec.episodes else jnp.ones(n, bool)
        action, _, extras = self.algorithm.act(params, obs, (), draw)
        keys = _keys(state.key, state.first + jnp.arange(n), state.step + t)
        env, after, reward, terminated, truncated = jax.vmap(self.env.step)(state.env, action, keys)
        length = state.length + active
        total = state.total + jnp.where(active, reward, 0.0)
        if self.env.limit:
            truncated |= length >= self.env.limit
        terminated, truncated = active & terminated, active & truncated & ~terminated
        done = terminated | truncated
        values = _valued(state.values, extras, active)
        rows = self._written(
            rows, t, obs, action, reward, terminated, truncated, active, extras,
            Ends(jnp.where(done, length, 0), total, _mean(values), jnp.ones((), bool)), after,
        )  # fmt: skip
        kept = active & ~done
        pool = state.pool
        place = pool.taken - pool.base + jnp.cumsum(done) - done

        def chosen(fresh: Any, new: jax.Array, old: jax.Array) -> jax.Array:
            begun = jnp.take(fresh, place, axis=0, mode="clip")
            if not self.spec.episodes:
                return _where(done, begun, new)
            return _where(done, begun, _where(kept, new, old))

        env, obs = jax.tree.map(chosen, (pool.env, pool.obs), (env, after), (state.env, obs))
        state = state._replace(
            env=env, obs=obs, length=jnp.where(done, 0, length), total=jnp.where(done, 0.0, total),
            pool=pool._replace(taken=pool.taken + done.sum(dtype=jnp.int32)),
            values=jnp.where(done[:, None], 0.0, values),
        )  # fmt: skip
        return _Carry(state, rows, left - done)

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
        place = pool.taken - pool.base + jnp.cumsum(begun) - begun

        def fresh(drawn: jax.Array, now: jax.Array) -> jax.Array:
            return _where(begun, jnp.take(drawn, place, axis=0, mode="clip"), now)

        env, obs = jax.tree.map(fresh, (pool.env, pool.obs), (state.env, state.obs))
        return state._replace(
            env=env, obs=obs, length=jnp.zeros_like(state.length),
            total=jnp.zeros_like(state.total), values=jnp.zeros_like(state.values),
            pool=pool._replace(taken=pool.taken + begun.sum(dtype=jnp.int32)),
        )  # fmt: skip

    # --- What is written down -----------------------------------------------------------------

    def _rows(self, state: RolloutState, params: Any, draw: Any) -> _Rows:
        """Empty arrays for T steps."""
        action, _, extras = jax.eval_shape(self.algorithm.act, params, state.obs, (), draw)
        steps, n = self.spec.horizon, self.num_envs

        def empty(leaf: Any) -> jax.Array:
            return jnp.zeros((steps, *leaf.shape), leaf.dtype)

        flags, numbers = jnp.zeros((steps, n), bool), jnp.zeros((steps, n), jnp.float32)
        chunks = self.spec.chunks
        finals = jnp.zeros((chunks, *state.obs.shape), state.obs.dtype)
        return _Rows(
            obs=empty(state.obs), actions=empty(action), rewards=numbers, terminated=flags,
            truncated=flags, valid=flags, extras=jax.tree.map(empty, extras), finals=finals,
            places=jnp.full((chunks, n), steps * n, jnp.int32), cut=jnp.zeros(n, jnp.int32),
            ends=Ends(numbers.astype(jnp.int32), numbers, numbers, jnp.ones((), bool)),
        )  # fmt: skip

    def _written(
        self, rows: _Rows, t: jax.Array, obs: jax.Array, action: jax.Array, reward: jax.Array,
        terminated: jax.Array, truncated: jax.Array, active: jax.Array, extras: Any, ends: Ends,
        after: jax.Array,
    ) -> _Rows:  # fmt: skip
        def put(array: jax.Array, row: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_index_in_dim(array, row.astype(array.dtype), t, 0)

        finite = rows.ends.finite & jnp.isfinite(jnp.where(active, reward, 0.0)).all()
        if jnp.issubdtype(after.dtype, jnp.floating):
            finite &= jnp.isfinite(after).all()
        finals, places, cut = rows.finals, rows.places, rows.cut
        if least_truncation(self.env):
            chosen = truncated & (cut == jnp.arange(len(finals))[:, None])
            finals = _where(chosen, after[None], finals)
            places = jnp.where(chosen, t * self.num_envs + jnp.arange(self.num_envs), places)
            cut = cut + truncated
        return _Rows(
            obs=put(rows.obs, obs), actions=put(rows.actions, action),
            rewards=put(rows.rewards, jnp.sign(reward) if self.sign else reward),
            terminated=put(rows.terminated, terminated), truncated=put(rows.truncated, truncated),
            valid=put(rows.valid, active), extras=jax.tree.map(put, rows.extras, extras),
            finals=finals, places=places, cut=cut,
            ends=Ends(
                put(rows.ends.length, ends.length), put(rows.ends.total, ends.total),
                put(rows.ends.q_max, ends.q_max), finite,
            ),
        )  # fmt: skip

    def _trajectory(self, rows: _Rows, state: RolloutState) -> Trajectory:
        ended = rows.ends.length > 0
        return Trajectory(
            obs=rows.obs, actions=rows.actions, rewards=rows.rewards,
            terminated=rows.terminated, truncated=rows.truncated, last_obs=state.obs,
            final_obs=rows.finals.reshape(-1, *rows.finals.shape[2:]),
            final_index=rows.places.reshape(-1), extras=rows.extras,
            valid=rows.valid if self.spec.episodes else None,
            ended=ended if self.spec.replayed else None,
        )  # fmt: skip


class _Rows(NamedTuple):
    """A trajectory being written; `finals`, `places` are ``[C, N, ...]``, `cut` ``[N]`` counts."""

    obs: Array
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    valid: Array
    extras: Any
    finals: Array
    places: Array
    cut: Array
    ends: Ends


class _Carry(NamedTuple):
    """What a step hands to the next; `left` are whole episodes still to play ``[N]``."""

    state: RolloutState
    rows: _Rows
    left: Array


def _keys(key: Array, numbers: jax.Array, step: Any) -> jax.Array:
    """Typed keys ``[n]``, a function of (raw key, number, step) each."""
    first = numbers.astype(jnp.uint32)
    words = hashes(key, first, jnp.broadcast_to(jnp.asarray(step, jnp.uint32), first.shape))
    return wrap_key(jnp.stack(words, -1))


def _where(flags: jax.Array, then: jax.Array, otherwise: jax.Array) -> jax.Array:
    """`jnp.where` with flags for the leading axes."""
    flags = flags.reshape(flags.shape + (1,) * (otherwise.ndim - flags.ndim))
    return jnp.where(flags, then, otherwise)


def _valued(values: jax.Array, extras: dict[str, jax.Array], active: jax.Array) -> jax.Array:
    """Sums and counts with this step's largest action values, where the network ran."""
    if "q_max" not in extras:
        return values
    there = active & ~jnp.isnan(extras["q_max"])
    return values + jnp.stack([jnp.where(there, extras["q_max"], 0.0), there * 1.0], -1)


def _mean(values: jax.Array) -> jax.Array:
    return values[:, 0] / values[:, 1]  # NaN where the network never ran
