"""Atari games whose frame skip is drawn at each step, for ids such as ``Breakout-v0``.

They have `AtariVectorEnv`'s interface, so that `AtariEnvs` can step them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode

from flatout.envs.ale_ids import load


class DrawnSkips:
    """N games, each of which repeats its action for a number of frames drawn at each step.

    ale-py's `AtariVectorEnv` has one frame skip for all its games. Here each game has its own
    vector environment, whose step is one frame; their threads run at the same time. A reset's seed
    also decides the skips; without a seed, the game's random numbers continue.

    With `maxpool` an observed frame is the maximum of the last two frames of a step. Both frames
    are scaled before the maximum is computed, whereas `AtariVectorEnv` scales the maximum.

    Args:
        num_envs: N.
        frameskip: ``(low, high)``; the frames per step are drawn from low to high - 1.
        num_threads: the number of games that run at the same time.
        stack_num, maxpool: as for `AtariVectorEnv`.
        settings: `AtariVectorEnv`'s other arguments.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self, *, num_envs: int, frameskip: tuple[int, int], num_threads: int, stack_num: int,
        maxpool: bool, **settings: Any,
    ) -> None:  # fmt: skip
        self.num_envs = num_envs
        vector = load().vector_env.AtariVectorEnv
        single = settings | {"num_threads": 1, "frameskip": 1, "stack_num": 2, "maxpool": False}
        self._games = [vector(num_envs=1, **single) for _ in range(num_envs)]
        self._frameskip, self._maxpool, self._at_once = frameskip, maxpool, max(num_threads, 1)
        self._random = [np.random.default_rng() for _ in range(num_envs)]
        frame = self._games[0].single_observation_space.shape[1:]
        self._stacks = np.zeros((num_envs, stack_num, *frame), np.uint8)
        self._lives = np.zeros(num_envs, np.int32)
        self._frames = np.zeros(num_envs, np.int32)

    def reset(
        self, *, seed: np.ndarray | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Start all games, or those of ``options["reset_mask"]`` (bool ``[N]``).

        `seed` holds one seed for each game that starts; -1 lets its random numbers continue.
        """
        mask = np.ones(len(self._games), np.bool_) if options is None else options["reset_mask"]
        envs = mask.nonzero()[0].tolist()
        seeds = [-1] * len(envs) if seed is None else seed.tolist()
        for env, number in zip(envs, seeds, strict=True):
            if number >= 0:
                self._random[env] = np.random.default_rng(number)
            stack, info = self._games[env].reset(seed=np.array([number]))
            self._stacks[env, :-1] = 0
            self._stacks[env, -1] = stack[0, -1]
            self._note(env, info)
        return self._stacks.copy(), self._info()

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Step every game once; return what `AtariVectorEnv.step` returns."""
        count = len(self._games)
        rewards = np.zeros(count, np.float32)
        terminated, truncated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        self._stacks[:, :-1] = self._stacks[:, 1:]
        for first in range(0, count, self._at_once):
            left = {
                env: int(self._random[env].integers(*self._frameskip))
                for env in range(first, min(first + self._at_once, count))
            }
            while left:
                for env in left:
                    self._games[env].send(actions[env : env + 1])
                for env in list(left):
                    stack, reward, ended, cut, info = self._games[env].ale.recv()
                    rewards[env] += reward[0]
                    terminated[env], truncated[env] = ended[0], cut[0]
                    left[env] -= 1
                    if not left[env] or ended[0] or cut[0]:
                        del left[env]
                        self._stacks[env, -1] = stack[0].max(0) if self._maxpool else stack[0, -1]
                        self._note(env, info)
        return self._stacks.copy(), rewards, terminated, truncated, self._info()

    def _note(self, env: int, info: dict[str, np.ndarray]) -> None:
        self._lives[env], self._frames[env] = info["lives"][0], info["frame_number"][0]

    def _info(self) -> dict[str, np.ndarray]:
        return {"lives": self._lives.copy(), "frame_number": self._frames.copy()}
