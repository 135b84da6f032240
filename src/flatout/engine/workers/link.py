"""The rate at which the network to another machine carries arrays, measured with a few requests."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

SMALL, LARGE = 200_000, 4_000_000
"""Bytes of the two answers whose times are compared. Both travel through Ray's object stores."""

SLOW_S = 1.0
"""Seconds of the small answer from which on the large one is not asked for."""


class LinkEnd:
    """The far end of a link: methods of a Ray actor."""

    def ping(self) -> None:
        """Answer, which shows that this machine can be reached."""

    def payload(self, size: int) -> np.ndarray:
        """Return an array of `size` bytes."""
        return np.zeros(size, np.uint8)

    def exchange(self, params: np.ndarray, size: int) -> np.ndarray:
        """Return an array of `size` bytes, as the answer to a request with parameters."""
        return np.zeros(size, np.uint8)


def bytes_per_s(payload: Callable[[int], object]) -> float:
    """Return the bytes per second that a link carries towards this machine.

    Args:
        payload: receives an answer of a number of bytes.
    """

    def seconds(size: int, times: int) -> float:
        found: list[float] = []
        for _ in range(times):
            began = time.monotonic()
            payload(size)
            found.append(time.monotonic() - began)
        return min(found)

    small = seconds(SMALL, 3)
    if small > SLOW_S:
        return SMALL / small
    large = seconds(LARGE, 3)
    return (LARGE - SMALL) / max(large - small, large / 10, 1e-9)
