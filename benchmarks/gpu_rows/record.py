"""How busy a card was by the program's own profiler (`explain --record`), and by NVML."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from gpu_rows.base import Bench, Figures, Row, share, usage_of
from gpu_rows.explain import PROGRAM, steady

JAX = Path(__file__).parent.parent / "explain"
SCRIPTS = {
    "mlp-jax": str(JAX / "ordinary" / "mlp_metrics_jax.py"),
    "ppo-jax": str(JAX / "later" / "ppo_vector_jax.py"),
}
"""JAX programs by name; they choose their device themselves, and it is the card where one is."""

PLANTED = ("launch-bound", "saturated", "env-bound", "acting-bound")


def recorded(name: str, bench: Bench) -> list[Figures]:
    """Run a program under explain, with two seconds of its profiler."""
    report, evidence = bench.folder / "report.json", bench.kept(f"record-{name}.json")
    script = [PROGRAM, name, "--device", "cpu" if bench.dry else "cuda"]
    script = [SCRIPTS[name]] if name in SCRIPTS else script
    bench.flatout(
        "explain", "--seconds", bench.size(14, 6), "--record", 2, "--stop", "--json", report,
        "--save", evidence, "--", sys.executable, *script, timeout=110, check=False,
    )  # fmt: skip
    said = json.loads(report.read_text())
    samples = json.loads(evidence.read_text()).get("monitor", [])
    return [{
        "program": name, "verdict": said["verdict"], "said of the recording":
        " ".join(said["recorded"]) or " ".join(said["notes"]) or "-",
        "busy in it": ", ".join(f"{key} {share(value)}" for key, value in said["busy"].items())
        or "-", "GPU busy (NVML)": share(usage_of(steady(samples, said["seconds"]))["gpu"]),
    }]  # fmt: skip


ROWS = [
    Row(f"record/{name}", partial(recorded, name), ("torch",) if name in PLANTED else (), 120)
    for name in (*PLANTED, *SCRIPTS)
]
