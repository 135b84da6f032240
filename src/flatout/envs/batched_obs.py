"""The batched observations of a vector environment: checked, and written where samplers want
them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from flatout import tree
from flatout.casts import stored, word_counts
from flatout.envs.spaces import flattened, in_range, structure
from flatout.errors import InvalidReturn, one_line
from flatout.types import Obs, ObservationSpec, ObsSpec


class BatchedObs:
    """The observations of N environments, as a vector environment returns them.

    Args:
        name: the environments' name, for messages.
        spec: the spec of one observation.
        count: N.
    """

    def __init__(self, name: str, spec: ObsSpec, count: int) -> None:
        self._name, self._spec, self._nesting = name, spec, structure(spec)
        nesting = self._nesting or {}
        self._flat = None if any(nesting.values()) else nesting.keys()
        self._leaves = {
            path: (leaf, (count, *leaf.shape), np.dtype(leaf.dtype))
            for path, leaf in tree.items(spec)
        }
        only = self._leaves[""] if isinstance(spec, ObservationSpec) else None
        plain = only is not None and not only[0].categories and only[0].stack == 1
        self._plain = only[1:] if only is not None and plain else None  # shape and type

    def write(self, seen: Any, out: Obs, envs: list[int] | None = None) -> None:
        """Copy the observations of `envs` to `out`; None copies those of all environments.

        Raises:
            InvalidReturn: they have another shape, or values that their space does not have.
        """
        if envs is None and self._plain == (getattr(seen, "shape", 0), getattr(seen, "dtype", 0)):
            out[:] = seen
            return
        which: Any = slice(None) if envs is None else envs
        for path, given in self._entries(seen):
            (spec, shape, dtype), target = self._leaves[path], out[path] if path else out
            array = _batch(given, spec)
            if array.shape != shape:
                raise InvalidReturn(
                    f"{self._name} returned observations of shape {array.shape}; its "
                    f"single_observation_space and its {shape[0]} environments say {shape}."
                )
            try:
                chosen = stored(in_range(array, spec)[which], dtype)
            except ValueError as error:
                raise InvalidReturn(
                    f"an environment ({self._name}) returned an observation with {error}; correct "
                    "the values, or its observation_space."
                ) from None
            # There may be room for the newest frames of a stack only.
            target[which] = chosen if spec.stack == 1 else chosen[..., -target.shape[-1] :]

    def row(self, seen: Any, env: int) -> Obs:
        """Return one environment's observation of those that `write` has checked."""
        found: dict[str, np.ndarray] = {}
        for path, one in self._entries(seen):
            spec, _, dtype = self._leaves[path]
            rows = one if spec.text else np.asarray(one)
            found[path] = stored(_single(rows[env], spec), dtype)
        return found if isinstance(self._spec, dict) else found[""]

    def final(self, finals: Any, env: int) -> Obs:
        """Return the observation with which one environment's episode ended.

        Args:
            finals: the infos' entry: an observation for each environment, or batched ones.
            env: the environment.

        Raises:
            InvalidReturn: there is none, or it does not fit its space.
        """
        what = f"{self._name} returned infos['final_obs']"
        found: dict[str, np.ndarray] = {}
        try:
            batched = isinstance(finals, Mapping | tuple)
            given = self._entries(finals if batched else finals[env])
            for path, one in given:
                spec, _, dtype = self._leaves[path]
                array = _single(one[env] if batched else one, spec)
                found[path] = stored(in_range(array, spec), dtype)
        except (ValueError, TypeError, IndexError, KeyError) as error:
            raise InvalidReturn(f"{what} with {one_line(error)}; correct it.") from error
        for path, one in found.items():
            if one.shape != self._leaves[path][0].shape:
                raise InvalidReturn(
                    f"{what} of shape {one.shape} for an environment, whose observations have "
                    f"{self._leaves[path][0].shape}; correct it."
                )
        return found if isinstance(self._spec, dict) else found[""]

    def _entries(self, seen: Any) -> Iterable[tuple[str, Any]]:
        """Return the arrays of a nested observation, or of batched ones, with their paths."""
        if type(seen) is dict and seen.keys() == self._flat:
            return seen.items()
        try:
            return [*flattened(seen, self._nesting)]
        except ValueError as error:
            raise InvalidReturn(
                f"{self._name} returned observations with {error}; correct it."
            ) from None


def _single(given: Any, spec: ObservationSpec) -> np.ndarray:
    """Return one environment's value as an array; a text as the counts of its words."""
    return word_counts(given, *spec.shape) if spec.text else np.asarray(given)


def _batch(given: Any, spec: ObservationSpec) -> np.ndarray:
    """Return batched values of one array of an observation as an array ``[N, ...]``; texts, which
    are batched as a tuple, become counts of their words."""
    texts = spec.text and isinstance(given, tuple | list | np.ndarray)
    if texts and all(isinstance(text, str) for text in given):
        return np.array([_single(text, spec) for text in given])
    return np.asarray(given)
