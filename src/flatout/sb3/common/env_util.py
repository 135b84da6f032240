"""Stable-Baselines3's functions that make environments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym

from flatout.errors import UsageError, short
from flatout.output import say
from flatout.sb3.common.monitor import Monitor
from flatout.sb3.common.vec_env import SubprocVecEnv, VecEnv

ATARI = ("noop_max", "frame_skip", "terminal_on_life_loss", "clip_reward")
"""Arguments of `AtariWrapper` that are settings under the same name."""


def make_vec_env(
    env_id: str | Callable[..., Any], n_envs: int = 1, seed: int | None = None,
    start_index: int = 0, monitor_dir: str | None = None,
    wrapper_class: Callable[..., Any] | None = None, env_kwargs: Mapping[str, Any] | None = None,
    vec_env_cls: Any = None, vec_env_kwargs: Mapping[str, Any] | None = None,
    monitor_kwargs: Mapping[str, Any] | None = None,
    wrapper_kwargs: Mapping[str, Any] | None = None,
) -> VecEnv:  # fmt: skip
    """Return `n_envs` environments of an id or a factory, for an agent of `flatout.sb3`.

    Args:
        env_id, n_envs, env_kwargs: as in Stable-Baselines3.
        seed: the seed of an agent's run, unless the agent has one.
        wrapper_class, wrapper_kwargs: a wrapper of each environment, and its arguments.
        vec_env_cls: `SubprocVecEnv` gives each environment a process.
        start_index, vec_env_kwargs, monitor_kwargs: ignored.
        monitor_dir: ignored with a note.
    """
    settings: dict[str, Any] = {}
    env: Any = env_id
    if wrapper_class is not None:
        more = dict(wrapper_kwargs or {})
        env = functools.partial(_wrapped, env_id, wrapper_class, more, dict(env_kwargs or {}))
    elif env_kwargs:
        settings["env_kwargs"] = dict(env_kwargs)
    if seed is not None:
        settings["seed"] = seed
    if vec_env_cls is SubprocVecEnv:
        settings["placement"] = f"sampler=processes workers={n_envs}x1"
    if monitor_dir is not None:
        say("monitor_dir is ignored: learn(run_dir=...) writes episodes.jsonl")
    return VecEnv(env, n_envs, settings)


def _wrapped(
    env_id: str | Callable[..., Any], wrapper: Callable[..., Any], more: dict[str, Any],
    settings: dict[str, Any], **others: Any,
) -> Any:  # fmt: skip
    """Make one environment in a wrapper; Flatout passes `others`, for example a render mode."""
    settings = settings | others
    made = gym.make(env_id, **settings) if isinstance(env_id, str) else env_id(**settings)
    return wrapper(made, **more)


def make_atari_env(
    env_id: str, n_envs: int = 1, seed: int | None = None, start_index: int = 0,
    monitor_dir: str | None = None, wrapper_kwargs: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None, vec_env_cls: Any = None,
    vec_env_kwargs: Mapping[str, Any] | None = None,
    monitor_kwargs: Mapping[str, Any] | None = None,
) -> VecEnv:  # fmt: skip
    """Return `n_envs` Atari games with the preprocessing of Stable-Baselines3's `AtariWrapper`.

    Raises:
        UsageError: an argument of the wrapper that has no counterpart.
    """
    given = dict(wrapper_kwargs or {})
    settings: dict[str, Any] = {"terminal_on_life_loss": True, "clip_reward": True}
    settings |= {name: given.pop(name) for name in ATARI if name in given}
    if (size := given.pop("screen_size", 84)) != 84:
        settings["resize"] = size
    if (sticky := given.pop("action_repeat_probability", 0.0)) != 0.0:
        settings["sticky_actions"] = sticky
    for name, value in given.items():
        raise UsageError(f"make_atari_env: wrapper_kwargs has no {name} = {short(value)}.")
    made = make_vec_env(
        env_id, n_envs, seed, monitor_dir=monitor_dir, env_kwargs=env_kwargs,
        vec_env_cls=vec_env_cls,
    )  # fmt: skip
    return made.changed(frame_stack=1, **settings)


def is_wrapped(env: Any, wrapper_class: Any) -> bool:
    """Return whether an environment has a wrapper of a class. All have what `Monitor` stands for:
    Flatout records the episodes of each."""
    if wrapper_class is Monitor:
        return True
    while isinstance(env, gym.Wrapper):
        if isinstance(env, wrapper_class):
            return True
        env = env.env
    return False
