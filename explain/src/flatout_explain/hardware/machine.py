"""The machine's processor and memory, as this process may use them."""

from __future__ import annotations

import platform
import re
import sys

import psutil

from flatout_explain.files.kernel import kernel_text
from flatout_explain.hardware.control_groups import group_folders


def memory() -> tuple[int, int]:
    """Return the bytes of host memory within this process's limits, and how many are available."""
    machine = psutil.virtual_memory()
    total, available = within_groups(machine.total, machine.available)
    return total, _allowed(available)


def cpu_name() -> str:
    """Return the processor's name."""
    name = re.search(r"^model name.*?: *(.*)", kernel_text("/proc/cpuinfo"), re.M)
    return name[1].strip() if name else platform.processor() or platform.machine()


def within_groups(total: int, available: int, root: str = "/") -> tuple[int, int]:
    """Limit the machine's memory, and what of it is available, to that of this process's groups."""
    machine = total
    for folder in group_folders("memory", root=root):
        for names in (("max", "current"), ("limit_in_bytes", "usage_in_bytes")):  # version 2, 1
            limit, used = (kernel_text(f"{folder}/memory.{name}").strip() for name in names)
            if limit.isdecimal() and used.isdecimal() and int(limit) < machine:
                stat = kernel_text(f"{folder}/memory.stat")
                # Version 1 has a total with the groups below, which the use includes.
                cached = re.findall(r"^(?:total_)?inactive_file (\d+)$", stat, re.M)
                taken = int(used) - (int(cached[-1]) if cached else 0)  # the rest is reclaimable
                total, available = min(total, int(limit)), min(available, int(limit) - taken)
    return total, max(available, 0)


def _allowed(available: int) -> int:
    """Return how many of these bytes this process may take by its own limit (``ulimit -d``)."""
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
