"""Hyper-parameters as data: float32 arguments of the compiled programs. Algorithms build them."""

from __future__ import annotations

import functools
from collections import namedtuple
from typing import Any

import numpy as np

from flatout.config.hyper import Hyper
from flatout.config.schedules import real_values


def hyper_parameters(config: Hyper, total_steps: int) -> Any:
    """Return a named tuple of all real-valued settings, none of which changes a shape.

    Numbers are scalars, schedules are ``(start, end)`` ``[2]``, and unset settings are None. Whole
    numbers, flags and choices are not included, because they change the program. The run's length
    is a leaf, because schedules need it and a longer run should need no other program.

    Args:
        config: the algorithm's settings.
        total_steps: environment steps of the whole run; the leaf `total_steps`.
    """
    leaves: dict[str, Any] = {
        name: None if value is None else np.asarray(value, np.float32)
        for name, value in real_values(config).items()
    }
    leaves["total_steps"] = np.asarray(total_steps, np.float32)
    return _tuple_of(tuple(leaves))(**leaves)


@functools.cache
def _tuple_of(names: tuple[str, ...]) -> Any:
    """Return the same class for the same names, so that two builds have equal pytree structures."""
    return namedtuple("HyperParameters", names)
