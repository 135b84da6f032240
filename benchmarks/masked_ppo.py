"""Speed of PPO with action masks at equal work: Flatout and sb3-contrib's MaskablePPO in turn.

The game is a sliding puzzle that raises an error at a forbidden move. 8 environments, rollouts of
2048 steps in all, 10 epochs, minibatches of 64. Every side does the same steps and the same number
of gradient updates, which is checked.
"""

from __future__ import annotations

import argparse
import statistics
import zlib

from dict_ppo import BATCH, ENVS, EPOCHS, ROLLOUT, runs_of
from harness import HERE, BenchmarkError, main, parser
from ppo_speed import results
from report import RATIO_HEAD, mean_std, per_round, provenance, ratio_row, spread, table
from report import write_section as write

NAME, ENV = "masked_ppo", "masked_env:SlidingPuzzle-v0"


def benchmark(args: argparse.Namespace) -> None:
    """Run the sides in turn, check their work, write the section."""
    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3: medians are quoted.")
    game = zlib.crc32((HERE / "masked_env.py").read_bytes())
    rows = runs_of(args, NAME, ENV, args.steps, "maskable", "--library", "maskable", game=game)
    rates = {side: results(runs, "steps_per_s") for side, runs in rows.items()}
    body = [
        [
            side, spread(rates[side], 0), spread([row["wall_s"] for row in runs], 1),
            f"{statistics.median(row['cpu_s'] for row in runs):.1f}",
            mean_std([row["result"]["return_mean_100"] for row in runs]),
        ]
        for side, runs in rows.items()
    ]  # fmt: skip
    ratio = ratio_row(
        "flatout / MaskablePPO, after start-up", per_round(rates["flatout"], rates["maskable"])
    )
    head = ["side", "steps/s after start-up", "whole process, s", "CPU s", "last 100 returns"]
    write(
        args,
        NAME,
        f"""## PPO with action masks: speed at equal work

{provenance(args, rows)}
- {args.steps:,} steps of a sliding puzzle; gradient updates are equal on both sides, checked; a
  forbidden move would end the run; {ENVS} environments, rollouts of {ROLLOUT}, {EPOCHS} epochs,
  minibatches of {BATCH}; separate 64x64 tanh networks; on the CPU, no compilation cache. PyTorch
  has {args.peer_threads or "its default number of"} thread(s).

{table(head, body)}

{table(RATIO_HEAD, [ratio])}
""",
    )


if __name__ == "__main__":
    options = parser(__doc__, seeds=3)
    options.add_argument("--steps", type=int, default=51_200)
    options.add_argument(
        "--peer-threads", type=int, default=1, help="PyTorch's threads (0: its default)"
    )
    main(benchmark, options.parse_args())
