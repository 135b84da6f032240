"""The construction of a run's buffer, and its expected memory. `run/factory.py` uses it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout import tree
from flatout.algorithms.base import Algorithm, ReplaySpec
from flatout.config.placement import CPU, Placement
from flatout.engine.buffer import Buffer, OnPolicyBuffer
from flatout.engine.replay.device import DeviceReplay
from flatout.engine.replay.hindsight import Hindsight
from flatout.engine.replay.host import HostReplay
from flatout.engine.replay.ring import RingLayout, ring_bytes, ring_shapes
from flatout.engine.replay.sampling import leaf_count
from flatout.engine.replay.trajectories import TrajectoryReplay, kept_shapes
from flatout.engine.trajectory import arrays_of, shard_shapes
from flatout.envs.goals import open_rewards
from flatout.errors import UsageError
from flatout.hardware import backend
from flatout.randomness import REPLAY, raw_key
from flatout.types import ObsSpec, Trajectory
from flatout_explain.hardware.processes import MiB

if TYPE_CHECKING:
    from flatout.config.schema import TrainConfig
    from flatout.envs.task import Task

MOST_STARTS = 32
"""Starts of a run with another one's replay, of which each truncates all episodes, for which the
replay of a compiled loop has room; it forgets the oldest rows if there were more."""


def build_buffer(
    config: TrainConfig, task: Task | None, algorithm: Algorithm, placement: Placement, shapes: Any,
    least: int | None = None,
) -> Buffer:  # fmt: skip
    """Make the buffer that the algorithm, the settings and the placement require.

    Args:
        task: the environment; None for a dataset.
        shapes: the shapes of trajectories.
        least: the least number of steps after which an episode may be truncated; 0 if episodes are
            never truncated; None if unknown.

    Raises:
        UsageError: the settings and the placement exclude each other.
    """
    shards = config.run.shards
    if algorithm.replay is not None:
        assert task is not None  # datasets have no algorithms with replay
        each = shapes
        if shards > 1:
            algorithm = replace(algorithm, replay=algorithm.replay.shard(shards))
            each = shard_shapes(shapes, shards)
        return _build_replay(config, task, algorithm, placement, each, least)
    kept = getattr(config.hyper, "replay_trajectories", 1)
    if kept > 1 and placement.fused:
        raise UsageError(
            f"replay_trajectories = {kept} is not possible with schedule=fused, which keeps no "
            "trajectories: use --placement 'sampler=device', or replay_trajectories = 1."
        )
    spec = task.obs_spec if task is not None and shapes.age is not None else None
    if kept == 1:
        return OnPolicyBuffer(algorithm, shards, spec)
    return TrajectoryReplay(algorithm, kept, shapes, shards, spec)


def replay_mb(
    layout: RingLayout, replay: ReplaySpec, trajectory: Trajectory, placement: Placement
) -> tuple[float, float]:
    """Return the MiB that replay will occupy in host memory and in the learning device's memory.

    Args:
        trajectory: the shapes of trajectories.
    """
    ring = ring_bytes(ring_shapes(layout, trajectory, layout.num_envs))
    priorities = 8 * leaf_count(layout) if replay.prioritized else 0
    if placement.replay_on_device:
        return 0.0, (ring + priorities) / MiB
    one = sum(
        math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in tree.leaves(layout.spec)
    )
    # Each update's batch holds two observations of each row; the rest of a batch is small.
    most = replay.most(layout.num_envs, trajectory.rewards.shape[0])
    batches = most * replay.batch_size * 2 * one
    # On a CPU the compiled update reads the batches from host memory without a copy.
    copied = batches if placement.learn[0].is_gpu else 0
    return (ring + priorities + batches) / MiB, copied / MiB


def expected_mb(
    config: TrainConfig, spec: ObsSpec, replay: ReplaySpec | None, placement: Placement,
    shapes: Any,
) -> tuple[float, float]:  # fmt: skip
    """Return the MiB that `build_buffer` will allocate in host memory, and on all learning devices
    together.

    Args:
        spec: one observation.
        replay: the algorithm's requirements for replay; None if it has no replay.
        shapes: the shapes of trajectories.
    """
    shards, each = config.run.shards, shapes
    if replay is None:
        kept = getattr(config.hyper, "replay_trajectories", 1)
        rows = list(arrays_of(kept_shapes(shapes, kept)).values()) if kept > 1 else []
        return ring_bytes(rows) / MiB, 0.0
    if shards > 1:
        replay, each = replay.shard(shards), shard_shapes(shapes, shards)
    host, device = replay_mb(ring_layout(replay, spec, each), replay, each, placement)
    # A chunk of a compiled loop keeps its initial replay until the host has read its results.
    return shards * host, shards * device * (2 if placement.fused else 1)


def ring_layout(replay: ReplaySpec, spec: ObsSpec, shapes: Any) -> RingLayout:
    """Return the sizes of a replay ring for trajectories of these shapes."""
    steps, num_envs = shapes.rewards.shape
    rows = max(replay.buffer_size // num_envs, steps)
    return RingLayout(spec, num_envs, rows, replay.n_step)


def _build_replay(
    config: TrainConfig, task: Task, algorithm: Algorithm, placement: Placement, shapes: Any,
    least: int | None,
) -> Buffer:  # fmt: skip
    """Make a replay buffer; `algorithm` and `shapes` are those of one shard."""
    replay = algorithm.replay
    assert replay is not None
    layout, shards = ring_layout(replay, task.obs_spec, shapes), config.run.shards
    rows, num_envs = layout.rows, layout.num_envs
    keys = [raw_key(config.run.seed, REPLAY, number) for number in range(shards)]
    if shards == 1:
        keys = [raw_key(config.run.seed, REPLAY)]
    key = keys[0] if shards == 1 else np.stack(keys)
    if placement.replay_on_device:
        if replay.hindsight:
            raise UsageError(
                f"--hindsight {replay.hindsight} needs replay=cpu in --placement: rewards of other "
                "goals are computed in Python, by the environment's compute_reward."
            )
        # A guess, which the buffer increases if necessary: a truncation per `limit` or 64 steps.
        finals = rows * num_envs // (task.limit or 64) + num_envs
        if least is not None:  # the largest number possible: a compiled loop cannot grow the array
            finals = num_envs * ((rows // least + 1 if least else 0) + MOST_STARTS)
        fixed = least if placement.fused else None
        return DeviceReplay(algorithm, layout, shapes, key, shards * finals, fixed)
    # On a GPU, two dispatches per trajectory: the host gathers the second while the first runs.
    most = replay.most(num_envs, shapes.rewards.shape[0])
    chunk = -(-most // 2) if placement.learn[0].is_gpu and most > 1 else None
    hindsight = None
    if replay.hindsight:
        rewards = open_rewards(task, config.run.seed)
        whole = replace(layout, num_envs=num_envs * shards)
        hindsight = Hindsight(whole, replay.hindsight, rewards, config.env.clip_reward)
    return HostReplay(algorithm, layout, shapes, key, backend.device(CPU), chunk, hindsight)
