"""CPU seconds, minutes and compiled programs of the test suite in a fresh clone with cold caches.

    python benchmarks/suite.py                      # make test at HEAD
    python benchmarks/suite.py --avx2               # the same, as CPUs without AVX-512 compute it
    python benchmarks/suite.py --target test-slow   # the slow tier and the AVX2 round
    python benchmarks/suite.py --commit 90f8dc3     # at another commit

Installing is not counted. CPU seconds are those of every process that the target starts, daemons
included. Programs are the entries of XLA's compile cache at the end, one for each different
program.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AVX2 = (
    "--xla_force_host_platform_device_count=8 --xla_cpu_parallel_codegen_split_count=1"
    " --xla_cpu_max_isa=AVX2"
)
PR_SET_CHILD_SUBREAPER = 36


def cpu_seconds() -> float:
    """CPU seconds of the children that have been waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_counted(command: list[str], folder: Path, env: dict[str, str]) -> tuple[int, float, float]:
    """Run a command; return its exit code, wall seconds and the CPU seconds of its process tree.

    Orphans of the command become children of this process (`PR_SET_CHILD_SUBREAPER`), so that
    waiting for all children counts them as well.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    used, began = cpu_seconds(), time.monotonic()
    process = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL)
    code = None
    while code is None:
        pid, status = os.wait()
        if pid == process.pid:
            code = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - began
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:  # orphans that are still ending
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.1)
        except ChildProcessError:
            break
    return code, wall, cpu_seconds() - used


def programs(cache: Path) -> Counter[str]:
    """How many different programs of each name the compile cache holds."""
    return Counter(entry.name.rsplit("-", 2)[0] for entry in cache.rglob("*-cache"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--target", default="test", help="target of the Makefile")
    parser.add_argument("--avx2", action="store_true", help="compile without AVX-512")
    parser.add_argument("--names", type=int, default=0, help="print the N most frequent programs")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flatout-suite-") as parent:
        folder = Path(parent) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        subprocess.run(["git", "checkout", "--quiet", chosen.commit], cwd=folder, check=True)
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=folder, check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip
        dropped = ("JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS", "CI")
        env = {name: value for name, value in os.environ.items() if name not in dropped}
        make = ["make", "--silent"]
        subprocess.run([*make, "install", ".venv/.developing"], cwd=folder, env=env, check=True)
        shutil.rmtree(folder / ".cache", ignore_errors=True)
        if chosen.avx2:
            env["XLA_FLAGS"] = AVX2
        code, wall, cpu = run_counted([*make, chosen.target], folder, env)
        compiled = programs(folder / ".cache")
    print(
        f"{commit} make {chosen.target}{' (AVX2)' if chosen.avx2 else ''}: {cpu:.0f} s of CPU, "
        f"{wall / 60:.1f} min, {compiled.total()} programs compiled, exit code {code}"
    )
    for name, count in compiled.most_common(chosen.names):
        print(f"{count:6d} {name}")
    return code


if __name__ == "__main__":
    sys.exit(main())
