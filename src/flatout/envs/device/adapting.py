"""Helpers for the adapters `gymnax` and `envelope`, which turn environments of other JAX libraries
into `DeviceEnv`s."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flatout.errors import UsageError, one_line
from flatout.types import Array, ContinuousSpec, ObservationSpec, ObsSpec


def library(module: str, full: str, install: str, needed: Sequence[str]) -> Any:
    """Import a library's module.

    Args:
        module: its name.
        full: the environment's full name, for messages.
        install: the command that installs the library, for messages.
        needed: attributes that the module must have.

    Raises:
        UsageError: the library is missing, cannot be imported, or has an unsupported version.
    """
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or module) != module:
            raise UsageError(f"{full}: {module} needs {error.name}, which is missing.") from error
        raise UsageError(f"{full} needs {module}: {install}.") from None
    except Exception as error:  # for example, it was written for another version of JAX
        why = f"{type(error).__name__}: {one_line(error).rstrip('.')}"
        raise UsageError(f"{full}: importing {module} failed: {why}.") from error
    require_attributes(module, full, found, needed)
    return found


def require_attributes(module: str, full: str, found: Any, needed: Sequence[str]) -> None:
    """Check that `found`, an object of a library, has the attributes `needed`.

    Raises:
        UsageError: one is missing, so this version of the library is not supported.
    """
    for need in needed:
        if not hasattr(found, need):
            raise UsageError(f"{full}: this version of {module} is not supported (no {need}).")


def key_shape() -> Any:
    """Return the shape and dtype of a typed random key, without opening JAX's devices."""
    return jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))


def observation(name: str, shapes: Any, high: float | None) -> tuple[ObsSpec, Callable[[Any], Any]]:
    """Return the spec of a library's observations, and the function that converts one.

    An array of three dimensions is an image; any other becomes a vector. Bools become 0 and 1
    (uint8), uint8 stays, other integers become int32, and floats become float32. A pytree of
    several arrays becomes a dict by path, with points between the parts of a path.

    Args:
        name: the environment's name, for messages.
        shapes: the observation's shapes and dtypes.
        high: the largest value of the space, or None if it is unknown.

    Raises:
        UsageError: the observation holds something else than arrays, or an empty one.
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(shapes)
    if not paths:
        raise UsageError(f"{name} observes nothing: its observation holds no array.")
    specs, casts = {}, {}
    for keys, leaf in paths:
        path = ".".join(re.sub(r"^\W+|\W+$", "", str(key)) for key in keys)
        specs[path], casts[path] = _array(name, leaf, high, path)
    if hasattr(shapes, "shape"):
        return specs[""], casts[""]

    def convert(obs: Any) -> dict[str, Array]:
        return {
            path: cast(leaf)
            for (path, cast), leaf in zip(casts.items(), jax.tree.leaves(obs), strict=True)
        }

    return specs, convert


def _array(
    name: str, leaf: Any, high: float | None, path: str
) -> tuple[ObservationSpec, Callable[[Any], Array]]:
    """Return the spec of one array of an observation, and the function that converts it."""
    at = f" at {path!r}" if path else ""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise UsageError(
            f"{name} observes {type(leaf).__name__}{at}; Flatout takes arrays. Make arrays of it "
            "in an environment of your own (module:factory)."
        )
    shape = tuple(leaf.shape) if len(leaf.shape) == 3 else (math.prod(leaf.shape),)
    if 0 in shape:
        raise UsageError(
            f"{name} observes an array of shape {list(leaf.shape)}{at}, which is empty."
        )
    kind, largest = np.dtype(leaf.dtype).kind, None
    if kind == "b" or leaf.dtype == np.uint8:
        dtype, largest = "uint8", 1 if kind == "b" else int(high or 255)
    else:
        dtype = "int32" if kind in "ui" else "float32"
    return ObservationSpec(shape, dtype, largest), lambda obs: obs.reshape(shape).astype(dtype)


def box(shape: tuple[int, ...], low: Any, high: Any) -> ContinuousSpec:
    """Return the spec of a box of actions; the bounds are broadcast to its shape."""
    bounds = [np.broadcast_to(np.asarray(b, np.float64), shape).ravel() for b in (low, high)]
    lows, highs = (tuple(float(x) for x in b) for b in bounds)
    return ContinuousSpec(tuple(shape), lows, highs)


def like(shapes: Any) -> Callable[[Any], Any]:
    """Return a function that casts a pytree's leaves to the dtypes of `shapes`. Python numbers
    become arrays; random keys stay as they are."""

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
    """Convert a number, or an array of one number, to a scalar array."""
    return jnp.asarray(value).astype(dtype).reshape(())
