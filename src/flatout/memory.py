"""What a run will take of each device's memory, said and checked before it is taken."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from flatout.algorithms.base import ReplayNeeds
from flatout.buffers.ring import Geometry, ring_bytes, ring_shapes
from flatout.buffers.sampling import leaves_of
from flatout.errors import FlatoutError
from flatout.hardware import Hardware, MiB
from flatout.placement import DeviceName, Placement
from flatout.types import Trajectory

CUDA_CONTEXT_MB = 600
"""What a CUDA context and its libraries take before anything is computed."""


def size_mb(tree: Any) -> float:
    """MiB of a pytree of arrays or shapes."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)) / MiB


def replay_mb(
    geometry: Geometry, needs: ReplayNeeds, trajectory: Trajectory, placement: Placement
) -> tuple[float, float]:
    """MiB that replay will take in host memory, and in the learning device's.

    Args:
        geometry: the ring's sizes.
        needs: what the algorithm asks of it.
        trajectory: the shapes of trajectories.
        placement: where it lives.
    """
    ring = ring_bytes(ring_shapes(geometry, trajectory, geometry.lanes))
    tree = 0 if needs.alpha is None else 8 * leaves_of(geometry)
    if placement.replay_on_device:
        return 0.0, (ring + tree) / MiB
    spec = geometry.spec
    batches = needs.most(geometry.lanes) * needs.batch_size * 2 * math.prod(spec.shape)
    batches *= np.dtype(spec.dtype).itemsize
    # On a CPU the compiled update reads them where they lie.
    copied = batches if placement.learn[0].kind == "gpu" else 0
    return (ring + tree + batches) / MiB, copied / MiB


@dataclass(frozen=True)
class Expectation:
    """Memory that one run takes, in MiB.

    Attributes:
        state: parameters, optimiser and statistics.
        trajectory: one trajectory.
        replay: replayed experience and the batches of one dispatch, in host memory and in the
            learning device's.
        workspace: the update's own intermediate values (0 until it is compiled).
    """

    state: float
    trajectory: float
    replay: tuple[float, float] = (0.0, 0.0)
    workspace: float = 0.0

    def by_device(self, placement: Placement) -> dict[DeviceName, float]:
        """MiB per named device; trajectories are collected in host memory."""
        taken = dict.fromkeys((*placement.devices, DeviceName("cpu")), 0.0)
        taken[DeviceName("cpu")] += self.trajectory + self.replay[0]
        for learner in placement.learn:
            taken[learner] += (self.replay[1] + self.trajectory) / len(placement.learn)
            # The update holds the old and the new state for a moment, and its flattened trajectory.
            taken[learner] += 2 * self.state + self.workspace
        for device in taken:
            if device.kind == "gpu":
                taken[device] += CUDA_CONTEXT_MB
        return taken

    def check(self, placement: Placement, hardware: Hardware) -> str:
        """Say what is expected, or refuse what cannot fit.

        Returns:
            One sentence with the numbers.

        Raises:
            FlatoutError: a device has less available than is expected.
        """
        gpus = {gpu.index: gpu for gpu in hardware.usable_gpus}
        said: list[str] = []
        for device, expected in self.by_device(placement).items():
            capped = ""
            if device.kind == "cpu":
                available = float(hardware.memory_available_mb)
            else:
                gpu = gpus[device.index]
                available = float(gpu.memory_free_mb)
                if placement.memory is not None:
                    cap = placement.memory * gpu.memory_total_mb
                    capped = " (capped by memory=)" if cap < available else ""
                    available = min(available, cap)
            if expected > available:
                raise FlatoutError(
                    f"this run would take about {expected:,.0f} MiB on {device} (trajectory "
                    f"{self.trajectory:,.0f}, replay {sum(self.replay):,.0f}, learning state "
                    f"{2 * self.state:,.0f}, workspace {self.workspace:,.0f}), but only "
                    f"{available:,.0f} MiB are available there{capped}; "
                    f"lower --envs, {'--buffer-size' if sum(self.replay) else '--n-steps'} or the "
                    "network's size."
                )
            said.append(f"about {expected:,.0f} of {available:,.0f} MiB on {device}")
        return "expects to take " + ", ".join(said)
