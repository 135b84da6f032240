"""From a placement to a buffer: what lies between trajectories and updates, and where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout import backend
from flatout.algorithms.base import REPLAY, Algorithm, raw_key
from flatout.buffers.base import Buffer
from flatout.buffers.device import DeviceReplay
from flatout.buffers.fresh import Fresh
from flatout.buffers.replay import HostReplay
from flatout.buffers.ring import Geometry
from flatout.buffers.sharded import ShardedBuffer, part_shapes
from flatout.buffers.sharded_replay import ShardedReplay
from flatout.buffers.trajectories import TrajectoryReplay
from flatout.memory import replay_mb
from flatout.placement import CPU, Placement

if TYPE_CHECKING:
    from flatout.config import TrainConfig
    from flatout.envs.task import Task


def build_buffer(
    config: TrainConfig, task: Task | None, algorithm: Algorithm, placement: Placement, shapes: Any,
    expect: Callable[[tuple[float, float]], None],
) -> Buffer:  # fmt: skip
    """What lies between trajectories and updates, where the placement wants it.

    Args:
        config: the settings.
        task: the environment; None for a dataset.
        algorithm: learns from it.
        placement: where replay lives.
        shapes: of trajectories.
        expect: is told before anything large is allocated how many MiB that will be in host
            memory and in the learning device's; refuses what cannot be.
    """
    shards = config.run.shards
    own = shapes if shards == 1 else part_shapes(shapes, shards)
    if algorithm.replay is not None:
        assert task is not None  # only what learns from replay looks at it again
        if shards > 1:
            algorithm = replace(algorithm, replay=algorithm.replay.part(shards))
        return _build_replay(config, task, algorithm, placement, own, expect)
    kept = getattr(config.hyper, "replay_trajectories", 1)
    if kept == 1:
        parts = [Fresh(algorithm) for _ in range(shards)]
    else:
        parts = [TrajectoryReplay(algorithm, kept, own) for _ in range(shards)]
        expect((shards * parts[0].memory_mb()[0], 0.0))
    return parts[0] if shards == 1 else ShardedBuffer(parts, own.rewards.shape[1])


def _build_replay(
    config: TrainConfig, task: Task, algorithm: Algorithm, placement: Placement, shapes: Any,
    expect: Callable[[tuple[float, float]], None],
) -> Buffer:  # fmt: skip
    """Replay; algorithm and shapes are those of one part."""
    needs = algorithm.replay
    assert needs is not None
    lanes, shards = shapes.rewards.shape[1], config.run.shards
    rows = max(needs.buffer_size // lanes, algorithm.horizon)
    geometry = Geometry(task.obs_spec, lanes, rows, needs.n_step, needs.gamma)
    host, device = replay_mb(geometry, needs, shapes, placement)
    expect((shards * host, shards * device))
    keys = [raw_key(config.run.seed, REPLAY, number) for number in range(shards)]
    if shards == 1:
        keys = [raw_key(config.run.seed, REPLAY)]
    if placement.replay_on_device:
        cuts = rows * lanes // (task.limit or 64) + lanes
        parts = [DeviceReplay(algorithm, geometry, shapes, key, cuts) for key in keys]
        return parts[0] if shards == 1 else ShardedReplay(parts, lanes)
    several = placement.learn[0].kind == "gpu" and needs.most(lanes) > 1
    chunk = -(-needs.most(lanes) // 2) if several else None
    key = keys[0] if shards == 1 else np.stack(keys)
    return HostReplay(algorithm, geometry, shapes, key, backend.device(CPU), chunk)
