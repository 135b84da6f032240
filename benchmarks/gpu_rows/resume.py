"""Killed and resumed on the GPU; replay saved in host memory goes on in the card's."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from gpu_rows.base import Bench, Figures, Row, until
from harness import BenchmarkError

REPLAY = (
    "--env", "CartPole-v1", "--envs", "8", "--learning-starts", "512", "--buffer-size", "8192",
    "--batch-size", "64", "--train-freq", "64", "--gradient-steps", "16",
)  # fmt: skip
RUNS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "ppo": (
        ("ppo", "--env", "CartPole-v1", "--envs", "8", "--n-steps", "128", "--batch-size", "256"),
        "gpu", "gpu",
    ),
    "ppo-overlapped": (
        ("ppo", "--env", "CartPole-v1", "--n-steps", "128", "--batch-size", "256"),
        "act=gpu sampler=processes workers=4x4 schedule=overlapped", "",
    ),
    "dqn-device-replay": (("dqn", *REPLAY), "act=gpu replay=gpu", ""),
    "dqn-replay-moves": (("dqn", *REPLAY), "gpu", "act=gpu replay=gpu"),
}  # fmt: skip
"""Flags, the placement, and the one with which the killed run goes on (the same where empty)."""


def killed(name: str, bench: Bench) -> list[Figures]:
    """How far a killed and resumed run's agent ends from an undisturbed one's."""
    flags, placement, then = RUNS[name]
    steps = bench.size(60_000, 8_192)
    common = (*flags[1:], "--steps", steps, "--checkpoint-every", steps // 8)
    agents = {}
    for side in ("whole", "again"):
        words = bench.train_words(flags[0], *common, placement=placement, name=side)
        bench.flatout(*words)
        agents[side] = _agent(bench.folder / side)
    run = bench.folder / "killed"
    words = bench.train_words(flags[0], *common, placement=placement, name="killed")
    argv = [sys.executable, "-m", "flatout", *words]
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        saved = run / "checkpoints"
        until(lambda: len(list(saved.glob("step_*"))) > 1 or child.poll() is not None, 60, "a save")
    finally:
        child.send_signal(signal.SIGKILL)
        code = child.wait()
    words = ["train", "--resume", str(run), "--quiet"]
    words += ["--placement", bench.place(then)] if then else []
    bench.flatout(*words)
    resumed = _agent(run)
    if code == 0 or any(agents["whole"][n].shape != a.shape for n, a in resumed.items()):
        raise BenchmarkError(f"the run ended with {code} before it was killed")
    return [{
        "run": name, "killed, resumed: largest difference": _apart(agents["whole"], resumed),
        "two undisturbed runs: largest difference": _apart(agents["whole"], agents["again"]),
    }]  # fmt: skip


def _agent(run: Path) -> dict[str, Any]:
    """The arrays of a run's final agent, its optimiser included."""
    from flatout.storage import checkpoint

    return checkpoint.load_agent(run / "params.safetensors")[0]


def _apart(one: dict[str, Any], other: dict[str, Any]) -> str:
    """In words: bit-equal, or how far."""
    import numpy as np

    if all(a.tobytes() == other[name].tobytes() for name, a in one.items()):
        return "none: equal to the bit"
    worst = max(
        float(np.abs(a.astype(np.float64) - other[name]).max()) for name, a in one.items() if a.size
    )
    return f"{worst:.1e}"


ROWS = [Row(f"resume/{name}", partial(killed, name), limit_s=180) for name in RUNS]
