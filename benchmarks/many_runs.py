"""How long `flatout report` and `flatout runs` take over thousands of finished runs.

    python benchmarks/many_runs.py --runs 10000 --seeds 5

Trains one small run, copies its files with other seeds, settings and returns, and times each
command as a user starts it, imports included. `--uneven` makes every second run twice as long, so
that the curves of those are read, too.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from machine import machine
from processes import run_checked
from report import spread


def make(root: Path, runs: int, seeds: int, uneven: bool) -> None:
    """Make `runs` run folders below `root`, in groups of `seeds`."""
    train = ["train", "ppo", "--env", "CartPole-v1", "--envs", "8", "--steps", "50000", "--quiet"]
    first = root / "first"
    run_checked([sys.executable, "-m", "flatout", *train, "--run-dir", str(first)])
    config = json.loads((first / "config.json").read_text())
    summary = json.loads((first / "summary.json").read_text())
    rows = [json.loads(line) for line in (first / "metrics.jsonl").read_text().splitlines()]
    draw = random.Random(0)
    for number in range(runs):
        folder = root / "runs" / f"run-{number:05}"
        folder.mkdir(parents=True)
        settings = {"seed": number % seeds, "learning_rate": (number // seeds + 1) * 1e-6}
        changed = config | {"settings": config["settings"] | settings}
        (folder / "config.json").write_text(json.dumps(changed, indent=2))
        longer = 2 if uneven and number % 2 else 1
        value = draw.gauss(summary["return_mean_last"], 20)
        ends = {"steps": summary["steps"] * longer, "return_mean_100": value}
        (folder / "summary.json").write_text(json.dumps(summary | ends, indent=2))
        text = (json.dumps(row | {"step": row["step"] * longer}) + "\n" for row in rows)
        (folder / "metrics.jsonl").write_text("".join(text))


def main() -> None:
    """Make the folders, time the commands, print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=5, help="runs of a group")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--uneven", action="store_true", help="every second run is longer")
    args = parser.parse_args()
    print(f"{machine()}; {args.runs:,} runs, {args.seeds} of a group, uneven={args.uneven}")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        make(root, args.runs, args.seeds, args.uneven)
        for command in (["runs"], ["report"], ["report", "--out", str(root / "report.html")]):
            argv = [sys.executable, "-m", "flatout", command[0], str(root / "runs"), *command[1:]]
            times = [run_checked(argv).wall_s for _ in range(args.repeats)]
            print(f"flatout {' '.join(command[:2])}: {spread(times)} s")


if __name__ == "__main__":
    main()
