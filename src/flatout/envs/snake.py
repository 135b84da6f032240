"""The game of Snake, ``flatout/Snake-v0``: a Gymnasium environment with image observations.

The board is one flat uint8 array. A step changes at most a few of its cells, so it costs little
more than the copy of the board that it returns.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from operator import index
from typing import Any, SupportsIndex

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import ResetNeeded

EMPTY, HEAD, FRUIT, BODY = 0, 1, 2, 3

# (row, column) step of each action.
MOVES = ((-1, 0), (1, 0), (0, 1), (0, -1))

# The characters that `ansi` prints for EMPTY, HEAD, FRUIT and BODY, in the order of their codes.
SYMBOLS = "·@*o"

# Every picture is CELL_PIXELS * (size + 1) pixels wide and high: half a cell of wall on each side.
# A multiple of 16 keeps video encoders from rescaling the frames.
CELL_PIXELS = 32
WALL_PIXELS = CELL_PIXELS // 2

WALL_COLOUR = (27, 30, 38)
FLOOR_COLOURS = ((43, 48, 59), (48, 54, 66))
HEAD_COLOUR = (250, 214, 97)
EYE_COLOUR = (27, 30, 38)
NECK_COLOUR = (120, 200, 110)
TAIL_COLOUR = (46, 112, 84)
FRUIT_COLOUR = (232, 84, 84)

Board = npt.NDArray[np.uint8]


class Snake(gymnasium.Env[Board, SupportsIndex]):
    """Steer a growing snake to the fruit on a square board without hitting anything.

    Rules:
        * The snake starts as one cell at a random place; one fruit lies on a random empty cell.
        * Every step the head moves one cell. Eating the fruit gives reward 1, makes the snake one
          cell longer (the tail stays for that step) and puts a new fruit on a random empty cell.
          Every other step gives reward 0 and the tail leaves its cell.
        * Hitting the wall or the snake's own body ends the episode (`terminated`), reward 0. The
          observation is then the board before the fatal move.
        * The tail leaves its cell only after the head has moved, so moving into the cell that the
          tail is about to leave is fatal, and so is turning back with a snake of two cells. A
          snake of one cell has no body and may turn back.
        * Filling the board is a win: it ends the episode (`terminated`) with reward 1 for the last
          fruit and leaves a board without fruit. The score is then `size * size - 1`.
        * `patience` steps in a row without fruit, counted from the reset or the last fruit, end
          the episode (`truncated`). A step that is also fatal counts as `terminated` only.
        * After the end of an episode, `step` needs a `reset` first.

    Action space:
        `Discrete(4)`, moves in (row, column): 0 = (-1, 0) up, 1 = (+1, 0) down, 2 = (0, +1) right,
        3 = (0, -1) left.

    Observation space:
        `Box(0, 3, (size, size, 1), uint8)`, axes (row, column, channel): 0 empty, 1 head, 2 fruit,
        3 body. The channel axis comes last so that a batch of observations is an NHWC image batch.
        Every observation is a new array.

    Info:
        `{"score": int, "is_success": bool}`, the number of fruits eaten so far in this episode,
        and whether the snake fills the board.

    Randomness:
        Only the start cell and the fruit cells are random. Each is one draw
        `np_random.integers(n)`: first the start cell among all cells, then each fruit among the
        empty cells, both counted in row-major order. `reset(seed=...)` thus reproduces an episode
        exactly for the same actions.

    Rendering:
        `"ansi"` gives a string: the framed board with head `@`, body `o`, fruit `*`, empty `·`,
        and the score. `"rgb_array"` gives a uint8 picture of shape (32 * (size + 1),
        32 * (size + 1), 3): 32 pixels a cell, inside a wall of 16 pixels.

    Args:
        size: Rows and columns of the board, at least 2.
        patience: Steps without fruit after which an episode is truncated, at least 1.
        render_mode: None, "ansi" or "rgb_array".

    Raises:
        ValueError: An argument is outside the values above.
    """

    # gymnasium.Env declares it as an instance variable, so it cannot be a ClassVar here.
    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 10,
    }

    def __init__(self, size: int = 10, patience: int = 100, render_mode: str | None = None) -> None:
        self.size = _at_least("size", size, 2)
        self.patience = _at_least("patience", patience, 1)
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(
                f"render_mode must be None, 'ansi' or 'rgb_array', not {render_mode!r}."
            )
        self.render_mode = render_mode
        self._shape = (self.size, self.size, 1)
        self.action_space = spaces.Discrete(4)
        self.observation_space = spaces.Box(0, 3, self._shape, np.uint8)

        # One flat array and no second view of it, so that copy.deepcopy gives a working copy.
        # Cells are flat row-major indices: row * size + column.
        self._board: Board = np.zeros(self.size * self.size, np.uint8)
        self._snake: deque[int] = deque()  # cells from tail (left) to head (right)
        self._score = 0
        self._steps_since_fruit = 0
        self._needs_reset = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Board, dict[str, Any]]:
        """Start a new episode; without a seed, `np_random` continues its stream."""
        super().reset(seed=seed, options=options)
        start = int(self.np_random.integers(self._board.size))
        self._board.fill(EMPTY)
        self._board[start] = HEAD
        self._snake.clear()
        self._snake.append(start)
        self._score = 0
        self._steps_since_fruit = 0
        self._needs_reset = False
        self._place_fruit()
        return self._observation(), self._info(False)

    def step(self, action: SupportsIndex) -> tuple[Board, float, bool, bool, dict[str, Any]]:
        """Move the head one cell: 0 up, 1 down, 2 right or 3 left, of any integer type.

        Raises:
            ValueError: The action is not one of the four.
            gymnasium.error.ResetNeeded: No episode is running.
        """
        if self._needs_reset:
            raise ResetNeeded("Call reset() before step(): no episode is running.")
        try:
            move = index(action)
        except TypeError:
            move = -1
        if not 0 <= move <= 3:
            raise ValueError(f"The action must be the integer 0, 1, 2 or 3, not {action!r}.")

        board, snake, size = self._board, self._snake, self.size
        head = snake[-1]
        row, column = divmod(head, size)
        row_step, column_step = MOVES[move]
        row += row_step
        column += column_step
        target = row * size + column
        if not (0 <= row < size and 0 <= column < size) or board[target] == BODY:
            # The board stays as it was, so the last observation is a valid board. The tail still
            # counts as body here: entering the cell that it would leave is fatal by the rules.
            self._needs_reset = True
            return self._observation(), 0.0, True, False, self._info(False)

        ate = bool(board[target] == FRUIT)
        board[head] = BODY
        board[target] = HEAD
        snake.append(target)
        won = truncated = False
        if ate:
            self._score += 1
            self._steps_since_fruit = 0
            won = len(snake) == board.size
            if not won:
                self._place_fruit()
        else:
            # With a snake of one cell, this is the head's old cell.
            board[snake.popleft()] = EMPTY
            self._steps_since_fruit += 1
            truncated = self._steps_since_fruit >= self.patience
        self._needs_reset = won or truncated
        return self._observation(), float(ate), won, truncated, self._info(won)

    def render(self) -> str | npt.NDArray[np.uint8] | None:
        """Show the board in the chosen render mode; without one, warn and return None.

        Raises:
            gymnasium.error.ResetNeeded: There is no board before the first reset.
        """
        if self.render_mode is None:
            gymnasium.logger.warn(
                'render() shows nothing without a render mode: use render_mode="ansi" or '
                '"rgb_array" when making the environment.'
            )
            return None
        if not self._snake:
            raise ResetNeeded("Call reset() before render(): there is no board yet.")
        return self._render_ansi() if self.render_mode == "ansi" else self._render_picture()

    def _info(self, won: bool) -> dict[str, Any]:
        return {"score": self._score, "is_success": won}

    def _observation(self) -> Board:
        """Return a copy of the board as an image, uint8 (size, size, 1)."""
        return self._board.reshape(self._shape).copy()

    def _place_fruit(self) -> None:
        """Put a fruit on a random empty cell, all equally likely. At least one must be empty."""
        empty = (self._board == EMPTY).nonzero()[0]
        self._board[empty[self.np_random.integers(empty.size)]] = FRUIT

    def _render_ansi(self) -> str:
        """Return the framed board, one line per row, with the score below."""
        # A space between the cells makes the board look square in a terminal.
        bar = "─" * (2 * self.size + 1)
        rows = self._board.reshape(self.size, self.size).tolist()
        lines = [f"│ {' '.join(SYMBOLS[cell] for cell in row)} │" for row in rows]
        return "\n".join([f"┌{bar}┐", *lines, f"└{bar}┘", f"score {self._score}"])

    def _render_picture(self) -> npt.NDArray[np.uint8]:
        """Return the board as an RGB picture, uint8 (32 * (size + 1), 32 * (size + 1), 3)."""
        side = CELL_PIXELS * (self.size + 1)
        picture = np.full((side, side, 3), WALL_COLOUR, np.uint8)
        field = picture[WALL_PIXELS:-WALL_PIXELS, WALL_PIXELS:-WALL_PIXELS]

        # A faint chequerboard lets the eye count cells.
        rows, columns = np.indices(field.shape[:2]) // CELL_PIXELS
        field[:] = np.array(FLOOR_COLOURS, np.uint8)[(rows + columns) % 2]

        for cell in (self._board == FRUIT).nonzero()[0]:  # none after a win
            _fill_disc(field, self._centre(cell), 0.32 * CELL_PIXELS, FRUIT_COLOUR)

        # From tail to head, each piece is drawn up to the next one, so the picture shows in which
        # direction the body runs. The shade shows it too: the tail is darkest.
        cells = list(self._snake)
        neck, tail = np.array(NECK_COLOUR), np.array(TAIL_COLOUR)
        for place, (cell, following) in enumerate(pairwise(cells), start=1):
            shade = tail + (neck - tail) * place / (len(cells) - 1)
            _fill_box(field, self._centre(cell), self._centre(following), shade)
        head = self._centre(cells[-1])
        _fill_box(field, head, head, HEAD_COLOUR)

        # The eyes look in the direction in which the head moved; a snake of one cell looks down.
        forward = np.array([1.0, 0.0])
        if len(cells) > 1:
            forward = (head - self._centre(cells[-2])) / CELL_PIXELS
        sideways = forward[::-1]
        for side_of_head in (-1, 1):
            eye = head + CELL_PIXELS * (0.12 * forward + 0.18 * side_of_head * sideways)
            _fill_disc(field, eye, 0.09 * CELL_PIXELS, EYE_COLOUR)
        return picture

    def _centre(self, cell: int) -> npt.NDArray[np.float64]:
        """Return the (row, column) of a cell's centre in pixels from the field's corner, [2]."""
        return (np.array(divmod(int(cell), self.size)) + 0.5) * CELL_PIXELS


def _at_least(name: str, value: SupportsIndex, least: int) -> int:
    """Return `value` as an int, or raise a ValueError that names the argument."""
    try:
        number = index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ValueError(f"{name} must be an integer of at least {least}, not {value!r}.")
    return number


def _fill_disc(
    field: npt.NDArray[np.uint8],
    centre: npt.NDArray[np.float64],
    radius: float,
    colour: npt.ArrayLike,
) -> None:
    """Paint a disc on a picture [height, width, 3]; centre (row, column) and radius in pixels."""
    # Pixel [i, j] covers the square from (i, j) to (i + 1, j + 1): its centre is half a pixel in.
    rows, columns = np.ogrid[: field.shape[0], : field.shape[1]]
    inside = (rows + 0.5 - centre[0]) ** 2 + (columns + 0.5 - centre[1]) ** 2 <= radius**2
    field[inside] = colour


def _fill_box(
    field: npt.NDArray[np.uint8],
    start: npt.NDArray[np.float64],
    end: npt.NDArray[np.float64],
    colour: npt.ArrayLike,
) -> None:
    """Paint a box that covers two neighbouring cells (or one, given twice) on a picture
    [height, width, 3]; `start` and `end` are the cells' centres (row, column) in pixels."""
    # Where the snake runs next to itself, a gap keeps its rows distinct.
    half = CELL_PIXELS // 2 - 4
    top, left = (np.minimum(start, end) - half).astype(int)
    bottom, right = (np.maximum(start, end) + half).astype(int)
    field[top:bottom, left:right] = np.asarray(colour).astype(np.uint8)
