"""What checkpoints cost while the replay memory is large: time, and bytes written.

The preset ``breakout-dqn-w1`` stores `--filled` steps at random and then makes `--updates` updates:
once with a checkpoint every 1,000 updates (4,000 steps, from the first step on) and once with none
before the end. Bytes written are the system's own count for the whole process; the difference of
the two sides over the number of further checkpoints is what one costs. The share of time is taken
over the part in which it learns.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import BenchmarkError, Command, Row, Store, main, parser, train_command
from report import provenance, spread, table, write_section
from window import Work, drop_replay, folder_mb, phase_table, rates, shares, windowed

NAME = "replay_checkpoints"
PRESET = "breakout-dqn-w1"
INTERVAL, LOG_EVERY = 4, 400
EVERY = 1000 * INTERVAL
"""Steps between checkpoints: 1,000 updates."""

SAVING, PLAIN = "every 1,000 updates", "at the end only"


def benchmark(args: argparse.Namespace) -> None:
    """Run both ways in turn, check their work, write the section."""
    filled = args.filled // EVERY * EVERY
    learned = args.updates * INTERVAL // EVERY * EVERY + LOG_EVERY  # the window has every save
    work = Work(
        filled + learned, learning_starts=filled, window_from=filled + LOG_EVERY,
        train_freq=INTERVAL, gradient_steps=1, log_every=LOG_EVERY,
    )  # fmt: skip
    flags = ("--preset", PRESET, *work.flags(), "--log-every", str(LOG_EVERY))
    store = Store(NAME, {"flags": list(flags), "extra": args.flatout_args}, args)

    def measured(train: Command, result: Row) -> Row:
        assert train.run_dir is not None
        added = {
            "saves": saves(train.run_dir, every=0 if "plain" in train.run_dir.name else EVERY),
            "replay_mb": folder_mb(train.run_dir / "replay"),
            "checkpoints_mb": folder_mb(train.run_dir / "checkpoints"),
            "disk_mb": folder_mb(train.run_dir),
        }
        drop_replay(train)
        return windowed(work.window_from)(train, result) | added

    def side(name: str, every: int) -> Callable[[int], Command]:
        return lambda seed: train_command(
            args, NAME, name, seed, *flags, "--checkpoint-every", str(every), algorithm="dqn",
            finish=measured,
        )  # fmt: skip

    sides = {SAVING: side("saving", EVERY), PLAIN: side("plain", 0)}
    rows = store.alternate(sides, range(args.seeds), check=work.check)
    write_section(args, NAME, section(args, rows, work))


def saves(folder: Path, every: int) -> int:
    """Checkpoints that a run made: one for each multiple of `every` steps passed, and the last."""
    if not every:
        return 1
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return len({row["step"] // every for row in rows} - {0}) + 1


def sizes(rows: Sequence[Row], key: str) -> list[float]:
    """One count or size (MiB) of each run.

    Raises:
        BenchmarkError: a run lacks it.
    """
    values = [row["result"].get(key, row.get(key)) for row in rows]
    if None in values:
        raise BenchmarkError(f"{NAME}: a run has no {key}.")
    return values


def section(args: argparse.Namespace, rows: dict[str, list[Row]], work: Work) -> str:
    """The Markdown of this benchmark."""
    saving, plain = rows[SAVING], rows[PLAIN]
    each = [
        (a["written_mb"] - b["written_mb"]) / (a["result"]["saves"] - b["result"]["saves"])
        for a, b in zip(saving, plain, strict=True)
    ]
    slower = [a / b for a, b in zip(rates(plain), rates(saving), strict=True)]
    body = [
        [
            side, spread(sizes(runs, "saves"), 0),
            spread([100 * share for share in shares(runs, "checkpoint")], 2),
            spread(rates(runs), 1), spread(sizes(runs, "written_mb"), 0),
            spread(sizes(runs, "replay_mb"), 0), spread(sizes(runs, "checkpoints_mb"), 1),
            spread([row["wall_s"] for row in runs], 0),
        ]
        for side, runs in rows.items()
    ]  # fmt: skip
    head = [
        "checkpoints", "made", "time while learning, %", "steps/s while learning",
        "written in all, MiB", "replay/ on disk, MiB", "checkpoints/ on disk, MiB",
        "whole process, s",
    ]  # fmt: skip
    return f"""## Checkpoints with a long replay

{provenance(args, rows)}
- {work.learning_starts:,} steps stored (`{PRESET}`), then {work.updates:,} updates, checked; the
  last three checkpoints are kept.
- **One further checkpoint writes {spread(each, 1)} MiB** and saving takes
  {statistics.median(shares(saving, "checkpoint")):.2%} of the time while learning (median); without
  it the same work runs {spread(slower, 3)} times as fast.

{table(head, body)}

{phase_table(rows)}
"""


if __name__ == "__main__":
    options = parser(__doc__, seeds=1)
    options.add_argument("--filled", type=int, default=200_000, help="steps stored beforehand")
    options.add_argument("--updates", type=int, default=3000, help="updates after that")
    main(benchmark, options.parse_args())
