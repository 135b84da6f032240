"""The machine's cores, memory and GPUs, read without JAX or a context on a GPU."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flatout.config.placement import CPU, DeviceName, Placement, parse, with_devices
from flatout.errors import UsageError
from flatout.hardware.processes import MiB
from flatout.installing import install
from flatout.storage.kernel import kernel_text

VIRTUAL = "--xla_force_host_platform_device_count"
"""XLA's flag for several CPU devices."""


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory on a GPU; `memory_mb` is None if the driver hides it."""

    pid: int
    name: str
    memory_mb: int | None


@dataclass(frozen=True)
class Gpu:
    """One visible GPU; `index` counts visible GPUs, as in ``gpu:0``. Memory in MiB."""

    index: int
    name: str
    memory_total_mb: int
    memory_free_mb: int
    physical_index: int = 0
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True)
class Hardware:
    """The machine as this process may use it."""

    cpu_name: str  # the processor's name
    cores: int  # cores within affinity and container limits
    memory_total_mb: int  # host memory in MiB within the container's limit
    memory_available_mb: int
    cpu_devices: int = 1  # that JAX will show; more than one are virtual (XLA)
    gpus: tuple[Gpu, ...] = ()  # the visible GPUs
    cuda_plugin: bool = False  # whether JAX's CUDA plugin is installed
    gpu_note: str = ""  # why GPUs could not be listed, or empty

    @property
    def usable_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that JAX can use: none without its CUDA plugin."""
        return self.gpus if self.cuda_plugin else ()

    def describe(self) -> str:
        """The devices that a placement may name, in words."""
        cpus = "cpu" if self.cpu_devices == 1 else f"cpu:0 to cpu:{self.cpu_devices - 1}"
        gpus = (f"gpu:{gpu.index} ({gpu.name})" for gpu in self.usable_gpus)
        return ", ".join([f"{cpus} ({self.cores} cores)", *gpus])

    @property
    def unused_gpu_warning(self) -> str:
        """A warning if JAX cannot use the machine's GPUs, or empty."""
        if not self.gpus or self.cuda_plugin:
            return ""
        others = len(self.gpus) - 1
        more = f" and {others} more" if others else ""
        return (
            f"This machine has {self.gpus[0].name}{more}, but JAX has no CUDA plugin here, so "
            f"nothing would ever run on it: {install('cuda12')} (or cuda13)."
        )


def inventory() -> Hardware:
    """Look at this machine now."""
    import psutil

    memory = psutil.virtual_memory()
    limit, used = _container_memory()
    total, available = memory.total, memory.available
    if limit is not None and limit < total:
        total, available = limit, min(available, max(0, limit - used))
    available = _allowed(available)
    gpus, note = _gpus()
    flag = re.search(rf"{VIRTUAL}=(\d+)", os.environ.get("XLA_FLAGS", ""))
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    return Hardware(
        cpu_name=_cpu_name(),
        cores=_cores(),
        memory_total_mb=total // MiB,
        memory_available_mb=available // MiB,
        cpu_devices=int(flag[1]) if flag else 1,
        gpus=gpus,
        cuda_plugin=any(importlib.util.find_spec(name) is not None for name in plugins),
        gpu_note=note,
    )


def resolve_placement(
    text: str,
    hardware: Hardware,
    *,
    images: bool = False,
    soft: bool = False,
    devices: int | None = None,
) -> tuple[Placement, list[str]]:
    """Parse a placement and check it against this machine; also gives notes for the user.

    ``auto``: image observations act and learn on ``gpu:0`` if JAX can use it; everything else runs
    on the CPU, where small networks are faster.

    Args:
        images: whether observations are images.
        soft: replace missing devices by available ones.
        devices: learn on the first so many devices.

    Raises:
        UsageError: a named device is missing and `soft` is off.
    """
    notes: list[str] = []
    original = text
    if text.strip() == "auto":
        word = "gpu" if images and hardware.usable_gpus else "cpu"
        reason = "image observations and a GPU" if word == "gpu" else (
            "no GPU that JAX can use" if images else "vector observations: small networks are "
            "faster there"
        )  # fmt: skip
        notes.append(f"placement auto: {word} ({reason})")
        text = word
    gpus = tuple(gpu.index for gpu in hardware.usable_gpus)
    placement = with_devices(parse(text), original, devices, gpus)
    available = {DeviceName("cpu", index) for index in range(hardware.cpu_devices)}
    available |= {DeviceName("gpu", gpu.index) for gpu in hardware.usable_gpus}
    missing = [device for device in placement.devices if device not in available]
    if missing:
        names = ", ".join(str(device) for device in missing)
        if not soft:
            hint = hardware.unused_gpu_warning or hardware.gpu_note
            raise UsageError(
                f"placement {text!r} needs {names}, which is not here; this machine has "
                f"{hardware.describe()}. Name one of those, or pass --soft-placement to run on "
                f"what is there.{' ' + hint if hint else ''}"
            )
        placement = _soften(placement, available)
        notes.append(f"soft placement: {names} is not here; running on {placement} instead")
    return placement, notes


def _soften(placement: Placement, available: set[DeviceName]) -> Placement:
    """Replace each missing device by the first of its kind, or by the CPU."""

    def substitute(devices: tuple[DeviceName, ...]) -> tuple[DeviceName, ...]:
        options = ((device, DeviceName(device.kind), CPU) for device in devices)
        chosen = (next(one for one in some if one in available) for some in options)
        return tuple(dict.fromkeys(chosen))

    has_gpu = any(device.kind == "gpu" for device in available)
    return replace(
        placement,
        act=substitute(placement.act),
        learn=substitute(placement.learn),
        replay=placement.replay if has_gpu else "cpu",
        memory=placement.memory if has_gpu else None,
    )


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # A container's CPU quota, cgroup v2; "max" is none.
    quota = re.fullmatch(r"(\d+) ([1-9]\d*)\s*", kernel_text("/sys/fs/cgroup/cpu.max"))
    return min(cores or 1, max(1, int(quota[1]) // int(quota[2]))) if quota else cores or 1


def _container_memory() -> tuple[int | None, int]:
    """The container's memory limit and use in bytes (cgroup v2), or (None, 0)."""
    files = ("max", "current", "stat")
    limit, used, stat = (kernel_text(f"/sys/fs/cgroup/memory.{name}") for name in files)
    if not limit.strip().isdecimal() or not used.strip().isdecimal():
        return None, 0
    cached = re.search(r"^inactive_file (\d+)$", stat, re.M)  # reclaimable
    return int(limit), int(used) - (int(cached[1]) if cached else 0)


def _allowed(available: int) -> int:
    """What of these bytes this process may take by a limit of its own (``ulimit -d``)."""
    import psutil

    try:
        import resource
    except ImportError:  # Windows
        return available
    if sys.platform != "linux":
        return available
    most, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if most == resource.RLIM_INFINITY:
        return available
    return min(available, max(most - psutil.Process().memory_info().data, 0))


def _cpu_name() -> str:
    name = re.search(r"^model name.*?: *(.*)", kernel_text("/proc/cpuinfo"), re.M)
    return name[1].strip() if name else platform.processor() or platform.machine()


def _gpus() -> tuple[tuple[Gpu, ...], str]:
    """The NVIDIA GPUs that ``CUDA_VISIBLE_DEVICES`` shows, and a note on failure."""
    import pynvml  # the import name of nvidia-ml-py

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        driver = Path("/proc/driver/nvidia/version").exists()
        return (), f"the NVIDIA driver does not answer ({error})" if driver else ""
    try:
        gpus: list[Gpu] = []
        for number, (physical, handle) in enumerate(visible_handles(pynvml)):
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            total, free = int(memory.total) // MiB, int(memory.free) // MiB
            name, users = str(pynvml.nvmlDeviceGetName(handle)), _gpu_processes(pynvml, handle)
            gpus.append(Gpu(number, name, total, free, physical, tuple(users)))
        return tuple(gpus), ""
    except pynvml.NVMLError as error:
        return (), f"the NVIDIA driver does not list its GPUs ({error})"
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _gpu_processes(nvml: Any, handle: Any) -> Iterator[GpuProcess]:
    import psutil

    with suppress(nvml.NVMLError):
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
            name, used = "?", process.usedGpuMemory
            with suppress(psutil.Error):
                name = psutil.Process(process.pid).name()
            yield GpuProcess(process.pid, name, None if used is None else used // MiB)


def visible_handles(nvml: Any) -> list[tuple[int, Any]]:
    """The physical index and NVML's handle of each visible GPU."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is not None and setting.strip().startswith("MIG-"):
        visible = setting.split(",")[0].strip()  # CUDA opens one MIG instance
        instances = [(i, mig) for i, card in enumerate(handles) for mig in _instances(nvml, card)]
        uuids = [str(nvml.nvmlDeviceGetUUID(handle)) for _, handle in instances]
        return [pair for pair, uuid in zip(instances, uuids, strict=True) if uuid == visible]
    uuids = [str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    return [(index, handles[index]) for index in visible_indices(setting, uuids)]


def _instances(nvml: Any, card: Any) -> list[Any]:
    """The handles of a card's MIG instances; numbers may be unused."""
    handles: list[Any] = []
    with suppress(nvml.NVMLError):
        for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card)):
            with suppress(nvml.NVMLError):
                handles.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, number))
    return handles


def visible_indices(setting: str | None, uuids: list[str]) -> list[int]:
    """The physical GPU numbers that ``CUDA_VISIBLE_DEVICES`` shows, in its order.

    As in CUDA, entries are numbers or UUID prefixes; the first entry that names no GPU ends them.
    """
    if setting is None:
        return list(range(len(uuids)))
    visible: list[int] = []
    for entry in (word.strip() for word in setting.split(",")):
        if entry.isascii() and entry.isdecimal() and int(entry) < len(uuids):
            index = int(entry)
        else:
            matches = [i for i, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
            if len(matches) != 1:
                break
            (index,) = matches
        if index in visible:  # named twice: CUDA then shows none
            return []
        visible.append(index)
    return visible
