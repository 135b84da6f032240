"""Device environments that the host steps one step at a time, for evaluation, for watching and for
samplers that act on the host. JAX is imported when one is opened, not with this file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import gymnasium as gym
import numpy as np

from flatout import frames, tree
from flatout.actions import forbids_all
from flatout.envs.base import TRAINING, Ended, Envs
from flatout.envs.device.base import DeviceEnv, reset_key, step_key
from flatout.envs.masks import STUCK
from flatout.errors import EnvironmentFailure, FlatoutError, with_full_stop
from flatout.types import Episode, Obs, ObservationSpec, mask_path

TOGETHER = 8
"""Number of environments that one call of `EnvPrograms.restart` resets."""


class EnvPrograms:
    """An environment's functions, compiled for N copies on the CPU when each is first used.

    Args:
        env: the environment.
        count: N.
    """

    def __init__(self, env: DeviceEnv, count: int) -> None:
        import jax
        from jax.sharding import SingleDeviceSharding

        self._env, self._count = env, count
        self._jax = jax
        self._on = SingleDeviceSharding(jax.local_devices(backend="cpu")[0])

    def _rows(self, dtype: Any, rows: int, *shape: int) -> Any:
        return self._jax.ShapeDtypeStruct((rows, *shape), dtype, sharding=self._on)

    def _compiled(self, function: Any, *shapes: Any, donate: tuple[int, ...] = ()) -> Any:
        return self._jax.jit(function, donate_argnums=donate).lower(*shapes).compile()

    @property
    def _state_shapes(self) -> Any:
        """The shapes of N states."""
        shapes, _ = self._jax.eval_shape(self._reset_all, self._rows(np.uint32, self._count))
        return self._jax.tree.map(
            lambda leaf: self._jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self._on),
            shapes,
        )

    def _reset_all(self, seeds: Any) -> Any:
        return self._jax.vmap(lambda seed: self._env.reset(reset_key(seed)))(seeds)

    @cached_property
    def reset(self) -> Any:
        """``(seeds [N]) -> states, obs [N, ...]``."""
        return self._compiled(self._reset_all, self._rows(np.uint32, self._count))

    @cached_property
    def restart(self) -> Any:
        """``(states, indices [K], seeds [K]) -> states, obs [K, ...]``; K is `TOGETHER`."""

        def restart(states: Any, indices: Any, seeds: Any) -> Any:
            fresh, obs = self._reset_all(seeds)
            put = lambda every, new: every.at[indices].set(new)  # noqa: E731
            return self._jax.tree.map(put, states, fresh), obs

        rows = self._rows(np.int32, TOGETHER), self._rows(np.uint32, TOGETHER)
        return self._compiled(restart, self._state_shapes, *rows, donate=(0,))

    @cached_property
    def step(self) -> Any:
        """``(states, actions, seeds, times, active)`` to what `DeviceEnv.step` and `info` return,
        all with N rows. `truncated` includes `limit`. Inactive environments keep their state."""
        from flatout.envs.device.base import action_shape, select

        env, vmap, N = self._env, self._jax.vmap, self._count

        def step(states: Any, actions: Any, seeds: Any, times: Any, active: Any) -> Any:
            keys = vmap(step_key)(seeds, times)
            after, obs, reward, terminated, truncated = vmap(env.step)(states, actions, keys)
            if env.limit is not None:
                truncated |= times + 1 >= env.limit
            info = {} if env.info is None else vmap(env.info)(after)
            after = self._jax.tree.map(lambda new, old: select(active, new, old), after, states)
            return after, obs, reward, terminated, truncated, info

        action = action_shape(env)
        actions = self._rows(action.dtype, N, *action.shape)
        rows = (actions, *(self._rows(dtype, N) for dtype in (np.uint32, np.int32, np.bool_)))
        return self._compiled(step, self._state_shapes, *rows, donate=(0,))


class DeviceEnvs(Envs):
    """N copies of a device environment, stepped on the CPU by one compiled program; see `Envs`.

    Every random draw of an episode follows from its seed (`base.reset_key`, `base.step_key`).

    Args:
        env: the environment.
        count: N. For the other arguments see `Envs`.
    """

    def __init__(
        self, env: DeviceEnv, count: int, seed: int, stream: int = TRAINING, first: int = 0
    ) -> None:
        super().__init__(count, env.name, seed, stream, first)
        self._programs = EnvPrograms(env, count)
        self._action_spec = spec = env.action_spec
        self._mask = mask_path(env.obs_spec)
        self._dtype, self._shape = np.dtype(spec.choice_dtype), (count, *spec.choice_shape)
        self._states: Any = None
        self._infos: dict[str, Any] = {}  # `info` after the last step, [N] for each name
        self._seeds = np.zeros(count, np.uint32)
        self._times = np.zeros(count, np.int32)
        self._all = list(range(count))

    def reset(self, env: int, out: Obs, episode: int | None = None) -> None:
        self._begin([env], [self.episode[env] + 1 if episode is None else episode], out)

    def reset_all(self, out: Obs, episode: int | None = None) -> None:
        numbers = [last + 1 if episode is None else episode for last in self.episode]
        self._begin(self._all, numbers, out)

    def step(
        self,
        actions: np.ndarray,
        out: Obs,
        rewards: np.ndarray,
        ended: Ended,
        active: Sequence[int] | None = None,
    ) -> None:
        """See `Envs.step`.

        Raises:
            EnvironmentFailure: the environment calls back a function on the host, which raised.
        """
        choices = np.asarray(actions, self._dtype).reshape(self._shape)
        players = self._all if active is None else list(active)
        playing = np.ones(self.num_envs, np.bool_)
        if active is not None:
            playing[:] = False
            playing[players] = True
        seen = self._call_user("step", self._advance, choices, playing)
        obs, gained, terminated, truncated = seen
        if active is None:
            frames.put(out, slice(None), obs)
            rewards[:] = gained
        else:
            frames.put(out, players, tree.take(obs, players))
            rewards[players] = gained[players]
        self._times[players] += 1
        points, returns, lengths = gained.tolist(), self.returns, self.lengths
        for env in players:
            returns[env] += points[env]
            lengths[env] += 1
        ends = (terminated | truncated) & playing
        self._refuse_masks(obs, (playing & ~ends).nonzero()[0].tolist())
        over = ends.nonzero()[0].tolist()
        for env in over:
            final = tree.take(obs, env)
            ended(env, bool(terminated[env]), bool(truncated[env]), final)
        if over:
            began = time.perf_counter()
            self._begin(over, [self.episode[env] + 1 for env in over], out)
            self._count_resets(len(over), began)

    def finished(self, env: int) -> Episode:
        info = {name: float(np.asarray(values)[env]) for name, values in self._infos.items()}
        return super().finished(env)._replace(info=info or None)

    def replay_all(
        self,
        seeded: Sequence[int],
        episodes: Sequence[int],
        actions: Sequence[np.ndarray | None],
        out: Obs,
    ) -> list[bool]:
        """See `Envs.replay_all`. All step together, and each stops when its actions end."""
        played = {env: taken for env, taken in enumerate(actions) if taken is not None}
        if not played:
            return [False] * self.num_envs
        self._begin(list(played), [seeded[env] for env in played], out)
        batch = np.zeros((self.num_envs, *next(iter(played.values())).shape[1:]), np.float64)
        rewards = np.zeros(self.num_envs)
        for t in range(max(map(len, played.values()))):
            active = [env for env in played if len(played[env]) > t]
            for env in active:
                batch[env] = played[env][t]
            self.step(batch, out, rewards, lambda *_: None, active)
            astray = [env for env in active if self.episode[env] != seeded[env]]
            for env in astray:
                del played[env]
        return [env in played for env in self._all]

    def close(self) -> None:
        self._states = None

    def _advance(self, choices: np.ndarray, playing: np.ndarray) -> list[Any]:
        given = self._states, choices, self._seeds, self._times, playing
        self._states, *seen, self._infos = self._programs.step(*given)
        return [tree.map(np.asarray, each) for each in seen]

    def _begin(self, envs: list[int], numbers: list[int], out: Obs) -> None:
        """Start the episodes `numbers` of `envs` and write their first observations."""
        for env, number in zip(envs, numbers, strict=True):
            self._seeds[env] = self._seed_of(env, number)
            self.episode[env] = number
            self.lengths[env], self.returns[env], self._times[env] = 0, 0.0, 0
        self._call_user("reset", self._restart, envs, out)
        self._refuse_masks(out, envs)

    def _refuse_masks(self, obs: Obs, envs: list[int]) -> None:
        """Refuse observations ``[N, ...]`` of some environments whose mask allows no action."""
        if not self._mask:
            return
        masks = np.asarray(obs[self._mask]).reshape(self.num_envs, -1) > 0
        stuck = forbids_all(np, self._action_spec, masks)
        for env in envs:
            if stuck[env]:
                raise self._invalid_mask(env, STUCK, self.episode[env], int(self._times[env]))

    def _restart(self, envs: list[int], out: Obs) -> None:
        """Reset the states of `envs` with the seeds in `_seeds`, and write their observations."""
        if self._states is None or len(envs) == self.num_envs:
            self._states, obs = self._programs.reset(self._seeds)
            frames.put(out, envs, tree.map(lambda leaf: np.asarray(leaf)[envs], obs))
            return
        for at in range(0, len(envs), TOGETHER):
            some = envs[at : at + TOGETHER]
            indices = np.full(TOGETHER, some[0], np.int32)  # fewer are padded with the first
            indices[: len(some)] = some
            self._states, obs = self._programs.restart(self._states, indices, self._seeds[indices])
            began = tree.map(lambda leaf: np.asarray(leaf)[: len(some)], obs)  # noqa: B023
            frames.put(out, some, began)

    def _call_user(self, call: str, function: Any, *given: Any) -> Any:
        try:
            return function(*given)
        except FlatoutError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise EnvironmentFailure(
                f"environment {self._first} or a later one ({self._name}) raised "
                f"{type(error).__name__} in {call}: {with_full_stop(error)}"
            ) from error


_SHARED_PROGRAMS: WeakValueDictionary[int, EnvPrograms] = WeakValueDictionary()
"""Programs that all `OneDevice`s of an environment share, by its `id`. The id stays valid because
the programs keep the environment alive."""


class OneDevice(gym.Env[Any, Any]):
    """A device environment as a Gymnasium environment, to inspect, render or wrap it.

    It applies the time limit. From the same seed it plays the same episode as `DeviceEnvs`.

    Args:
        device: the environment.
        render_mode: "ansi" or "rgb_array", whichever the environment's `render` returns, or None.
    """

    def __init__(self, device: DeviceEnv, render_mode: str | None = None) -> None:
        self.device, self.render_mode = device, render_mode
        modes = ["ansi", "rgb_array"] if device.render is not None else []
        self.metadata = {"render_modes": modes, "render_fps": 30}
        boxes = tree.map(_box, device.obs_spec)
        space = gym.spaces.Dict(boxes) if isinstance(boxes, dict) else boxes
        self.observation_space: gym.Space[Any] = space
        self.action_space: gym.Space[Any] = device.action_spec.to_gym()
        self._state: Any = None
        self._time = 0

    @cached_property
    def _programs(self) -> EnvPrograms:
        return _SHARED_PROGRAMS.setdefault(id(self.device), EnvPrograms(self.device, 1))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Start the episode of a seed; without a seed, `np_random` draws one."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**31)) if seed is None else seed
        self._seed, self._time = np.full(1, drawn, np.uint32), 0
        self._state, obs = self._programs.reset(self._seed)
        return tree.map(lambda leaf: np.array(leaf[0]), obs), {}

    def step(self, action: Any) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Take an action of `action_space`."""
        choice = self.device.action_spec.from_env(action)[None]
        given = self._state, choice, self._seed, np.full(1, self._time, np.int32), np.ones(1, bool)
        self._state, *seen, infos = self._programs.step(*given)
        self._time += 1
        obs, reward, terminated, truncated = (
            tree.map(lambda leaf: np.array(leaf[0]), each) for each in seen
        )
        info = {name: np.asarray(values)[0].item() for name, values in infos.items()}
        return obs, float(reward), bool(terminated), bool(truncated), info

    def render(self) -> Any:
        """Return the result of the environment's `render` for the current state."""
        assert self.device.render is not None
        return self.device.render(self._programs._jax.tree.map(lambda leaf: leaf[0], self._state))


def _box(spec: ObservationSpec) -> gym.spaces.Box:
    """Return the space of an array of an observation."""
    low: float = 0 if spec.dtype == "uint8" else -np.inf
    high: float = np.inf if spec.dtype == "float32" else (spec.high or 255)
    if spec.dtype == "int32":
        low, high = -(2**31), 2**31 - 1
    return gym.spaces.Box(low, high, spec.shape, np.dtype(spec.dtype).type)
