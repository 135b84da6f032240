"""Environments: `step` and the end of an episode mean the same, whatever library they are from."""

from __future__ import annotations


def register() -> None:
    """Register Flatout's own environments with Gymnasium. Further calls do nothing."""
    import gymnasium

    if "flatout/Snake-v0" not in gymnasium.registry:
        gymnasium.register("flatout/Snake-v0", entry_point="flatout.envs.snake:Snake")
