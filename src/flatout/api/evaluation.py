"""Stable-Baselines3's function for evaluation."""

from __future__ import annotations

from typing import Any

from flatout.api import Agent
from flatout.api.arguments import flag, whole_number
from flatout.config.schema import EPISODES
from flatout.errors import UsageError, short


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
    if not isinstance(agent, Agent) or not agent.config.hyper.acts:
        raise UsageError(f"agent = {short(agent)} is not an agent such as PPO(env).")
    if not flag("deterministic", deterministic):
        raise UsageError("evaluate_policy plays greedily: draw with predict in a loop of your own.")
    episodes = whole_number("n_eval_episodes", n_eval_episodes, EPISODES)
    found = agent.evaluate(episodes, seed=seed, env=env)
    if return_episode_rewards:
        return list(found.returns), list(found.lengths)
    return found.return_mean, found.return_std
