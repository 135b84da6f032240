"""Sentences for the user about what a run changes in an environment, and what it cannot save."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv, VectorWrapper

from flatout import tree
from flatout.envs.preparation import Stored
from flatout.types import ObsSpec

NORMALISERS: dict[type[Any], str] = {
    gym.wrappers.NormalizeObservation: "normalize_observation=True",
    gym.wrappers.NormalizeReward: "normalize_reward=True",
    gym.wrappers.vector.NormalizeObservation: "normalize_observation=True",
    gym.wrappers.vector.NormalizeReward: "normalize_reward=True",
}
"""Gymnasium's wrappers with running statistics, and the settings of Flatout that replace them."""


def lost_statistics(env: Any, name: str) -> tuple[str, ...]:
    """Return a sentence about each wrapper whose running statistics a run cannot save.

    Args:
        env: the environment, or a vector of environments. Of those that step in other processes, or
            in a class of the user's, only the wrappers around the vector are seen.
        name: its name.
    """
    notes: list[str] = []
    while isinstance(env, gym.Wrapper | VectorWrapper | SyncVectorEnv):
        for wrapper, setting in NORMALISERS.items():
            if isinstance(env, wrapper):
                library = "gymnasium.wrappers" + ".vector" * isinstance(env, VectorWrapper)
                notes.append(
                    f"{name} is wrapped in {library}.{wrapper.__name__}, whose statistics are lost "
                    "in evaluation, on resume, by export and by predict: remove it, and pass "
                    f"{setting} to PPO or A2C"
                )
        env = env.envs[0] if isinstance(env, SyncVectorEnv) else env.env
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
