"""Several runs at once on one card, as processes: what they do together."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

from gpu_rows.base import Bench, Figures, Row
from harness import BenchmarkError, Command
from window import windowed

FLAGS = (
    "ppo", "--env", "CartPole-v1", "--envs", "32", "--n-steps", "64", "--batch-size", "256",
    "--n-epochs", "10", "--hidden", "256,256", "--checkpoint-every", "0",
)  # fmt: skip
COUNTS = (1, 2, 4, 8)


def together(count: int, bench: Bench) -> list[Figures]:
    """Start them at once; their rates add up over the time in which all of them train."""
    steps = bench.size(120_000, 8_192)
    words = [
        bench.train_words(
            *FLAGS, "--steps", steps, "--seed", seed, "--log-every", 2048,
            placement=f"act=gpu memory={0.8 / count:.2f}" if not bench.dry else "gpu",
            name=f"run-{seed}",
        )
        for seed in range(count)
    ]  # fmt: skip
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "flatout", *own], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for own in words
    ]  # fmt: skip
    rates = []
    for seed, (child, own) in enumerate(zip(children, words, strict=True)):
        out, err = child.communicate(timeout=100)
        if child.returncode:
            raise BenchmarkError(f"one of {count} ended with {child.returncode}:\n{err}")
        command = Command(own, run_dir=bench.folder / f"run-{seed}")
        window = windowed(steps // 4)(command, json.loads(out))["window"]
        rates.append(window["steps"] / window["s"])
    return [{
        "runs": count, "steps/s together": sum(rates), "slowest": min(rates),
        "fastest": max(rates),
    }]  # fmt: skip


ROWS = [Row(f"sharing/{count}", partial(together, count), limit_s=150) for count in COUNTS]
