"""Time to a mean return of 195 on CartPole-v0: Flatout's preset against a teaching program.

The teaching program (``peers/w2_ppo.py``) trains on one episode per update in plain PyTorch, and
the preset ``cartpole-ppo-w2`` has the same rates, epochs, clipping and network. Two things differ:
the program fits its critic to r + gamma V(s'), Flatout to the lambda-return, which changes how
many steps are needed; and Flatout starts from orthogonal weights. So the program also runs with
Flatout's critic target, which leaves speed as the larger difference. All stop when the mean of
the last 100 training returns reaches 195, after at most 500 episodes' worth of steps. These are
times to a result: the work that each side needs for it is part of the answer, and is shown.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

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
Reached = tuple[float, int, bool]
"""Seconds and steps to the goal, and whether it was reached at all."""

OURS, THEIRS, EQUAL = "flatout", "pytorch", "pytorch, lambda-returns"
TUNED = "flatout, preset cartpole-ppo"
FLATOUT = (OURS, TUNED)


def benchmark(args: argparse.Namespace) -> None:
    """Run both sides in turn and write the section."""
    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3.")
    settings = {
        "preset": PRESET, "goal": GOAL, "extra": args.flatout_args, "threads": args.peer_threads,
    }  # fmt: skip
    store = Store(NAME, settings, args)
    peer = (
        "--stop-at-return", GOAL, "--episodes", str(EPISODES), "--threads", str(args.peer_threads),
    )  # fmt: skip
    rows = store.alternate(
        {
            OURS: lambda seed: train_command(
                args, NAME, "flatout", seed,
                "--preset", PRESET, "--threshold", GOAL, "--stop-at-return", GOAL,
            ),
            THEIRS: lambda seed: peer_command(args, "w2_ppo.py", seed, *peer),
            TUNED: lambda seed: train_command(
                args, NAME, "tuned", seed, "--preset", "cartpole-ppo", "--env", "CartPole-v0",
                "--threshold", GOAL, "--stop-at-return", GOAL,
            ),
            EQUAL: lambda seed: peer_command(
                args, "w2_ppo.py", seed, *peer, "--critic-target", "lambda"
            ),
        },
        range(args.seeds),
    )  # fmt: skip
    write_section(args, NAME, section(args, rows))


def ours(row: Row) -> Reached:
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


def theirs(row: Row) -> Reached:
    """The teaching program's seconds after imports and steps; whether the goal was reached."""
    result = row["result"]
    if result["time_to_return_s"] is None:
        return result["train_s"], result["steps"], False
    return result["time_to_return_s"], result["steps_to_return"], True


def section(args: argparse.Namespace, rows: dict[str, list[Row]]) -> str:
    """The Markdown of this benchmark."""
    found = {
        side: [(ours if side in FLATOUT else theirs)(row) for row in rows[side]] for side in rows
    }
    body = []
    for side, runs in found.items():
        seconds = [run[0] for run in runs]
        reached = sum(run[2] for run in runs)
        mark = "" if reached == len(runs) else "≥ "
        body.append(
            [
                side, f"{reached} of {len(runs)}", f"{mark}{statistics.fmean(seconds):.2f}",
                spread(seconds), spread([run[1] for run in runs], 0),
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
    ratios, means = [], []
    for side in (THEIRS, EQUAL):
        pairs = list(zip(found[side], found[OURS], strict=True))
        whole = [[row["wall_s"] for row in rows[each]] for each in (side, OURS)]
        ratios += [
            ratio_row(f"{side} / flatout, s to the goal", [a[0] / b[0] for a, b in pairs]),
            ratio_row(
                f"{side} / flatout, s per step", [a[0] / a[1] / (b[0] / b[1]) for a, b in pairs]
            ),
            ratio_row(f"{side} / flatout, whole process", per_round(*whole)),
        ]
        means.append(
            f"{side}: **{ratio_of_means(found[side], found[OURS])}** at equal settings, "
            f"**{ratio_of_means(found[side], found[TUNED])}** with the preset"
        )
    return f"""## PPO on CartPole-v0, one episode per update: time to a mean return of {GOAL}

{provenance(args, rows)}
- One environment, at most {EPISODES} episodes; a run stops when the mean of the last 100 training
  returns reaches {GOAL}. Seconds count after start-up (Flatout) and after imports (PyTorch, which
  has {args.peer_threads or "its default number of"} thread(s)); no compilation cache.
- `{THEIRS}` fits its critic to r + gamma V(s'), as such programs do; `{EQUAL}` fits
  it to the lambda-return, as Flatout does. Flatout starts from orthogonal weights, PyTorch from
  its default ones. `{TUNED}` reaches the same return on the same environment with
  Flatout's own settings (16 environments, not one episode per update).

{table(head, body)}

Ratio of the mean seconds, over Flatout's: {"; ".join(means)}. A run that did not reach {GOAL}
counts with all of its time, a lower bound (≥).

{table(RATIO_HEAD, ratios)}
"""


def ratio_of_means(theirs: Sequence[Reached], ours: Sequence[Reached]) -> str:
    """The ratio in words, with what an unreached goal makes of it."""
    mean = [statistics.fmean(run[0] for run in runs) for runs in (theirs, ours)]
    missed = tuple(not all(run[2] for run in runs) for runs in (theirs, ours))
    before = {(True, False): "at least ", (False, True): "at most ", (True, True): "unsure, "}
    return f"{before.get(missed, '')}{mean[0] / mean[1]:.2f}"


if __name__ == "__main__":
    options = parser(__doc__, seeds=5)
    options.add_argument(
        "--peer-threads", type=int, default=1, help="PyTorch's threads (0: its default)"
    )
    main(benchmark, options.parse_args())
