"""The visible NVIDIA GPUs, read through NVML without JAX or a context on a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout_explain.hardware.processes import MiB


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory on a GPU; `memory_mb` is None if the driver hides it."""

    pid: int
    name: str
    memory_mb: int | None


@dataclass(frozen=True)
class Gpu:
    """One visible GPU; `index` counts visible GPUs, as in ``gpu:0``. Memory in MiB; `busy` is the
    percentage of time with a kernel running, None if the driver does not report it."""

    index: int
    name: str
    memory_total_mb: int
    memory_free_mb: int
    physical_index: int = 0
    processes: tuple[GpuProcess, ...] = ()
    busy: int | None = None


def visible_gpus() -> tuple[tuple[Gpu, ...], str]:
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
            busy = None
            with suppress(pynvml.NVMLError):  # a MIG instance does not report it
                busy = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            gpus.append(Gpu(number, name, total, free, physical, tuple(users), busy))
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
