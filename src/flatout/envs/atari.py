"""N Atari games that step together in ale-py's C++ threads.

`Task.open` makes them. Samplers and evaluation step them in the same way as `HostEnvs`.

`cropped`, which users name in ``--env``, is Atari as in DQN programs from before the 84 x 84
convention: the screen is cropped, halved and gray, and the frame skip is random.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from flatout.config.schema import EnvConfig
from flatout.envs.ale import atari_specs, check_choices, open_vector, vector_settings, write_frames
from flatout.envs.ale_ids import PREFIX, SUFFIX, atari_id
from flatout.envs.ale_starts import LIVES_AT_END, forgets, resets_within
from flatout.envs.base import TRAINING
from flatout.envs.vector import EVERY_EPISODE, Reseeding, VectorEnvs
from flatout.types import Episode
from flatout_explain.hardware.cores import usable_cores

FIRST_NO_OPS = 5
FRAME_SKIP = (2, 5)
"""Frames per step are drawn from 2, 3 and 4 (without the upper end), as in Gym's Breakout-v0."""
STICKY = 0.25
"""The probability that a frame repeats the action of the previous frame."""
MAX_STEPS = 10_000


def cropped(game: str = "Breakout", render_mode: str | None = None) -> gym.Env[Any, Any]:
    """Make one Atari game with the rules of Gym's ``<game>-v0`` and gray images ``[88, 80, 1]``.

    Use it as ``--env flatout.envs.atari:cropped --env-kwargs game=Breakout``.

    * Every step repeats the action for 2, 3 or 4 frames, equally likely. Every frame repeats the
      action of the previous frame with probability 0.25.
    * An observation consists of rows 34, 36, ..., 208 and every second column of the last frame
      ``[210, 160, 3]``. A pixel is the rounded mean of the three colours.
    * An episode begins with 5 no-op steps and is truncated 10,000 steps after them.
    * All randomness follows from the reset's seed. It is drawn in Python: ale-py's own generator
      can only be seeded by loading the game again, which takes about as long as 250 steps.

    Args:
        game: as in ``ALE/<game>-v5``.
        render_mode: None or ``"rgb_array"``.

    Raises:
        UsageError: the game is unknown, or ale-py is missing.
    """
    name = f"{PREFIX}{game}{SUFFIX}"
    atari_id(name)
    env = gym.make(
        name, frameskip=1, repeat_action_probability=0.0, render_mode=render_mode,
        disable_env_checker=True,
    )  # fmt: skip
    return gym.wrappers.TimeLimit(Cropped(env), MAX_STEPS)


class Cropped(gym.Wrapper[np.ndarray, int, np.ndarray, int]):
    """A wrapper with the frame skip, sticky actions and observations of `cropped`.

    Args:
        env: an environment of ale-py, each step of which is one frame.
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
        """Start an episode and take its no-op steps."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._begin()
        for _ in range(FIRST_NO_OPS):
            self._play(0)
            if self._ale.game_over(with_truncation=False):  # start again; random numbers continue
                self._begin()
        return self._observe()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Repeat the action for 2 to 4 frames."""
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
    """Crop, halve and gray a screen: ``[210, 160, 3]`` uint8 to ``[88, 80, 1]`` uint8."""
    total = screen[34:210:2, ::2].sum(-1, keepdims=True, dtype=np.uint16)
    return ((total + 1) // 3).astype(np.uint8)  # rounds: a third is never halfway between integers


class AtariEnvs(VectorEnvs):
    """N games of one id; see `VectorEnvs`. Games that are not active take no-ops.

    A seeded reset makes ale-py load the ROM again, which takes about as long as 250 steps.
    `reseeding` makes such resets rarer. Then ale-py's own threads reset a game that ends, while
    others step, if `resets_within` allows it.

    Args:
        config: the id and its settings.
        count: N.
        reseeding: see `VectorEnvs`. For the other arguments see `Envs`.
        threads: threads in which the games step, unless ``num_threads`` is set in `config`; 0 means
            one per game, but at most one per core.

    Raises:
        UsageError: the game is unknown or a setting is impossible.
    """

    def __init__(
        self,
        config: EnvConfig,
        count: int,
        seed: int,
        stream: int = TRAINING,
        reseeding: Reseeding = EVERY_EPISODE,
        first: int = 0,
        threads: int = 0,
    ) -> None:
        settings, (obs_spec, actions, limit) = vector_settings(config), atari_specs(config)
        threads = settings["num_threads"] or threads or min(count, usable_cores())
        within = reseeding != EVERY_EPISODE and resets_within(settings)
        super().__init__(
            open_vector(settings, count, threads, within), config.env, obs_spec, actions, seed,
            stream, first, reseeding, forgetful=within and forgets(settings),
        )  # fmt: skip
        self._limit = math.inf if isinstance(settings["frameskip"], tuple) else limit
        self._num_actions, self._shape = actions.n, obs_spec.shape
        self._lives = np.zeros(count, np.int32)
        self.life_lost = np.zeros(count, np.bool_)

    def finished(self, env: int) -> Episode:
        lives = LIVES_AT_END if self._begun_within[env] else self._lives[env]
        return super().finished(env)._replace(info={"lives": float(lives)})

    def close(self) -> None:
        self._vector = None

    def _reset_some(self, mask: np.ndarray, seeds: list[int]) -> tuple[Any, Mapping[str, Any]]:
        return self._vector.reset(seed=np.array(seeds), options={"reset_mask": mask})

    def _choices(self, actions: np.ndarray) -> np.ndarray:
        return check_choices(self._name, actions, self._num_actions)

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        gained, terminated, truncated = super()._advance(actions)
        if max(self.lengths) + 1 >= self._limit:
            truncated = ~terminated & (np.array(self.lengths) + 1 >= self._limit)
            if self.life_lost is not None:
                self.life_lost &= ~truncated
        return gained, terminated, truncated

    def _write(self, out: np.ndarray, envs: list[int] | None = None) -> None:
        write_frames(self._seen, out, envs)

    def _final(self, env: int, out: np.ndarray) -> np.ndarray:
        stacks = self._infos["final_obs"] if self._begun_within[env] else self._seen
        final = np.empty((1, *self._shape), np.uint8)
        write_frames(stacks[env : env + 1], final)
        return final[0]

    def _save_info(self, info: Mapping[str, Any], stepped: bool) -> None:
        if stepped:
            np.less(info["lives"], self._lives, out=self.life_lost)
            self._infos = info
        self._lives = info["lives"]
