"""GPU use, read from NVML without opening a context on a GPU.

*Busy* is the share of time in which some kernel ran; *full* is the share of multiprocessors that
worked (GPM, Hopper and newer).
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from flatout_explain.documents import Number, WholeNumber
from flatout_explain.hardware.nvml import visible_handles
from flatout_explain.hardware.processes import MiB


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment."""

    index: WholeNumber  # its number among visible GPUs, as in ``gpu:0``
    name: str = ""  # the card's
    busy: Number | None = None  # share of time with some kernel running; None if unknown
    full: Number | None = None  # share of its multiprocessors that worked, 0 to 1; None if unknown
    used_mb: WholeNumber = 0  # memory in MiB
    total_mb: WholeNumber = 0
    ours_mb: WholeNumber | None = None  # memory that the program holds; None if the driver hides it
    ours: tuple[int, ...] = ()  # the program's processes that hold memory
    others: WholeNumber = 0  # number of other processes that do
    owners: tuple[str, ...] = ()  # their programs' names, as far as they are known


class Gpus:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` shows; `notes` says what cannot be read."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._handles: list[Any] = []
        self._names: list[str] = []
        self._gpm: list[tuple[Any, Any] | None] = []  # memory of two samples, by GPU
        self._primed: set[int] = set()
        self._programs: dict[int, str] = {}  # names of other processes' programs, by pid
        self._undo = ExitStack()
        import pynvml  # the import name of nvidia-ml-py

        nvml: Any = pynvml
        self._nvml, failure = nvml, "No NVIDIA GPU was found"
        try:
            nvml.nvmlInit()
            self._undo.callback(nvml.nvmlShutdown)
            failure = "The NVIDIA driver does not list its GPUs"
            handles = [handle for _, handle in visible_handles(nvml)]
            self._names = [str(nvml.nvmlDeviceGetName(handle)) for handle in handles]
            self._handles = handles
        except nvml.NVMLError as error:
            self.notes.append(f"{failure} ({_words(error)}).")
        self._gpm = [self._prepare(handle) for handle in self._handles]
        if self._handles and not any(self._gpm):
            self.notes.append("How busy a GPU is can be read here, but not how full.")

    def read(self, pids: Collection[int]) -> tuple[GpuSample, ...]:
        """Each visible GPU now; fullness since the last reading. `pids` are the program's."""
        return tuple(self._read_gpu(index, pids) for index in range(len(self._handles)))

    def close(self) -> None:
        """Release the driver."""
        self._handles = []
        with suppress(self._nvml.NVMLError):
            self._undo.close()

    def _read_gpu(self, index: int, pids: Collection[int]) -> GpuSample:
        nvml, handle = self._nvml, self._handles[index]
        busy: float | None = None
        used = total = 0
        others: list[str] = []  # other processes' programs
        ours: dict[int, int | None] = {}  # the program's processes and what each holds
        with suppress(nvml.NVMLError):
            busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        with suppress(nvml.NVMLError):
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            used, total = int(memory.used) // MiB, int(memory.total) // MiB
        with suppress(nvml.NVMLError):
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid in pids:
                    ours[process.pid] = process.usedGpuMemory
                else:
                    others.append(self._program(process.pid))
        ours_mb = None if None in ours.values() else sum(mb // MiB for mb in ours.values() if mb)
        return GpuSample(
            index, self._names[index], busy, self._full(index), used, total, ours_mb,
            tuple(ours), len(others), tuple(dict.fromkeys(filter(None, others))),
        )  # fmt: skip

    def _program(self, pid: int) -> str:
        """The name of another process's program; empty if it is unknown here."""
        if pid not in self._programs:
            import psutil

            self._programs[pid] = ""
            with suppress(psutil.Error, ValueError):
                self._programs[pid] = psutil.Process(pid).name()
        return self._programs[pid]

    def _prepare(self, handle: Any) -> tuple[Any, Any] | None:
        """Memory for two GPM samples; None without GPM."""
        nvml = self._nvml
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                return None
            pair = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
            for sample in pair:
                self._undo.callback(nvml.nvmlGpmSampleFree, sample)
            return pair
        except (nvml.NVMLError, AttributeError):
            return None

    def _full(self, index: int) -> float | None:
        """SM utilisation between the last reading and this one."""
        pair = self._gpm[index]
        if pair is None:
            return None
        nvml, handle = self._nvml, self._handles[index]
        before, now = pair
        try:
            nvml.nvmlGpmSampleGet(handle, now)
            self._gpm[index] = (now, before)
            if index not in self._primed:
                self._primed.add(index)
                return None
            query = nvml.c_nvmlGpmMetricsGet_t()
            query.version, query.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
            query.sample1, query.sample2 = before, now
            query.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
            nvml.nvmlGpmMetricsGet(query)
            value = float(query.metrics[0].value) / 100
            return value if 0.0 <= value <= 1.0 else None
        except nvml.NVMLError as error:
            self._gpm[index] = None
            self.notes.append(f"How full GPU {index} is cannot be read: {_words(error)}.")
            return None


def _words(error: Exception) -> str:
    return str(error).rstrip(".")
