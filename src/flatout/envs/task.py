"""The task of a run: `run.resolve` inspects its environment once; samplers and evaluation open as
many environments as they need."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from flatout.actions import allowed
from flatout.config.schema import EnvConfig
from flatout.envs.ale import atari_specs
from flatout.envs.base import EVALUATION, TRAINING, Envs
from flatout.envs.deadline import SPARES_TAKE, STARTUP_S
from flatout.envs.device.base import DeviceEnv
from flatout.envs.device.make import device_env
from flatout.envs.device.on_host import DeviceEnvs, OneDevice
from flatout.envs.host import HostEnvs
from flatout.envs.make import (
    Factory,
    close_quietly,
    episode_limit,
    factory,
    refuse_other_spaces,
    specs,
    takes_size,
)
from flatout.envs.mask_places import attribute, resets_with_mask, visible_masks
from flatout.envs.masks import maskable
from flatout.envs.notes import lost_statistics, recognised_images
from flatout.envs.own_vector import OwnVectorEnvs
from flatout.envs.preparation import is_prepared, prepare
from flatout.envs.prepared_vector import PreparedVector, single_envs
from flatout.envs.source import EnvSource
from flatout.envs.vector import EVERY_EPISODE, Reseeding
from flatout.envs.vector_kind import ONE_BY_ONE, VectorKind, resets_of, size_of
from flatout.errors import UsageError
from flatout.output import say
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
        vector: its number of environments if it is a vector of them; None otherwise.
        notes: sentences to show to the user.
        report: receives sentences for the user about environments that are open.
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
    vector: VectorKind | None = None
    notes: tuple[str, ...] = ()
    report: Callable[[str], None] = say
    _reported: set[str] = field(default_factory=set[str])

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
        reseeding: Reseeding = EVERY_EPISODE,
        first: int = 0,
        threads: int = 0,
        spares: bool = False,
    ) -> Envs:
        """Open `count` environments.

        Args:
            count: the number of environments.
            seed, stream, first: see `Envs`.
            reseeding, threads: see `AtariEnvs`; other environments ignore them.
            spares: whether they have spares if the settings ask for them (`envs.spares`); Atari
                games also have them by default where `open_atari` expects a gain.

        Raises:
            UsageError, EnvironmentFailure: they cannot be made.
        """
        if self.source.atari:
            from flatout.envs.atari_pool import open_atari

            wanted = self.config.spare_envs if spares else "0"
            return open_atari(
                self.config, count, seed, stream, reseeding, first, threads, wanted,
                self._report_once,
            )  # fmt: skip
        if self.device is not None:
            self.close()
            return DeviceEnvs(self.device, count, seed, stream, first)
        if self.vector is not None:
            return self._open_vector(self.vector, count, seed, stream, reseeding, first)
        made = [self.first] if self.first is not None else []
        self.first, began, to_make = None, time.monotonic(), count - len(made)
        try:
            while len(made) < count:
                made.append(self._make_checked())
            if len({id(attribute(env, "unwrapped") or env) for env in made}) < count:
                raise UsageError(
                    f"{self.name} made the same environment object twice: it has to make a new one "
                    "at each call."
                )
        except BaseException:
            for env in made:
                close_quietly(env)
            raise
        opened = time.monotonic() - began
        envs = self.host(made, seed, stream, first)
        if spares and self.config.spares:
            each = opened / max(to_make, 1)
            limit = max(STARTUP_S, SPARES_TAKE * each * count)
            try:
                envs.add_spares(self._make_checked, self.config.envs, self._report_once, limit)
            except BaseException:  # an interrupt: opening may take minutes
                envs.close()
                raise
        return envs

    def _open_vector(
        self, kind: VectorKind, count: int, seed: int, stream: int, reseeding: Reseeding, first: int
    ) -> Envs:
        """Open a vector of `count` environments; see `open`."""
        vector: Any = self.first
        if vector is not None and size_of(vector) != count and not self.single:
            self.close()
            vector = None
        self.first = None
        if vector is None:
            vector = self.make(num_envs=count)
        try:
            if size_of(vector) != count:
                raise UsageError(kind.wrong_size(self.name, size_of(vector), count))
            refuse_other_spaces(vector, self.name, self.obs_spec, self.action_spec)
            envs = self.together(vector, seed, stream, first)
            if isinstance(envs, OwnVectorEnvs) and not envs.replays:
                if stream != EVALUATION and reseeding == EVERY_EPISODE:
                    raise UsageError(
                        f"{self.name} takes no seed for each of its environments, which "
                        f"trajectories of whole episodes need: {ONE_BY_ONE}."
                    )
                if stream != EVALUATION:
                    self._report_once(
                        f"{self.name} takes no seed for each of its environments: a resumed run "
                        "begins new episodes."
                    )
        except BaseException:
            close_quietly(vector)
            raise
        return envs

    def together(self, vector: Any, seed: int, stream: int, first: int = 0) -> Envs:
        """Return the environments of a vector that `make` made; for the arguments see `open`."""
        if (each := single_envs(vector)) is not None:
            return self.host(each, seed, stream, first)
        inner = vector.env if isinstance(vector, PreparedVector) else vector
        resets = resets_of(inner, self.name, self.action_spec)
        return OwnVectorEnvs(
            vector, resets, self.name, self.obs_spec, self.action_spec, seed, stream, first,
            self.config.ignore_action_masks,
        )  # fmt: skip

    def inspected(self, env: Any, seed: int) -> Envs:
        """Return the environments of training that were made to inspect them."""
        if self.vector is not None:
            return self.together(env, seed, TRAINING)
        return self.host([env], seed, TRAINING)

    def _make_checked(self) -> gym.Env[Any, Any]:
        env = self.make()
        try:
            refuse_other_spaces(env, self.name, self.obs_spec, self.action_spec)
        except BaseException:
            close_quietly(env)
            raise
        return env

    def _report_once(self, sentence: str) -> None:
        """Report a sentence, unless other environments of this process have reported it."""
        if sentence not in self._reported:
            self._reported.add(sentence)
            self.report(sentence)

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

    def refuse_spares(self) -> None:
        """Raise a `UsageError` if the settings ask for spares that the environment cannot have."""
        if self.config.spares and self.vector is not None:
            raise UsageError(
                f"--spare-envs all is for single environments, and {self.name} is a vector "
                f"environment, which resets its own: leave it out, or {ONE_BY_ONE}."
            )
        if self.config.spares and self.single:
            raise UsageError(
                "--spare-envs all opens a second copy of each environment, and one environment "
                "object has none: pass a function that makes one, or leave it out."
            )
        if self.config.spares and self.device is not None:
            raise UsageError(
                f"--spare-envs all is for environments in Python; {self.name} is written in JAX "
                "and resets within its compiled step: leave it out."
            )

    @property
    def fixed_size(self) -> int | None:
        """The number of environments of a vector that cannot be made with another one; None for
        all others."""
        return None if self.vector is None or self.vector.sized else self.vector.count

    @property
    def could_have_spares(self) -> bool:
        """Whether spares are possible that the settings neither ask for nor refuse."""
        host = not self.single and self.device is None and not self.source.atari
        host = host and self.vector is None
        return host and self.config.spare_envs is None

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
            in_info = resets_with_mask(env, config.env)
            close_quietly(env)  # the run gets one that was never reset
            make = factory(config, source, in_info)
            env = make()
            obs_spec, action_spec = specs(env, config.env)
    except BaseException:
        close_quietly(env)
        raise
    limit, prepared = episode_limit(env), is_prepared(config)
    single = isinstance(source.passed, gym.Env | VectorEnv)
    together = isinstance(env, VectorEnv)
    task = Task(
        config, make, obs_spec, action_spec, limit, env, source=source,
        single=single, prepared=prepared, info_masks=bool(in_info),
        vector=VectorKind(size_of(env), takes_size(config, source)) if together else None,
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
