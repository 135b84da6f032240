"""Collecting while learning, on an environment that costs as much as its learning.

A short serial run says how long learning from one step takes; the environment then computes for as
long in one actor process. From the spans of each serial run follows what overlapping should give:
the sum of collecting and learning, over the larger of both. That is compared with what it gave.
"""

from __future__ import annotations

import argparse
import statistics

from harness import (
    OUR_ENVS,
    BenchmarkError,
    Command,
    Row,
    Store,
    main,
    parser,
    train_command,
)
from report import RATIO_HEAD, per_round, provenance, ratio_row, spread, table, write_section
from window import rates, windowed

NAME = "overlap"
ENVS, ROWS, ITERATIONS, WARM = 8, 128, 14, 2
PER = ENVS * ROWS
SERIAL, OVERLAPPED = "serial", "overlapped"


def benchmark(args: argparse.Namespace) -> None:
    """Find the environment's cost, run both sides in turn, write the section."""
    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3: medians are quoted.")

    def command(side: str, seed: int, burn: float, schedule: str) -> Command:
        return train_command(
            args, NAME, side, seed, "--env", "empty_env:make", "--env-kwargs", f"burn={burn}",
            "--env-kwargs", "length=200", "--envs", str(ENVS), "--n-steps", str(ROWS), "--hidden",
            "256,256",
            "--batch-size", "64", "--n-epochs", "4", "--steps", str(PER * ITERATIONS),
            "--log-every", str(PER), "--checkpoint-every", "0", "--no-tensorboard", "--quiet",
            env=OUR_ENVS, finish=windowed(WARM * PER),
            placement=f"sampler=processes workers=1x{ENVS} schedule={schedule}",
        )  # fmt: skip

    first = Store(NAME, {"calibration": PER}, args)
    window = first.run("calibration", 0, command("calibration", 0, 0.0005, SERIAL))["result"][
        "window"
    ]
    burn = round(window["s"] * window["phases"]["learn"] / window["steps"], 6)
    store = Store(NAME, {"burn": burn, "per": PER, "iterations": ITERATIONS}, args)
    rows = store.alternate(
        {
            SERIAL: lambda seed: command(SERIAL, seed, burn, SERIAL),
            OVERLAPPED: lambda seed: command(OVERLAPPED, seed, burn, OVERLAPPED),
        },
        range(args.seeds),
    )
    write_section(args, NAME, section(args, rows, burn))


def phase(row: Row, *names: str) -> float:
    """Seconds of the window that spans took."""
    window = row["result"]["window"]
    return window["s"] * sum(window["phases"][name] for name in names)


def predicted(row: Row) -> float:
    """What overlapping should gain by a serial run's spans."""
    learn = phase(row, "learn")
    rest = row["result"]["window"]["s"] - learn
    return (learn + rest) / max(learn, rest)


def section(args: argparse.Namespace, rows: dict[str, list[Row]], burn: float) -> str:
    """The Markdown of this benchmark."""
    seconds = {side: [row["result"]["window"]["s"] for row in runs] for side, runs in rows.items()}
    spans = ("learn", "wait", "act", "env", "other")
    body = [
        [
            side, spread(rates(runs), 0),
            *(f"{statistics.median(row['result']['window']['phases'][s] for row in runs):.1%}"
              for s in spans),
            f"{statistics.median(row['cpu_s'] / row['wall_s'] for row in runs):.2f}",
        ]
        for side, runs in rows.items()
    ]  # fmt: skip
    foreseen = [predicted(row) for row in rows[SERIAL]]
    gained = per_round(seconds[SERIAL], seconds[OVERLAPPED])
    return f"""## Collecting while learning

{provenance(args, rows)}
- PPO, networks of 256x256, {PER:,} steps an iteration, 4 epochs of minibatches of 64; one actor
  process with {ENVS} environments that compute for {1000 * burn:.2f} ms a step, as long as learning
  from one step takes. The overlapped schedule learns in a thread of its own, which these spans do
  not show.

{table(["schedule", "steps/s", *spans, "cores busy, whole process"], body)}

{
        table(
            ["gain", *RATIO_HEAD[1:]],
            [
                ratio_row("predicted from the serial spans: sum / larger", foreseen),
                ratio_row("measured", gained),
            ],
        )
    }
"""


if __name__ == "__main__":
    main(benchmark, parser(__doc__, seeds=3).parse_args())
