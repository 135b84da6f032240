"""The input of DQN programs from before the 84 x 84 convention: cropped, halved, random skips."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from flatout.envs.ale_ids import PREFIX, SUFFIX, atari_id

FIRST_NO_OPS = 5
FRAME_SKIP = (2, 5)
"""As Gym's Breakout-v0 had it: drawn from 2, 3 and 4, the upper end being left out."""
STICKY = 0.25
"""The probability that a frame keeps the frame before's action."""
MAX_STEPS = 10_000


def cropped(game: str = "Breakout", render_mode: str | None = None) -> gym.Env[Any, Any]:
    """One Atari game as Gym's ``<game>-v0`` ran it, as a gray image ``[88, 80, 1]``.

    Use it as ``--env flatout.envs.atari:cropped --env-kwargs game=Breakout``.

    * Every step repeats the action for 2, 3 or 4 frames, equally likely, and every frame keeps
      the frame before's action with probability 0.25.
    * Of the last frame ``[210, 160, 3]``, rows 34, 36, ..., 208 and every second column remain,
      with the mean of the three colours, rounded.
    * An episode begins with 5 no-op steps and is cut 10,000 steps after them.
    * All randomness follows from the reset's seed. It is drawn here: ale-py's own can only be
      seeded by loading the game again, which takes as long as some 250 steps.

    Args:
        game: as in ``ALE/<game>-v5``.
        render_mode: None or ``"rgb_array"``.

    Raises:
        UsageError: an unknown game, or ale-py is missing.
    """
    name = f"{PREFIX}{game}{SUFFIX}"
    atari_id(name)
    env = gym.make(
        name, frameskip=1, repeat_action_probability=0.0, render_mode=render_mode,
        disable_env_checker=True,
    )  # fmt: skip
    return gym.wrappers.TimeLimit(Cropped(env), MAX_STEPS)


class Cropped(gym.Wrapper[np.ndarray, int, np.ndarray, int]):
    """Skips and repeats frames, crops, halves and grays the screen; see `cropped`.

    Args:
        env: one of ale-py's, every step of which is one frame.
    """

    def __init__(self, env: gym.Env[np.ndarray, int]) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(0, 255, (88, 80, 1), np.uint8)
        self._ale: Any = getattr(env.unwrapped, "ale")  # noqa: B009 - unknown to gym.Env
        self._actions = self._ale.getMinimalActionSet()
        self._beginning: Any = None  # the emulator's state at the start of every episode
        self._random = np.random.default_rng()
        self._action = self._frames = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode and let its no-op steps pass."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._begin()
        for _ in range(FIRST_NO_OPS):
            self._play(0)
            if self._ale.game_over(with_truncation=False):  # begin again, with the next numbers
                self._begin()
        return self._observe()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step of 2 to 4 frames."""
        reward = self._play(action)
        over = self._ale.game_over(with_truncation=False)
        obs, info = self._observe()
        return obs, reward, over, False, info

    def _begin(self) -> None:
        if self._beginning is None:
            self.env.reset()
            self._beginning = self._ale.cloneState()
        else:
            self._ale.restoreState(self._beginning)
        self._action = self._frames = 0

    def _play(self, action: int) -> float:
        reward = 0.0
        for _ in range(int(self._random.integers(*FRAME_SKIP))):
            if self._random.random() >= STICKY:
                self._action = action
            reward += self._ale.act(self._actions[self._action])
            self._frames += 1
        return reward

    def _observe(self) -> tuple[np.ndarray, dict[str, Any]]:
        info = {"lives": self._ale.lives(), "episode_frame_number": self._frames}
        return gray_crop(self._ale.getScreenRGB()), info


def gray_crop(screen: np.ndarray) -> np.ndarray:
    """``[210, 160, 3]`` uint8 to ``[88, 80, 1]`` uint8."""
    total = screen[34:210:2, ::2].sum(-1, keepdims=True, dtype=np.uint16)
    return ((total + 1) // 3).astype(np.uint8)  # a third is never half way
