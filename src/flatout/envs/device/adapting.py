"""What adapters of other libraries' environments share: observations, actions, stable dtypes."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flatout.errors import UsageError, one_line
from flatout.types import Array, ContinuousSpec, ObservationSpec


def library(module: str, full: str, install: str, needed: Sequence[str]) -> Any:
    """A library's module.

    Args:
        full: the environment's name, for messages.
        install: what installs the library.
        needed: what it must have.

    Raises:
        UsageError: it is missing, cannot be imported here, or is of another version.
    """
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or module) != module:
            raise UsageError(f"{full}: {module} needs {error.name}, which is missing.") from error
        raise UsageError(f"{full} needs {module}: {install}.") from None
    except Exception as error:  # made for another JAX, say
        why = f"{type(error).__name__}: {one_line(error).rstrip('.')}"
        raise UsageError(f"{full}: importing {module} failed: {why}.") from error
    know(module, full, found, needed)
    return found


def know(module: str, full: str, found: Any, needed: Sequence[str]) -> None:
    """Refuse a version of a library in which something has not these attributes.

    Raises:
        UsageError: which one.
    """
    for need in needed:
        if not hasattr(found, need):
            raise UsageError(f"{full}: this version of {module} is not known here (no {need}).")


def key_shape() -> Any:
    """A typed key's shape and dtype; JAX's devices are not opened for it."""
    return jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))


def observation(
    name: str, leaf: Any, high: float | None
) -> tuple[ObservationSpec, Callable[[Any], Array]]:
    """How a library's observation becomes one that networks here take.

    Three dimensions are an image; everything else becomes a vector. Flags become 0 and 1 (uint8);
    uint8 stays; other whole numbers become int32, and floats float32.

    Args:
        name: of the environment, for messages.
        leaf: the observation's shape and dtype.
        high: the largest value of the space, where it says one.

    Raises:
        UsageError: an observation of several arrays, or an empty one.
    """
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise UsageError(
            f"{name} observes {type(leaf).__name__}; Flatout takes one array. Put it together in "
            "an environment of your own (module:factory)."
        )
    shape = tuple(leaf.shape) if len(leaf.shape) == 3 else (math.prod(leaf.shape),)
    if 0 in shape:
        raise UsageError(f"{name} observes an array of shape {list(leaf.shape)}: there is nothing.")
    kind, largest = np.dtype(leaf.dtype).kind, None
    if kind == "b" or leaf.dtype == np.uint8:
        dtype, largest = "uint8", 1 if kind == "b" else int(high or 255)
    else:
        dtype = "int32" if kind in "ui" else "float32"
    return ObservationSpec(shape, dtype, largest), lambda obs: obs.reshape(shape).astype(dtype)


def box(shape: tuple[int, ...], low: Any, high: Any) -> ContinuousSpec:
    """A box of actions; bounds are broadcast to its shape."""
    bounds = [np.broadcast_to(np.asarray(b, np.float64), shape).ravel() for b in (low, high)]
    lows, highs = (tuple(float(x) for x in b) for b in bounds)
    return ContinuousSpec(tuple(shape), lows, highs)


def like(shapes: Any) -> Callable[[Any], Any]:
    """A function that gives a pytree's leaves these dtypes (and no Python numbers)."""

    def cast(tree: Any) -> Any:
        return jax.tree.map(
            lambda leaf, shape: (
                leaf if jnp.issubdtype(shape.dtype, jax.dtypes.extended)
                else jnp.asarray(leaf, shape.dtype)
            ),
            tree, shapes,
        )  # fmt: skip

    return cast


def scalar(value: Any, dtype: Any) -> Array:
    """A number or an array of one number as a scalar."""
    return jnp.asarray(value).astype(dtype).reshape(())
