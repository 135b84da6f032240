"""Snake with two actors and one learner: Flatout against a hobby program's own structure.

The program (``peers/w3_snake.py``) has pipes, pickled batches, a model per actor that is asked one
state at a time, weights in a file, and plays, then learns. Flatout has the same network
(`wide_grid`), the same learning rule (`targets = next_reward`), one update for every 500 steps as
there, and two actor processes whose environments are acted for in one call.
"""

from __future__ import annotations

import argparse
import statistics

from harness import (
    BenchmarkError,
    Command,
    Row,
    Store,
    main,
    parser,
    peer_command,
    require_work,
    train_command,
)
from report import RATIO_HEAD, per_round, provenance, ratio_row, spread, table, write_section
from window import phase_table, windowed

NAME = "w3_system"
ACTORS, ENVS, BATCH, LEARNING_RATE = 2, 100, 500, "0.001"
SERIAL, OVERLAPPED, THEIRS = "flatout", "flatout, overlapped", "pytorch"


def benchmark(args: argparse.Namespace) -> None:
    """Run the sides in turn, check their work, write the section."""
    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3: medians are quoted.")
    steps = args.rounds * ACTORS * 10_000
    warm = 10 * BATCH
    flags = (
        "--env", "flatout/Snake-v0", "--envs", str(ENVS), "--n-steps", str(BATCH // ENVS),
        "--network", "wide_grid", "--targets", "next_reward", "--optimizer", "adam",
        "--learning-rate", LEARNING_RATE, "--max-grad-norm", "None", "--steps", str(steps + warm),
        "--log-every", str(warm), "--checkpoint-every", "0", "--no-tensorboard", "--quiet",
    )  # fmt: skip
    peer = (
        "--actors", str(ACTORS), "--steps", str(steps), "--batch", str(BATCH),
        "--learning-rate", LEARNING_RATE,
    )  # fmt: skip
    settings: Row = {"flags": list(flags), "peer": list(peer), "extra": args.flatout_args}
    store = Store(NAME, settings, args)

    def ours(seed: int, schedule: str) -> Command:
        return train_command(
            args, NAME, schedule, seed, *flags, algorithm="a2c", finish=windowed(warm),
            placement=f"sampler=processes workers={ACTORS}x{ENVS // ACTORS} schedule={schedule}",
        )  # fmt: skip

    def check(row: Row) -> None:
        result = row["result"]
        done = result if row["side"] == THEIRS else result["window"]
        require_work(row | {"result": done}, steps, steps // BATCH)

    rows = store.alternate(
        {
            SERIAL: lambda seed: ours(seed, "serial"),
            OVERLAPPED: lambda seed: ours(seed, "overlapped"),
            THEIRS: lambda seed: peer_command(args, "w3_snake.py", seed, *peer),
        },
        range(args.seeds),
        check=check,
    )
    write_section(args, NAME, section(args, rows, steps))


def rates(rows: list[Row]) -> list[float]:
    """Steps per second, playing and learning, after start-up."""
    found = [row["result"].get("window") or row["result"] for row in rows]
    return [one["steps"] / one.get("s", one.get("train_s")) for one in found]


def section(args: argparse.Namespace, rows: dict[str, list[Row]], steps: int) -> str:
    """The Markdown of this benchmark."""
    body = [
        [
            side, spread(rates(runs), 0),
            f"{statistics.median(row['cpu_s'] / row['wall_s'] for row in runs):.2f}",
            f"{statistics.median(row['max_rss_mb'] for row in runs):.0f}",
            spread([row["wall_s"] for row in runs], 1),
        ]
        for side, runs in rows.items()
    ]  # fmt: skip
    played = statistics.median(
        row["result"]["play_s"] / row["result"]["train_s"] for row in rows[THEIRS]
    )
    ratios = [
        ratio_row(f"{side} / pytorch", per_round(rates(rows[side]), rates(rows[THEIRS])))
        for side in (SERIAL, OVERLAPPED)
    ]
    ours = {side: rows[side] for side in (SERIAL, OVERLAPPED)}
    return f"""## Snake with two actors and one model

{provenance(args, rows)}
- {steps:,} steps and {steps // BATCH} updates of {BATCH} steps on every side, checked; the same
  network and learning rule. Counted from when every process is ready (PyTorch), after ten updates
  (Flatout). The program spends {played:.0%} of its time playing, the rest learning.

{table(["side", "steps/s", "cores busy", "largest process, MiB", "whole process, s"], body)}

{table(RATIO_HEAD, ratios)}

{phase_table(ours)}
"""


if __name__ == "__main__":
    options = parser(__doc__, seeds=3)
    options.add_argument("--rounds", type=int, default=2, help="of 10,000 steps per actor")
    main(benchmark, options.parse_args())
