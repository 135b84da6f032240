"""A small game with action masks, for Flatout and for its peer: ``masked_env:SlidingPuzzle-v0``."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import register

SIDE = 3
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


class SlidingPuzzle(gym.Env[Any, Any]):
    """Eight tiles on a board of 3x3 cells: slide a neighbour into the empty cell.

    Moves beyond the edge are forbidden. The mask is given by `action_masks`, as sb3-contrib asks
    for it. A step costs 0.01 and gives 1 for each tile that comes to its place, -1 for each that
    leaves it.
    """

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0.0, 1.0, (SIDE**2,), np.float32)
        self.action_space = gym.spaces.Discrete(len(MOVES))
        self._scale = 1.0 / (SIDE**2 - 1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Take twenty random moves from the solved board."""
        super().reset(seed=seed)
        self._tiles = [*range(SIDE**2)]
        self._empty = 0
        for _ in range(20):
            allowed = np.flatnonzero(self.action_masks())
            self._slide(int(self.np_random.choice(allowed)))
        return self._observe(), {}

    def action_masks(self) -> np.ndarray:
        """Return which moves stay on the board, bool ``[4]``."""
        row, column = divmod(self._empty, SIDE)
        return np.array([row > 0, row < SIDE - 1, column > 0, column < SIDE - 1])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Slide a tile; a forbidden move is an error."""
        before = self._at_home()
        self._slide(int(action))
        after = self._at_home()
        reward = after - before - 0.01
        return self._observe(), reward, after == SIDE**2 - 1, False, {}

    def _slide(self, action: int) -> None:
        (row, column), (down, right) = divmod(self._empty, SIDE), MOVES[action]
        row, column = row + down, column + right
        if not (0 <= row < SIDE and 0 <= column < SIDE):
            raise ValueError(f"move {action} leaves the board")
        other = row * SIDE + column
        self._tiles[self._empty], self._tiles[other] = self._tiles[other], 0
        self._empty = other

    def _at_home(self) -> int:
        return sum(tile == place for place, tile in enumerate(self._tiles) if tile)

    def _observe(self) -> np.ndarray:
        return np.array(self._tiles, np.float32) * self._scale


register(
    "SlidingPuzzle-v0", f"{__name__}:SlidingPuzzle", max_episode_steps=100,
    disable_env_checker=True,
)  # fmt: skip
