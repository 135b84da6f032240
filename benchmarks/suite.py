"""CPU seconds, minutes and compiled programs of the test suite in a fresh clone with cold caches.

    python benchmarks/suite.py                                   # make test, at HEAD
    python benchmarks/suite.py --commits 90f8dc3 HEAD --avx2     # of two commits, without AVX-512
    python benchmarks/suite.py --target test-slow                # the slow tier and the AVX2 round

Each run clones this checkout; installing is not counted. CPU seconds are those of every process
that the target starts, daemons included. Programs are the entries of XLA's compile cache at the
end, one for each different program. All runs are kept and shown in RESULTS.md. Run it with nothing
else on the machine.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import HERE, Row, add_line, kept_lines, parser
from machine import machine
from report import table, write_section

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


def measured(commit: str, target: str, avx2: bool) -> Row:
    """One cold run of a target of the Makefile at a commit."""
    with tempfile.TemporaryDirectory(prefix="flatout-suite-") as parent:
        folder = Path(parent) / "clone"

        def git(*words: str) -> str:
            done = subprocess.run(["git", *words], check=True, capture_output=True, text=True)
            return done.stdout.strip()

        here = str(HERE.parent)
        git("clone", "--quiet", here, str(folder))
        git("-C", str(folder), "checkout", "--quiet", git("-C", here, "rev-parse", commit))
        dropped = ("JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS", "CI")
        env = {name: value for name, value in os.environ.items() if name not in dropped}
        make = ["make", "--silent"]
        subprocess.run([*make, "install", ".venv/.developing"], cwd=folder, env=env, check=True)
        shutil.rmtree(folder / ".cache", ignore_errors=True)
        if avx2:
            env["XLA_FLAGS"] = AVX2
        code, wall, cpu = run_counted([*make, target], folder, env)
        return {
            "commit": git("-C", str(folder), "rev-parse", "--short", "HEAD"),
            "target": target, "avx2": avx2, "code": code, "wall_s": wall, "cpu_s": cpu,
            "programs": sum(1 for _ in (folder / ".cache").rglob("*-cache")),
            "when": datetime.date.today().isoformat(),
        }  # fmt: skip


def report(args: argparse.Namespace, rows: list[Row]) -> None:
    """Write the section: each run, and its CPU seconds against the first run of its kind."""
    first: dict[tuple[str, bool], float] = {}
    body: list[list[str]] = []
    for row in rows:
        kind = (row["target"], row["avx2"])
        share = row["cpu_s"] / first.setdefault(kind, row["cpu_s"])
        body.append([
            row["commit"], f"make {row['target']}" + (", AVX2" if row["avx2"] else ""),
            f"{row['cpu_s']:.0f}", f"{share:.0%}", f"{row['wall_s'] / 60:.1f}",
            f"{row['programs']:,}", "passed" if row["code"] == 0 else f"exit code {row['code']}",
            row["when"],
        ])  # fmt: skip
    head = ["commit", "command", "CPU s", "of the first", "minutes", "programs", "result", "date"]
    avx512 = "with" if "avx512f" in Path("/proc/cpuinfo").read_text() else "without"
    write_section(
        args, "suite",
        "## The tests with cold caches\n\n"
        f"- Machine: {machine()}, {avx512} AVX-512.\n"
        "- Command: `python benchmarks/suite.py`, with `--commits`, `--avx2` and `--target`.\n"
        "- Each line is one run; CPU seconds of whole process trees.\n\n" + table(head, body),
    )  # fmt: skip


def main() -> int:
    options = parser(__doc__, 1)
    options.add_argument("--commits", nargs="+", default=["HEAD"])
    options.add_argument("--target", default="test", help="target of the Makefile")
    options.add_argument("--avx2", action="store_true", help="compile without AVX-512")
    args = options.parse_args()
    kept = Path(args.results) / "suite.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    codes = []
    for commit in args.commits:
        row = measured(commit, args.target, args.avx2)
        add_line(kept, row)
        codes.append(row["code"])
    report(args, kept_lines(kept))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
