"""Trees of arrays: an observation is one array, or a flat dict of arrays by path.

Everything between an environment and the encoder treats observations as such trees. A path is a key
of the environment's Dict space (``camera``), the index of an entry of a Tuple space (``0``), or
several of these for nested spaces (``state/position``). Paths are sorted, as JAX sorts the keys of
a dict. Processes that only step environments import this module, so it does not import JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Tree = Any
"""One leaf, or a dict of leaves by path. Leaves are arrays, their specs or their shapes."""


def map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Return the tree of ``function(leaf, ...)`` of each leaf and those of `others` there."""
    if isinstance(tree, dict):
        return {path: function(leaf, *(t[path] for t in others)) for path, leaf in tree.items()}
    return function(tree, *others)


def items(tree: Tree) -> list[tuple[str, Any]]:
    """Return each leaf with its path; the path of a single array is empty."""
    return list(tree.items()) if isinstance(tree, dict) else [("", tree)]


def leaves(tree: Tree) -> list[Any]:
    """Return the leaves in the order of their paths."""
    return list(tree.values()) if isinstance(tree, dict) else [tree]


def first(tree: Tree) -> Any:
    """Return the first leaf, from which sizes are read that all leaves share."""
    return next(iter(tree.values())) if isinstance(tree, dict) else tree


def take(tree: Tree, index: Any) -> Tree:
    """Return the tree of ``leaf[index]``."""
    if isinstance(tree, dict):
        return {path: leaf[index] for path, leaf in tree.items()}
    return tree[index]


def put(tree: Tree, index: Any, values: Tree) -> None:
    """Set ``leaf[index]`` of NumPy arrays to the leaves of `values`."""
    if isinstance(tree, dict):
        for path, leaf in tree.items():
            leaf[index] = values[path]
    else:
        tree[index] = values


def named(name: str, tree: Tree) -> dict[str, Any]:
    """Return the leaves by names: ``name`` for a single array, else ``name/path``."""
    return {joined(name, path): leaf for path, leaf in items(tree)}


def unnamed(name: str, like: Tree, arrays: Mapping[str, Any]) -> Tree:
    """Return the tree, with the paths of `like`, whose leaves `named` gave these names.

    Raises:
        KeyError: there is no array of such a name.
    """
    if isinstance(like, dict):
        return {path: arrays[joined(name, path)] for path in like}
    return arrays[name]


def found(name: str, arrays: Mapping[str, Any]) -> Tree:
    """Return the tree of all arrays that `named` gave names beginning with `name`; None if there
    are none."""
    if name in arrays:
        return arrays[name]
    prefix = f"{name}/"
    paths = sorted(one.removeprefix(prefix) for one in arrays if one.startswith(prefix))
    return {path: arrays[prefix + path] for path in paths} or None


def joined(name: str, path: str) -> str:
    """Return ``name/path``, or one of them alone if the other is empty."""
    return f"{name}/{path}" if name and path else name or path


def is_key(key: object) -> bool:
    """Return whether a key can be a part of a path: a text without slashes that UTF-8 can hold, as
    files have to."""
    if not isinstance(key, str) or not key or "/" in key:
        return False
    try:
        key.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def zeros(spec: Tree, *size: int) -> Tree:
    """Return NumPy arrays of zeros ``[*size, ...]`` for the leaves of an observation's spec."""
    return map(lambda leaf: np.zeros((*size, *leaf.shape), leaf.dtype), spec)


def finite(tree: Tree) -> Tree:
    """Return whether each leaf, a NumPy array, holds only finite numbers."""
    return map(lambda leaf: leaf.dtype.kind != "f" or bool(np.isfinite(leaf).all()), tree)
