"""Gradient steps of all algorithms: clipping, direction and step size, on packed arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from flatout.packing import PackedParams


class Averages(NamedTuple):
    """Running means of a gradient and of its square."""

    mean: Any
    square: Any


def centred_rmsprop(decay: float = 0.95, eps: float = 0.01) -> optax.GradientTransformation:
    """Divide gradients by their running deviation, `eps` inside the root (Mnih et al., 2015)."""

    def init(params: Any) -> Averages:
        return Averages(jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))

    def update(grads: Any, state: Averages, params: Any = None) -> tuple[Any, Averages]:
        mean = jax.tree.map(lambda m, g: decay * m + (1 - decay) * g, state.mean, grads)
        square = jax.tree.map(lambda s, g: decay * s + (1 - decay) * g * g, state.square, grads)

        def scaled(g: jax.Array, m: jax.Array, s: jax.Array) -> jax.Array:
            # The variance of a steady gradient is rounding error alone, which may be negative.
            return g / jnp.sqrt(jnp.maximum(s - m * m, 0.0) + eps)

        return jax.tree.map(scaled, grads, mean, square), Averages(mean, square)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


KINDS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adam": optax.scale_by_adam,
    "rms": lambda: optax.scale_by_rms(decay=0.99, eps=1e-5, eps_in_sqrt=False),
    "rmsprop": centred_rmsprop,
    "nesterov": lambda: optax.trace(decay=0.95, nesterov=True),
}


class Optimiser:
    """An optimiser for one pytree of parameters.

    Args:
        shapes: the parameters' shapes.
        kind: a name in `KINDS`, which says how a gradient becomes a direction.
    """

    def __init__(self, shapes: Any, kind: str = "adam") -> None:
        self._packing = PackedParams(shapes)
        self._kind = KINDS[kind]

    def init(self) -> Any:
        """Return the initial state, NumPy zeros: all `KINDS` start with zeros."""
        floats = tuple(jax.ShapeDtypeStruct(s.shape, jnp.float32) for s in self._packing.shapes)
        shapes = jax.eval_shape(self._kind().init, floats)
        return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)

    def step(
        self,
        params: Any,
        grads: Any,
        state: Any,
        rate: jax.Array,
        max_norm: jax.Array | None = None,
        factors: Any = None,
        **settings: jax.Array,
    ) -> tuple[Any, Any, jax.Array]:
        """Make one step against the gradient.

        Args:
            rate: the step size.
            max_norm: the norm to which a larger gradient is clipped, or None.
            factors: a factor on each leaf's step size, or None.
            settings: settings of the kind, ``eps`` for example.

        Returns:
            The parameters, the optimiser's state, and the gradient's norm before clipping.
        """
        arrays = tuple(array.astype(jnp.float32) for array in self._packing.pack(grads))
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(array)) for array in arrays))
        if max_norm is not None:
            factor = jnp.minimum(1.0, max_norm / (norm + 1e-6))
            arrays = tuple(array * factor for array in arrays)
        directions, state = self._kind(**settings).update(arrays, state)
        assert isinstance(directions, tuple)
        moved = self._packing.unpack(tuple(rate * jnp.asarray(one) for one in directions))
        if factors is not None:
            moved = jax.tree.map(jnp.multiply, moved, factors)
        return jax.tree.map(lambda p, m: p - m.astype(p.dtype), params, moved), state, norm


def polyak(target: Any, online: Any, tau: jax.Array) -> Any:
    """Move target parameters by a share `tau` towards the online parameters; 1 copies them."""
    return jax.tree.map(lambda t, p: (1.0 - tau) * t + tau * p, target, online)


def schedule(ends: jax.Array, step: jax.Array, total: jax.Array | int) -> jax.Array:
    """Return a linear schedule's value at `step` of `total`; `ends` are its start and end."""
    done = jnp.minimum(step / total, 1.0)
    return ends[0] + (ends[1] - ends[0]) * done
