"""From settings to an algorithm: the only place that knows all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout.algorithms.parallel.shards import Shards
from flatout.config.placement import Placement
from flatout.config.schema import TrainConfig, sync_every
from flatout.errors import UsageError
from flatout.types import ActionSpec, ObservationSpec

if TYPE_CHECKING:
    from flatout.algorithms.base import Algorithm
    from flatout.networks.torsos import Network


def horizon(config: TrainConfig, limit: int | None) -> int:
    """T, steps per environment and trajectory (the most, where it is of whole episodes).

    Raises:
        UsageError: whole episodes are wanted of an environment without a time limit, or their
            padded rollout does not divide into minibatches.
    """
    hyper = config.hyper
    if hyper.rollout_episodes is None or (config.algorithm == "genetic" and hyper.n_steps):
        return hyper.n_steps
    if limit is None:
        raise UsageError(
            f"--rollout-episodes needs an environment with a time limit, which {config.env.env} "
            "has not; pass --env-kwargs max_episode_steps=N."
            + (" Or say with --n-steps how many." if config.algorithm == "genetic" else "")
        )
    steps = hyper.rollout_episodes * limit
    if config.algorithm == "genetic":
        return steps
    rows = steps * config.env.envs
    if hyper.batch_size > rows or rows % hyper.batch_size:
        raise UsageError(
            f"a padded rollout of {hyper.rollout_episodes} episodes x {limit} steps x "
            f"{config.env.envs} envs = {rows} rows does not divide into minibatches of batch_size "
            f"{hyper.batch_size}; batch_size {rows} makes one minibatch of it."
        )
    return steps


def build_algorithm(
    config: TrainConfig,
    obs_spec: ObservationSpec,
    action_spec: ActionSpec,
    limit: int | None,
    network: Network | None = None,
    placement: Placement | None = None,
) -> Algorithm:
    """The pure functions of the algorithm that the settings name.

    Args:
        config: the settings.
        obs_spec, action_spec: the environment's spaces.
        limit: its time limit in steps, if any.
        network: a custom torso.
        placement: needed only where the algorithm will learn.

    Raises:
        UsageError: the settings do not fit the environment.
    """
    from flatout.algorithms import a2c, dqn, genetic, ppo, sac, td3

    common: dict[str, Any] = {
        "num_envs": config.env.envs, "total_steps": config.run.steps, "network": network,
        "shards": shards_of(config, placement),
    }  # fmt: skip
    settings = (config.hyper, config.network, obs_spec, action_spec)
    if config.run.micro_batch is not None:
        common["micro_batch"] = config.run.micro_batch
    padded: dict[str, Any] = {"ppo": ppo.ppo, "genetic": genetic.genetic}
    if config.algorithm in padded:
        steps = horizon(config, limit)
        return padded[config.algorithm](*settings, horizon=steps, **common)
    build: dict[str, Any] = {
        "a2c": a2c.a2c,
        "dqn": dqn.dqn,
        "ddpg": td3.td3,
        "td3": td3.td3,
        "sac": sac.sac,
    }
    return build[config.algorithm](*settings, **common)


def shards_of(config: TrainConfig, placement: Placement | None) -> Shards:
    """The parts that the settings ask for."""
    run = config.run
    every = sync_every(run.sync) if run.shards > 1 else 1
    divided = placement is not None and placement.params == "sharded"
    return Shards(run.shards, every, run.reduce == "ordered", mapped=not divided)
