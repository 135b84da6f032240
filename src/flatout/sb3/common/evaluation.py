"""Stable-Baselines3's function that evaluates an agent."""

from __future__ import annotations

from typing import Any

from flatout.api import Agent
from flatout.api.arguments import flag, whole_number
from flatout.config.schema import EPISODES
from flatout.errors import UsageError, short
from flatout.sb3.common.vec_env import VecEnv, played


def evaluate_policy(
    model: Agent, env: Any = None, n_eval_episodes: int = 10, deterministic: bool = True,
    render: bool = False, callback: None = None, reward_threshold: float | None = None,
    return_episode_rewards: bool = False, warn: bool = True, use_masking: bool = True, *,
    seed: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Return the mean and the standard deviation of the returns of episodes.

    Args:
        model: the agent.
        env: an environment with the agent's spaces, its name, a factory or a `VecEnv`; by default
            the agent's own.
        deterministic: act greedily instead of drawing actions.
        render: must be False; `Agent.record` writes a video.
        callback: must be None.
        reward_threshold: the least mean return that is accepted.
        return_episode_rewards: return two lists instead, the episodes' returns and lengths.
        warn: ignored.
        use_masking: ignored, masks are always obeyed.
        seed: the seed of the episodes; by default the agent's.

    Raises:
        UsageError: the environment has other spaces, the agent is not trained, or an argument has a
            value that is not available.
        AssertionError: the mean return is not above `reward_threshold`.
    """
    if not isinstance(model, Agent) or not model.config.hyper.acts:
        raise UsageError(f"agent = {short(model)} is not an agent such as PPO(env).")
    if flag("render", render):
        raise UsageError("evaluate_policy does not render: agent.record(path) writes a video.")
    if callback is not None:
        raise UsageError(
            "evaluate_policy calls no callback: act with predict in a loop of your own."
        )
    if isinstance(env, VecEnv):
        env = played(model, env)
    episodes = whole_number("n_eval_episodes", n_eval_episodes, EPISODES)
    found = model.evaluate(episodes, seed=seed, env=env, deterministic=deterministic)
    if reward_threshold is not None and not found.return_mean > reward_threshold:
        raise AssertionError(
            f"the mean return {found.return_mean:g} is not above reward_threshold = "
            f"{reward_threshold:g}."
        )
    if return_episode_rewards:
        return list(found.returns), list(found.lengths)
    return found.return_mean, found.return_std
