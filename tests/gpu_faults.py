"""Rows that go wrong in each way that a row can, for `benchmarks/gpu.py --rows`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

from gpu_rows.base import Bench, Row  # pyright: ignore[reportMissingImports]


def fine(bench: Bench) -> list[dict[str, Any]]:
    bench.notes.append("a note")
    return [{"asked": "yes", "where": bench.place("cpu+gpu")}]


def raises(bench: Bench) -> list[dict[str, Any]]:
    for number in range(30):
        print("line", number, file=sys.stderr)
    raise ValueError("this row is wrong")


def hangs(bench: Bench) -> list[dict[str, Any]]:
    print(subprocess.Popen(["sleep", "600"]).pid, flush=True)  # a process that it leaves behind
    time.sleep(600)
    return []


def eats(bench: Bench) -> list[dict[str, Any]]:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    return [{"size": len(bytearray(1 << 34))}]


def dies(bench: Bench) -> list[dict[str, Any]]:
    os.abort()


ROWS = [
    Row("faults/raises", raises),
    Row("faults/hangs", hangs, limit_s=2),
    Row("faults/eats", eats),
    Row("faults/dies", dies),
    Row("faults/needs", fine, needs=("no_such_package",)),
    Row("faults/fine", fine),
]
