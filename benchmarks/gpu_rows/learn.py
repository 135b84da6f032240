"""Breakout for a fixed time: the score against the time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from functools import partial

from gpu_rows.atari import samplers
from gpu_rows.base import Bench, Figures, Row, until
from harness import BenchmarkError

SECONDS = 180
RUNS: dict[str, tuple[int, tuple[object, ...]]] = {
    "ppo": (64, ("--batch-size", 2048, "--learning-rate", "lin_0.0005")),
    "dqn": (32, (
        "--train-freq", 128, "--gradient-steps", 32, "--learning-starts", 10_000, "--buffer-size",
        400_000, "--exploration-steps", 400_000, "--target-update-interval", 10_000,
    )),
}  # fmt: skip
TINY: dict[str, tuple[int, tuple[object, ...]]] = {
    "ppo": (4, ("--batch-size", 64, "--n-steps", 32)),
    "dqn": (4, ("--learning-starts", 128, "--buffer-size", 1024, "--train-freq", 64,
                "--gradient-steps", 4)),
}  # fmt: skip


def score(algorithm: str, bench: Bench) -> list[Figures]:
    """Train, end it as a scheduler does, and read what it had reached when."""
    envs, flags = (TINY if bench.dry else RUNS)[algorithm]
    placement = samplers(envs, bench)["processes, overlapped"]
    placement += " replay=gpu" if algorithm == "dqn" else ""
    words = bench.train_words(
        algorithm, "--preset", f"breakout-{algorithm}", "--envs", envs, *flags, "--steps",
        10_000_000, "--log-every", bench.size(8_192, 128), "--checkpoint-every", 5_000_000,
        placement=placement, name="run",
    )  # fmt: skip
    log = bench.folder / "run" / "metrics.jsonl"
    with (bench.folder / "errors").open("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "flatout", *words], stdout=subprocess.DEVNULL, stderr=errors
        )
        try:
            until(lambda: log.exists() or child.poll() is not None, 60, "the first metrics")
            ends = time.monotonic() + bench.size(SECONDS, 8)
            while time.monotonic() < ends and child.poll() is None:
                time.sleep(0.5)
            child.terminate()  # SIGINT is ignored by what a shell runs in the background
            code = child.wait(timeout=60)
        finally:
            child.kill()
        errors.seek(0)
        if code != 128 + signal.SIGTERM:
            raise BenchmarkError(f"training ended with {code}:\n{errors.read()}")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    if not rows:
        raise BenchmarkError("nothing was logged")
    chosen = [rows[max(0, len(rows) * part // 6 - 1)] for part in range(1, 7)]
    return [
        {
            "run": f"{algorithm}, {envs} environments", "s since its start": row["time/wall_s"],
            "steps": row["step"], "updates": row["train/updates"],
            "score, last 100 episodes": row.get("rollout/return_mean_100"),
            "steps/s": row.get("time/steps_per_s"),
        }
        for row in chosen
    ]  # fmt: skip


ROWS = [
    Row(f"learn/{name}", partial(score, name), ("ale_py",), SECONDS + 120, free_mb=10_000)
    for name in ("dqn", "ppo")
]
