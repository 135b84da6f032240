"""The clock of a peer's process."""

from __future__ import annotations

import os
import time

BEGAN = float(os.environ.get("BENCHMARK_BEGAN", time.time()))
"""When the process was started, by its parent's clock; alone, when this module was imported."""


def since_start() -> float:
    """Seconds since the process was started."""
    return time.time() - BEGAN
