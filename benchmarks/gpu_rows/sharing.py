"""Several runs at once on one card: what they do together, as plain processes and under MPS."""

from __future__ import annotations

import json
import os
import shutil
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
MPS = "nvidia-cuda-mps-control"


def together(count: int, mps: bool, bench: Bench) -> list[Figures]:
    """Start them at once; their rates add up over the time in which all of them train."""
    if mps and (bench.dry or shutil.which(MPS) is None):
        bench.notes.append(f"{MPS} is not here: nothing ran under MPS.")
        return []
    steps = bench.size(120_000, 8_192)
    server = _Mps(bench) if mps else None
    try:
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
        results = []
        for child, own in zip(children, words, strict=True):
            out, err = child.communicate(timeout=100)
            if child.returncode:
                raise BenchmarkError(f"one of {count} ended with {child.returncode}:\n{err}")
            seed = len(results)
            command = Command(own, run_dir=bench.folder / f"run-{seed}")
            results.append(windowed(steps // 4)(command, json.loads(out)))
    finally:
        if server is not None:
            server.stop()
    rates = [one["window"]["steps"] / one["window"]["s"] for one in results]
    return [{
        "runs": count, "as": "MPS clients" if mps else "processes",
        "steps/s together": sum(rates), "slowest": min(rates), "fastest": max(rates),
    }]  # fmt: skip


class _Mps:
    """NVIDIA's multi-process server, for our own children, with folders of its own."""

    def __init__(self, bench: Bench) -> None:
        for what in ("PIPE", "LOG"):
            folder = bench.folder / f"mps-{what.lower()}"
            folder.mkdir()
            os.environ[f"CUDA_MPS_{what}_DIRECTORY"] = str(folder)
        done = subprocess.run([MPS, "-d"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchmarkError(f"MPS does not start: {done.stderr or done.stdout}")

    def stop(self) -> None:
        """End it."""
        subprocess.run([MPS], input="quit\n", text=True, check=False, timeout=20)


ROWS = [
    *(Row(f"sharing/{count}", partial(together, count, False), limit_s=150) for count in COUNTS),
    *(Row(f"sharing/mps-{n}", partial(together, n, True), limit_s=150) for n in COUNTS[1:]),
]
