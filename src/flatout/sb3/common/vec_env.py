"""Environments that step together, as Stable-Baselines3 has them.

A `VecEnv` says what to make, how many, and with which settings; agents of `flatout.sb3` make and
step their environments themselves. It can also be stepped by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from flatout import tree
from flatout.api.arguments import path_argument
from flatout.api.names import environment_name
from flatout.config.settings import resolve
from flatout.envs.base import EVALUATION, Envs
from flatout.envs.task import Task
from flatout.errors import UsageError, short
from flatout.output import json_text, say
from flatout.run.opening import open_environment
from flatout.types import Obs, ObservationSpec, ObsSpec, UserCode
from flatout_explain.documents import read_json

PREPARATION = (
    "env_kwargs", "frame_stack", "resize", "terminal_on_life_loss", "clip_reward", "noop_max",
    "frame_skip", "sticky_actions",
)  # fmt: skip
"""Settings of a `VecEnv` that change what it returns when it is stepped."""


class VecEnv:
    """Environments by name, factory or object, their number, and settings of the agent.

    Observations and rewards that `step` returns are never normalised, because `predict` takes raw
    observations.
    """

    def __init__(self, env: Any, num_envs: int = 1, settings: dict[str, Any] | None = None) -> None:
        self.env: Any = env
        self.num_envs: int = num_envs
        self.settings: dict[str, Any] = dict(settings or {})
        self.training: bool = True
        self.norm_obs: bool = True
        self.norm_reward: bool = True
        self._opened: tuple[Task, Envs] | None = None
        self._obs: Obs = np.zeros(0)

    def changed(self, **settings: Any) -> VecEnv:
        """Return the same environments with more settings."""
        return VecEnv(self.env, self.num_envs, self.settings | settings)

    def seed(self, seed: int | None = None) -> None:
        """Set the seed of an agent's run."""
        if seed is not None:
            self.settings["seed"] = seed

    def reset(self) -> Obs:
        """Start an episode in each environment and return the observations ``[N, ...]``."""
        task, envs = self._open()
        self._obs = tree.zeros(task.obs_spec, self.num_envs)
        envs.reset_all(self._obs)
        return tree.map(np.copy, self._obs)

    def step(
        self, actions: Any
    ) -> tuple[Obs, np.ndarray, np.ndarray, list[dict[str, Any]]]:  # fmt: skip
        """Step each environment; one whose episode ends is reset.

        Returns:
            The observations ``[N, ...]``, rewards and ends of episodes ``[N]``, and a dict for each
            environment, which has the last observation and the return of an episode that ended.
        """
        task, envs = self._open()
        rewards = np.zeros(self.num_envs, np.float32)
        done = np.zeros(self.num_envs, np.bool_)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]

        def ended(env: int, terminated: bool, truncated: bool, final: Obs) -> None:
            episode = envs.finished(env)
            done[env] = True
            infos[env] = {
                "episode": {"r": episode.episode_return, "l": episode.length},
                "terminal_observation": tree.map(np.copy, final),
                "TimeLimit.truncated": truncated and not terminated,
            }

        chosen = np.stack([task.action_spec.from_env(action) for action in actions])
        envs.step(chosen, self._obs, rewards, ended)
        return tree.map(np.copy, self._obs), rewards, done, infos

    def close(self) -> None:
        """Close the environments that were opened by stepping."""
        if self._opened is not None:
            self._opened[1].close()
            self._opened = None

    @property
    def observation_space(self) -> gym.Space[Any]:
        """The space of observations of one environment."""
        return space_of(self._open()[0].obs_spec)

    @property
    def action_space(self) -> gym.Space[Any]:
        """The space of actions of one environment."""
        return self._open()[0].action_spec.to_gym()

    def save(self, path: str | Path) -> None:
        """Write the settings; the statistics themselves are saved with the agent."""
        path_argument("path", path).write_text(json_text(self.settings) + "\n")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"VecEnv has no {name!r}: flatout.sb3 has reset, step, close, num_envs and the spaces; "
            "statistics of normalisation are the agent's."
        )

    def _open(self) -> tuple[Task, Envs]:
        if self._opened is None:
            name, source = environment_name(self.env)
            known = {n: v for n, v in self.settings.items() if n in PREPARATION}
            config = resolve("ppo", {"env": name, "envs": self.num_envs}, known)
            task = open_environment(config, UserCode(source))
            self._opened = task, task.open(self.num_envs, self.settings.get("seed", 0), EVALUATION)
        return self._opened


class Different:
    """A vector of environments of different factories: factory i makes environment i.

    Flatout's own samplers call one function for all environments, without a number, so that each
    worker process would make the same ones.

    Args:
        each: the factories.
        start_method: how Python starts a process for each environment; None steps them one by one.
    """

    def __init__(self, each: Sequence[Callable[[], Any]], start_method: str | None) -> None:
        self._each, self._start_method = list(each), start_method

    def __call__(self, num_envs: int) -> VectorEnv[Any, Any, Any]:
        made = [self._each[env % len(self._each)] for env in range(num_envs)]
        if self._start_method is None:
            return SyncVectorEnv(made, autoreset_mode=AutoresetMode.DISABLED)
        return AsyncVectorEnv(
            made, context=self._start_method, autoreset_mode=AutoresetMode.DISABLED
        )


INLINE = "sampler=inline"


class DummyVecEnv(VecEnv):
    """Environments of factories, stepped in this process."""

    start_method: str | None = None

    def __init__(self, env_fns: Sequence[Callable[[], Any]], **_: Any) -> None:
        each = list(env_fns)
        if not each or not all(callable(one) for one in each):
            raise UsageError(
                f"{type(self).__name__} takes a list of functions that make environments, not "
                f"{short(env_fns)}."
            )
        if len({*map(id, each)}) == 1:
            super().__init__(each[0], len(each), self._settings(len(each)))
        else:
            made = Different(each, self.start_method)
            super().__init__(made, len(each), {"placement": INLINE})

    @staticmethod
    def _settings(num_envs: int) -> dict[str, Any]:
        return {}


class SubprocVecEnv(DummyVecEnv):
    """Environments of factories, stepped in a process each.

    Args:
        env_fns: the factories.
        start_method: how Python starts the processes if the factories differ, by default
            "forkserver". If all are the same function, Flatout starts worker processes.
    """

    def __init__(
        self, env_fns: Sequence[Callable[[], Any]], start_method: str | None = None
    ) -> None:
        self.start_method = start_method or "forkserver"
        super().__init__(env_fns)

    @staticmethod
    def _settings(num_envs: int) -> dict[str, Any]:
        return {"placement": f"sampler=processes workers={num_envs}x1"}


class VecNormalize(VecEnv):
    """Normalised observations and rewards: `normalize_observation` and `normalize_reward`.

    The discount of returns is the agent's `gamma`. Statistics are part of the agent: they are saved
    and loaded with it, used in evaluation, and not updated there; `training` and `norm_reward` may
    be set and change nothing.
    """

    def __init__(
        self, venv: Any, training: bool = True, norm_obs: bool = True, norm_reward: bool = True,
        clip_obs: float = 10.0, clip_reward: float = 10.0, gamma: float = 0.99,
        epsilon: float = 1e-8, norm_obs_keys: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        if (clip_obs, clip_reward, epsilon, norm_obs_keys) != (10.0, 10.0, 1e-8, None):
            raise UsageError(
                "VecNormalize clips to 10, adds 1e-8 to variances and normalises every number: "
                "leave clip_obs, clip_reward, epsilon and norm_obs_keys out."
            )
        venv = venv if isinstance(venv, VecEnv) else VecEnv(venv)
        settings = {"normalize_observation": norm_obs, "normalize_reward": norm_reward}
        super().__init__(venv.env, venv.num_envs, venv.settings | settings)

    @classmethod
    def load(cls, load_path: str | Path, venv: Any) -> Self:
        """Read settings that `save` wrote.

        Raises:
            UsageError: the file is missing, or holds something else.
        """
        path = path_argument("load_path", load_path)
        try:
            saved = read_json(path)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} holds no settings of a VecNormalize: {error}.") from None
        if not isinstance(saved, dict):
            raise UsageError(f"{path} holds no settings of a VecNormalize.")
        names = ("normalize_observation", "normalize_reward")
        observations, rewards = (bool(saved.get(name, True)) for name in names)
        return cls(venv, norm_obs=observations, norm_reward=rewards)


def VecFrameStack(  # noqa: N802 - a class in Stable-Baselines3
    venv: Any, n_stack: int, channels_order: Any = None
) -> VecEnv:
    """Return environments whose observations stack the last `n_stack`: `frame_stack`."""
    venv = venv if isinstance(venv, VecEnv) else VecEnv(venv)
    return venv.changed(frame_stack=n_stack)


def VecTransposeImage(venv: VecEnv, skip: bool = False) -> VecEnv:  # noqa: N802
    """Return the same environments: images are recognised by their shape."""
    return venv


def VecMonitor(venv: VecEnv, *_: Any, **__: Any) -> VecEnv:  # noqa: N802
    """Return the same environments: returns and lengths of episodes are recorded without it."""
    say("VecMonitor changes nothing: returns and lengths of episodes are recorded without it")
    return venv


def VecVideoRecorder(*_: Any, **__: Any) -> VecEnv:  # noqa: N802
    """Raise a `UsageError`: an agent records videos itself."""
    raise UsageError("VecVideoRecorder is not available. Instead: agent.record('video.mp4').")


def environment_and_settings(venv: VecEnv, placement: str | None) -> tuple[Any, dict[str, Any]]:
    """Return a `VecEnv` as the environment and the settings that an agent takes.

    Args:
        placement: the agent's own.

    Raises:
        UsageError: worker processes of that placement would make environments that differ.
    """
    if isinstance(venv.env, Different) and placement is not None and INLINE not in placement:
        raise UsageError(
            f"placement = {placement!r} lacks {INLINE}, which the functions in DummyVecEnv or "
            "SubprocVecEnv need where they differ: add it."
        )
    return venv.env, {"envs": venv.num_envs} | venv.settings


def played(agent: Any, venv: VecEnv) -> Any:
    """Return the environment of a `VecEnv` in which an agent plays episodes.

    Raises:
        UsageError: the agent prepares its environments otherwise.
    """
    own, given = agent.config.flat(), {"env_kwargs": {}} | venv.settings
    for name in PREPARATION:
        if name in given and given[name] != own[name]:
            raise UsageError(
                f"{name} = {short(given[name])} of these environments differs from the "
                f"agent's {short(own[name])}, with which it plays: evaluate "
                f"{type(agent).__name__}.load(path, env=...) of a saved agent."
            )
    return venv.env


def space_of(spec: ObsSpec) -> gym.Space[Any]:
    """Return the space of prepared observations."""
    return gym.spaces.Dict(tree.map(_box, spec)) if isinstance(spec, dict) else _box(spec)


def _box(spec: ObservationSpec) -> gym.spaces.Box:
    low, high = (-np.inf, np.inf) if spec.high is None else (0, spec.high)
    if spec.dtype != "float32" and spec.high is None:
        low, high = np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max
    return gym.spaces.Box(low, high, spec.shape, np.dtype(spec.dtype).type)
