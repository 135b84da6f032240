"""The construction of the algorithm that the settings name, for `flatout.run` and actor processes.

No other module knows all algorithms."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from flatout.algorithms.shards import Shards
from flatout.config.placement import Placement
from flatout.config.schema import TrainConfig, sync_every
from flatout.envs.source import EnvSource
from flatout.errors import UsageError
from flatout.types import NAMED, ActionSpec, ObsSpec, UserCode

if TYPE_CHECKING:
    from flatout.algorithms.base import Algorithm


def horizon(config: TrainConfig, limit: int | None) -> int:
    """Return T, the steps per environment and trajectory, or 0 if the algorithm chooses T itself.

    For trajectories of whole episodes, T is the most steps that these can have.

    Raises:
        UsageError: trajectories are of whole episodes, and the environment has no time limit or the
            padded rollout does not divide into minibatches.
    """
    hyper = config.hyper
    if hyper.fixed_horizon is not None:
        return hyper.fixed_horizon
    if limit is None:
        source = EnvSource.of(config.env)
        how = "wrap it in gymnasium.wrappers.TimeLimit, or give a DeviceEnv its limit"
        if source.library or source.inner in gym.registry:
            how = "pass max_episode_steps=N in env_kwargs (--env-kwargs max_episode_steps=N)"
        raise UsageError(
            f"rollout_episodes = {hyper.rollout_episodes} needs an environment with a time limit, "
            f"and {source.name} declares none; {how}.{hyper.no_limit}"
        )
    steps = hyper.rollout_episodes * limit
    rows = steps * config.env.envs
    batch = getattr(hyper, "batch_size", rows)
    if batch > rows or rows % batch:
        raise UsageError(
            f"a padded rollout of {hyper.rollout_episodes} episodes x {limit} steps x "
            f"{config.env.envs} envs = {rows} rows does not divide into minibatches of batch_size "
            f"{batch}; batch_size {rows} makes one minibatch of it."
        )
    return steps


def build_algorithm(
    config: TrainConfig,
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    limit: int | None,
    code: UserCode = NAMED,
    placement: Placement | None = None,
) -> Algorithm:
    """Build the pure functions of the algorithm that the settings name.

    Args:
        limit: the environment's time limit in steps, if any.
        code: the user's network and algorithm, if they were passed as objects and not by name.
        placement: needed only if the algorithm will learn.

    Raises:
        UsageError: the settings do not fit the environment.
    """
    from flatout.algorithms import a2c, dqn, genetic, ppo, sac, td3, tqc
    from flatout.algorithms.base import BuildSpec

    build: dict[str, Callable[[Any, BuildSpec], Algorithm]] = {
        "a2c": a2c.a2c, "ddpg": td3.td3, "dqn": dqn.dqn, "genetic": genetic.genetic,
        "ppo": ppo.ppo, "sac": sac.sac, "td3": td3.td3, "tqc": tqc.tqc,
    }  # fmt: skip
    spec = BuildSpec(
        config.network, obs_spec, action_spec, config.env.envs, config.run.steps,
        horizon(config, limit), code.network, shards_of(config, placement),
        config.run.micro_batch,
    )  # fmt: skip
    if ":" in config.algorithm:
        from flatout.algorithms.own import own_algorithm

        return own_algorithm(config.algorithm, code.algorithm, config.hyper.hp, spec)
    return build[config.algorithm](config.hyper, spec)


def shards_of(config: TrainConfig, placement: Placement | None) -> Shards:
    """Return the shards of the settings; `mapped` is False if the placement divides parameters."""
    run = config.run
    every = sync_every("sync", run.sync) if run.shards > 1 else 1
    divided = placement is not None and placement.params_sharded
    return Shards(run.shards, every, run.reduce == "ordered", mapped=not divided)
