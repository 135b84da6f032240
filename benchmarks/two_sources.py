"""Two source trees against each other: is a change slower than the commit before?

``python benchmarks/two_sources.py BEFORE [AFTER]`` takes folders of repositories (AFTER is this
one). Every case runs in both, in turns, and the first of a pair is the second of the next. A ratio
above 1 means that AFTER is faster. The table is printed, for the change's description.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from harness import REPO
from report import table

PPO = ("ppo", "--env", "CartPole-v1", "--envs", "8", "--n-steps", "256", "--batch-size", "64",
       "--n-epochs", "10", "--steps", "102400")  # fmt: skip
DQN = ("dqn", "--env", "CartPole-v1", "--envs", "8", "--batch-size", "32", "--buffer-size", "50000",
       "--learning-starts", "1000", "--train-freq", "32", "--gradient-steps", "8", "--hidden",
       "64,64", "--steps", "81920")  # fmt: skip
SAC = ("sac", "--env", "Pendulum-v1", "--steps", "2000", "--learning-starts", "100")
TRANSPORT = ("--side", "flatout", "--envs", "32", "--workers", "2", "--seconds", "3")
SOLVED = ("ppo", "--preset", "cartpole-ppo")


def child(repo: Path, *words: str, cache: Path | None = None) -> str:
    """Run Python in a source tree; returns what it printed."""
    paths = repo / "src", repo / "explain" / "src"  # older commits have only the first
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    if cache is not None:
        variables["JAX_COMPILATION_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [sys.executable, *words],
        env=variables,
        cwd=repo,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def train(repo: Path, words: Sequence[str], cache: Path) -> dict[str, float]:
    """A run's summary."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        child(repo, "-m", "flatout", "train", *words, "--run-dir", str(run), "--quiet", cache=cache)
        return json.loads((run / "summary.json").read_text())


def rate(words: Sequence[str], repo: Path, cache: Path) -> float:
    """Steps per second after start-up."""
    return train(repo, words, cache)["steps_per_s"]


def transport(repo: Path, cache: Path) -> float:
    """Steps per second of environments that do nothing."""
    return json.loads(child(repo, "benchmarks/transport_side.py", *TRANSPORT))["steps_per_s"]


def solved(warm: bool, repo: Path, cache: Path) -> float:
    """CartPole solved by a whole process, per second."""
    if not warm:
        shutil.rmtree(cache, ignore_errors=True)
    began = time.perf_counter()
    train(repo, SOLVED, cache)
    return 1.0 / (time.perf_counter() - began)


CASES: dict[str, Callable[[Path, Path], float]] = {
    "make train, first": partial(solved, False), "make train, again": partial(solved, True),
    "ppo_speed": partial(rate, PPO), "dqn_cartpole": partial(rate, DQN),
    "sac_pendulum": partial(rate, SAC), "transport": transport,
}  # fmt: skip


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The bootstrap's 90 % interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(4000))
    return medians[200], medians[-201]


def main() -> None:
    """Run all pairs and print the table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("before", type=Path)
    options.add_argument("after", type=Path, nargs="?", default=REPO)
    options.add_argument("--pairs", type=int, default=8)
    options.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    args = options.parse_args()
    sides = {"before": args.before.resolve(), "after": args.after.resolve()}
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        caches = {side: Path(folder) / side for side in sides}
        for case in args.only:
            found: dict[str, list[float]] = {side: [] for side in sides}
            for pair in range(-1, args.pairs):  # the first warms the caches up and is not counted
                for side in sorted(sides, reverse=pair % 2 == 0):
                    value = CASES[case](sides[side], caches[side])
                    if pair >= 0:
                        found[side].append(value)
            ratios = [a / b for a, b in zip(found["after"], found["before"], strict=True)]
            low, high = interval(ratios)
            rows.append([case, f"{statistics.median(ratios):.3f}", f"{low:.3f}-{high:.3f}",
                         ", ".join(f"{ratio:.2f}" for ratio in ratios)])  # fmt: skip
            print(*rows[-1], sep="  ", flush=True)
    print(table(["case", "after / before, median", "90 % interval", "each pair"], rows))


if __name__ == "__main__":
    main()
