"""The torsos of single arrays, which `networks.encoder` builds. They map any batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax

from flatout.config.schema import NetworkConfig
from flatout.config.torso import MOST_CELLS
from flatout.errors import UsageError
from flatout.networks.boards import Centred, Compass, Grid, OneHot, WideGrid
from flatout.networks.layers import MLP, Conv, ConvNet, Draw, Linear

Network = Callable[[jax.Array, Any], Any]
"""A function that builds a custom torso: ``(key, observation_shape) -> equinox.Module``, which maps
one prepared observation ``[...]`` to features ``[F]``. Heads are added to it. For an observation of
several arrays, shapes and arrays are dicts by path."""

OwnNetwork = Network | Mapping[str, Network]
"""A user's network: a function for the whole observation, or functions for some of its arrays by
path."""


class NatureCNN(ConvNet):
    """The DQN convolutions (Mnih et al., 2015): 32@8x8/4, 64@4x4/2, 64@3x3/1, dense 512.

    The published network has no padding; `padding` ``"SAME"`` keeps the borders.
    """

    def __init__(self, draw: Draw, shape: tuple[int, ...], padding: str = "VALID") -> None:
        rows, columns, channels = shape
        layers: list[Conv] = []
        for outputs, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            layers.append(Conv(draw, channels, outputs, size, stride, padding))
            rows, columns = (
                -(-n // stride) if padding == "SAME" else (n - size) // stride + 1
                for n in (rows, columns)
            )
            channels = outputs
        if rows < 1 or columns < 1:
            raise UsageError(
                f"network = nature needs images of at least 36x36, not {shape[0]}x{shape[1]}; "
                "use network = grid or mlp."
            )
        self.convolutions = tuple(layers)
        self.dense = Linear(draw, rows * columns * channels, 512, math.sqrt(2))


class Torso(Protocol):
    """A module that maps an observation to features ``[F]``."""

    def __call__(self, x: jax.Array, /) -> jax.Array: ...


BOARDS: dict[str, Any] = {"grid": Grid, "onehot": OneHot, "centred": Centred, "compass": Compass}
"""The torsos that read whole-number cells, by the name of the setting."""


def make_torso(
    draw: Draw, shape: tuple[int, ...], high: int | None, kind: str, config: NetworkConfig
) -> Torso:
    """Build a torso with parameters from `draw`.

    Args:
        draw: the source of parameters.
        shape: of one prepared array; images have their channels last.
        high: the largest value of a raw array, or None.
        kind: the torso's name, see `torso_kind`.
        config: the sizes of dense layers.

    Raises:
        UsageError: the torso does not fit the array.
    """
    if kind == "mlp":
        return MLP(draw, math.prod(shape), config.hidden, config.activation, len(shape))
    if len(shape) != 3:
        raise UsageError(
            f"network = {kind} needs image observations [rows, columns, channels], not "
            f"{list(shape)}; use network = mlp."
        )
    if kind in ("nature", "nature_same"):
        return NatureCNN(draw, shape, "VALID" if kind == "nature" else "SAME")
    if kind == "wide_grid":
        return WideGrid(draw, shape)
    if high is None or high > MOST_CELLS:
        raise UsageError(
            f"network = {kind} needs whole-number cells of 0 to at most {MOST_CELLS}, but this "
            f"observation's largest value is {high}; use network = nature or mlp."
        )
    return BOARDS[kind](draw, shape, high, config)
