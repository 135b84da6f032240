"""Acting within an actor process. This imports JAX; workers that do not act avoid it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from flatout.algorithms.base import ACT, raw_key
from flatout.algorithms.registry import build_algorithm
from flatout.buffers.rollout import RolloutBuffer
from flatout.config.placement import CPU, Placement
from flatout.envs.task import open_task
from flatout.hardware import backend
from flatout.learner.policy import Policy
from flatout.samplers.central import CentralSampler
from flatout.samplers.env_group import ActingGroup, InlineEnvGroup
from flatout.samplers.processes.protocol import PARAMS, SHARED
from flatout.samplers.processes.shared_memory import Arena
from flatout.spans import Spans

if TYPE_CHECKING:
    from flatout.samplers.processes.protocol import Job


class LocalActor:
    """Samples this worker's environments with the parameters in the arena.

    Args:
        job: its environments, and how it acts.
        arena: shared with the parent.
    """

    def __init__(self, job: Job, arena: Arena) -> None:
        local = job.local
        assert local is not None
        backend.start(Placement())
        config, rollout = local.config, local.rollout
        task = open_task(config.env, job.source)
        algorithm = build_algorithm(config, *task.spaces, local.network)
        self._device = backend.device(CPU)
        self._policy = Policy(
            algorithm, task.obs_spec, job.count, self._device, raw_key(config.run.seed, ACT)
        )
        self._policy.compile()
        columns = slice(job.first, job.first + job.count)

        def buffer(slot: int) -> RolloutBuffer:
            shared = {name: arena[name][slot][:, columns] for name in SHARED if name in arena}
            shared["outputs"] = arena[f"outputs/{job.first}"][slot][None]
            return RolloutBuffer(
                rollout.horizon, job.count, task.obs_spec, [self._policy.layout],
                rollout.episodes is not None, rollout.chunks, rollout.replayed, shared=shared,
            )  # fmt: skip

        self._buffers = [buffer(slot) for slot in range(rollout.slots)]
        self.envs = task.open(
            job.count, job.seed, reseed_after=job.reseed_after, first=job.first, threads=1
        )
        group = ActingGroup(InlineEnvGroup(self.envs, self._buffers), self._policy, job.first)
        self.spans = Spans()
        self._sampler = CentralSampler(
            [[group]], self._buffers, task.name, rollout.episodes, self.spans,
            life_loss=config.env.terminal_on_life_loss,
        )  # fmt: skip
        self._params = [arena[name] for name in arena.arrays if name.startswith(PARAMS)]

    def start(self, slot: int, episodes: list[int], steps: int) -> None:
        """Begin these episodes; their observations go to row 0 of the slot."""
        self._sampler.begin(slot, episodes, steps)

    def collect(self, slot: int, version: int) -> tuple[bytes, bytes]:
        """Collect a trajectory into the slot.

        Returns:
            Rows, episodes and positions of final observations, as JSON; and these observations'
            bytes.
        """
        if version != self._policy.version:
            bundle = tuple(jax.device_put(np.array(array), self._device) for array in self._params)
            self._policy.publish(bundle, version, Spans())
        trajectory = self._sampler.collect(slot)
        buffer = self._buffers[slot]
        used = trajectory.final_index < buffer.rewards.size
        sampler = self._sampler
        message = {
            "rows": sampler.rows,
            "episodes": [
                (row, list(episode))
                for row, episode in zip(sampler.ends, sampler.episodes, strict=True)
            ],
            "finals": trajectory.final_index[used].tolist(),
            "begun": sampler.begun,
        }
        return json.dumps(message).encode(), trajectory.final_obs[used].tobytes()

    def commit(self, steps: int) -> None:
        self._sampler.commit(steps)

    def state(self) -> dict[str, Any]:
        return self._sampler.state()

    def restore(self, state: dict[str, Any]) -> tuple[list[str], list[Any]]:
        """See `CentralSampler.restore`; returns notes and restarted environments."""
        notes = self._sampler.restore(state)
        return notes, self._sampler.restarted
