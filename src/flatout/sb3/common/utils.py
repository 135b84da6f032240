"""Small functions of Stable-Baselines3."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np


def set_random_seed(seed: int, using_cuda: bool = False) -> None:
    """Seed Python's and NumPy's generators; an agent's numbers depend on its `seed` alone."""
    random.seed(seed)
    np.random.seed(seed)


def get_linear_fn(start: float, end: float, end_fraction: float) -> Callable[[float], float]:
    """Return a function that falls linearly from `start` to `end` over a share of the run."""

    def value(remaining: float) -> float:
        done = min((1 - remaining) / end_fraction, 1.0)
        return start + done * (end - start)

    return value


def constant_fn(value: float) -> Callable[[float], float]:
    """Return a function that is the same at all times."""
    return lambda remaining: value


LinearSchedule, ConstantSchedule = get_linear_fn, constant_fn
