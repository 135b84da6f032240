"""What `explain` says of programs on a GPU; NVML's busy beside GPM's fullness."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gpu_rows.base import Bench, Figures, Row, holder, share, usage_of

PROGRAM = str(Path(__file__).parent.parent / "explain" / "planted_gpu.py")
W1 = str(Path(__file__).parent.parent / "explain" / "zoo" / "w1_dqn.py")
PLANTED = {
    "gpu-unused": "gpu-unused", "devices-reserved": "devices-reserved",
    "memory-contended": "memory-contended", "transfer-bound": "transfer-bound",
    "acting-bound": "acting-bound", "saturated": "compute-bound", "items": "compute-bound",
    "launch-bound": "launch-bound", "env-bound": "env-bound", "replay-bound": "replay-bound",
}  # fmt: skip
"""By program of `explain/planted_gpu.py`, the finding that it deserves; `w1` is asked without a
promise."""


def verdict(program: str, bench: Bench) -> list[Figures]:
    """Run a program under explain until it has seen enough."""
    device = "cpu" if bench.dry else "cuda"
    script = [PROGRAM, program, "--device", device]
    if program == "w1":
        filled = str(bench.size(50_000, 1_000))
        script = [W1, "--device", device, "--updates", "100000", "--filled", filled, "--memory",
                  "500000", "--played", str(bench.size(2_000, 500))]  # fmt: skip
    seconds = bench.size(20 if program == "w1" else 12, 3)
    contended = program == "memory-contended"
    with holder(bench, 6000) if contended else contextlib.nullcontext():
        said, busy = explained(bench, f"explain-{program}.json", script, "--seconds", seconds)
    first, found = said["findings"][0], [one["id"] for one in said["findings"]]
    return [{
        "program": program, "verdict": said["verdict"], "share": share(first["share"]),
        "planted cause among the findings": str(PLANTED[program] in found) if program in PLANTED
        else "-",
        "headline": said["headline"], "GPU busy (NVML)": share(busy["gpu"]),
        "GPU full (GPM)": share(busy["full"]), "CPU busy": share(busy["cpu"]),
    }]  # fmt: skip


def explained(
    bench: Bench, name: str, script: Sequence[str], *flags: object
) -> tuple[Figures, Figures]:
    """Run a Python script under explain, and keep the evidence as `name`.

    Returns:
        The report, and the usage of the hardware in the explained time (`usage_of`).
    """
    report, evidence = bench.folder / "report.json", bench.kept(name)
    bench.flatout(
        "explain", *flags, "--stop", "--json", report, "--save", evidence, "--", sys.executable,
        *script, timeout=110, check=False,
    )  # fmt: skip
    said = json.loads(report.read_text())
    samples = json.loads(evidence.read_text()).get("monitor", [])
    # The explained time is the last part of the observation.
    begin = samples[-1]["t"] - said["seconds"] if samples else 0.0
    return said, usage_of([sample for sample in samples if sample["t"] >= begin])


ROWS = [
    Row("explain/w1", partial(verdict, "w1"), ("torch", "ale_py"), 120),
    *(
        Row(
            f"explain/{name}", partial(verdict, name), ("torch",), 120,
            cards=2 if name == "devices-reserved" else 1,
        )
        for name in PLANTED
    ),
]  # fmt: skip
