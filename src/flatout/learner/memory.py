"""Expected and actual memory of a run on each device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from flatout.algorithms.base import State
from flatout.config.placement import DeviceName, Placement
from flatout.errors import NoRoomError
from flatout.hardware.backend import memory_share
from flatout.hardware.inventory import Hardware, MiB

CUDA_CONTEXT_MB = 600
"""Memory of a CUDA context and its libraries."""

USED_MB = 1024
"""A card on which so much is in use is used by others: what a driver takes is less."""


def size_mb(tree: Any) -> float:
    """MiB of a pytree of arrays or shapes."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)) / MiB


def learned_mb(shapes: State) -> tuple[float, float]:
    """MiB of a learning state: the model, and the optimiser's state."""
    return size_mb(shapes._replace(opt=())), size_mb(shapes.opt)


def live_mb(purposes: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Current MiB of each purpose's pytree of arrays on each device, and the peak if counted."""
    taken: dict[str, dict[str, float]] = {}
    named = [(what, leaf) for what, tree in purposes.items() for leaf in jax.tree.leaves(tree)]
    for purpose, array in named:
        for shard in array.addressable_shards:
            device = shard.device
            kind = "cpu" if device.platform == "cpu" else "gpu"
            number = device.local_hardware_id or device.id
            device_sizes = taken.setdefault(str(DeviceName(kind, number)), {})
            device_sizes[purpose] = device_sizes.get(purpose, 0.0) + shard.data.nbytes / MiB
            peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
            if peak is not None:
                device_sizes["peak"] = peak / MiB
    return {n: {k: round(v, 3) for k, v in sizes.items()} for n, sizes in sorted(taken.items())}


def available_mb(device: DeviceName, placement: Placement, hardware: Hardware) -> tuple[float, str]:
    """MiB that a run may take on a device, and words for what limits them: ``memory=``, this
    process's environment (of several that share a card), or what is in use already."""
    if device.kind == "cpu":
        return float(hardware.memory_available_mb), ""
    gpu = next(gpu for gpu in hardware.usable_gpus if gpu.index == device.index)
    share, by = memory_share(placement)
    cap, free = share * gpu.memory_total_mb, float(gpu.memory_free_mb)
    used = gpu.memory_total_mb - free
    words = [f"capped by {by}"] if cap < free else []
    words += [f"{used:,.0f} of its {gpu.memory_total_mb:,} are in use"] if used > USED_MB else []
    return min(free, cap), f" ({'; '.join(words)})" if words else ""


@dataclass(frozen=True)
class Expectation:
    """Expected memory of a run, in MiB.

    Attributes:
        model: parameters and statistics.
        optimiser: the optimiser's state.
        trajectory: one trajectory.
        replay: stored experience and one dispatch's batches: in host memory, and on all learning
            devices together.
        workspace: intermediate values of an update on each device (0 until it is compiled).
    """

    model: float
    optimiser: float
    trajectory: float
    replay: tuple[float, float] = (0.0, 0.0)
    workspace: float = 0.0

    @property
    def state(self) -> float:
        """The learning state."""
        return self.model + self.optimiser

    def by_purpose(self, placement: Placement) -> dict[DeviceName, dict[str, float]]:
        """MiB per named device and purpose; trajectories are collected in host memory."""
        host = DeviceName("cpu")
        names = dict.fromkeys((*placement.devices, host))
        taken: dict[DeviceName, dict[str, float]] = {name: {} for name in names}

        def add(device: DeviceName, what: str, size: float) -> None:
            if size:
                taken[device][what] = taken[device].get(what, 0.0) + size

        add(host, "trajectory", self.trajectory)
        add(host, "replay", self.replay[0])
        for learner in placement.learn:
            # An update briefly holds both the old and the new state.
            add(learner, "model", 2 * self.model)
            add(learner, "optimiser", 2 * self.optimiser)
            add(learner, "trajectory", self.trajectory / len(placement.learn))
            add(learner, "replay", self.replay[1] / len(placement.learn))
            add(learner, "workspace", self.workspace)
        for device in taken:
            if device.kind == "gpu":
                add(device, "runtime", CUDA_CONTEXT_MB)
        return taken

    def by_device(self, placement: Placement) -> dict[DeviceName, float]:
        """MiB per named device."""
        return {name: sum(sizes.values()) for name, sizes in self.by_purpose(placement).items()}

    def check(self, placement: Placement, hardware: Hardware) -> str:
        """Refuse a run that does not fit its devices; returns the expected numbers as text."""
        sentences: list[str] = []
        most = max(self.trajectory, sum(self.replay), 2 * self.state)
        pieces = ", or compute gradients in pieces (--micro-batch)" if self.workspace > most else ""
        for device, expected in self.by_device(placement).items():
            available, capped = available_mb(device, placement, hardware)
            if expected > available:
                raise NoRoomError(
                    f"this run would take about {expected:,.0f} MiB on {device} (trajectory "
                    f"{self.trajectory:,.0f}, replay {sum(self.replay):,.0f}, learning state "
                    f"{2 * self.state:,.0f}, workspace {self.workspace:,.0f}), but only "
                    f"{available:,.0f} MiB are available there{capped}; "
                    f"lower --envs, {'--buffer-size' if sum(self.replay) else '--n-steps'} or the "
                    f"network's size{pieces}."
                )
            sentences.append(f"about {expected:,.0f} of {available:,.0f} MiB on {device}{capped}")
        return "expects to take " + ", ".join(sentences)
