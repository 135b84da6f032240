"""Does a change make steps dearer? CPU seconds per step of two source trees, run in turn.

    git worktree add ../before COMMIT
    python tools/cpu_per_step.py ../before/src src

Each workload trains briefly and, for five times as many steps, once more: the difference of their
process trees' CPU seconds is that of steps alone, without imports and compilation. The trees take
turns, five times (``--pairs``). It prints every pair's ratio (after / before) and their median;
it ends with 1 where a median is above 1.03.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT = 1.03
REPLAY = ("--batch-size", "32", "--learning-starts", "512", "--buffer-size", "20000", "--hidden",
          "64,64")  # fmt: skip
WORKLOADS: dict[str, tuple[int, tuple[str, ...]]] = {
    "ppo": (16384, ("ppo", "--env", "CartPole-v1", "--envs", "8", "--n-steps", "256",
                    "--batch-size", "64", "--n-epochs", "10", "--placement", "sampler=inline")),
    "dqn": (16384, ("dqn", "--env", "CartPole-v1", "--envs", "8", *REPLAY, "--train-freq", "8",
                    "--gradient-steps", "2", "--placement", "sampler=inline")),
    "sac": (1024, ("sac", "--env", "Pendulum-v1", "--envs", "1", "--learning-starts", "128",
                   "--buffer-size", "20000", "--placement", "sampler=inline")),
    "processes": (16384, ("ppo", "--env", "CartPole-v1", "--envs", "8", "--n-steps", "256",
                          "--batch-size", "512", "--n-epochs", "1", "--placement",
                          "sampler=processes workers=2x4")),
    "fused": (409_600, ("ppo", "--env", "CartPole-v1", "--env-backend", "device", "--envs", "4",
                        "--n-steps", "128", "--batch-size", "128", "--n-epochs", "4")),
}  # fmt: skip
"""Steps of the shorter run, and the command's words."""


def cpu_s(source: Path, words: tuple[str, ...], steps: int) -> float:
    """CPU seconds of one run's process tree."""
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "flatout", "train", *words, "--steps", str(steps), "--seed", "0",
             "--run-dir", f"{folder}/run", "--quiet", "--no-tensorboard"],
            env=os.environ | {"PYTHONPATH": str(source)}, cwd=folder, check=True,
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        json.loads(Path(folder, "run", "summary.json").read_text())  # it ended as it should
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Run the pairs, and tell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("before", type=Path, help="the folder src of the commit before")
    parser.add_argument("after", type=Path, help="the folder src after the change")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], choices=WORKLOADS, help="workloads")
    args = parser.parse_args()
    worst = 0.0
    for name, (steps, words) in WORKLOADS.items():
        if args.only and name not in args.only:
            continue
        costs: list[list[float]] = [[], []]
        for source in (args.before, args.after):  # fills the cache of compiled programs
            cpu_s(source.resolve(), words, steps)
        for _ in range(args.pairs):
            for side, source in enumerate((args.before, args.after)):
                short, long = (cpu_s(source.resolve(), words, n) for n in (steps, 5 * steps))
                costs[side].append((long - short) / (4 * steps) * 1e6)
        ratios = [new / old for old, new in zip(*costs, strict=True)]
        median = statistics.median(ratios)
        worst = max(worst, median)
        before, after = map(statistics.median, costs)
        each = " ".join(f"{ratio:.3f}" for ratio in ratios)
        print(
            f"{name:10} {before:8.1f} -> {after:8.1f} us a step: {median:.3f} ({each})", flush=True
        )
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
