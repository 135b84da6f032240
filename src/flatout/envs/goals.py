"""The rewards of goal environments, which hindsight replay computes again for other goals.

Such an environment observes a Dict with the entries ``achieved_goal`` and ``desired_goal``, and has
a method ``compute_reward(achieved_goal, desired_goal, info)``, as in Gymnasium-Robotics.
"""

from __future__ import annotations

import weakref
from typing import Any

import gymnasium as gym
import numpy as np

from flatout.envs.check import undisturbed
from flatout.envs.make import close_quietly
from flatout.envs.mask_places import attribute
from flatout.envs.task import Task
from flatout.envs.vector_kind import ONE_BY_ONE
from flatout.errors import (
    EnvironmentFailure,
    FlatoutError,
    InvalidReturn,
    UsageError,
    failure,
    short,
)
from flatout.types import ObsSpec

ACHIEVED, DESIRED, REWARD = "achieved_goal", "desired_goal", "compute_reward"


def reward_method(env: Any) -> Any:
    """Return the method `compute_reward` of an environment or of one that it wraps, or None."""
    while env is not None:
        if callable(method := attribute(env, REWARD)):
            return method
        env = env.env if isinstance(env, gym.Wrapper) else None
    return None


def has_goals(spec: ObsSpec) -> bool:
    """Return whether observations have an achieved and a desired goal, arrays of one shape."""
    if not isinstance(spec, dict) or not {ACHIEVED, DESIRED} <= spec.keys():
        return False
    return spec[ACHIEVED].shape == spec[DESIRED].shape


def refuse_without_goals(task: Task, env: gym.Env[Any, Any] | None) -> None:
    """Refuse an environment for which hindsight replay is impossible.

    Args:
        task: the environment to train in.
        env: an open environment of the task, or None if none was made.

    Raises:
        UsageError: it has no goals, they are stacked, it is a vector of environments, or it has no
            `compute_reward`.
    """
    if not has_goals(task.obs_spec):
        seen = task.obs_spec
        entries = ", ".join(seen) if isinstance(seen, dict) else "one array"
        raise UsageError(
            f"--hindsight needs a Dict observation with {ACHIEVED} and {DESIRED} of one shape, but "
            f"{task.name} observes {entries}; leave it out."
        )
    if task.vector is not None:
        raise UsageError(
            f"--hindsight asks one environment for rewards, and {task.name} is a vector "
            f"environment: {ONE_BY_ONE}, or leave --hindsight out."
        )
    if (task.config.frame_stack or 1) > 1:
        raise UsageError(
            f"--hindsight replaces single goals, and --frame-stack {task.config.frame_stack} "
            "stacks them; leave one of the two out."
        )
    if env is not None and reward_method(env) is None:
        raise UsageError(
            f"--hindsight needs the rewards of other goals, but {task.name} has no method "
            f"{REWARD}(achieved_goal, desired_goal, info); add one, or leave --hindsight out."
        )


class GoalRewards:
    """The rewards of pairs of goals.

    Args:
        env: the environment with the method `compute_reward`.
        name: its name, for messages.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        space = env.observation_space
        assert isinstance(space, gym.spaces.Dict)
        self._env, self._name = env, name  # the environment lives as long as its method is called
        self._compute = reward_method(env)
        self._dtypes = [np.dtype(space[goal].dtype) for goal in (ACHIEVED, DESIRED)]

    def __call__(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """Return the rewards ``[B]`` of achieved and desired goals ``[B, ...]``, float32.

        Raises:
            EnvironmentFailure: `compute_reward` failed, or a reward is NaN or infinite.
            InvalidReturn: it did not return B numbers.
        """
        pairs = zip((achieved, desired), self._dtypes, strict=True)
        goals = (goal.astype(dtype) for goal, dtype in pairs)
        count = len(achieved)
        try:
            found = self._compute(*goals, [{} for _ in range(count)])
        except FlatoutError:
            raise
        except Exception as error:  # a user's method may raise anything
            raise EnvironmentFailure(
                f"{REWARD} of {self._name} raised {failure(error)} for {count} pairs of goals; "
                "hindsight replay passes goals [B, ...] and takes B rewards."
            ) from error
        try:
            rewards = np.asarray(found, np.float32)
        except (TypeError, ValueError):
            rewards = np.zeros(())
        if rewards.shape != (count,):
            raise InvalidReturn(
                f"{REWARD} of {self._name} returned {short(found)} for {count} pairs of goals; "
                "hindsight replay passes goals [B, ...] and takes B rewards: compute along the "
                "goals' last axis."
            )
        if not np.isfinite(rewards).all():
            raise EnvironmentFailure(f"{REWARD} of {self._name} returned NaN or infinity.")
        return rewards

    def compare(self, achieved: np.ndarray, desired: np.ndarray) -> None:
        """Compare the rewards of a batch of two pairs of goals with the reward of each pair alone.
        The pairs are an achieved and a desired goal, and twice the desired one.

        Raises:
            InvalidReturn: they differ; or see `__call__`.
            EnvironmentFailure: see `__call__`.
        """
        achieved, desired = np.stack([achieved, desired]), np.stack([desired, desired])
        both = self(achieved, desired)
        each = [self(achieved[i : i + 1], desired[i : i + 1])[0] for i in range(2)]
        if not np.allclose(both, each, rtol=1e-4, atol=1e-6):
            raise InvalidReturn(
                f"{REWARD} of {self._name} returned {both.tolist()} for two pairs of goals, and "
                f"{[float(one) for one in each]} for each pair alone; a reward has to depend on "
                "its own pair only: compute along the goals' last axis."
            )


def open_rewards(task: Task, seed: int) -> GoalRewards:
    """Return the rewards of a task's goals, by an environment that is reset once and never stepped.

    The reset gives goals with which `compute_reward` is tried. An environment object that the user
    passed is used itself, without a reset.

    Args:
        seed: the seed of the reset.

    Raises:
        UsageError: see `refuse_without_goals`.
        InvalidReturn: `compute_reward` does not return a reward for each of two pairs of goals.
        EnvironmentFailure: the environment, its reset or `compute_reward` failed.
    """
    env = task.source.passed
    if not task.single:
        with undisturbed():
            env = task.make()
    refuse_without_goals(task, env)
    rewards, spec = GoalRewards(env, task.name), task.obs_spec
    assert isinstance(spec, dict)
    goals = [np.zeros(spec[goal].shape, spec[goal].dtype) for goal in (ACHIEVED, DESIRED)]
    if not task.single:
        weakref.finalize(rewards, close_quietly, env)
        try:
            with undisturbed():
                obs, _ = env.reset(seed=seed)
            goals = [np.asarray(obs[goal]) for goal in (ACHIEVED, DESIRED)]
        except FlatoutError:
            raise
        except Exception as error:  # a user's environment may raise anything
            raise EnvironmentFailure(
                f"the first reset of {task.name} raised {failure(error)}."
            ) from error
    rewards.compare(*goals)
    return rewards
