"""What `benchmarks/gpu.py` asks of a GPU, most valuable first: a module for each group of rows.

A module has ``ROWS``. Add a module's name here and its rows are asked, shown and tried dry.
"""

from __future__ import annotations

from importlib import import_module

from gpu_rows.base import Row

GROUPS = (
    "hello", "agree", "resume", "w2", "plan", "fused", "atari", "explain", "record", "classify",
    "sharing", "transfer",
)  # fmt: skip


def rows() -> list[Row]:
    """Every row, in the order in which they are asked."""
    return [row for group in GROUPS for row in import_module(f"gpu_rows.{group}").ROWS]
