"""Agents of Flatout under the names and with the arguments of Stable-Baselines3.

    from flatout.sb3 import PPO  # instead of: from stable_baselines3 import PPO

docs/coming-from.md says what is translated and what differs.
"""

# pyright: reportIncompatibleMethodOverride=false
# Arguments have the order of Stable-Baselines3, which is another one than Flatout's.

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Never, NoReturn, Self, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from flatout.api import Agent, agents
from flatout.api.aliases import ATTRIBUTES, POLICIES
from flatout.api.arguments import flag, path_argument
from flatout.api.names import consent
from flatout.api.saved_files import read_agent
from flatout.config.aliases import IMPORTED, RENAMED
from flatout.config.schema import EnvConfig
from flatout.envs.vector_kind import size_of
from flatout.errors import UsageError, short
from flatout.run.callbacks import CallbackLike
from flatout.sb3.adapter import attached
from flatout.sb3.common.run_view import Logger
from flatout.sb3.common.vec_env import (
    PREPARATION,
    VecEnv,
    environment_and_settings,
    played,
    space_of,
)
from flatout.storage.checkpoint import PREFIX

__all__ = [
    "A2C", "DDPG", "DQN", "PPO", "SAC", "TD3", "TQC", "HerReplayBuffer", "MaskablePPO",
    "RecurrentPPO",
]  # fmt: skip

ENDING = ".safetensors"
STEPS = ("train_freq", "gradient_steps")
ON_POLICY = ("ppo", "a2c")
NORMALISED = ("normalize_observation", "normalize_reward")


class HerReplayBuffer:
    """Hindsight replay: with this as `replay_buffer_class` an agent has the setting `hindsight`."""


class _Translated(Agent):
    """An agent with Stable-Baselines3's attributes and arguments.

    The unit of `train_freq` is a step of all environments, as in Stable-Baselines3. `learn` starts
    a new run unless ``reset_num_timesteps=False``.
    """

    _vec_env: VecEnv | None = None
    _step: int | None = None  # within callbacks: the step that they are called for
    _logs: str | Path | None = None

    def __init__(self, policy: Any = None, env: Any = None, **settings: Any) -> None:
        given = [one for one in (policy, env) if one is not None]
        if given and isinstance(given[-1], VecEnv):
            self._vec_env = given[-1]
            placement = settings.get("placement")
            given[-1], others = environment_and_settings(given[-1], placement)
            settings = others | settings
            if settings.get("seed") is None:  # Stable-Baselines3 seeds the environments by itself
                settings["seed"] = others.get("seed", 0)
        self._logs = settings.pop("tensorboard_log", None)
        if settings.get("replay_buffer_class") is HerReplayBuffer:
            settings = _with_hindsight(settings)
        settings = self._without_normalisation(settings)
        if not self._loads and self.algorithm not in ON_POLICY:
            envs = _number_of_envs(settings, given[-1] if given else None, 1)
            if "preset" not in settings:
                settings.setdefault("train_freq", 4 if self.algorithm == "dqn" else 1)
            settings = _with_updates(settings, envs)
        super().__init__(*given, **settings)

    @classmethod
    def _without_normalisation(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings, without those of `VecNormalize` if the algorithm has none.

        Raises:
            UsageError: one of them is on.
        """
        if cls.algorithm in ON_POLICY:
            return dict(settings)
        for name in NORMALISED:
            if settings.get(name):
                what = name.removeprefix("normalize_")
                raise UsageError(
                    f"VecNormalize is available for PPO and A2C, not for {cls.__name__}: wrap the "
                    f"environment in a wrapper of your own that scales {what}s."
                )
        return {name: value for name, value in settings.items() if name not in NORMALISED}

    def learn(
        self, total_timesteps: int | None = None, callback: Any = None,
        log_interval: int | None = None, tb_log_name: str = "run",
        reset_num_timesteps: bool | None = True, progress_bar: bool | None = None, *,
        run_dir: str | Path | None = None, reset: bool = False, **others: Never,
    ) -> Self:  # fmt: skip
        """Train for this many environment steps, as `flatout.Agent.learn`.

        Args:
            total_timesteps: the number of steps.
            callback: callbacks of Stable-Baselines3's or Flatout's kind, one or a list; or a
                function ``callback(locals, globals)``.
            log_interval: ignored; `log_every` sets the steps between rows of metrics.
            tb_log_name: the name of the run folder below `tensorboard_log`.
            reset_num_timesteps: start a new run with what was learned; False continues the last
                one.
            progress_bar: show the live display.
            run_dir: a folder to keep the run in.
            reset: as `reset_num_timesteps`.
            others: refused.
        """
        if run_dir is None and self._logs is not None:
            number = 1
            while (run_dir := Path(self._logs) / f"{tb_log_name}_{number}").exists():
                number += 1
        callbacks: list[CallbackLike] = attached(callback, self)
        try:
            super().learn(
                total_timesteps, callbacks or None, progress_bar=progress_bar or None,
                run_dir=run_dir, reset_num_timesteps=reset or reset_num_timesteps, **others,
            )  # fmt: skip
        finally:
            self._run_view = None
        return self

    def evaluate(self, *args: Any, env: Any = None, **others: Any) -> Any:
        """Play episodes; see `flatout.Agent.evaluate`."""
        env = played(self, env) if isinstance(env, VecEnv) else env
        return super().evaluate(*args, env=env, **others)

    def save(self, path: str | Path, *args: Any, **others: Any) -> Path:
        """Write the agent; a path without an ending gets ``.safetensors``."""
        if args or {*others} - {"exclude", "include"}:
            raise UsageError("save takes a path.")
        named = path_argument("path", path)
        return super().save(named if named.suffix else named.with_suffix(ENDING))

    @classmethod
    def load(
        cls, path: str | Path, env: Any = None, device: str | None = None,
        custom_objects: Mapping[str, Any] | None = None, **settings: Any,
    ) -> Self:  # fmt: skip
        """Load an agent that `save` wrote, or a run folder; see `flatout.Agent.load`."""
        named = path_argument("path", path)
        endings = ("", ENDING, ".zip") if named.suffix != ".zip" else (ENDING, "")
        plain = str(named).removesuffix(".zip")
        own = named if named.suffix else named.with_suffix(ENDING)  # as `save` writes it
        places = (own, named, *(Path(plain + ending) for ending in endings))
        found = [one for one in places if one.exists()]
        vec_env = env if isinstance(env, VecEnv) else None
        if vec_env is not None:
            env, others = environment_and_settings(vec_env, settings.get("placement"))
            settings = {n: v for n, v in others.items() if n != "seed"} | settings
        if device not in (None, "auto"):
            settings["device"] = device
        for name, value in (custom_objects or {}).items():
            if name not in ("lr_schedule", "policy_class"):
                settings[name] = value
        settings.pop("print_system_info", None)
        settings = cls._without_normalisation(settings)
        file = found[0] if found else named
        envs = _number_of_envs(settings, env, None)
        if cls.algorithm not in ON_POLICY and (envs or not {*STEPS}.isdisjoint(settings)):
            trusted = consent(flag("trust", settings.get("trust", False)), env=env)
            saved = read_agent(file, "best", trusted).config
            envs, every = envs or saved.env.envs, saved.flat().get("train_freq")
            if "train_freq" in settings:
                settings = _with_updates(settings, envs)
            elif _is_count(envs) and every is not None:  # None: another algorithm's
                settings["train_freq"] = max(every * int(envs) // saved.env.envs, 1)
        agent = super().load(file, env, **settings)
        agent._vec_env = vec_env
        return agent

    @property
    def num_timesteps(self) -> int:
        """Environment steps of the newest run, within a callback up to its call."""
        return (self._steps or 0) if self._step is None else self._step

    @property
    def n_envs(self) -> int:
        """The number of environments."""
        return self.config.env.envs

    @property
    def observation_space(self) -> gym.Space[Any]:
        """The space of prepared observations."""
        return space_of(self.task.obs_spec)

    @property
    def action_space(self) -> gym.Space[Any]:
        """The space of actions."""
        return self.task.action_spec.to_gym()

    @property
    def logger(self) -> Logger:
        """Where callbacks log numbers."""
        return Logger(self._run_view)

    _run_view: Any = None  # the run, while callbacks are called

    def get_env(self) -> VecEnv:
        """Return environments that can be stepped, separate from those of training."""
        if self._vec_env is None:
            made = self._code.env
            env = made if made is not None else self.config.env.env
            given, default = vars(self.config.env), vars(EnvConfig())
            changed = {name: given[name] for name in PREPARATION if given[name] != default[name]}
            self._vec_env = VecEnv(env, self.n_envs, changed)
        return self._vec_env

    def set_env(self, env: Any, *args: Any) -> NoReturn:
        """Raise a `UsageError`: an agent keeps its environment."""
        raise UsageError(f"{type(self).__name__} keeps its environment: {ATTRIBUTES['set_env']}.")

    def get_parameters(self) -> dict[str, dict[str, np.ndarray]]:
        """Return copies of the learned arrays by name, as ``{"policy": {...}}``."""
        arrays = self._acting.arrays
        if arrays is None:
            raise UsageError("there are no parameters yet: call learn first.")
        own = f"{PREFIX}.params"
        return {"policy": {n: np.array(a) for n, a in arrays.items() if n.startswith(own)}}

    def set_parameters(
        self, load_path_or_dict: Any, exact_match: bool = True, device: str = "auto"
    ) -> None:
        """Replace learned arrays by those of a dict like that of `get_parameters`.

        Raises:
            UsageError: it is something else, an array is missing, unknown or of another shape, or
                the agent is learning.
        """
        if self._run is not None:
            raise UsageError(
                "set_parameters cannot be called while the agent learns: stop the run, set them, "
                "and call learn again."
            )
        present = self.get_parameters()["policy"]
        given = load_path_or_dict
        if not isinstance(given, Mapping) or not isinstance(given.get("policy"), Mapping):
            raise UsageError(
                f"set_parameters takes what get_parameters returns, not {short(given)}: "
                f"{type(self).__name__}.load(path) reads a file."
            )
        changed = {name: np.asarray(value) for name, value in given["policy"].items()}
        for name, value in changed.items():
            if name not in present or value.shape != present[name].shape:
                raise UsageError(f"set_parameters: there is no array {name} {[*value.shape]}.")
        if exact_match and len(changed) < len(present):
            raise UsageError(f"set_parameters: {min({*present} - {*changed})} is missing.")
        typed = {name: value.astype(present[name].dtype) for name, value in changed.items()}
        self._acting.learned({**(self._acting.arrays or {}), **typed})
        self._history.replace(typed)


def _number_of_envs(settings: Mapping[str, Any], env: Any, default: Any) -> Any:
    """Return the number of environments that the settings or a vector environment name."""
    for name, value in settings.items():
        if RENAMED.get(name, name) == "envs":
            return value
    return size_of(env) if isinstance(env, VectorEnv) else default


def _with_updates(settings: Mapping[str, Any], envs: Any) -> dict[str, Any]:
    """Return the settings with `train_freq` counted over all environments. What is no number is
    left to the check of settings."""
    every = settings.get("train_freq")
    if isinstance(every, tuple) and every[1:] == ("step",):
        every = every[0]
    if not (_is_count(every) and _is_count(envs)):
        return dict(settings)
    return {**settings, "train_freq": int(every) * int(envs)}


def _is_count(value: Any) -> TypeGuard[int | np.integer[Any]]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _with_hindsight(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with those of `HerReplayBuffer` as `hindsight`.

    Raises:
        UsageError: another strategy than "future", or an unknown argument.
    """
    replay = ("replay_buffer_class", "replay_buffer_kwargs")
    others = {name: value for name, value in settings.items() if name not in replay}
    given = dict(settings.get("replay_buffer_kwargs") or {})
    count, strategy = given.pop("n_sampled_goal", 4), given.pop("goal_selection_strategy", "future")
    strategy = str(getattr(strategy, "name", strategy)).lower()
    if strategy != "future":
        raise UsageError(
            f"goal_selection_strategy = {short(strategy)} is not available: leave it out for "
            '"future".'
        )
    if given.pop("copy_info_dict", False):
        raise UsageError(
            "copy_info_dict = True is not available: compute_reward gets empty infos; leave it out."
        )
    for name in given:
        raise UsageError(f"replay_buffer_kwargs: {name} is unknown; HerReplayBuffer takes "
                         "n_sampled_goal and goal_selection_strategy.")  # fmt: skip
    return {**others, "hindsight": count}


class PPO(_Translated, agents.PPO):
    """`flatout.PPO` with Stable-Baselines3's arguments."""


class A2C(_Translated, agents.A2C):
    """`flatout.A2C` with Stable-Baselines3's arguments."""


class DQN(_Translated, agents.DQN):
    """`flatout.DQN` with Stable-Baselines3's arguments."""


class _WithoutNoise:
    """Agents whose `predict` adds no exploration noise, as in Stable-Baselines3."""

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None,
        deterministic: bool = False, **others: Any,
    ) -> Any:  # fmt: skip
        """Return the action without noise, and the state; see `flatout.Agent.predict`."""
        flag("deterministic", deterministic)
        given: Any = super()
        return given.predict(observation, state, episode_start, True, **others)


class DDPG(_WithoutNoise, _Translated, agents.DDPG):
    """`flatout.DDPG` with Stable-Baselines3's arguments."""


class TD3(_WithoutNoise, _Translated, agents.TD3):
    """`flatout.TD3` with Stable-Baselines3's arguments."""


class SAC(_Translated, agents.SAC):
    """`flatout.SAC` with Stable-Baselines3's arguments."""


class TQC(_Translated, agents.TQC):
    """`flatout.TQC` with the arguments of sb3-contrib's class."""


class MaskablePPO(PPO):
    """`flatout.PPO`, which obeys masks, with the arguments of sb3-contrib's class."""

    def predict(self, *args: Any, action_masks: Any = None, **others: Any) -> Any:
        """Return the action and the state; see `flatout.Agent.predict`."""
        mask = others.pop("action_mask", None) if action_masks is None else action_masks
        return super().predict(*args, action_mask=mask, **others)


class RecurrentPPO(PPO):
    """`flatout.PPO` with a memory, with the arguments and defaults of sb3-contrib's class."""

    def __init__(self, policy: Any = None, env: Any = None, **settings: Any) -> None:
        if not self._loads:
            if policy not in POLICIES or "Lstm" not in policy:
                names = ", ".join(name for name in POLICIES if "Lstm" in name)
                raise UsageError(f"the policy of RecurrentPPO is one of {names}.")
            settings = {"n_steps": 128, "batch_size": 128} | settings
        super().__init__(policy, env, **settings)


def __getattr__(name: str) -> Any:
    """Refuse a name that is not available, with what to write instead."""
    if name in IMPORTED:
        raise ImportError(f"flatout.sb3 has no {name}. Instead: {IMPORTED[name]}.")
    raise AttributeError(f"module 'flatout.sb3' has no attribute {name!r}")
