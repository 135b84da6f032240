"""Stable-Baselines3's noise on actions: `NormalActionNoise` is the number `action_noise`."""

from __future__ import annotations

from typing import Any

import numpy as np


class NormalActionNoise:
    """Gaussian noise with mean 0 and one standard deviation for all components of an action."""

    def __init__(self, mean: Any, sigma: Any, dtype: Any = np.float32) -> None:
        self._mu, self._sigma = mean, sigma


class OrnsteinUhlenbeckActionNoise:
    """A process that agents refuse, with what to write instead."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
