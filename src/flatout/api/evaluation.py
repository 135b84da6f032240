"""Stable-Baselines3's function for evaluation."""

from __future__ import annotations

from typing import Any

from flatout.api import Agent
from flatout.errors import UsageError


def evaluate_policy(
    agent: Agent, env: Any = None, n_eval_episodes: int = 10, deterministic: bool = True,
    *, return_episode_rewards: bool = False, seed: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """The mean and the standard deviation of the returns of greedy episodes.

    Args:
        env: to play in, with the agent's spaces; by default the agent's own.
        deterministic: True.
        return_episode_rewards: each episode's return and length instead, two lists.
        seed: of the episodes; by default the agent's.

    Raises:
        UsageError: the environment has other spaces, nothing was learned yet, or episodes are to be
            drawn.
    """
    if not deterministic:
        raise UsageError("evaluate_policy plays greedily: draw with predict in a loop of your own.")
    found = agent.evaluate(n_eval_episodes, seed=seed, env=env)
    if return_episode_rewards:
        return list(found.returns), list(found.lengths)
    return found.return_mean, found.return_std
