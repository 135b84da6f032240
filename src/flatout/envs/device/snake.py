"""The twin of `flatout.envs.snake`: the same rules, without a queue of cells.

Each cell holds the time at which the snake's tail leaves it, and is occupied until then. Time
counts the steps without fruit, because the tail moves only in those. A step writes one cell,
however long the snake is. Every operation is over the whole board, so `vmap` turns it into one
operation over all boards.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flatout.envs.device.base import DeviceEnv
from flatout.envs.snake import BODY, EMPTY, FRUIT, HEAD, MOVES, SYMBOLS
from flatout.randomness import word
from flatout.types import Array, DiscreteSpec, ObservationSpec

NO_FRUIT = -1


class Snake(NamedTuple):
    """The state of a game; all int32. A cell's number is row * size + column.

    Attributes:
        until: ``[size * size]``, the time at which the tail leaves each cell.
        time: steps without fruit since the reset.
        head, fruit: their cells; `fruit` is `NO_FRUIT` when the board is full.
        length: number of cells of the snake.
        hungry: steps since the last fruit.
    """

    until: Array
    time: Array
    head: Array
    fruit: Array
    length: Array
    hungry: Array


def snake(size: int = 10, patience: int = 100, limit: int | None = None) -> DeviceEnv:
    """Make ``flatout/Snake-v0``; for the rules see `flatout.envs.snake.Snake`.

    Args:
        size: rows and columns, 2 to 255.
        patience: steps without fruit after which an episode is truncated.
        limit: steps after which an episode is truncated, or None.
    """
    cells = size * size
    places = np.arange(cells, dtype=np.int32)
    row_moves, column_moves = np.array(MOVES, np.int32).T

    def observe(game: Snake) -> Array:
        board = jnp.where(game.until > game.time, BODY, EMPTY)
        board = jnp.where(places == game.head, HEAD, board)
        board = jnp.where(places == game.fruit, FRUIT, board)
        return board.astype(jnp.uint8).reshape(size, size, 1)

    def reset(key: Array) -> tuple[Snake, Array]:
        bits = jax.random.bits(key, (2,))
        head = below(bits[0], cells)
        fruit = below(bits[1], cells - 1)
        fruit += fruit >= head
        zero, one = jnp.int32(0), jnp.int32(1)
        until = jnp.where(places == head, one, zero)
        game = Snake(until, zero, head, fruit, one, zero)
        return game, observe(game)

    def step(game: Snake, action: Array, key: Array) -> tuple[Snake, *tuple[Array, ...]]:
        row = game.head // size + jnp.asarray(row_moves)[action]
        column = game.head % size + jnp.asarray(column_moves)[action]
        target = row * size + column
        outside = (row < 0) | (row >= size) | (column < 0) | (column >= size)
        # The tail's cell is occupied until this step is over, so entering it is fatal.
        fatal = outside | (game.until[jnp.clip(target, 0, cells - 1)] > game.time)
        ate = ~fatal & (target == game.fruit)
        time, length = game.time + ~ate, game.length + ate
        until = jnp.where((places == target) & ~fatal, time + length, game.until)
        won = ate & (length == cells)
        fruit = nth_empty(until <= time, below(word(key), cells - length))
        fruit = jnp.where(won, NO_FRUIT, jnp.where(ate, fruit, game.fruit))
        hungry = jnp.where(ate, 0, game.hungry + 1)
        # A fatal move leaves the board as it was.
        before, after = game[1:], (time, target, fruit, length, hungry)
        kept = (jnp.where(fatal, old, new) for old, new in zip(before, after, strict=True))
        game = Snake(until, *kept)
        truncated = ~fatal & (hungry >= patience)
        return game, observe(game), ate.astype(jnp.float32), fatal | won, truncated

    def nth_empty(empty: Array, n: Array) -> Array:
        """Return the n-th empty cell in row-major order, n from 0: first its row, then its
        column."""
        grid = empty.reshape(size, size)
        upper = np.triu(np.ones((size, size), np.int32))
        until_row = (grid.sum(1, dtype=jnp.int32)[:, None] * upper).sum(0)  # running sums
        row = (until_row <= n).sum(dtype=jnp.int32)
        chosen = (np.arange(size) == row)[:, None]
        before = jnp.max(jnp.where(until_row <= n, until_row, 0))
        in_row = jnp.any(chosen & grid, 0)
        until_column = (in_row[:, None] * upper).sum(0)
        return row * size + (until_column <= n - before).sum(dtype=jnp.int32)

    def render(game: Snake) -> str:
        board = np.asarray(observe(game))[:, :, 0].tolist()
        return "\n".join(" ".join(SYMBOLS[cell] for cell in row) for row in board)

    def info(game: Snake) -> dict[str, Array]:
        return {"score": game.length - 1, "is_success": game.length == cells}

    obs_spec = ObservationSpec((size, size, 1), "uint8", BODY)
    action_spec = DiscreteSpec(4)
    return DeviceEnv("Snake", obs_spec, action_spec, limit, reset, step, render, patience, info)


def below(bits: Array, n: Array | int) -> Array:
    """Map 32 random bits to an int32 in [0, n), n at most 65536; its bias is below n / 2^32."""
    n = jnp.asarray(n).astype(jnp.uint32)
    high, low = bits >> 16, bits & 0xFFFF
    return ((high * n + (low * n >> 16)) >> 16).astype(jnp.int32)  # floor(bits * n / 2^32)
