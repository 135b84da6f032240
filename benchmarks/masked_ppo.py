"""Speed of PPO with action masks at equal work: Flatout and sb3-contrib's MaskablePPO in turn.

The game is a sliding puzzle that raises an error at a forbidden move. 8 environments, rollouts of
2048 steps in all, 10 epochs, minibatches of 64. Every side does the same steps and the same number
of gradient updates, which is checked.
"""

from __future__ import annotations

import argparse
import statistics
import zlib

from harness import (
    HERE,
    NO_CACHE,
    BenchmarkError,
    Command,
    Row,
    Store,
    main,
    parser,
    peers_python,
    require_work,
    train_command,
)
from ppo_speed import results
from report import RATIO_HEAD, mean_std, per_round, provenance, ratio_row, spread, table
from report import write_section as write

NAME, ENV = "masked_ppo", "masked_env:SlidingPuzzle-v0"
ENVS, N_STEPS, BATCH, EPOCHS = 8, 256, 64, 10
ROLLOUT = ENVS * N_STEPS


def runs_of(args: argparse.Namespace) -> dict[str, list[Row]]:
    """Both sides' runs, in turn."""
    steps = args.steps
    updates = steps // ROLLOUT * EPOCHS * (ROLLOUT // BATCH)
    flags = (
        "--env", ENV, "--envs", str(ENVS), "--n-steps", str(N_STEPS), "--batch-size", str(BATCH),
        "--n-epochs", str(EPOCHS), "--steps", str(steps),
    )  # fmt: skip
    settings: Row = {
        "flags": list(flags), "extra": args.flatout_args, "threads": args.peer_threads,
        "game": zlib.crc32((HERE / "masked_env.py").read_bytes()),
    }  # fmt: skip
    place = NO_CACHE | {"PYTHONPATH": str(HERE)}

    def peer(seed: int) -> Command:
        argv = [
            peers_python(args), str(HERE / "peers" / "sb3_ppo.py"), *flags, "--seed", str(seed),
            "--library", "maskable", "--threads", str(args.peer_threads),
        ]  # fmt: skip
        return Command(argv, place)

    return Store(NAME, settings, args).alternate(
        {
            "flatout": lambda seed: train_command(args, NAME, "flatout", seed, *flags, env=place),
            "maskable": peer,
        },
        range(args.seeds),
        check=lambda row: require_work(row, steps, updates),
    )


def benchmark(args: argparse.Namespace) -> None:
    """Run the sides in turn, check their work, write the section."""
    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3: medians are quoted.")
    rows = runs_of(args)
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
