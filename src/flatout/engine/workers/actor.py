"""Acting within an actor process. `worker` imports this module, and with it JAX, only to act."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from flatout.algorithms.registry import build_algorithm
from flatout.config.placement import CPU, Placement
from flatout.engine.act import Policy
from flatout.engine.collect import CentralSampler
from flatout.engine.finals import used_finals
from flatout.engine.groups import ActingGroup, InlineEnvGroup
from flatout.engine.rollout_buffer import RolloutBuffer, step_arrays
from flatout.engine.sampler import lives_terminate
from flatout.engine.workers.protocol import (
    ACT_S,
    ENV_S,
    OUTPUTS,
    PARAMS,
    SQUARE,
    TURNS,
    read_resets,
    write_resets,
)
from flatout.engine.workers.shared_memory import SharedArrays
from flatout.envs.task import open_task
from flatout.hardware import backend
from flatout.randomness import ACT, raw_key
from flatout.spans import Spans

if TYPE_CHECKING:
    from flatout.engine.workers.protocol import Job


class LocalActor:
    """The environments of a worker that acts itself, with the parameters in shared memory.

    Args:
        job: the worker's environments, and how it acts.
        shared_arrays: the memory shared with the parent.
        worker_times: this worker's times, which it increases; for the columns see
            `flatout.engine.workers.protocol`.
        report: sends a sentence for the user to the parent.
    """

    def __init__(
        self, job: Job, shared_arrays: SharedArrays, worker_times: memoryview[float],
        report: Callable[[str], None],
    ) -> None:  # fmt: skip
        assert job.local is not None
        config, rollout, batch = job.local
        backend.start(Placement())
        task = open_task(config.env, job.code.env, job.info_masks)
        task.report = report
        algorithm = build_algorithm(config, *task.spaces, job.code)
        self._device = backend.device(CPU)
        self._policy = Policy(
            algorithm, task.obs_spec, batch, self._device, raw_key(config.run.seed, ACT),
            frames=rollout.frames,
        )  # fmt: skip
        self._policy.compile()

        firsts = range(job.first, job.first + job.count, batch)

        def buffer(slot: int) -> RolloutBuffer:
            shared: dict[str, Any] = {
                name: shared_arrays[name][slot][:, job.columns]
                for name in step_arrays(rollout, job.count, task.obs_spec)
            }
            shared["outputs"] = [shared_arrays[f"{OUTPUTS}{first}"][slot] for first in firsts]
            layouts = [self._policy.layout] * len(firsts)
            return RolloutBuffer(rollout, job.count, task.obs_spec, layouts, shared=shared)

        buffers = [buffer(slot) for slot in range(rollout.slots)]
        self.envs = task.open(
            job.count,
            job.seed,
            reseeding=job.reseeding,
            first=job.first,
            threads=1,
            spares=True,
        )
        group = ActingGroup(InlineEnvGroup(self.envs, buffers), self._policy, job.first)
        self._spans = Spans()
        self._sampler = CentralSampler(
            [[group]], buffers, task.name, rollout.episodes, self._spans,
            life_loss=lives_terminate(config),
        )  # fmt: skip
        self._params = [
            shared_arrays[name] for name in shared_arrays.arrays if name.startswith(PARAMS)
        ]
        self._worker_times = worker_times
        self._before = worker_times.tolist()  # the times of a lost predecessor
        self._resets = read_resets(self._before)
        write_resets(worker_times, self._resets, self.envs)
        self.begin, self.commit = self._sampler.begin, self._sampler.commit
        self.state = self._sampler.state

    def mark(self, mark: bytes) -> bytes:
        """Return the mark; see `Worker.drain_replies`."""
        return mark

    def collect(self, slot: int, version: int) -> tuple[Any, ...]:
        """Collect a trajectory into a slot with the parameters of a version.

        Returns:
            The number of rows; a row and an `Episode` for each end; positions of final
            observations in this worker's arrays; these observations; the current episodes' numbers;
            the carry before the first step.
        """
        begin = time.perf_counter()
        if version != self._policy.version:
            packed = tuple(jax.device_put(np.array(array), self._device) for array in self._params)
            self._policy.publish(packed, version, Spans())
        sampler, worker_times = self._sampler, self._worker_times
        trajectory, _ = sampler.collect(slot=slot)
        index, final_obs = used_finals(trajectory.finals, trajectory.rewards.size)
        ends = list(zip(sampler.ends, sampler.episodes, strict=True))
        took = time.perf_counter() - begin
        worker_times[ENV_S] = self._before[ENV_S] + self._spans.seconds("env")
        worker_times[ACT_S] = self._before[ACT_S] + self._spans.seconds("act")
        worker_times[TURNS] += 1.0
        worker_times[SQUARE] += took * took
        write_resets(worker_times, self._resets, self.envs)
        found = sampler.rows, ends, index.tolist(), final_obs, sampler.current_episodes
        return *found, trajectory.carry

    def restore(self, state: dict[str, Any]) -> tuple[dict[str, list[tuple[int, int]]], list[Any]]:
        """Restore a state; return the sampler's `restart_reasons` and `restarted`, with numbers of
        environments that begin at 0."""
        self._sampler.restore(state)
        return self._sampler.restart_reasons, self._sampler.restarted
