"""The computer that a benchmark runs on: its description, and how busy its cores are."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
from pathlib import Path


def machine() -> str:
    """CPU model, cores that we may use, memory and system, in one line."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        model = found[1].strip() if found else model
    usable = getattr(os, "sched_getaffinity", None)
    cores = len(usable(0)) if usable else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    return f"{model}, {cores} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}"


def isa_and_commit() -> str:
    """The instruction set of this machine, and the commit of this source, in two sentences."""
    found = Path("/proc/cpuinfo")
    flags = set(found.read_text().split()) if found.exists() else set[str]()
    best = next((isa for isa in ("avx512f", "avx2") if isa in flags), "unknown")
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, check=False, capture_output=True, text=True).stdout.strip()
    return f"Instruction set: {best}. Commit {commit or 'unknown'}."


def busy_s() -> float | None:
    """Seconds in which the machine's cores were not idle, or None where nothing tells."""
    try:
        words = Path("/proc/stat").read_text().splitlines()[0].split()
        user, nice, system, _idle, _wait, irq, soft, steal = (int(word) for word in words[1:9])
    except (OSError, ValueError, IndexError):
        return None
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
