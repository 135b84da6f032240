"""The input of DQN programs from before the 84 x 84 convention: cropped, halved, random skips."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from flatout.envs.ale import PREFIX, SUFFIX, load, rom_of

FIRST_NO_OPS = 5
FRAME_SKIP = (2, 5)
"""As Gym's Breakout-v0 had it: drawn from 2, 3 and 4, the upper end being left out."""
MAX_STEPS = 10_000


def cropped(game: str = "Breakout", render_mode: str | None = None) -> gym.Env[Any, Any]:
    """One Atari game as Gym's ``<game>-v0`` ran it, as a gray image ``[88, 80, 1]``.

    Use it as ``--env flatout.envs.atari:cropped --env-kwargs game=Breakout``.

    * Every step repeats the action for 2, 3 or 4 frames, equally likely, and every frame keeps
      the frame before's action with probability 0.25.
    * Of the last frame ``[210, 160, 3]``, rows 34, 36, ..., 208 and every second column remain,
      with the mean of the three colours, rounded.
    * An episode begins with 5 no-op steps and is cut 10,000 steps after them.
    * All randomness follows from the reset's seed.

    Args:
        game: as in ``ALE/<game>-v5``.
        render_mode: None or ``"rgb_array"``.

    Raises:
        UsageError: an unknown game, or ale-py is missing.
    """
    name = f"{PREFIX}{game}{SUFFIX}"
    rom_of(name)
    load()
    env = gym.make(
        name, frameskip=FRAME_SKIP, repeat_action_probability=0.25, render_mode=render_mode,
        disable_env_checker=True,
    )  # fmt: skip
    return gym.wrappers.TimeLimit(Cropped(env), MAX_STEPS)


class Cropped(gym.Wrapper[np.ndarray, int, np.ndarray, int]):
    """Crops, halves and grays the screen, and begins with no-ops; see `cropped`."""

    def __init__(self, env: gym.Env[np.ndarray, int]) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(0, 255, (88, 80, 1), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode and let its no-op steps pass."""
        screen, info = self.env.reset(seed=seed, options=options)
        for _ in range(FIRST_NO_OPS):
            screen, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:  # begin again, with the random numbers that come next
                screen, info = self.env.reset()
        return gray_crop(screen), info

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step of 2 to 4 frames."""
        screen, reward, terminated, truncated, info = self.env.step(action)
        return gray_crop(screen), float(reward), terminated, truncated, info


def gray_crop(screen: np.ndarray) -> np.ndarray:
    """``[210, 160, 3]`` uint8 to ``[88, 80, 1]`` uint8."""
    total = screen[34:210:2, ::2].sum(-1, keepdims=True, dtype=np.uint16)
    return ((total + 1) // 3).astype(np.uint8)  # a third is never half way
