"""Environments: one meaning of `step` and of an episode's end for every source."""

from __future__ import annotations


def register() -> None:
    """Register Flatout's own environments with Gymnasium; harmless when repeated."""
    import gymnasium

    if "flatout/Snake-v0" not in gymnasium.registry:
        gymnasium.register("flatout/Snake-v0", entry_point="flatout.envs.snake:Snake")
