"""Where there are more cards: the same work on one and on several, and why two can be slower."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from gpu_rows.base import Bench, Figures, Row

SCALED = {
    "classify": (("--batch-size", "4096"), ("--batch-size", "64", "--steps", "20")),
    "ppo": (
        ("--env", "CartPole-v1", "--envs", "64", "--hidden", "256,256", "--steps", "200000"),
        ("--env", "CartPole-v1", "--envs", "8", "--n-steps", "32", "--steps", "1024"),
    ),
    "dqn": (
        ("--env", "CartPole-v1", "--envs", "64", "--hidden", "256,256", "--steps", "50000",
         "--batch-size", "256"),
        ("--env", "CartPole-v1", "--envs", "8", "--steps", "1024", "--learning-starts", "256"),
    ),
}  # fmt: skip


def scale(algorithm: str, bench: Bench) -> list[Figures]:
    """`flatout plan --compare-devices` on 1, 2, 4, ... cards."""
    from flatout.hardware.inventory import inventory

    there = 2 if bench.dry else len(inventory().gpus)
    counts = [n for n in (1, 2, 4, 8) if n <= there]
    flags = SCALED[algorithm][1 if bench.dry else 0]
    counted = ",".join(map(str, counts))
    words = ["plan", algorithm, *flags, "--compare-devices", counted, "--run", "--json"]
    words += ["--virtual-devices", "2"] if bench.dry else []
    said = json.loads(bench.flatout(*words, timeout=280).stdout)
    return [{"work": algorithm, "result": json.dumps(said)[:600]}]


def causes(bench: Bench) -> list[Figures]:
    """Each known cause by itself (`two_devices.py`)."""
    program = str(Path(__file__).parent.parent / "two_devices.py")
    few = ["--seeds", "1", "--devices", "1", "2"] if bench.dry else []
    done = bench.run([sys.executable, program, "--no-write", *few], timeout=280)
    bench.notes.append("\n".join(line for line in done.stdout.splitlines() if line[:1] == "|"))
    return []


ROWS = [
    *(Row(f"several/{name}", partial(scale, name), limit_s=300, cards=2) for name in SCALED),
    Row("several/causes", causes, limit_s=300, cards=2),
]
