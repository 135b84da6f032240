"""Time to a mean return of 195 on CartPole-v0: Flatout's preset against a teaching program.

The teaching program (``peers/w2_ppo.py``) trains on one episode per update in plain PyTorch, and
the preset ``cartpole-ppo-w2`` has the same settings. Both stop when the mean of the last 100
training returns reaches 195, at most 500 episodes' worth of steps. This compares times to a
result: the work each side needs is part of the answer, and is shown.
"""

from __future__ import annotations

import argparse
import statistics

from harness import (
    CLOCK_SLACK_S,
    BenchmarkError,
    Row,
    Store,
    main,
    parser,
    peer_command,
    train_command,
)
from report import RATIO_HEAD, per_round, provenance, ratio_row, spread, table, write_section

NAME = "ppo_w2"
GOAL = "195"
EPISODES = 500
PRESET = "cartpole-ppo-w2"


def benchmark(args: argparse.Namespace) -> None:
    """Run both sides in turn and write the section."""
    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3.")
    settings = {
        "preset": PRESET, "goal": GOAL, "extra": args.flatout_args, "threads": args.peer_threads,
    }  # fmt: skip
    store = Store(NAME, settings, args)
    rows = store.alternate(
        {
            "flatout": lambda seed: train_command(
                args, NAME, "flatout", seed,
                "--preset", PRESET, "--threshold", GOAL, "--stop-at-return", GOAL,
            ),
            "pytorch": lambda seed: peer_command(
                args, "w2_ppo.py", seed, "--stop-at-return", GOAL, "--episodes", str(EPISODES),
                "--threads", str(args.peer_threads),
            ),
        },
        range(args.seeds),
    )  # fmt: skip
    write_section(args, NAME, section(args, rows))


def ours(row: Row) -> tuple[float, int, bool]:
    """Flatout's seconds after start-up and steps to the goal; whether it was reached.

    Raises:
        BenchmarkError: its times contradict the time taken from outside.
    """
    result, key = row["result"], str(float(GOAL))
    at, steps = result["time_to_return_s"].get(key), result["steps_to_return"].get(key)
    if at is None:
        return result["wall_s"] - result["startup_s"], result["steps"], False
    if not result["startup_s"] < at <= row["wall_s"] + CLOCK_SLACK_S:
        raise BenchmarkError(
            f"{row['name']}, seed {row['seed']}: flatout reached {GOAL} at {at:.2f} s, not between "
            f"its start-up ({result['startup_s']:.2f} s) and its end ({row['wall_s']:.2f} s)."
        )
    return at - result["startup_s"], steps, True


def theirs(row: Row) -> tuple[float, int, bool]:
    """The teaching program's seconds after imports and steps; whether the goal was reached."""
    result = row["result"]
    if result["time_to_return_s"] is None:
        return result["train_s"], result["steps"], False
    return result["time_to_return_s"], result["steps_to_return"], True


def section(args: argparse.Namespace, rows: dict[str, list[Row]]) -> str:
    """The Markdown of this benchmark."""
    found = {
        "flatout": [ours(row) for row in rows["flatout"]],
        "pytorch": [theirs(row) for row in rows["pytorch"]],
    }
    body, means = [], {}
    for side, runs in found.items():
        seconds = [run[0] for run in runs]
        means[side] = statistics.fmean(seconds)
        reached = sum(run[2] for run in runs)
        mark = "" if reached == len(runs) else "≥ "
        body.append(
            [
                side, f"{reached} of {len(runs)}", f"{mark}{means[side]:.2f}", spread(seconds),
                spread([run[1] for run in runs], 0),
                spread([row["result"]["episodes"] for row in rows[side]], 0),
                spread([row["result"]["updates"] for row in rows[side]], 0),
                spread([run[1] / run[0] for run in runs], 0),
                spread([row["wall_s"] for row in rows[side]], 1),
            ]
        )  # fmt: skip
    head = [
        "side", "reached", "mean s", "s", "steps", "episodes", "updates", "steps/s",
        "whole process, s",
    ]  # fmt: skip
    paired = per_round([run[0] for run in found["pytorch"]], [run[0] for run in found["flatout"]])
    whole = per_round(*([row["wall_s"] for row in rows[side]] for side in ("pytorch", "flatout")))
    ratios = [
        ratio_row("pytorch / flatout, s to the goal", paired),
        ratio_row("pytorch / flatout, whole process", whole),
    ]
    return f"""## PPO on CartPole-v0, one episode per update: time to a mean return of {GOAL}

{provenance(args, rows)}
- One environment, at most {EPISODES} episodes; a run stops when the mean of the last 100 training
  returns reaches {GOAL}. Seconds count after start-up (Flatout) and after imports (PyTorch, which
  has {args.peer_threads or "its default number of"} thread(s)); no compilation cache.

{table(head, body)}

Ratio of the means, PyTorch over Flatout: **{ratio_of_means(means, found)}**. A run that did not
reach {GOAL} counts with all of its time, a lower bound (≥).

{table(RATIO_HEAD, ratios)}
"""


def ratio_of_means(means: dict[str, float], found: dict[str, list[tuple[float, int, bool]]]) -> str:
    """The ratio in words, with what an unreached goal makes of it."""
    missed = {side for side, runs in found.items() if not all(run[2] for run in runs)}
    ratio = f"{means['pytorch'] / means['flatout']:.2f}"
    if missed == {"pytorch"}:
        return f"at least {ratio}"
    return f"at most {ratio}" if missed == {"flatout"} else f"{ratio}, unsure" if missed else ratio


if __name__ == "__main__":
    options = parser(__doc__, seeds=5)
    options.add_argument(
        "--peer-threads", type=int, default=1, help="PyTorch's threads (0: its default)"
    )
    main(benchmark, options.parse_args())
