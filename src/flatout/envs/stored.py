"""The casts of observations to the type that they are stored as, and of actions to that of their
space, the same everywhere.

`flatout export` writes both functions into its file, so that it needs NumPy alone.
"""

from __future__ import annotations

import numpy as np


def stored(obs: object, dtype: str | np.dtype) -> np.ndarray:
    """The array `obs` with that type; fractions are cut off where it is an integer type.

    Raises:
        ValueError: it holds a value that the type cannot hold; the text names both.
    """
    array, target = np.asarray(obs), np.dtype(dtype)
    if array.dtype == target:
        return array
    if target.kind == "f":
        if array.dtype.kind != "f" or array.dtype.itemsize < target.itemsize:
            return array.astype(target)
        if np.vdot(array, array) < 1e76:  # bounds all values, and is the quickest call that does
            return array.astype(target)
        least, most = float(np.finfo(target).min), float(np.finfo(target).max)
        fits = ~np.isfinite(array) | ((array >= least) & (array <= most))
    elif array.dtype.kind != "f":
        cast = array.astype(target)
        if (cast == array).all():
            return cast
        fits, least, most = cast == array, int(np.iinfo(target).min), int(np.iinfo(target).max)
    else:
        least, most = int(np.iinfo(target).min), int(np.iinfo(target).max)
        exact = array.astype(np.float64)
        fits = (exact > least - 1) & (exact < most + 1)  # false of NaN
    if not fits.all():
        value = array[~fits].flat[0]
        raise ValueError(f"{value}, which {target} ({least:.12g} to {most:.12g}) cannot hold")
    return array.astype(target)


def cast_actions(actions: np.ndarray, dtype: str | np.dtype) -> np.ndarray:
    """Actions in a box with that type; whole numbers are the nearest, which lie in the box, because
    its bounds are whole numbers, too."""
    whole = np.dtype(dtype).kind != "f" and actions.dtype.kind == "f"
    return (np.rint(actions) if whole else actions).astype(dtype)
