"""The choice of a torso, for algorithms that build networks. Flatout's torsos map any batch; a
user's torso maps one observation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from flatout.config.schema import NetworkConfig
from flatout.errors import UsageError, one_line
from flatout.networks.boards import Centred, Compass, Grid, OneHot, WideGrid
from flatout.networks.layers import MLP, Conv, ConvNet, Draw, FanIn, Linear
from flatout.types import ObservationSpec

Network = Callable[[jax.Array, tuple[int, ...]], Any]
"""A function that builds a custom torso: ``(key, observation_shape) -> equinox.Module``, which maps
one observation ``[...]`` float32 to features ``[F]``. Heads are added to it."""


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


def over_batch(torso: Torso, x: jax.Array) -> jax.Array:
    """Return the features ``[B, F]`` of a batch ``[B, ...]``."""
    # By exact type, because a user's subclass maps one observation.
    return torso(x) if type(torso) in BATCHED else jax.vmap(torso)(x)


BATCHED = (MLP, NatureCNN, Grid, WideGrid, OneHot, Centred, Compass)


def make_torso(
    draw: Draw,
    spec: ObservationSpec,
    config: NetworkConfig,
    network: Network | None,
) -> Torso:
    """Build the configured torso, or the user's `network`, with parameters from `draw`.

    Raises:
        UsageError: the torso does not fit the observations, or the user's function fails.
    """
    if network is not None:
        rng = draw.rng if isinstance(draw, FanIn) else draw
        drawn = np.zeros(2, np.uint32) if rng is None else rng.integers(0, 2**32, 2, np.uint32)
        words = jnp.asarray(drawn)
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        try:
            return network(key, spec.shape)
        except Exception as error:  # a user's function may raise anything
            raise UsageError(
                f"building the network failed: {type(error).__name__}: {one_line(error)}; the "
                "function is called with (key, observation_shape)."
            ) from error
    kind = config.network
    if kind == "auto":
        kind = "mlp" if not spec.is_image else ("nature" if min(spec.shape[:2]) >= 36 else "grid")
        if kind == "grid" and (spec.high is None or spec.high > 31):
            kind = "mlp"
    if kind == "mlp":
        dims = len(spec.shape)
        return MLP(draw, math.prod(spec.shape), config.hidden, config.activation, dims)
    if not spec.is_image:
        raise UsageError(
            f"network = {kind} needs image observations [rows, columns, channels], not "
            f"{list(spec.shape)}; use network = mlp."
        )
    if kind in ("nature", "nature_same"):
        return NatureCNN(draw, spec.shape, "VALID" if kind == "nature" else "SAME")
    if kind == "wide_grid":
        return WideGrid(draw, spec.shape)
    if spec.high is None or spec.high > 31:
        raise UsageError(
            f"network = {kind} needs whole-number cells of 0 to at most 31, but this observation's "
            f"largest value is {spec.high}; use network = nature or mlp."
        )
    boards = {"grid": Grid, "onehot": OneHot, "centred": Centred, "compass": Compass}
    return boards[kind](draw, spec.shape, spec.high, config)


def features(torso: Torso, spec: ObservationSpec) -> int:
    """Return F, the length of the torso's output.

    Raises:
        UsageError: a custom torso refuses an observation, or does not return a vector.
    """
    try:
        out = jax.eval_shape(lambda x: torso(x), jax.ShapeDtypeStruct(spec.shape, jnp.float32))
    except Exception as error:  # a user's module may raise anything
        raise UsageError(
            f"the network does not accept one observation of shape {list(spec.shape)}: "
            f"{type(error).__name__}: {one_line(error).rstrip('.')}."
        ) from error
    if not hasattr(out, "shape") or len(out.shape) != 1:
        raise UsageError(
            f"the network must map one observation to a vector of features, not to {out}."
        )
    return out.shape[0]
