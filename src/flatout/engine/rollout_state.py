"""The state of N device environments between trajectories, the ends of their episodes, and the
arrays into which a compiled rollout writes a trajectory: one packed record a step. Pure.

`Rollout` makes all of them; the device sampler and the fused schedule keep and read the state and
the ends."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flatout import tree
from flatout.actions import forbids_all
from flatout.algorithms.base import Algorithm, RolloutSpec
from flatout.envs.device.base import DeviceEnv, action_shape, select
from flatout.packing import OutputLayout
from flatout.types import Array, Finals, Obs, Trajectory, mask_path

TERMINATED, TRUNCATED, VALID, COUNTED = 1, 2, 4, 8
"""Bits of a step's code; the episode's length is stored above them, in units of `COUNTED`."""

INFO, EXTRAS = "info/", "extras/"
"""Prefixes of names in a record: of the environments' `info` scalars, and of the outputs of `act`
in addition to the action, because an algorithm may choose any names."""


class Pool(NamedTuple):
    """First states ``[P, ...]`` of the episodes ``base .. base + P - 1``, numbered in the order in
    which the N environments begin them; those with numbers below `taken` have begun."""

    env: Any
    obs: Obs
    base: Array
    taken: Array


class RolloutState(NamedTuple):
    """The state of N environments between two trajectories.

    Attributes:
        key: raw key of these environments' resets and steps, uint32 ``[2]``.
        first: the number of the first of them in the run, int32.
        env: the environments' states ``[N, ...]``.
        obs: their current observations ``[N, ...]``.
        length: steps of each current episode, int32 ``[N]``.
        total: raw return of each current episode, float32 ``[N]``.
        step: steps of each environment since the run's start, int32; it selects the noise.
        pool: first states of later episodes.
        values: ``[N, 2]``, over the current episode's steps: the sum of max Q and the number of
            terms. Before the first term: the last episode's mean and -1. None without Q values.
        carry: the carry of a recurrent policy before the next step, ``[N, ...]``; () for others.
    """

    key: Array
    first: Array
    env: Any
    obs: Obs
    length: Array
    total: Array
    step: Array
    pool: Pool
    values: Array | None
    carry: Any = ()


class Ends(NamedTuple):
    """The ends of episodes in a trajectory.

    Attributes:
        length: the length of the episode that ended with each step, int32 ``[T, N]``; 0 if none.
        total: raw returns so far, float32 ``[T, N]``.
        q_max: means of max Q over the episode, float32 ``[T, N]``; ``[1, 1]`` without Q values.
        finite: whether all observations and rewards are finite.
        stuck: the step and the environment's number, int32 ``[2]``, of the first action that had to
            be chosen although the mask allows none; -1 if there is none. None without masks.
        early: the length of the longest episode that was truncated before `least_truncation` steps,
            int32; 0 if there is none. If there is one, final observations may be lost.
        info: the scalars of `DeviceEnv.info` by name, float32 ``[T, N]`` each.
    """

    length: Array
    total: Array
    q_max: Array
    finite: Array
    stuck: Array | None
    early: Array
    info: dict[str, Array]


@functools.lru_cache(4096)  # as many as one population has members
def least_truncation(env: DeviceEnv) -> int:
    """Return the least number of steps after which an episode may be truncated; 0 for never."""
    patience = 0 if _never_cuts(env) else env.patience or 1
    return min((steps for steps in (env.limit, patience) if steps), default=0)


def _never_cuts(env: DeviceEnv) -> bool:
    """Return whether the rules truncate no episode: `step` returns a constant False."""

    def first_step() -> Array:
        key = jax.random.key(0, impl="threefry2x32")
        state, _ = env.reset(key)
        return env.step(state, jnp.zeros(action.shape, action.dtype), key)[-1]

    action = action_shape(env)
    key = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
    state, _ = jax.eval_shape(env.reset, key)
    program = jax.make_jaxpr(lambda *given: env.step(*given)[-1])(state, action, key).jaxpr
    needed = {id(variable) for variable in program.outvars}
    for equation in reversed(program.eqns):
        if any(id(variable) in needed for variable in equation.outvars):
            needed |= {id(variable) for variable in equation.invars}
    if any(id(variable) in needed for variable in program.invars):
        return False
    with jax.ensure_compile_time_eval():  # the first caller may itself be traced
        return not jax.jit(first_step)()  # a constant, so this is one small program


def most_truncations(env: DeviceEnv, horizon: int) -> int:
    """Return how often one environment can be truncated within T steps, at least 1."""
    least = least_truncation(env)
    return 1 if not least else (horizon - 1) // least + 1


# --- A trajectory that is being written ---------------------------------------------------------


class Rows(NamedTuple):
    """A trajectory that is being written.

    Attributes:
        words: one packed record a step, uint32 ``[T, W]``.
        small: the arrays of observations ``[T, N, ...]`` whose items have fewer than 32 bits, by
            path; the others are in `words`.
        finals: final observations ``[C, N, ...]``, a tree.
        places: positions ``t * N + n`` of the steps that led to them, ``[C, N]``; ``T * N`` if
            unused.
        cut: each environment's number of truncations so far, ``[N]``; None if C is 1.
    """

    words: Array
    small: dict[str, Array]
    finals: Obs
    places: Array
    cut: Array | None


@dataclass(frozen=True, eq=False)
class Writer:
    """A writer and reader of T steps of N environments; for the arguments see `Rollout`."""

    env: DeviceEnv
    algorithm: Algorithm
    spec: RolloutSpec
    num_envs: int
    sign: bool

    def empty(self, state: RolloutState, params: Any, draw: Any) -> Rows:
        """Return empty arrays for T steps."""
        steps, n, most = self.spec.horizon, self.num_envs, self.spec.truncations
        words = self.layout(state, params, draw).words
        small = {
            path: jnp.zeros((steps, *leaf.shape), leaf.dtype)
            for path, leaf in tree.items(state.obs)
            if not _in_words(leaf)
        }
        finals = tree.map(lambda leaf: jnp.zeros((most, *leaf.shape), leaf.dtype), state.obs)
        places = jnp.full((most, n), steps * n, jnp.int32)
        cut = jnp.zeros(n, jnp.int32) if most > 1 else None
        return Rows(jnp.zeros((steps, words), jnp.uint32), small, finals, places, cut)

    def layout(self, state: RolloutState, params: Any, draw: Any) -> OutputLayout:
        """Return the layout of one step's record."""
        action, _, extras = jax.eval_shape(self.algorithm.act, params, state.obs, state.carry, draw)
        obs = _words(state.obs)
        counts, totals = state.length, state.total
        mean = {"q_mean": totals} if "q_max" in extras else {}
        infos = jax.eval_shape(self.info_scalars, state.env)
        record = {"code": counts, "reward": totals, "total": totals, **mean, **infos, **obs}
        return OutputLayout({"action": action, **named_extras(extras)} | record)

    def written(
        self, rows: Rows, t: jax.Array, obs: jax.Array, after: jax.Array, truncated: jax.Array,
        record: dict[str, jax.Array], ids: jax.Array | None = None,
    ) -> Rows:  # fmt: skip
        """Return the rows with step t written. A step is one record, because on a CPU each write
        costs as much as several arithmetic operations.

        Args:
            rows: the rows so far.
            t: the step.
            obs: observations before the step, ``[n, ...]``.
            after: observations after it, final ones where an episode ended, ``[n, ...]``.
            truncated: which episodes the step truncated, ``[n]``.
            record: the other values of the step by name, ``[n, ...]`` each.
            ids: the indices of the n environments; None for all.
        """

        def put(array: jax.Array, row: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_index_in_dim(array, row, t, 0)

        def everywhere(value: jax.Array) -> jax.Array:
            """Return the values of all N environments, zeros for those without one."""
            if ids is None:
                return value
            place = jnp.full(self.num_envs, len(value)).at[ids].set(jnp.arange(len(value)))
            return jnp.concatenate([value, jnp.zeros_like(value[:1])])[place]

        small = {
            path: put(rows.small[path], everywhere(leaf))
            for path, leaf in tree.items(obs)
            if path in rows.small
        }
        record = record | _words(obs)
        record = {name: everywhere(value) for name, value in record.items()}
        rows = rows._replace(words=put(rows.words, OutputLayout.pack(record)), small=small)
        if not least_truncation(self.env):
            return rows
        finals, places, cut = rows.finals, rows.places, rows.cut
        columns, size = jnp.arange(len(truncated)), len(places)
        at = t * self.num_envs + (columns if ids is None else ids)
        if size > 2:  # a scatter, because most entries are not written
            assert cut is not None
            slot = jnp.where(truncated, cut, size)
            finals = tree.map(
                lambda kept, new: kept.at[slot, columns].set(new, mode="drop"), finals, after
            )
            places = places.at[slot, columns].set(at, mode="drop")
        else:
            chosen: Any = truncated[None]
            if cut is not None:
                chosen &= cut == jnp.arange(size)[:, None]
            finals = tree.map(lambda kept, new: select(chosen, new[None], kept), finals, after)
            places = jnp.where(chosen, at, places)
        cut = None if cut is None else cut + truncated
        return rows._replace(finals=finals, places=places, cut=cut)

    def read(
        self, rows: Rows, layout: OutputLayout, state: RolloutState
    ) -> tuple[Trajectory, Ends]:
        """Return the trajectory and the ends of episodes that were written.

        Args:
            rows: the rows after the last step.
            layout: the layout of their records.
            state: the environments after the last step.
        """
        read = layout.unpack(rows.words)
        code, rewards, total = (read.pop(name) for name in ("code", "reward", "total"))
        found = {
            path: rows.small[path] if path in rows.small else read.pop(tree.joined("obs", path))
            for path, _ in tree.items(state.obs)
        }
        obs = found if isinstance(state.obs, dict) else found[""]
        mean = read.pop("q_mean", jnp.full((1, 1), jnp.nan))
        infos, extras = (
            {n.removeprefix(start): read[n] for n in read if n.startswith(start)}
            for start in (INFO, EXTRAS)
        )
        terminated, truncated = (code & TERMINATED) > 0, (code & TRUNCATED) > 0
        ended, valid = terminated | truncated, (code & VALID) > 0
        finite = jnp.isfinite(jnp.where(valid, rewards, 0.0)).all()
        for seen in jax.tree.leaves((obs, state.obs, rows.finals)):
            if jnp.issubdtype(seen.dtype, jnp.floating):
                finite &= jnp.isfinite(seen).all()
        trajectory = Trajectory(
            obs=obs, actions=read.pop("action"),
            rewards=jnp.sign(rewards) if self.sign else rewards,
            terminated=terminated, truncated=truncated, last_obs=state.obs,
            finals=Finals(
                tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows.finals),
                rows.places.reshape(-1),
            ),
            extras=extras,
            valid=valid if self.spec.holds("valid") else None,
            ended=ended if self.spec.holds("ended") else None,
        )  # fmt: skip
        stuck = self._stuck(obs, valid, state)
        length = code // COUNTED
        early = truncated & (length < least_truncation(self.env))
        ends = Ends(
            jnp.where(ended, length, 0), total, mean, finite, stuck,
            jnp.where(early, length, 0).max(), infos,
        )  # fmt: skip
        return trajectory, ends

    def _stuck(self, obs: Obs, valid: jax.Array, state: RolloutState) -> jax.Array | None:
        """Return `Ends.stuck` for observations ``[T, N, ...]``."""
        if not (path := mask_path(self.env.obs_spec)):
            return None
        mask = obs[path].reshape(*valid.shape, -1) > 0
        none = forbids_all(jnp, self.env.action_spec, mask) & valid
        at = none.reshape(-1).argmax()
        step, env = at // self.num_envs, state.first + at % self.num_envs
        return jnp.where(none.any(), jnp.stack([step, env]), -1).astype(jnp.int32)

    def info_scalars(self, env: Any) -> dict[str, jax.Array]:
        """Return `DeviceEnv.info` of environments in these states, float32 ``[N]`` by name."""
        infos = {} if self.env.info is None else jax.vmap(self.env.info)(env)
        return {INFO + name: jnp.asarray(value, jnp.float32) for name, value in infos.items()}


def named_extras(extras: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs of `act`, except the action, by their names in a record."""
    return {EXTRAS + name: value for name, value in extras.items()}


def pack_flags(
    terminated: jax.Array, truncated: jax.Array, active: jax.Array, length: jax.Array
) -> jax.Array:
    """Pack a step's flags and its episode's length into one number each, ``[N]``."""
    return terminated * TERMINATED + truncated * TRUNCATED + active * VALID + length * COUNTED


def _in_words(leaf: Any) -> bool:
    """Return whether an array's items have 32 bits."""
    return leaf.dtype.itemsize == 4


def _words(obs: Obs) -> dict[str, Any]:
    """Return the arrays of an observation that are written to records, by name."""
    return {name: leaf for name, leaf in tree.named("obs", obs).items() if _in_words(leaf)}
