"""What a run will take of each device's memory, said and checked before it is taken."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax

from flatout.errors import FlatoutError
from flatout.hardware import Hardware, MiB
from flatout.placement import DeviceName, Placement

CUDA_CONTEXT_MB = 600
"""What a CUDA context and its libraries take before anything is computed."""


def size_mb(tree: Any) -> float:
    """MiB of a pytree of arrays or shapes."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)) / MiB


@dataclass(frozen=True)
class Expectation:
    """Memory that one run takes, in MiB.

    Attributes:
        state: parameters, optimiser and statistics.
        trajectory: one trajectory.
        replay: replayed experience, in host memory and in the learning device's.
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
        learner = placement.learn[0]
        taken[learner] += self.replay[1]
        # The update holds the old and the new state for a moment, and its flattened trajectory.
        taken[learner] += 2 * self.state + self.trajectory + self.workspace
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
