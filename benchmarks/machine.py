"""The computer that a benchmark runs on: its description, and how busy its cores are."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def machine() -> str:
    """CPU model, cores that we may use, memory and system, in one line."""
    from flatout_explain.hardware.cores import usable_cores
    from flatout_explain.hardware.machine import cpu_name, memory

    gib = memory()[0] / 1024**3
    system = f"{platform.system()} {platform.machine()}"
    return f"{cpu_name()}, {usable_cores()} cores, {gib:.0f} GiB, {system}"


def isa() -> str:
    """The widest vector instructions of this machine: ``avx512f``, ``avx2`` or ``unknown``."""
    found = Path("/proc/cpuinfo")
    flags = set(found.read_text().split()) if found.exists() else set[str]()
    return next((isa for isa in ("avx512f", "avx2") if isa in flags), "unknown")


def commit() -> str:
    """The commit of this source, with a + where tracked files differ from it."""
    git = ["git", "-C", str(Path(__file__).parent)]

    def said(*words: str) -> str:
        return subprocess.run([*git, *words], check=False, capture_output=True, text=True).stdout

    found = said("rev-parse", "--short", "HEAD").strip()
    changed = said("status", "--porcelain", "--untracked-files=no", "--", ":/src", ":/explain/src")
    return f"{found or 'unknown'}{'+' if changed else ''}"


def busy_s() -> float | None:
    """Seconds in which the machine's cores were not idle, or None where nothing tells."""
    try:
        words = Path("/proc/stat").read_text().splitlines()[0].split()
        user, nice, system, _idle, _wait, irq, soft, steal = (int(word) for word in words[1:9])
    except (OSError, ValueError, IndexError):
        return None
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
