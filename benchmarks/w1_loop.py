"""DQN on Breakout with 400,000 stored steps: Flatout against a hobby program's loop.

The program (``peers/w1_dqn.py``, PyTorch) is written the way such programs are: one environment,
one action at a time, a deque, a permutation of all of it for every minibatch. The preset
``breakout-dqn-w1`` has its settings. Both sides hold `--filled` steps before anything is timed
(Flatout by `--learning-starts`, the program by entering random play again and again), and both are
timed over the same number of updates, each with its 4 environment steps. The share of that time
which went into drawing minibatches is shown for both.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

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
from window import Work, drop_replay, phase_table, shares, windowed

NAME = "w1_loop"
PRESET = "breakout-dqn-w1"
INTERVAL = 4
LOG_EVERY = 160
WARM = 320
"""Steps between the first update and Flatout's window; the program has warm updates too."""


def benchmark(args: argparse.Namespace) -> None:
    """Run both sides in turn, check their work, write the section."""
    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3: medians are quoted.")
    filled = args.filled // LOG_EVERY * LOG_EVERY
    measured = args.updates * INTERVAL // LOG_EVERY * LOG_EVERY
    work = Work(
        filled + WARM + measured, learning_starts=filled, window_from=filled + WARM,
        train_freq=INTERVAL, gradient_steps=1, log_every=LOG_EVERY,
    )  # fmt: skip
    updates = measured // INTERVAL
    flags = (
        "--preset", PRESET, *work.flags(), "--log-every", str(LOG_EVERY),
        "--checkpoint-every", "0",
    )  # fmt: skip
    peer = (
        "--filled", str(filled), "--updates", str(updates), "--threads", str(args.peer_threads),
    )  # fmt: skip
    settings: Row = {"flags": list(flags), "peer": list(peer), "extra": args.flatout_args}
    store = Store(NAME, settings, args)

    def measured_window(train: Command, result: Row) -> Row:
        drop_replay(train)
        return windowed(work.window_from)(train, result)

    def check(row: Row) -> None:
        window = row["result"].get("window") or {}
        if row["side"] == "flatout":
            work.check(row)
        else:
            inner = {"steps": window.get("steps"), "updates": window.get("updates")}
            require_work(row | {"result": inner}, measured, updates)

    rows = store.alternate(
        {
            "flatout": lambda seed: train_command(
                args, NAME, "flatout", seed, *flags, algorithm="dqn",
                finish=measured_window,
            ),
            "pytorch": lambda seed: peer_command(args, "w1_dqn.py", seed, *peer),
        },
        range(args.seeds),
        check=check,
    )  # fmt: skip
    write_section(args, NAME, section(args, rows, work))


def per_update_ms(rows: Sequence[Row]) -> list[float]:
    """Milliseconds of one update and its environment steps."""
    windows = [row["result"]["window"] for row in rows]
    return [1000 * window["s"] / window["updates"] for window in windows]


def sampling(rows: Sequence[Row]) -> list[float]:
    """Share of the window in which minibatches were drawn and assembled."""
    if rows[0]["side"] == "flatout":
        return shares(rows, "replay")
    return [row["result"]["sample_s"] / row["result"]["window"]["s"] for row in rows]


def section(args: argparse.Namespace, rows: dict[str, list[Row]], work: Work) -> str:
    """The Markdown of this benchmark."""
    ours, theirs = rows["flatout"], rows["pytorch"]
    body = [
        [
            side, spread(per_update_ms(runs), 1),
            spread([100 * share for share in sampling(runs)], 2),
            spread([row["result"]["window"]["updates"] for row in runs], 0),
            f"{statistics.median(row['cpu_s'] for row in runs):.1f}",
            f"{statistics.median(row['max_rss_mb'] for row in runs):.0f}",
            spread([row["wall_s"] for row in runs], 1),
        ]
        for side, runs in rows.items()
    ]  # fmt: skip
    head = [
        "side", "ms per update and its 4 steps", "of it sampling, %", "updates", "CPU s",
        "peak RSS, MiB", "whole process, s",
    ]  # fmt: skip
    drawing = statistics.median(
        row["result"]["draw_s"] / row["result"]["window"]["s"] for row in theirs
    )
    first = theirs[0]["result"]
    ratios = [
        (
            "pytorch / flatout, time per update and its steps",
            per_round(per_update_ms(theirs), per_update_ms(ours)),
        )
    ]
    return f"""## DQN on Breakout with a long memory: against a hobby program's loop

{provenance(args, rows)}
- {work.learning_starts:,} steps stored before the clock starts; then
  {first["window"]["updates"]:,} updates of 64 on both sides, checked, one per {INTERVAL} steps of
  one environment (frame skip 2 to 4, sticky actions 0.25); 88x80x3, the preset `{PRESET}`. PyTorch
  has {args.peer_threads or "its default number of"} thread(s).
- The program keeps bytes, not its author's float64 (68 GB at this length), and entered
  {first["played"]:,} really played steps again and again; Flatout played all of its own, which is
  most of its process's time and is not counted.
- The permutation and the look-ups alone are {drawing:.1%} of the program's time (median).

{table(head, body)}

{table(RATIO_HEAD, [ratio_row(label, values) for label, values in ratios])}

{phase_table({"flatout": ours})}
"""


if __name__ == "__main__":
    options = parser(__doc__, seeds=3)
    options.add_argument("--filled", type=int, default=400_000, help="steps stored beforehand")
    options.add_argument("--updates", type=int, default=400, help="updates that are timed")
    options.add_argument(
        "--peer-threads", type=int, default=0, help="PyTorch's threads (0: its default)"
    )
    main(benchmark, options.parse_args())
