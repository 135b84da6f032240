"""HolisticTraceAnalysis and `flatout explain` on traces of PyTorch's profiler (for `rivals.py`).

The traces are those of `tests/explain/test_traces.py`, of a device whose work is known, each of
`STEPS` steps. HolisticTraceAnalysis' temporal breakdown says what takes most of the device's time:
nothing (then its idle time breakdown says why), kernels that do not compute (then its kernel
breakdown says which kind) or computing; of equal shares the first of these counts. It **names the
cause** if that is the planted one, and the side if it says "host wait" and the cause is some work
of the host.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

TRACES_HEAD = [
    "trace", "device busy", "planted", "explain", "names", "HolisticTraceAnalysis", "names"
]  # fmt: skip

STEPS = 20

HOST_CAUSES = ("input-bound", "env-bound", "host-bound", "launch-bound")
"""Causes in which the device waits for work of the host."""

HTA_CAUSES = {
    "computing": "healthy", "COMMUNICATION": "communication-bound", "MEMORY": "transfer-bound",
}  # fmt: skip
"""The causes that HolisticTraceAnalysis says in its own words."""

ANALYSIS = """
import json, sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=sys.argv[2])
time = found.get_temporal_breakdown(visualize=False).iloc[0]
kinds, _ = found.get_gpu_kernel_breakdown(visualize=False)
idle = found.get_idle_time_breakdown(ranks=[0], visualize=False)[0]
print(json.dumps({
    "time": {name: float(time[f"{name}_time_pctg"]) for name in ("idle", "non_compute", "compute")},
    "kinds": {str(row.kernel_type): float(row["sum"]) for _, row in kinds.iterrows()},
    "idle": {str(row.idle_category): float(row.idle_time) for _, row in idle.iterrows()},
}))
"""


def first_of_hta(said: Mapping[str, Mapping[str, float]]) -> str:
    """Return in HolisticTraceAnalysis' words what takes most of a device's time, and why."""

    def largest(of: Mapping[str, float]) -> str:
        return max(of, key=lambda name: of[name], default="nothing")

    most = largest(said["time"])
    if most == "idle":
        return largest(said["idle"])
    others = {kind: us for kind, us in said["kinds"].items() if kind != "COMPUTATION"}
    return "computing" if most == "compute" else largest(others)


def verdict_of_hta(words: str, cause: str) -> str:
    """Return what the words say about a planted cause."""
    if HTA_CAUSES.get(words) == cause:
        return "**the cause**"
    return "the side" if words == "host_wait" and cause in HOST_CAUSES else "another"


def traces(python: str) -> list[list[str]]:
    """Read each trace with HolisticTraceAnalysis and with explain; return a table's rows."""
    from tests.explain.recorded_traces import Kineto
    from tests.explain.test_traces import CAUSES, explained, steps

    rows = []
    for step, cause, busy in CAUSES:
        with tempfile.TemporaryDirectory() as folder:
            trace = Kineto()
            trace.properties["distributedInfo"] = {"rank": 0, "world_size": 1}
            steps(trace, step, STEPS)
            file = trace.write(Path(folder) / "rank0.pt.trace.json")
            ours = explained(file).verdict
            argv = [python, "-c", ANALYSIS, str(file), folder]
            child = subprocess.run(argv, check=False, capture_output=True, text=True)
        if child.returncode:
            words = (child.stderr.strip().splitlines() or ["no message"])[-1]
            theirs = ["-", f"fails ({words})"]
        else:
            words = first_of_hta(json.loads(child.stdout.splitlines()[-1]))
            theirs = [words, verdict_of_hta(words, cause)]
        named = "**the cause**" if ours == cause else "another"
        rows.append([step.__name__, f"{busy:.0%}", cause, ours, named, *theirs])
    return rows
