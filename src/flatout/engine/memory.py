"""Expected and actual memory of a run on each device; checked when a run is built."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from flatout.algorithms.base import State
from flatout.config.placement import CPU, DeviceName, Placement
from flatout.engine.mesh import divided_axis
from flatout.errors import NoRoomError
from flatout.hardware.backend import CUDA_CONTEXT_MB, memory_share
from flatout.hardware.inventory import Hardware
from flatout_explain.hardware.processes import MiB

ACTOR_MB = {"central": 21, "local": 89}
"""Private MiB of an actor process, by `Placement.inference`, measured with CartPole-v1. With local
inference the process loads JAX."""

USED_MB = 1024
"""MiB in use above which a card counts as used by other programs: a driver alone takes less."""


def size_mb(tree: Any) -> float:
    """Return the MiB of a pytree of arrays or shapes."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)) / MiB


def learned_mb(shapes: State) -> tuple[float, float]:
    """Return the MiB of a learning state: of the model, and of the optimiser's state."""
    return size_mb(shapes._replace(opt=())), size_mb(shapes.opt)


def divided_mb(shapes: State, count: int) -> tuple[float, float]:
    """Return the `learned_mb` of only those arrays that ``params=sharded`` divides over `count`
    devices."""
    large = jax.tree.map(
        lambda leaf: None if divided_axis(leaf.shape, count) is None else leaf, shapes
    )
    return learned_mb(large)


def live_mb(purposes: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the current MiB on each device by purpose, and as ``peak`` the peak if JAX counts it.

    Args:
        purposes: a pytree of arrays for each purpose.
    """
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
    """Return the MiB that a run may use on a device, and a phrase for a message.

    The phrase names the limit: ``memory=``, an environment variable (of processes that share a
    card), or memory that is already in use. It is empty without a limit.
    """
    if not device.is_gpu:
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
        divided: the parts of `model` and `optimiser` that ``params=sharded`` divides over the
            learning devices, see `divided_mb`.
        stacks: the whole observations that an update makes from a trajectory's frames, on all
            learning devices together; a part of the workspace.
    """

    model: float
    optimiser: float
    trajectory: float
    replay: tuple[float, float] = (0.0, 0.0)
    workspace: float = 0.0
    divided: tuple[float, float] = (0.0, 0.0)
    stacks: float = 0.0

    def learned(self, placement: Placement) -> tuple[float, float]:
        """Return the MiB of the model and of the optimiser's state on each learning device."""
        absent = 1.0 - 1.0 / len(placement.learn) if placement.params_sharded else 0.0
        model, optimiser = (absent * size for size in self.divided)
        return self.model - model, self.optimiser - optimiser

    def before_compiling(self, placement: Placement) -> Expectation:
        """Return a copy with an estimate of the update's workspace: one set of gradients, and whole
        observations. The memory of activations is known only after compiling."""
        gradients = self.learned(placement)[0] if self.optimiser else 0.0
        estimate = gradients + self.stacks / len(placement.learn)
        return replace(self, workspace=self.workspace or estimate)

    def by_purpose(self, placement: Placement) -> dict[DeviceName, dict[str, float]]:
        """Return the MiB by device and purpose. Trajectories are collected in host memory. Workers
        of a cluster take that of their machines, which is not known here."""
        host = DeviceName("cpu")
        names = dict.fromkeys((*placement.devices, host))
        taken: dict[DeviceName, dict[str, float]] = {name: {} for name in names}

        def add(device: DeviceName, what: str, size: float) -> None:
            if size:
                taken[device][what] = taken[device].get(what, 0.0) + size

        add(host, "trajectory", self.trajectory)
        add(host, "replay", self.replay[0])
        if placement.workers is not None and not placement.on_cluster:
            add(host, "actor processes", placement.workers[0] * ACTOR_MB[placement.inference])
        model, optimiser = self.learned(placement)
        for learner in placement.learn:
            # An update briefly holds both the old and the new state.
            add(learner, "model", 2 * model)
            add(learner, "optimiser", 2 * optimiser)
            add(learner, "trajectory", self.trajectory / len(placement.learn))
            add(learner, "replay", self.replay[1] / len(placement.learn))
            add(learner, "workspace", self.workspace)
        for device in taken:
            if device.is_gpu:
                add(device, "runtime", CUDA_CONTEXT_MB)
        return taken

    def by_device(self, placement: Placement) -> dict[DeviceName, float]:
        """Return the MiB by device."""
        return {name: sum(sizes.values()) for name, sizes in self.by_purpose(placement).items()}

    def by_memory(self, placement: Placement) -> dict[DeviceName, dict[str, float]]:
        """Return the MiB by memory and purpose. All CPU devices share the host's memory, which is
        named ``cpu``; each GPU has its own memory."""
        taken: dict[DeviceName, dict[str, float]] = {}
        for device, sizes in self.by_purpose(placement).items():
            together = taken.setdefault(device if device.is_gpu else CPU, {})
            for what, size in sizes.items():
                together[what] = together.get(what, 0.0) + size
        return taken

    def check(self, placement: Placement, hardware: Hardware) -> str:
        """Compare the expected with the available memory. Return both as text.

        Raises:
            NoRoomError: the run does not fit its devices.
        """
        sentences: list[str] = []
        for device, sizes in self.by_memory(placement).items():
            where = names_of(device, placement)
            expected, (available, capped) = (
                sum(sizes.values()), available_mb(device, placement, hardware)
            )  # fmt: skip
            if expected > available:
                parts = ", ".join(f"{what} {size:,.0f}" for what, size in _group(sizes).items())
                raise NoRoomError(
                    f"this run would take about {expected:,.0f} MiB on {where} ({parts}), but only "
                    f"{available:,.0f} MiB are available there{capped}; "
                    f"{self._remedies(device, sizes, placement)}."
                )
            size = f"about {expected:,.0f}" if expected >= 1 else "less than 1"
            sentences.append(f"{size} of {available:,.0f} MiB on {where}{capped}")
        return "expects to take " + ", ".join(sentences)

    def _remedies(self, device: DeviceName, sizes: dict[str, float], placement: Placement) -> str:
        """Return advice on settings with which the run needs less memory on a device."""
        parts = _group(sizes)
        size = "--buffer-size" if sum(self.replay) else "--n-steps"
        words = f"lower --envs, {size} or the network's size"
        if max(parts, key=lambda what: parts[what]) == "workspace":
            words += ", or compute gradients in pieces (--micro-batch)"
        if max(parts, key=lambda what: parts[what]) == "actor processes":
            words = "start fewer of them (workers=WORKERSxENVIRONMENTS)"
        others = replace(placement, params="sharded")
        if not placement.fused and len(placement.learn) > 1 and (
            sum(self.by_memory(others)[device].values()) < 0.9 * sum(sizes.values())
        ):  # fmt: skip
            words += ", or divide the parameters over the learning devices (params=sharded)"
        return words


def names_of(memory: DeviceName, placement: Placement) -> str:
    """Return a phrase that names the devices of a placement that share a memory."""
    cpus = [str(device) for device in placement.devices if not device.is_gpu]
    if memory.is_gpu or len(cpus) < 2:
        return str(memory)
    return f"{cpus[0]} to {cpus[-1]} together" if len(cpus) > 2 else " and ".join(cpus)


def _group(sizes: Mapping[str, float]) -> dict[str, float]:
    """Return the MiB by purpose with the model and the optimiser as one ``learning state``."""
    state = sizes.get("model", 0.0) + sizes.get("optimiser", 0.0)
    rest = {what: size for what, size in sizes.items() if what not in ("model", "optimiser")}
    return ({"learning state": state} if state else {}) | rest
