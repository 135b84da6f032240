"""Time until CartPole-v1 is solved: Flatout's whole process against Stable-Baselines3's training.

Solved means that the last 100 training returns have a mean of at least 475. Each side has its own
tuned settings: Flatout the preset ``cartpole-ppo``, Stable-Baselines3 those of RL Zoo. Flatout's
time is that of its whole process, with imports and compilation; Stable-Baselines3's counts after
its imports. Flatout runs once without and once with a warm compilation cache, reported apart.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path

from harness import (
    HERE,
    BenchmarkError,
    Row,
    Store,
    json_of,
    main,
    parser,
    peer_command,
    run_child,
    train_command,
)
from report import RATIO_HEAD, per_round, provenance, ratio_row, spread, table, write_section

NAME = "cartpole_solved"
GOAL = "475"
PRESET = "cartpole-ppo"
PRIMING_SEED = 1000
FLAGS = ("--preset", PRESET, "--threshold", GOAL, "--stop-at-return", GOAL)


def benchmark(args: argparse.Namespace) -> None:
    """Prime the cache, run the sides in turn, write the section."""
    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3.")
    settings = {
        "flags": list(FLAGS), "extra": args.flatout_args, "threads": args.peer_threads,
    }  # fmt: skip
    store = Store(NAME, settings, args)
    seeds = range(args.seeds)
    cache = HERE / "runs" / NAME / "compilation-cache"
    warm = {"JAX_ENABLE_COMPILATION_CACHE": "1", "JAX_COMPILATION_CACHE_DIR": str(cache)}
    if any(store.get("flatout, warm cache", seed) is None for seed in seeds):
        prime(args, cache, warm)
    rows = store.alternate(
        {
            "flatout": lambda seed: train_command(args, NAME, "cold", seed, *FLAGS),
            "flatout, warm cache": lambda seed: train_command(
                args, NAME, "warm", seed, *FLAGS, env=warm
            ),
            "sb3": lambda seed: peer_command(
                args, "sb3_ppo.py", seed, "--zoo", "cartpole", "--stop-at-return", GOAL,
                "--threads", str(args.peer_threads),
            ),
        },
        seeds,
    )  # fmt: skip
    write_section(args, NAME, section(args, rows))


def prime(args: argparse.Namespace, cache: Path, env: dict[str, str]) -> None:
    """Fill an empty compilation cache by one run that is not counted.

    Raises:
        BenchmarkError: the run left nothing in the cache.
    """
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(parents=True)
    command = train_command(args, NAME, "priming", PRIMING_SEED, *FLAGS)
    if command.run_dir is not None:
        shutil.rmtree(command.run_dir, ignore_errors=True)
    json_of(run_child(command.argv, env, args.timeout), f"{NAME}: the run that fills the cache")
    if not any(cache.glob("*-cache")):
        raise BenchmarkError("flatout wrote nothing into JAX_COMPILATION_CACHE_DIR.")


def solved(row: Row) -> bool:
    """Whether the run reached the goal."""
    at = row["result"]["time_to_return_s"]
    return (at.get(str(float(GOAL))) if isinstance(at, dict) else at) is not None


def seconds(row: Row) -> float:
    """The compared time: Flatout's whole process; Stable-Baselines3 after its imports."""
    result = row["result"]
    if row["side"] != "sb3":
        return row["wall_s"]
    return result["time_to_return_s"] if solved(row) else result["startup_s"] + result["train_s"]


def section(args: argparse.Namespace, rows: dict[str, list[Row]]) -> str:
    """The Markdown of this benchmark."""
    body = []
    for side, runs in rows.items():
        reached = sum(map(solved, runs))
        times = [seconds(row) for row in runs]
        mark = "" if reached == len(runs) else "≥ "
        body.append(
            [
                side, f"{reached} of {len(runs)}", mark + spread(times, 1),
                f"{mark}{statistics.fmean(times):.1f}", spread([r["wall_s"] for r in runs], 1),
                median(runs, "startup_s"), median(runs, "compile_s"),
                spread([row["result"]["steps"] for row in runs], 0),
                spread([row["result"]["updates"] for row in runs], 0),
            ]
        )  # fmt: skip
    head = [
        "side", "solved", "s", "mean s", "whole process, s", "start-up, s", "compiling, s",
        "steps", "updates",
    ]  # fmt: skip
    ratios = []
    for side in ("flatout", "flatout, warm cache"):
        ratios += paired(f"sb3 after imports / {side}", rows["sb3"], rows[side])
    return f"""## CartPole-v1 solved: a mean of 100 returns of at least {GOAL}

{provenance(args, rows)}
- Each side with its own tuned settings (preset `{PRESET}`; RL Zoo's), at most 100,000 steps.
  **Flatout's seconds are those of the whole process, imports and compilation included;
  Stable-Baselines3's start after its imports.** PyTorch has
  {args.peer_threads or "its default number of"} thread(s).

{table(head, body)}

A run that did not solve it counts with all of its time (≥) and has no ratio. The warm cache is
JAX's compilation cache, filled by one run with another seed before the first.

{table(RATIO_HEAD, ratios)}
"""


def median(runs: Sequence[Row], key: str) -> str:
    """The median of what the runs report under this key, if they all do."""
    values = [row["result"].get(key) for row in runs]
    return "-" if None in values else f"{statistics.median(values):.1f}"


def paired(label: str, over: Sequence[Row], under: Sequence[Row]) -> list[list[str]]:
    """The ratios of the seeds that both sides solved, if these are at least 3."""
    pairs = [(a, b) for a, b in zip(over, under, strict=True) if solved(a) and solved(b)]
    if len(pairs) < 3:
        return [[label, "-", "-", "-", f"only {len(pairs)} seeds solved by both"]]
    times = [[seconds(row) for row in side] for side in zip(*pairs, strict=True)]
    return [ratio_row(label, per_round(times[0], times[1]))]


if __name__ == "__main__":
    options = parser(__doc__, seeds=5)
    options.add_argument(
        "--peer-threads", type=int, default=1, help="PyTorch's threads (0: its default)"
    )
    main(benchmark, options.parse_args())
