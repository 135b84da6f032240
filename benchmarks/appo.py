"""PPO on CartPole-v1 in Sample Factory's way of working: two workers of 16 environments.

Rollouts of 32 steps, one gradient step for each 1,024 steps, one epoch: on Sample Factory's side
asynchronous (APPO), on Flatout's with processes and overlapping, and once more in one process,
which is what such a cheap environment wants.
"""

from __future__ import annotations

import argparse
import os
import statistics

from harness import (
    HERE,
    NO_CACHE,
    BenchmarkError,
    Command,
    Row,
    Store,
    main,
    parser,
    train_command,
)
from report import RATIO_HEAD, per_round, provenance, ratio_row, spread, table, write_section
from window import phase_table, rates, windowed

NAME = "appo"
WORKERS, EACH, ROLLOUT = 2, 16, 32
ENVS = WORKERS * EACH
BATCH = ENVS * ROLLOUT
STEPS, WARM = 400 * BATCH, 100 * BATCH
PROCESSES, INLINE, THEIRS = "flatout, 2 processes", "flatout, one process", "sample factory"


def benchmark(args: argparse.Namespace) -> None:
    """Run the sides in turn, check their work, write the section."""
    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3: medians are quoted.")
    flags = (
        "--env", "CartPole-v1", "--envs", str(ENVS), "--n-steps", str(ROLLOUT), "--batch-size",
        str(BATCH), "--n-epochs", "1", "--steps", str(STEPS), "--log-every", str(10 * BATCH),
        "--checkpoint-every", "0", "--no-tensorboard", "--quiet",
    )  # fmt: skip
    peer = ("--steps", str(STEPS), "--window-from", str(WARM), "--batch", str(BATCH))
    settings: Row = {"flags": list(flags), "peer": list(peer), "extra": args.flatout_args}
    store = Store(NAME, settings, args)
    python = args.sample_factory or os.environ.get("FLATOUT_SAMPLE_FACTORY_PYTHON")
    python = python or str(HERE / ".venv-sample-factory" / "bin" / "python")

    def ours(name: str, seed: int, placement: str) -> Command:
        return train_command(
            args, NAME, name, seed, *flags, finish=windowed(WARM), placement=placement
        )

    def theirs(seed: int) -> Command:
        program = str(HERE / "peers" / "sf_appo.py")
        return Command([python, program, *peer, "--seed", str(seed)], NO_CACHE)

    def check(row: Row) -> None:
        window = row["result"]["window"]
        due = window["steps"] / BATCH
        if abs(window["updates"] - due) > 0.1 * due:
            raise BenchmarkError(
                f"unequal work, no comparison: {row['side']}, seed {row['seed']}, made "
                f"{window['updates']:.0f} updates in {window['steps']:,} steps, not {due:.0f}."
            )

    split = f"sampler=processes workers={WORKERS}x{EACH} schedule=overlapped"
    rows = store.alternate(
        {
            PROCESSES: lambda seed: ours("processes", seed, split),
            INLINE: lambda seed: ours("inline", seed, "cpu"),
            THEIRS: theirs,
        },
        range(args.seeds),
        check=check,
    )
    write_section(args, NAME, section(args, rows))


def section(args: argparse.Namespace, rows: dict[str, list[Row]]) -> str:
    """The Markdown of this benchmark."""
    body = [
        [
            side, spread(rates(runs), 0),
            spread([row["result"]["window"]["updates"] for row in runs], 0),
            f"{statistics.median(row['cpu_s'] / row['wall_s'] for row in runs):.2f}",
            spread([row["wall_s"] for row in runs], 1),
        ]
        for side, runs in rows.items()
    ]  # fmt: skip
    ratios = [
        ratio_row(f"{side} / {THEIRS}", per_round(rates(rows[side]), rates(rows[THEIRS])))
        for side in (PROCESSES, INLINE)
    ]
    return f"""## CartPole-v1 as Sample Factory works

{provenance(args, rows)}
- {STEPS:,} steps, {ENVS} environments, rollouts of {ROLLOUT}, one gradient step for each {BATCH:,}
  steps, one epoch. Rates from step {WARM:,} on. Flatout trains two 64x64 networks (policy and
  value), Sample Factory one for both.

{table(["side", "steps/s", "updates in the window", "cores busy", "whole process, s"], body)}

{table(RATIO_HEAD, ratios)}

{phase_table({side: rows[side] for side in (PROCESSES, INLINE)})}
"""


if __name__ == "__main__":
    options = parser(__doc__, seeds=3)
    options.add_argument(
        "--sample-factory", default=None,
        help="Python that has Sample Factory (or FLATOUT_SAMPLE_FACTORY_PYTHON)",
    )  # fmt: skip
    main(benchmark, options.parse_args())
