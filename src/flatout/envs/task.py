"""The task of a run: `run.resolve` inspects its environment once; samplers and evaluation open as
many environments as they need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from flatout import tree
from flatout.actions import allowed
from flatout.config.schema import EnvConfig
from flatout.envs.ale import atari_specs
from flatout.envs.base import TRAINING, Envs
from flatout.envs.deadline import DeadlineExceeded
from flatout.envs.device.base import DeviceEnv
from flatout.envs.device.make import device_env
from flatout.envs.device.on_host import DeviceEnvs, OneDevice
from flatout.envs.host import HostEnvs
from flatout.envs.make import Factory, close_quietly, episode_limit, factory, specs
from flatout.envs.mask_places import attribute, info_masks, visible_masks
from flatout.envs.masks import maskable
from flatout.envs.preparation import Stored, is_prepared, prepare
from flatout.envs.source import EnvSource
from flatout.errors import EnvironmentFailure, Interrupt, UsageError
from flatout.types import ActionSpec, Obs, ObsSpec, mask_path

ALE_ONLY = ("frame_skip", "sticky_actions", "noop_max", "terminal_on_life_loss")
"""Settings that only Atari games have."""


@dataclass
class Task:
    """The environment that the user named: its spaces, and how to open it.

    Attributes:
        config: the id and the preparation of observations.
        make: makes one Gymnasium environment; with ``render_mode="rgb_array"`` one that renders.
        obs_spec, action_spec: its spaces.
        limit: its time limit in steps, or None.
        first: the environment that was made to inspect the spaces, until `open` uses it or `close`
            closes it; None for ALE ids.
        source: what the name stands for, or what the user passed.
        single: whether it is a user's environment object, which cannot be made twice.
        device: the device environment that the user named, whose copies step together; or None.
        prepared: whether the host changes observations (gray, resized or stacked).
        info_masks: whether infos of the environment hold action masks.
        notes: sentences to show to the user.
    """

    config: EnvConfig
    make: Factory
    obs_spec: ObsSpec
    action_spec: ActionSpec
    limit: int | None
    first: gym.Env[Any, Any] | None = None
    source: EnvSource = field(default_factory=lambda: EnvSource(""))
    single: bool = False
    device: DeviceEnv | None = None
    prepared: bool = False
    info_masks: bool = False
    notes: tuple[str, ...] = ()

    @property
    def spaces(self) -> tuple[ObsSpec, ActionSpec, int | None]:
        """The spec of observations, the spec of actions and the time limit, for an algorithm."""
        return self.obs_spec, self.action_spec, self.limit

    @property
    def name(self) -> str:
        """The environment's name, for messages."""
        return self.config.env

    def open(
        self,
        count: int,
        seed: int,
        stream: int = TRAINING,
        reseed_after: int = 0,
        first: int = 0,
        threads: int = 0,
    ) -> Envs:
        """Open `count` environments.

        Args:
            count: the number of environments.
            seed, stream, first: see `Envs`.
            reseed_after, threads: see `AtariEnvs`; other environments ignore them.

        Raises:
            UsageError, EnvironmentFailure: they cannot be made.
        """
        if self.source.atari:
            from flatout.envs.atari import AtariEnvs

            return AtariEnvs(self.config, count, seed, stream, reseed_after, first, threads)
        if self.device is not None:
            self.close()
            return DeviceEnvs(self.device, count, seed, stream, first)
        made = [self.first] if self.first is not None else []
        self.first = None
        try:
            while len(made) < count:
                made.append(self.make())
                self._refuse_other_spaces(made[-1])
            if len({id(attribute(env, "unwrapped") or env) for env in made}) < count:
                raise UsageError(
                    f"{self.name} made the same environment object twice: it has to make a new one "
                    "at each call."
                )
        except BaseException:
            for env in made:
                close_quietly(env)
            raise
        return self.host(made, seed, stream, first)

    def _refuse_other_spaces(self, env: gym.Env[Any, Any]) -> None:
        """Raise a `UsageError` if a further environment has other spaces than the first."""
        obs_spec, actions = specs(env, self.name)
        if obs_spec == self.obs_spec and actions == self.action_spec:
            return
        what, of = "observation", ""
        if obs_spec == self.obs_spec:
            what = "action"
        elif isinstance(obs_spec, dict) and isinstance(self.obs_spec, dict):
            paths = sorted({*obs_spec, *self.obs_spec})
            of = next(p for p in paths if obs_spec.get(p) != self.obs_spec.get(p))
        raise UsageError(
            f"{self.name} made environments with different {what} spaces"
            f"{f' (at {of!r})' if of else ''}: all copies need the same spaces."
        )

    def host(
        self, envs: list[gym.Env[Any, Any]], seed: int, stream: int, first: int = 0
    ) -> HostEnvs:
        """Return `HostEnvs` of environments that `make` made; for the arguments see `open`."""
        return HostEnvs(
            envs, self.name, self.obs_spec, self.action_spec, seed, stream, first,
            self.config.ignore_action_masks,
        )  # fmt: skip

    def first_allowed(self, actions: np.ndarray, obs: Obs) -> np.ndarray:
        """Return actions ``[B, ...]`` with each choice that the mask in the observations
        ``[B, ...]`` forbids replaced by the next allowed one."""
        path = mask_path(self.obs_spec)
        return allowed(np, self.action_spec, obs[path], actions) if path else actions

    @property
    def compiles(self) -> bool:
        """Whether `on_device` has a device environment: the one that the user named, or a twin."""
        return self.device is not None or (not self.prepared and self.source.has_twin)

    def on_device(self) -> DeviceEnv:
        """Return the device environment that the user named, or the twin of the user's environment.

        Raises:
            UsageError: there is none.
        """
        if self.device is not None:
            return self.device
        if self.source.passed is not None:
            raise UsageError(
                f"{self.name or 'the environment'} is no device environment: pass a "
                "flatout.DeviceEnv, or the name of an environment that has a twin."
            )
        if self.prepared:
            raise UsageError(
                f"{self.name} is prepared on the host: a device environment takes no --grayscale, "
                "--resize or --frame-stack."
            )
        return device_env(self.name, self.config.env_kwargs)

    def close(self) -> None:
        """Close the environment that was made to inspect its spaces, unless `open` has used it."""
        if self.first is not None:
            close_quietly(self.first)
        self.first = None


def open_task(config: EnvConfig, source: Any = None, in_info: bool | None = False) -> Task:
    """Make one environment, inspect its spaces, and return the task. For Atari ids none is made.

    Args:
        config: the id or ``module:factory``, its arguments, and the preparation of observations.
        source: an environment object or a function, used instead of ``config.env``, or what that
            is known to stand for.
        in_info: whether infos of the environment hold action masks; None resets it to see that.

    Raises:
        UsageError: the environment is unknown or one of its spaces is not supported.
        EnvironmentFailure: making the environment failed, or its first reset took too long.
    """
    source = EnvSource.of(config, source)
    make = factory(config, source, bool(in_info))
    if source.atari:
        return Task(config, make, *atari_specs(config), source=source)
    for name in ALE_ONLY:
        if (value := getattr(config, name)) != getattr(EnvConfig, name):
            raise UsageError(
                f"--{name.replace('_', '-')} {value} is for Atari ids (ALE/Breakout-v5, "
                f"Breakout-v4) only, which {config.env} is not: leave it out, or pass the "
                "environment its own settings with --env-kwargs."
            )
    env = make()
    try:
        obs_spec, action_spec = specs(env, config.env)
        if in_info is None and _may_mask(env, action_spec, config):
            in_info = _resets_with_mask(env, config.env)
            close_quietly(env)  # the run gets one that was never reset
            make = factory(config, source, in_info)
            env = make()
            obs_spec, action_spec = specs(env, config.env)
    except BaseException:
        close_quietly(env)
        raise
    limit, prepared = episode_limit(env), is_prepared(config)
    task = Task(
        config, make, obs_spec, action_spec, limit, env, source=source,
        single=isinstance(source.passed, gym.Env), prepared=prepared, info_masks=bool(in_info),
        notes=(*lost_statistics(env, config.env), *recognised_images(env, obs_spec, config.env)),
    )  # fmt: skip
    inner = attribute(env, "unwrapped")
    if isinstance(inner, OneDevice):  # pure functions: one device environment serves all copies
        device = inner.device
        task.device = device if env is inner else None
        task.make = lambda **mode: prepare(OneDevice(device, **mode), config)
    return task


def _may_mask(env: gym.Env[Any, Any], spec: ActionSpec, config: EnvConfig) -> bool:
    """Return whether only a reset can show if an environment masks its actions."""
    return (
        maskable(spec)
        and not config.ignore_action_masks
        and not isinstance(attribute(env, "unwrapped"), OneDevice)
        and not visible_masks(env)
    )


def _resets_with_mask(env: gym.Env[Any, Any], name: str) -> bool:
    """Return whether the info of an environment's first reset holds a mask. An exception of the
    environment is ignored: it meets the check of its first steps again."""
    try:
        _, info = env.reset(seed=0)
    except DeadlineExceeded:
        raise EnvironmentFailure(
            f"{name} did not finish its first reset in time; if it needs longer, raise "
            "worker_timeout (--worker-timeout)."
        ) from None
    except (Interrupt, KeyboardInterrupt):
        raise
    except BaseException:  # a user's environment may raise anything
        return False
    return bool(info_masks(info))


NORMALISERS: dict[type[Any], str] = {
    gym.wrappers.NormalizeObservation: "normalize_observation=True",
    gym.wrappers.NormalizeReward: "normalize_reward=True",
}
"""Gymnasium's wrappers with running statistics, and the settings of Flatout that replace them."""


def lost_statistics(env: gym.Env[Any, Any], name: str) -> tuple[str, ...]:
    """Return a sentence about each wrapper whose running statistics a run cannot save."""
    notes: list[str] = []
    while isinstance(env, gym.Wrapper):
        for wrapper, setting in NORMALISERS.items():
            if isinstance(env, wrapper):
                notes.append(
                    f"{name} is wrapped in gymnasium.wrappers.{wrapper.__name__}, whose statistics "
                    "are lost in evaluation, on resume, by export and by predict: remove it, and "
                    f"pass {setting} to PPO or A2C"
                )
        env = env.env
    return tuple(notes)


def recognised_images(env: gym.Env[Any, Any], spec: ObsSpec, name: str) -> tuple[str, ...]:
    """Return a sentence about each image that is transposed or scaled before a network sees it,
    although its space does not say that it is one.

    Args:
        env: the environment.
        spec: its observations, after their preparation.
        name: its name.
    """
    while isinstance(env, gym.Wrapper):
        spec, env = env.given if isinstance(env, Stored) else spec, env.env
    notes: list[str] = []
    for path, leaf in tree.items(spec):
        at = f" at {path!r}" if path else ""
        shape = "x".join(map(str, leaf.shape))
        if leaf.channels_first:
            notes.append(f"{name} observes images with the channels first{at} ({shape}), which are "
                         "transposed")  # fmt: skip
        if leaf.dtype == "float32" and leaf.high is not None:
            notes.append(f"{name} observes images of floats{at} ({shape}), which are divided by "
                         f"{leaf.high}")  # fmt: skip
    return tuple(notes)
