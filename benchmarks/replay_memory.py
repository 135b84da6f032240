"""Memory of a replay of 500,000 frames of Breakout: the peak of a real run that fills it.

The preset ``breakout-dqn-w1`` plays `--filled` steps at random, learns for a moment from the full
memory and saves it. One frame of 88x80 bytes is 3.3 GiB at 500,000 frames; the peak is that of the
whole process, taken from outside. It is one number, not a comparison: one run is enough.
"""

from __future__ import annotations

import argparse
import statistics

from harness import MIB, BenchmarkError, Command, Row, Store, main, parser, train_command
from report import provenance, table, write_section
from window import drop_replay, folder_mb

NAME = "replay_memory"
PRESET = "breakout-dqn-w1"
LEARNED = 400
"""Steps that are learned in, one update per 4."""

FRAME = 88 * 80
STACK = 3


def benchmark(args: argparse.Namespace) -> None:
    """Fill, learn a little, and write the section."""
    steps = args.filled + LEARNED
    flags = (
        "--preset", PRESET, "--buffer-size", str(args.filled), "--learning-starts",
        str(args.filled), "--steps", str(steps), "--checkpoint-every", "0",
    )  # fmt: skip
    store = Store(NAME, {"flags": list(flags), "extra": args.flatout_args}, args)

    def check(row: Row) -> None:
        if row["result"]["steps"] < steps or row["result"]["updates"] < 1:
            raise BenchmarkError(f"{NAME}: seed {row['seed']} did not learn from a full memory.")

    rows = store.alternate(
        {
            "flatout": lambda seed: train_command(
                args, NAME, "flatout", seed, *flags, algorithm="dqn", finish=measured
            )
        },
        range(args.seeds),
        check=check,
    )
    write_section(args, NAME, section(args, rows))


def measured(train: Command, result: Row) -> Row:
    """Add what the run folder takes on disk, in MiB."""
    assert train.run_dir is not None
    result = result | {"disk_mb": folder_mb(train.run_dir)}
    drop_replay(train)
    return result


def section(args: argparse.Namespace, rows: dict[str, list[Row]]) -> str:
    """The Markdown of this benchmark."""
    runs = rows["flatout"]
    peak = max(row["max_rss_mb"] for row in runs)
    expected = runs[0]["result"].get("memory_expected_mb") or {}
    words = ", ".join(f"{device} {size:,.0f}" for device, size in expected.items()) or "nothing"
    body = [
        [
            str(row["seed"]), f"{row['max_rss_mb']:,.0f}", f"{row['result']['peak_rss_mb']:,.0f}",
            f"{row['result']['disk_mb']:,.0f}", f"{row['result']['steps_per_s']:,.0f}",
            f"{row['wall_s']:.0f}",
        ]
        for row in runs
    ]  # fmt: skip
    head = [
        "seed", "peak RSS from outside, MiB", "its own report, MiB", "run folder on disk, MiB",
        "steps/s", "whole process, s",
    ]  # fmt: skip
    median = statistics.median(row["max_rss_mb"] for row in runs)
    frames = args.filled * FRAME / MIB / 1024
    return f"""## Memory of a long replay

{provenance(args, rows)}
- {args.filled:,} steps of Breakout stored (`{PRESET}`: stacks of {STACK} frames of 88x80), then
  {LEARNED} more steps with their updates, and a checkpoint at the end.
- **Peak {peak / 1024:.2f} GiB** (median {median / 1024:.2f}). The frames alone, each stored once,
  are {frames:.2f} GiB; as stacks that two transitions share they would be {frames * STACK:.1f} GiB,
  in float64 {frames * STACK * 8:.0f} GiB.
- The run expected to take, before it took it, in MiB: {words}.

{table(head, body)}
"""


if __name__ == "__main__":
    options = parser(__doc__, seeds=1)
    options.add_argument("--filled", type=int, default=500_000, help="steps stored")
    main(benchmark, options.parse_args())
