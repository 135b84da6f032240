"""Casts of observations to the type in which they are stored, and of actions to the type of their
space. Environments, agents and exported agents use only these casts.

`flatout export` copies the functions into the file that it writes, which then needs only NumPy.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np


def stored(obs: object, dtype: str | np.dtype) -> np.ndarray:
    """Cast `obs` to an array of type `dtype`; an integer type cuts fractions off.

    Raises:
        ValueError: `obs` holds a value that the type cannot hold; the message names both.
    """
    array, target = np.asarray(obs), np.dtype(dtype)
    if array.dtype == target:
        return array
    if target.kind == "f":
        if array.dtype.kind != "f" or array.dtype.itemsize < target.itemsize:
            return array.astype(target)
        if np.vdot(array, array) < 1e76:  # no value exceeds 1e38; this is the fastest such check
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
        fits = (exact > least - 1) & (exact < most + 1)  # NaN does not fit
    if not fits.all():
        value = array[~fits].flat[0]
        raise ValueError(f"{value}, which {target} ({least:.12g} to {most:.12g}) cannot hold")
    return array.astype(target)


def word_counts(text: object, size: int) -> np.ndarray:
    """Return how often the words of a text occur, uint8 ``[size]``: each word, without its case, is
    counted at the place that its CRC-32 gives. Different words may share a place. More than 255
    words in one place are counted as 255.

    Raises:
        ValueError: `text` is no text.
    """
    if not isinstance(text, str):
        raise ValueError(f"{type(text).__name__} in place of a text")
    counts = np.zeros(size, np.int64)
    for word in text.lower().split():
        counts[zlib.crc32(word.encode(errors="surrogatepass")) % size] += 1
    return np.minimum(counts, 255).astype(np.uint8)


def cast_actions(actions: np.ndarray, dtype: str | np.dtype) -> np.ndarray:
    """Cast actions in a box to type `dtype`. For an integer type they are rounded to the nearest
    whole number, which lies in the box because the box's bounds are whole numbers."""
    whole = np.dtype(dtype).kind != "f" and actions.dtype.kind == "f"
    return (np.rint(actions) if whole else actions).astype(dtype)


def inwards(low: Sequence[float], high: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Round float64 bounds inwards to float32 ``[A]``: float32(0.1) exceeds a bound of 0.1."""
    low64, high64 = np.asarray(low, np.float64), np.asarray(high, np.float64)
    with np.errstate(over="ignore"):  # to infinity
        low32, high32 = low64.astype(np.float32), high64.astype(np.float32)
    low32 = np.where(low32 < low64, np.nextafter(low32, np.float32(np.inf)), low32)
    high32 = np.where(high32 > high64, np.nextafter(high32, np.float32(-np.inf)), high32)
    return low32, high32
