"""How busy a card was: by the program's own profiler (`explain --record`), and by NVML."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from gpu_rows.base import Bench, Figures, Row, share
from gpu_rows.explain import PROGRAM, explained

PROGRAMS = Path(__file__).parent.parent / "explain"
JAX = {
    "mlp-jax": str(PROGRAMS / "ordinary" / "mlp_metrics_jax.py"),
    "ppo-jax": str(PROGRAMS / "later" / "ppo_vector_jax.py"),
}
"""JAX programs by name; they compute on the card where there is one."""

PLANTED = ("launch-bound", "saturated", "env-bound", "acting-bound")


def recorded(name: str, bench: Bench) -> list[Figures]:
    """Run a program under explain, with two seconds of its profiler."""
    device = "cpu" if bench.dry else "cuda"
    script = [JAX[name]] if name in JAX else [PROGRAM, name, "--device", device]
    seconds = bench.size(14, 6)
    said, used = explained(
        bench, f"record-{name}.json", script, "--seconds", seconds, "--record", 2
    )
    busy = ", ".join(f"{device} {share(value)}" for device, value in said["busy"].items())
    return [{
        "program": name, "verdict": said["verdict"],
        "said of the recording": " ".join(said["recorded"] or said["notes"]) or "-",
        "busy in it": busy or "-", "GPU busy (NVML)": share(used["gpu"]),
    }]  # fmt: skip


ROWS = [
    Row(f"record/{name}", partial(recorded, name), ("torch",) if name in PLANTED else (), 120)
    for name in (*PLANTED, *JAX)
]
