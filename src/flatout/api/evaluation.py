"""Stable-Baselines3's function for evaluation."""

from __future__ import annotations

from typing import Any

from flatout.api import Agent


def evaluate_policy(
    agent: Agent, env: Any = None, n_eval_episodes: int = 10, *, seed: int | None = None
) -> tuple[float, float]:
    """The mean and the standard deviation of the returns of greedy episodes.

    Args:
        env: to play in, with the agent's spaces; by default the agent's own.
        seed: of the episodes; by default the agent's.

    Raises:
        UsageError: the environment has other spaces, or nothing was learned yet.
    """
    found = agent.evaluate(n_eval_episodes, seed=seed, env=env)
    return found.return_mean, found.return_std
